"""Runs test suites that others have written on a place, and understands their output.

`scripts/suites` fetches them into `out/suites`. A suite's outcome has a word for each of its tests: PASSED, SKIPPED or
FAILED.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import proc
from .ledger import Run
from .mariadb import USER as MYSQL
from .paths import ROOT, Missing, postgres_bin, tool
from .postgres import USER as POSTGRES
from .postgres import Postgres
from .storage import Place

SUITES = ROOT / "out" / "suites"
NOBODY = "nobody"
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
Outcome = dict[str, str]

PATIENCE_S = 7200
"""Seconds that no suite takes, even on a machine that has other work."""


@dataclass(frozen=True)
class Options:
    """Options of a run."""

    operations: int = 1_000_000
    seed: int = 1


@dataclass(frozen=True)
class Suite:
    """One suite, and the kinds of pools that it is run on."""

    run: Callable[[Run, Place, Options], Outcome]
    compressions: tuple[str, ...] = ("zstd",)


def fetched(suite: str, path: Path) -> Path:
    """Returns a file or folder of a suite; if it is not there, the error tells how to get it."""
    if not path.exists():
        raise Missing(f"{path} does not exist: run `scripts/suites {suite}`")
    return path


def logged(run: Run, name: str, argv: list, *, user: str | None = None) -> str:
    """Runs a command and returns its output, which is kept with the logs. The command may fail, since its output tells
    of that."""
    log = run.logs / f"{name}.log"
    process = proc.spawn(argv, log=log, user=user)
    entry = run.process(process.pid, name)
    process.wait(PATIENCE_S)
    run.done(entry)
    return log.read_text(errors="replace")


PJDFSTEST = """
[features]
secondary_fs = "{other}"
posix_fallocate = {{}}
rename_ctime = {{}}
utime_now = {{}}
utimensat = {{}}
[settings]
naptime = 0.01
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""
"""Features that Linux has, and two users that every Debian has. The nap is longer than the kernel's tick, 4 ms, which
is the grain of times on ext4."""


def pjdfstest(run: Run, where: Place, _: Options) -> Outcome:
    """Runs pjdfstest: every system call on files as POSIX wants it, by root and by users."""
    program = fetched("pjdfstest", SUITES / "bin" / "pjdfstest")
    config = run.fresh("pjdfstest")
    config.write_text(PJDFSTEST.format(other=run.dir))
    where.mountpoint.chmod(0o755)
    # The folder has a short path, since the suite makes sockets, and a socket's path may have 107 bytes only.
    short = Path(tempfile.mkdtemp(prefix="pflab-"))
    run.command("rm", "-rf", str(short))
    short.chmod(0o755)
    (short / "m").symlink_to(where.mountpoint)
    return parse_pjdfstest(logged(run, f"pjdfstest-{where.name}", [program, "-c", config, "-p", short / "m"]))


def parse_pjdfstest(text: str) -> Outcome:
    """Reads an outcome from each line `chmod::errors::enoent        ok`."""
    words = {"ok": PASSED, "skipped": SKIPPED, "FAILED": FAILED}
    found = re.findall(r"^(\w+(?:::\w+)+)\s+(ok|skipped|FAILED)$", text, re.MULTILINE)
    outcome = {name: words[word] for name, word in found}
    total = re.search(r"(\d+) total$", text, re.MULTILINE)
    if total is None or int(total[1]) != len(outcome):
        raise RuntimeError(f"pjdfstest did not come to its end:\n{text[-2000:]}")
    return outcome


FSX = "[opsize]\nmin = 1\n[weights]\n" + "".join(
    f"{name} = {weight}\n"
    for name, weight in {
        **dict.fromkeys(("read", "write", "mapread", "truncate", "punch_hole", "copy_file_range"), 10.0),
        **dict.fromkeys(("close_open", "sendfile", "posix_fadvise", "posix_fallocate"), 1.0),
        **dict.fromkeys(("mapwrite", "invalidate", "fsync", "fdatasync"), 0.5),
    }.items()
)
"""All operations that fsx knows. Those that wait for the device are rarer (mapwrite does, since fsx syncs what it
wrote). None is of 0 bytes: fsx takes the refusal of an empty posix_fallocate for a file system that has none."""


FSX_RUN = 50_000
"""Number of operations of one run: fsx 0.3.2 never removes the mappings that it reads by, and the kernel allows a
process 65,530 of them."""


def fsx(run: Run, where: Place, options: Options) -> Outcome:
    """Runs fsx: one file is written, read, mapped, truncated, punched and copied from at random, and compared with its
    expected content."""
    program = fetched("fsx", SUITES / "bin" / "fsx")
    config = run.fresh("fsx")
    config.write_text(FSX)
    folder = where.folder("fsx", "root")
    outcome: Outcome = {}
    for seed, done in enumerate(range(0, options.operations, FSX_RUN), options.seed):
        count = str(min(FSX_RUN, options.operations - done))
        argv = [program, "-f", config, "-N", count, "-S", str(seed), "-P", run.logs, folder / f"file-{seed}"]
        outcome |= parse_fsx(logged(run, f"fsx-{where.name}-{seed}", argv), f"{count} operations, seed {seed}")
    return outcome


def parse_fsx(text: str, name: str) -> Outcome:
    """Reads the outcome of a run of fsx: all of its operations are one test."""
    return {name: PASSED if "All operations completed A-OK!" in text else FAILED}


