"""`scripts/words` finds words that have a better one, and names of types with two meanings. `make lint` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

WORDS = Path(__file__).resolve().parents[2] / "scripts/words"


def words(root: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-B", WORDS, root], capture_output=True, text=True, check=False)
    found = done.stdout.splitlines()
    assert done.returncode == (1 if found else 0), done.stderr
    return found


def plant(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return root


@pytest.mark.parametrize(
    "line",
    [
        "let txg = 1;",
        "let flushed_txgs = 1;",
        "struct DeedKind;",
        "// Deeds are done.",
        "fn unfreeze() {}",
        "struct FrozenTree;",
        "// It freezes, and thaws.",
        "self.let_go();",
        "// It lets go of a record.",
        "let dyingBytes = 1;",
        "const DEBTS: u32 = 1;",
        "fn unsealed() {}",
        "// The sealers.",
        "// A pool that was salvaged.",
        "// It vacuums.",
        "fn evacuate() {}",
        "fn run_compaction() {}",
        "struct Holder;",
        "// It is folded.",
    ],
)
@pytest.mark.parametrize("path", ["crates/engine/src/pool/mod.rs", "crates/sim/tests/simulation.rs"])
def test_a_planted_word_is_found_at_its_line(tmp_path, path, line):
    (found,) = set(report.rsplit(": '", 1)[0] for report in words(plant(tmp_path, path, f"// A pool.\n{line}\n")))
    assert found == f"{path}:2"


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("crates/engine/src/pool/mod.rs", "use a;\n\n/// What a pool is.\nstruct Pool;\n", 3),
        ("crates/engine/src/pool/mod.rs", "//! How many pools there are.\n", 1),
        ("crates/engine/src/pool/mod.rs", "fn a() {\n    // Whether it is full.\n}\n", 2),
        ("lab/pool.py", 'def a():\n    """Which pool."""\n', 2),
    ],
)
def test_a_comment_that_begins_as_a_question_is_found(tmp_path, path, text, line):
    (found,) = words(plant(tmp_path, path, text))
    assert found.startswith(f"{path}:{line}: a comment begins with")


@pytest.mark.parametrize("text", ["/// A pool.\n/// What it is not.\n", 'let a = "What";\n', "// Whatever it is.\n"])
def test_other_comments_are_left_alone(tmp_path, text):
    assert not words(plant(tmp_path, "crates/engine/src/pool/mod.rs", text))


def test_a_word_in_the_name_of_a_file_is_found(tmp_path):
    assert len(words(plant(tmp_path, "crates/engine/src/txg/mod.rs", "// A log.\n"))) == 1


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("crates/engine/src/lib.rs", "// Indeed a folder, a scaffold, a placeholder; let go = 1; outlet_gone."),
        ("crates/engine/src/lib.rs", "let sum = all.iter().fold(0, add);"),
        ("crates/engine/src/lib.rs", "// `pagefold fold` does it."),
        ("crates/backup/src/keys.rs", "// An epoch that was sealed."),
        ("crates/bench/src/data.rs", 'sql("VACUUM (FREEZE, ANALYZE) t");'),
        ("lab/suites.py", "@dataclass(frozen=True)"),
        ("crates/engine/src/device/lock.rs", "// The lock's holder is a dying server."),
        ("docs/SEMANTICS.md", "Files that were folded."),
        ("docs/decisions/0001-x.md", "A txg is a deed."),
        ("docs/campaigns/2026-01-01.md", "Folds were salvaged."),
    ],
)
def test_other_words_and_allowed_ones_stay(tmp_path, path, line):
    assert words(plant(tmp_path, path, f"{line}\n")) == []


def test_a_planted_double_is_found(tmp_path):
    plant(tmp_path, "crates/fs/src/a.rs", "pub(crate) struct Name;\n")
    plant(tmp_path, "crates/fs/src/b/mod.rs", "\nmod tests {\n    type Name = u8;\n}\n")
    plant(tmp_path, "crates/fuse/src/a.rs", "enum Name {}\n")
    (found,) = words(tmp_path)
    assert found.startswith("crates/fs/src/b/mod.rs:3: 'Name' is a type at crates/fs/src/a.rs:1, too")


def test_types_that_a_trait_associates_are_no_doubles(tmp_path):
    text = "struct Item;\ntrait Each {\n    type Item;\n}\nimpl Each for Item {\n    type Item = u8;\n}\n"
    plant(tmp_path, "crates/fs/src/a.rs", text)
    assert words(tmp_path) == []
    plant(tmp_path, "crates/fs/src/b.rs", "impl Each for u8 {\n    type Item = u8;\n}\n\ntype Item = u8;\n")
    assert len(words(tmp_path)) == 1
