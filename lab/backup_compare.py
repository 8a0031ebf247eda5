"""`lab backup-compare`: compares backups of one database on a pool by pg_basebackup, pgBackRest and pagefold, in the
same run on the same machine.

The figures are seconds; processor seconds of all that take part (the program, the database server, and the server of
the pool below, which reads for all of them); and the size of the backup. pg_basebackup and pgBackRest read the files
through the mount, decoded; `pagefold backup` takes records as they are stored. pgBackRest's backup has no log: it keeps
that in an archive of its own, which is not part of this. The kernel's cache is dropped before each backup, so that none
gains by an earlier one. They begin when the pool's server has come to rest after the load.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from . import proc
from .demo import HASH_FUNCTIONS
from .ledger import Run
from .paths import pagefold, postgres_bin, require_room, tool
from .pool import Pool
from .postgres import USER, Postgres
from .snapshots import Mounted
from .streams import cpu_s

DATABASE = "prices"
ROWS_PER_GB = 5_600_000
"""Rows of price_paid that take a GB with their three indexes, about."""
PRICES = Path(__file__).parent / "demo/prices.sql"
REST_S, REST_CPU_S = 10, 0.2
"""The pool's server rests if it uses less than so many seconds of processors in so many seconds."""
REST_MAX_S = 900
WORKERS = 2
PG_BASEBACKUPS = [
    ("none, tar", ["--format=tar"]),
    ("none, plain", ["--format=plain"]),
    ("gzip, tar", ["--format=tar", "--compress=server-gzip"]),
    ("gzip, plain", ["--format=plain", "--compress=server-gzip"]),
    ("lz4, tar", ["--format=tar", "--compress=server-lz4"]),
    ("lz4, plain", ["--format=plain", "--compress=server-lz4"]),
    ("zstd, tar", ["--format=tar", "--compress=server-zstd"]),
    ("zstd, plain", ["--format=plain", "--compress=server-zstd"]),
    (f"zstd, {WORKERS} workers, tar", ["--format=tar", f"--compress=server-zstd:workers={WORKERS}"]),
    (f"zstd, {WORKERS} workers, plain", ["--format=plain", f"--compress=server-zstd:workers={WORKERS}"]),
    (f"zstd, {WORKERS} workers, tar, written by the server", [f"--compress=server-zstd:workers={WORKERS}"]),
]


@dataclass
class Row:
    """Cost of a backup."""

    what: str
    seconds: float
    cpu_s: float
    """Processor seconds of all that took part."""
    pool_cpu_s: float
    """Processor seconds of the pool's server, which are part of `cpu_s`."""
    written_bytes: int
    """Bytes by which the folder of its backups grew."""
    size_bytes: int
    """Bytes that a restore of the database needs."""


def size_of(folder: Path) -> int:
    """Returns the bytes of all files below a folder."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


class Comparison:
    """A database, and the backups of it by each program."""

    def __init__(self, run: Run, pool: Pool, server: Postgres, tell):
        self.run, self.pool, self.server, self.tell = run, pool, server, tell
        self.rows: list[Row] = []
        self.out = run.fresh("backups")
        self.out.mkdir(mode=0o755)

    def folder(self, name: str, owner: str = USER) -> Path:
        path = self.out / name
        path.mkdir(mode=0o700)
        shutil.chown(path, owner)
        return path

    def measured(self, what: str, argv: list, into: Path, *, user: str | None = None) -> None:
        """Runs a command and notes its cost."""
        self.server.sql("CHECKPOINT")
        self.pool.pagefold("sync", self.pool.pool)
        subprocess.run(["sync"], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
        there = size_of(into)
        servers = {"database": self.server.server.pid, "pool": self.pool.server_pid()}
        before = {name: cpu_s(pid) for name, pid in servers.items()}
        children, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        environment = {**os.environ, **self.pool.environment, "LC_ALL": "C.UTF-8"}
        done = subprocess.run([os.fspath(word) for word in argv], env=environment, cwd="/", capture_output=True, text=True, **proc.as_user(user))
        seconds, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            raise RuntimeError(f"{what}: `{' '.join(map(str, argv))}` failed: {done.stderr or done.stdout}")
        took = {name: cpu_s(pid) - before[name] for name, pid in servers.items()}
        own = used.ru_utime + used.ru_stime - children.ru_utime - children.ru_stime
        size = size_of(into)
        self.rows.append(Row(what, seconds, own + sum(took.values()), took["pool"], size - there, size))
        self.tell(line(self.rows[-1]))

    def pg_basebackup(self) -> None:
        """Makes a backup of each kind; each is thrown away before the next."""
        for number, (what, options) in enumerate(PG_BASEBACKUPS):
            into = self.folder(f"pg-{number}")
            common = ["--checkpoint=fast", "--wal-method=fetch", "--no-sync"]
            where = [f"--target=server:{into}/there"] if "written by" in what else ["-D", into / "there"]
            argv = self.server.client("pg_basebackup", *options, *common, *map(str, where), database=None)
            self.measured(f"pg_basebackup: {what}", argv, into, user=USER)
            shutil.rmtree(into)

    def pgbackrest(self, what: str, repository: Path, kind: str) -> None:
        """Makes a backup with pgBackRest's best settings: zstd, as many processes as processors, small files in
        bundles."""
        config, locks = self.run.fresh("pgbackrest.conf"), self.run.fresh("lock")
        locks.mkdir(mode=0o777)
        shutil.chown(locks, USER)
        # Options are in the file, since a command refuses those that it does not use on its command line.
        config.write_text(
            f"""[global]