def postgres(run: Run, where: Place, _: Options) -> Outcome:
    """Runs PostgreSQL's regression tests against a server whose data is on the place; the tests' own files are there,
    too."""
    ours = fetched("postgres", SUITES / "postgres" / "source").parent
    # The tests are copied, since the repository, like root's home, may be closed to the server's user.
    tests = run.fresh("regress")
    shutil.copytree(ours / "source" / "src" / "test" / "regress", tests / "tests")
    shutil.copytree(ours / "lib", tests / "lib")
    # These are the settings that pg_regress gives a server of its own.
    settings = {"max_prepared_transactions": "2", "full_page_writes": "off" if where.is_pagefold else "on"}
    server = Postgres(run, where.folder("pg", POSTGRES), settings=settings, name=f"postgres-{where.name}")
    server.initdb("--no-locale")
    server.start()
    bin_dir = Path(postgres_bin("postgres")).parent
    results = where.folder("results", POSTGRES)
    argv = [
        bin_dir.parent / "lib" / "pgxs" / "src" / "test" / "regress" / "pg_regress",
        f"--host={server.socket_dir}",
        f"--user={POSTGRES}",
        f"--bindir={bin_dir}",
        f"--dlpath={tests / 'lib'}",
        f"--inputdir={tests / 'tests'}",
        f"--outputdir={results}",
        f"--schedule={tests / 'tests' / 'parallel_schedule'}",
        "--max-concurrent-tests=20",
    ]
    text = logged(run, f"pg_regress-{where.name}", argv, user=POSTGRES)
    differences = results / "regression.diffs"
    if differences.exists():
        shutil.copy(differences, run.logs / f"pg_regress-{where.name}.diffs")
    server.stop()
    return parse_pg_regress(text)


def parse_pg_regress(text: str) -> Outcome:
    """Reads an outcome from each line `test boolean    ... ok    180 ms`, which is indented where tests ran side by
    side."""
    found = re.findall(r"^(?:test| {4})\s*(\S+)\s+\.\.\. (ok|FAILED|failed \(ignored\))", text, re.MULTILINE)
    outcome = {name: PASSED if word == "ok" else FAILED for name, word in found}
    total = re.search(r"^ (?:All|\d+ of) (\d+) tests", text, re.MULTILINE)
    if total is None or int(total[1]) != len(outcome):
        raise RuntimeError(f"pg_regress did not come to its end:\n{text[-2000:]}")
    return outcome


def innodb_zip(run: Run, where: Place, _: Options) -> Outcome:
    """Runs MariaDB's tests of compressed tables, each with servers of its own, whose data is on the place."""
    folder = fetched("mariadb", Path("/usr/share/mysql/mysql-test"))
    argv = [
        *(tool("env"), "-C", folder, tool("perl"), "mariadb-test-run.pl"),
        "--suite=innodb_zip",
        f"--vardir={where.folder('mtr', MYSQL) / 'var'}",
        "--force",
        "--max-test-fail=0",
        "--retry=0",
        "--parallel=2",
        "--testcase-timeout=60",
    ]
    return parse_mtr(logged(run, f"mtr-{where.name}", argv, user=MYSQL))


def parse_mtr(text: str) -> Outcome:
    """Reads an outcome from each line `innodb_zip.bug52745 'innodb'   w2 [ pass ]   87`. The name includes the
    combination of options if there are several."""
    words = {"pass": PASSED, "skipped": SKIPPED, "disabled": SKIPPED, "fail": FAILED}
    found = re.findall(r"^([\w.-]+(?: '[^']*')?) +(?:w\d+ +)?\[ (pass|skipped|disabled|fail) \]", text, re.MULTILINE)
    if "Completed: " not in text or not found:
        raise RuntimeError(f"mariadb-test-run did not come to its end:\n{text[-2000:]}")
    return {name: words[word] for name, word in found}


def sqlite(run: Run, where: Place, _: Options) -> Outcome:
    """Runs SQLite's tests that take a minute or two, veryquick.test, whose databases are on the place."""
    ours = fetched("sqlite", SUITES / "sqlite" / "testfixture").parent
    tests = run.fresh("sqlite")
    shutil.copytree(ours, tests)
    folder = where.folder("sqlite", NOBODY)
    argv = [*(tool("env"), "-C", folder), tests / "testfixture", tests / "source" / "test" / "veryquick.test"]
    return parse_sqlite(logged(run, f"sqlite-{where.name}", argv, user=NOBODY))


def parse_sqlite(text: str) -> Outcome:
    """Reads the outcome: failed tests are listed by name, files of tests that came to their end count as passed, and so
    does the number of tests, which has to be the same elsewhere."""
    total = re.search(r"^(\d+) errors out of (\d+) tests", text, re.MULTILINE)
    listed = re.search(r"^!Failures on these tests: (.*)$", text, re.MULTILINE)
    failed = listed[1].split() if listed else []
    if total is None or int(total[1]) != len(failed):
        raise RuntimeError(f"veryquick.test did not come to its end:\n{text[-2000:]}")
    ended = re.findall(r"^Time: (\S+) \d+ ms$", text, re.MULTILINE)
    return dict.fromkeys(ended, PASSED) | {f"{total[2]} tests": PASSED} | dict.fromkeys(failed, FAILED)


ALL = {
    "pjdfstest": Suite(pjdfstest),
    "fsx": Suite(fsx),
    "postgres": Suite(postgres, ("zstd", "page")),
    "mariadb": Suite(innodb_zip),
    "sqlite": Suite(sqlite, ("zstd", "page")),
}
