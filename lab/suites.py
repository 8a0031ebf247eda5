"""Test suites that others have written, each run on a place; what they print, understood.

`scripts/suites` fetches them into `out/suites`. A suite's outcome is what became of each of its tests: PASSED, SKIPPED or FAILED.
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
"""No suite takes so long, also on a machine that has other work."""


@dataclass(frozen=True)
class Options:
    """What is to be chosen about a run."""

    operations: int = 1_000_000
    seed: int = 1


@dataclass(frozen=True)
class Suite:
    """One suite, and the kinds of pools that it is run on."""

    run: Callable[[Run, Place, Options], Outcome]
    compressions: tuple[str, ...] = ("zstd",)


def fetched(suite: str, path: Path) -> Path:
    """A file or folder of a suite; an error that helps where it is not there."""
    if not path.exists():
        raise Missing(f"{path} does not exist: run `scripts/suites {suite}`")
    return path


def logged(run: Run, name: str, argv: list, *, user: str | None = None) -> str:
    """What a command prints that may fail, which its output tells of; it is kept with the logs."""
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
"""What Linux has, and two users that every Debian has. Times of ext4 have the grain of the kernel's tick, 4 ms."""


def pjdfstest(run: Run, where: Place, _: Options) -> Outcome:
    """Every system call on files as POSIX wants it, by root and by users."""
    program = fetched("pjdfstest", SUITES / "bin" / "pjdfstest")
    config = run.fresh("pjdfstest")
    config.write_text(PJDFSTEST.format(other=run.dir))
    where.mountpoint.chmod(0o755)
    # It makes sockets, and a socket's path may have 107 bytes only.
    short = Path(tempfile.mkdtemp(prefix="pflab-"))
    run.command("rm", "-rf", str(short))
    short.chmod(0o755)
    (short / "m").symlink_to(where.mountpoint)
    return parse_pjdfstest(logged(run, f"pjdfstest-{where.name}", [program, "-c", config, "-p", short / "m"]))


def parse_pjdfstest(text: str) -> Outcome:
    """Of each line `chmod::errors::enoent        ok`."""
    words = {"ok": PASSED, "skipped": SKIPPED, "FAILED": FAILED}
    found = re.findall(r"^(\w+(?:::\w+)+)\s+(ok|skipped|FAILED)$", text, re.MULTILINE)
    outcome = {name: words[word] for name, word in found}
    total = re.search(r"(\d+) total$", text, re.MULTILINE)
    if total is None or int(total[1]) != len(outcome):
        raise RuntimeError(f"pjdfstest did not come to its end:\n{text[-2000:]}")
    return outcome


FSX = "[weights]\n" + "".join(
    f"{name} = {weight}\n"
    for name, weight in {
        **dict.fromkeys(("read", "write", "mapread", "truncate", "punch_hole", "copy_file_range"), 10.0),
        **dict.fromkeys(("close_open", "sendfile", "posix_fadvise", "posix_fallocate"), 1.0),
        **dict.fromkeys(("mapwrite", "invalidate", "fsync", "fdatasync"), 0.5),
    }.items()
)
"""All that it knows; more seldom what waits for the device (of a mapping it syncs what it wrote)."""


FSX_RUN = 50_000
"""Operations of one run: fsx 0.3.2 never undoes the mappings that it reads by, and the kernel allows a process 65,530."""


def fsx(run: Run, where: Place, options: Options) -> Outcome:
    """One file, written, read, mapped, truncated, punched and copied from at random, and compared with what it must hold."""
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
    """All of its operations are one test."""
    return {name: PASSED if "All operations completed A-OK!" in text else FAILED}


def postgres(run: Run, where: Place, _: Options) -> Outcome:
    """PostgreSQL's regression tests, against a server whose data is on the place; what they write is there too."""
    ours = fetched("postgres", SUITES / "postgres" / "source").parent
    # As root's home may be, the repository may be closed to the server's user.
    tests = run.fresh("regress")
    shutil.copytree(ours / "source" / "src" / "test" / "regress", tests / "tests")
    shutil.copytree(ours / "lib", tests / "lib")
    # The settings that pg_regress gives a server of its own.
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
    """Of each line `test boolean    ... ok    180 ms`, which is indented where tests ran side by side."""
    found = re.findall(r"^(?:test| {4})\s*(\S+)\s+\.\.\. (ok|FAILED|failed \(ignored\))", text, re.MULTILINE)
    outcome = {name: PASSED if word == "ok" else FAILED for name, word in found}
    total = re.search(r"^ (?:All|\d+ of) (\d+) tests", text, re.MULTILINE)
    if total is None or int(total[1]) != len(outcome):
        raise RuntimeError(f"pg_regress did not come to its end:\n{text[-2000:]}")
    return outcome


def innodb_zip(run: Run, where: Place, _: Options) -> Outcome:
    """MariaDB's tests of compressed tables, each with servers of its own, whose data is on the place."""
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
    """Of each line `innodb_zip.bug52745 'innodb'   w2 [ pass ]   87`, with the combination of options where there are several."""
    words = {"pass": PASSED, "skipped": SKIPPED, "disabled": SKIPPED, "fail": FAILED}
    found = re.findall(r"^([\w.-]+(?: '[^']*')?) +(?:w\d+ +)?\[ (pass|skipped|disabled|fail) \]", text, re.MULTILINE)
    if "Completed: " not in text or not found:
        raise RuntimeError(f"mariadb-test-run did not come to its end:\n{text[-2000:]}")
    return {name: words[word] for name, word in found}


def sqlite(run: Run, where: Place, _: Options) -> Outcome:
    """SQLite's tests that take a minute or two, veryquick.test, whose databases are on the place."""
    ours = fetched("sqlite", SUITES / "sqlite" / "testfixture").parent
    tests = run.fresh("sqlite")
    shutil.copytree(ours, tests)
    folder = where.folder("sqlite", NOBODY)
    argv = [*(tool("env"), "-C", folder), tests / "testfixture", tests / "source" / "test" / "veryquick.test"]
    return parse_sqlite(logged(run, f"sqlite-{where.name}", argv, user=NOBODY))


def parse_sqlite(text: str) -> Outcome:
    """What failed is listed by test, and how many tests there were, which have to be as many elsewhere; files of tests come to their ends."""
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