repo1-path={repository}
repo1-bundle=y
compress-type=zst
compress-level=3
process-max={WORKERS}
start-fast=y
archive-check=n
lock-path={locks}
log-level-file=off
log-level-console=warn
[lab]
pg1-path={self.server.data}
pg1-socket-path={self.server.socket_dir}
pg1-user={USER}
"""
        )
        config.chmod(0o644)
        words = [tool("pgbackrest", profile="backup"), f"--config={config}", "--stanza=lab"]
        if kind == "full":
            proc.run([*words, "--no-online", "stanza-create"], user=USER)
        self.measured(f"pgBackRest: {what}", [*words, f"--type={kind}", "backup"], repository, user=USER)

    def pagefold_backup(self, what: str, repository: Path, name: str) -> None:
        self.measured(f"pagefold backup: {what}", [pagefold(), "backup", "create", name, "--to", repository], repository)

    def basebackup(self, what: str, name: str, options: list[str]) -> None:
        into = self.folder(f"base-{len(self.rows)}", "root")
        self.measured(f"pagefold basebackup: {what}", [pagefold(), "basebackup", name, "-D", into / "there", *options], into)
        shutil.rmtree(into)


def line(row: Row) -> str:
    """Returns a row in words."""
    return (
        f"{row.what}: {row.seconds:.1f} s, {row.cpu_s:.1f} s of processors ({row.pool_cpu_s:.1f} of the pool's server),"
        f" {row.written_bytes / 1e6:.0f} MB written, {row.size_bytes / 1e6:.0f} MB in all"
    )


def load(server: Postgres, gb: float, tell) -> int:
    """Loads rows; returns the database's size in bytes."""
    server.createdb(DATABASE)
    server.sql(HASH_FUNCTIONS, database=DATABASE)
    rows = int(gb * ROWS_PER_GB)
    variables = ["-v", "ON_ERROR_STOP=1", "-v", f"rows={rows}"]
    proc.run(server.client("psql", "-qAtX", *variables, "-f", str(PRICES), database=DATABASE), timeout_s=7200)
    server.sql("VACUUM ANALYZE", database=DATABASE)
    size = int(server.sql(f"SELECT pg_database_size('{DATABASE}')"))
    tell(f"{rows:,} rows, a database of {size / 1e9:.2f} GB")
    return size


def rest(pool: Pool, tell) -> None:
    """Waits until the pool's server does nothing by itself any more: after a load it codes pages again, which would count
    as time of the backups."""
    pid, begun = pool.server_pid(), time.monotonic()
    while time.monotonic() < begun + REST_MAX_S:
        before = cpu_s(pid)
        time.sleep(REST_S)
        if cpu_s(pid) - before < REST_CPU_S:
            tell(f"the pool's server rests after {time.monotonic() - begun:.0f} s")
            return
    tell(f"the pool's server does not rest in {REST_MAX_S} s: its work counts as that of the backups")


def compare(gb: float, *, compression: str, as_json: bool, keep_logs: Path) -> int:
    """Makes the database and all backups of it."""
    require_room(int(gb * 5e9) + (4 << 30))

    def tell(text: str) -> None:
        if not as_json:
            print(f"backup-compare: {text}", flush=True)

    with Run("backup-compare", keep_logs=keep_logs) as run, Pool(run, int(gb * 4e9) + (4 << 30), compression=compression) as pool:
        name = f"{pool.pool}/db"
        pool.pagefold("dataset", "create", name)
        mounted = Mounted(pool, "db")
        mounted.mount()
        # A backup that takes longer than a checkpoint fetches its log at its end, which must be there still.
        settings = {"full_page_writes": "off", "wal_keep_size": "256MB"}
        server = Postgres(run, mounted.folder("data", USER), settings=settings)
        server.initdb()
        server.start()
        try:
            size = load(server, gb, tell)
            rest(pool, tell)
            comparison = Comparison(run, pool, server, tell)
            comparison.pg_basebackup()
            theirs, ours = comparison.folder("pgbackrest"), comparison.folder("pagefold", "root")
            comparison.pgbackrest("first", theirs, "full")
            pool.pagefold("backup", "init", "--unencrypted", ours)
            comparison.pagefold_backup("first", ours, name)
            comparison.basebackup("tar, zstd", name, ["-F", "tar", "-Z", "zstd"])
            comparison.basebackup("plain", name, [])
            server.sql("UPDATE price_paid SET price = price + 1 WHERE pick(price, 77, 100) = 0", database=DATABASE)
            tell("1 % of the rows were changed, all over the table")
            comparison.pgbackrest("second", theirs, "incr")
            comparison.pagefold_backup("second", ours, name)
            pool.pagefold("backup", "verify", ours, timeout_s=3600)
        finally:
            server.stop()
        mounted.unmount()
        if as_json:
            print(json.dumps({"database_bytes": size, "rows": [asdict(row) for row in comparison.rows]}, indent=2))
        else:
            print(table(comparison.rows))
    return 0


def table(rows: list[Row]) -> str:
    """Returns the rows as a table."""
    head = f"{'':<55} {'seconds':>8} {'CPU s':>7} {'of pool':>7} {'written MB':>10} {'size MB':>8}"
    body = [
        f"{row.what:<55} {row.seconds:>8.1f} {row.cpu_s:>7.1f} {row.pool_cpu_s:>7.1f} {row.written_bytes / 1e6:>10.1f} {row.size_bytes / 1e6:>8.1f}"
        for row in rows
    ]
    return "\n".join([head, *body])
