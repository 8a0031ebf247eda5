"""`pagefold backup mount`: a backup at a directory, and a PostgreSQL on one whose pages are not there yet."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lab import load, proc
from lab.ledger import is_mounted
from lab.paths import pagefold
from lab.pool import Pool
from lab.postgres import Postgres

POOL_BYTES = 2 << 30
SCALE = 3
"""Scale of pgbench: 45 MB of pages."""


class Backed:
    """A pool with the backup of a cluster, which was made while the cluster was running."""

    def __init__(self, pool: Pool, repository: Path, key: Path, original: dict[str, tuple], expected: str):
        self.pool, self.repository, self.key, self.original, self.expected = pool, repository, key, original, expected
        self.run = pool.run
        self.servers: list[Postgres] = []

    def server(self, data: Path, name: str) -> Postgres:
        """Returns a PostgreSQL that is ended after the tests."""
        self.servers.append(Postgres(self.run, data, name=name))
        return self.servers[-1]

    def started(self, *words) -> subprocess.CompletedProcess:
        """Runs `pagefold backup`, however it ends."""
        environment = {**os.environ, **self.pool.environment}
        argv = [pagefold(), "backup", *map(str, words)]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)

    def mount(self, *words, ok: bool = True) -> str:
        """Runs `backup mount` on the backup and returns its messages. Readers of the backup are ended with the run."""
        done = self.started("mount", self.repository, "1", *words, "--key-file", self.key)
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        for reader in self.readers():
            self.run.process(reader["pid"], "pagefold")
        return done.stderr

    def readers(self) -> list[dict]:
        return json.loads(self.started("mounts", "--json").stdout)["mounts"]

    def reader(self, at: Path | None = None) -> dict:
        """Returns the process that reads the backup for a directory, or for datasets."""
        (reader,) = [reader for reader in self.readers() if reader["dir"] == (str(at) if at else None)]
        return reader

    def kill_reader(self, at: Path | None = None) -> None:
        pid = self.reader(at)["pid"]
        proc.kill_tree(pid, proc.start_time(pid))

    def folder(self, name: str) -> Path:
        """Makes a directory that is unmounted with the run."""
        folder = self.run.fresh(name)
        folder.mkdir()
        self.run.mount(folder)
        return folder


@pytest.fixture(scope="module")
def backed(run, request):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("backups are Pagefold's own")
    with Pool(run, POOL_BYTES, compression="page") as pool:
        pool.pagefold("dataset", "create", f"{pool.pool}/db")
        folder = run.fresh("db")
        folder.mkdir()
        run.mount(folder)
        pool.pagefold("mount", f"{pool.pool}/db", folder)
        data = folder / "data"
        data.mkdir(mode=0o700)
        proc.run(["chown", "postgres:", data])
        server = Postgres(run, data)
        load.prepare_pgbench(server, "bench", SCALE)
        # Recovery gets something to do, and pages are coded by models.
        server.sql("CHECKPOINT; UPDATE pgbench_tellers SET tbalance = tid", database="bench")
        expected = sums(server)
        repository, key = run.fresh("repository"), run.fresh("key")
        key.write_text("horse battery")
        pool.pagefold("backup", "init", repository, "--key-file", key)
        pool.pagefold("snapshot", f"{pool.pool}/db@original")
        pool.pagefold("backup", "create", f"{pool.pool}/db@original", "--to", repository, "--key-file", key)
        server.kill()
        pool.pagefold("unmount", folder)
        original = run.fresh("original")
        original.mkdir()
        run.mount(original)
        pool.pagefold("mount", f"{pool.pool}/db@original", original)
        backed = Backed(pool, repository, key, tree(original), expected)
        yield backed
        for server in backed.servers:
            server.kill()
        pool.pagefold("unmount", pool.pool)
        pool.check()


def sums(server: Postgres) -> str:
    return server.sql(
        "SELECT count(*), sum(abalance), sum(aid) FROM pgbench_accounts; SELECT sum(tbalance) FROM pgbench_tellers",
        database="bench",
    )


def tree(root: Path) -> dict[str, tuple]:
    """Returns all that is below a directory: kind and permissions, owner, time of change, size, links, contents."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files, "."]:
            path = Path(folder, name)
            meta = path.lstat()
            what: object = None
            if path.is_symlink():
                what = os.readlink(path)
            elif path.is_file():
                with open(path, "rb") as f:
                    what = hashlib.file_digest(f, "blake2b").hexdigest()
            key = os.path.relpath(path, root)
            found[key] = (meta.st_mode, meta.st_uid, meta.st_gid, meta.st_mtime_ns, meta.st_size, meta.st_nlink, what)
    return found


def wait_for(what, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, f"not in {timeout_s:.0f} s"
        time.sleep(0.1)


@pytest.mark.long
def test_at_a_directory_it_is_what_was_backed_up(backed):
    at = backed.folder("at")
    backed.mount(at)
    assert len(backed.original) > 900 and tree(at) == backed.original
    with pytest.raises(OSError, match="Read-only"):
        (at / "x").touch()
    reader = backed.reader(at)
    assert reader["dir"] == str(at) and reader["read_bytes"] < 1.2 * reader["record_bytes"], reader
    # The reader's keys are nowhere where other processes could see them.
    for file in ("cmdline", "environ"):
        assert b"horse" not in Path(f"/proc/{reader['pid']}/{file}").read_bytes()
    status = Path(f"/proc/{reader['pid']}/status").read_text()
    assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status, status
    if os.geteuid() == 0:
        # Directories of backups may belong to others, so the right to read them is the only one that is left.
        assert "CapEff:\t0000000000000004" in status, status
    # After its reader was killed, the backup can be mounted there again.
    backed.kill_reader(at)
    with pytest.raises(OSError, match="not connected|abort"):
        os.statvfs(at)
    backed.mount(at)
    assert (at / "data" / "PG_VERSION").read_text() == "15\n"
    backed.pool.pagefold("unmount", at)
    assert not is_mounted(at)
    wait_for(lambda: backed.readers() == [])


def test_a_store_that_is_away_is_waited_for_and_does_not_hold_the_mount(backed):
    at, away = backed.folder("away"), backed.run.fresh("elsewhere")
    backed.mount(at, "--patience", "3")
    base = next(p for p in sorted((at / "data" / "base").iterdir()) if p.name != "1")
    big = max(base.iterdir(), key=lambda p: p.stat().st_size)
    backed.repository.rename(away)
    try:
        begun = time.monotonic()
        reading = subprocess.Popen(["cat", big], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_for(lambda: backed.reader(at)["outage_s"] is not None)
        away.rename(backed.repository)
        assert reading.wait(60) == 0, reading.stderr.read()
        backed.repository.rename(away)
        # The kernel has cached the file, so another one is read.
        other = next(p for p in sorted(base.iterdir(), key=lambda p: -p.stat().st_size) if p != big)
        os.posix_fadvise(os.open(other, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
        with pytest.raises(OSError, match="Input/output"):
            (at / "data" / "pg_wal" / sorted(os.listdir(at / "data" / "pg_wal"))[0]).read_bytes()
        assert time.monotonic() - begun < 30
        # The directory can be unmounted all the same.
        backed.pool.pagefold("unmount", "--lazy", at, timeout_s=10)
        assert not is_mounted(at)
    finally:
        if away.exists():
            away.rename(backed.repository)


@pytest.mark.long
def test_a_database_answers_before_its_pages_have_come_and_then_needs_no_store(backed):
    pool = backed.pool
    name, at = f"{pool.pool}/again", backed.folder("again")
    # Without a place for it, nothing is made.
    with pytest.raises(proc.CommandFailed, match=f"(?s)where is {name} to be mounted.*{name} DIR"):
        pool.pagefold("backup", "mount", backed.repository, "1", name, "--key-file", backed.key)
    assert name not in pool.pagefold("list", "-H", "-t", "all", pool.pool)
    begun = time.monotonic()
    backed.mount(name, at)
    server = backed.server(at / "data", "again")
    server.start()
    assert server.sql("SELECT abalance FROM pgbench_accounts WHERE aid = 177777", database="bench") == "0"
    first_answer_s = time.monotonic() - begun
    reader = backed.reader()
    share = reader["read_bytes"] / reader["record_bytes"]
    print(f"first answer after {first_answer_s:.1f} s, {share:.0%} of {reader['record_bytes']} bytes read")
    assert first_answer_s < 10 and share < 0.5, (first_answer_s, reader)
    assert server.sql("SELECT sum(tbalance) FROM pgbench_tellers", database="bench") == backed.expected.split("\n")[1]
    # An incomplete dataset is neither sent nor backed up as if it were complete; its snapshots read right.
    pool.pagefold("snapshot", f"{name}@half")
    for words in (["send", f"{name}@half"], ["backup", "create", f"{name}@half", "--to", backed.repository, "--key-file", backed.key]):
        with pytest.raises(proc.CommandFailed, match="is not complete"):
            pool.pagefold(*words)
    # A backup of the dataset is refused likewise, and leaves no snapshot behind, however often it is tried.
    def snapshots() -> list[str]:
        return [line.split("\t")[0] for line in pool.pagefold("list", "-t", "snapshot", "-H", pool.pool).splitlines()]

    before = snapshots()
    for _ in range(2):
        with pytest.raises(proc.CommandFailed, match="is not complete"):
            pool.pagefold("backup", "create", name, "--to", backed.repository, "--key-file", backed.key)
    assert snapshots() == before
    # The reader of a backup does not appear as a server of a pool.
    assert [line.split("\t")[0] for line in pool.pagefold("list", "-H").splitlines()].count(pool.pool) == 1
    assert "backup-" not in pool.pagefold("list", "-H")
    assert (at / ".pagefold/snapshot/half/data/PG_VERSION").read_text() == "15\n"
    # The reader of the backup dies: a process that reads pages waits, and another reader goes on.
    backed.kill_reader()
    asked = subprocess.Popen(
        server.client("psql", "-qAtX", "-c", "SELECT sum(aid) FROM pgbench_accounts", database="bench"),
        stdout=subprocess.PIPE, text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        asked.wait(1)
    assert "is read on" in backed.mount(name, at)
    assert asked.communicate(timeout=60)[0].strip() == backed.expected.split("\n")[0].split("|")[2]
    # An incomplete dataset is not mounted as if it were complete.
    server.sql("UPDATE pgbench_branches SET bbalance = 4711", database="bench")
    server.stop()
    pool.pagefold("unmount", at)
    backed.kill_reader()
    with pytest.raises(proc.CommandFailed, match="is not complete: the rest is in the backup"):
        pool.pagefold("mount", name, at)
    # A dataset that was not made of this backup is refused.
    pool.pagefold("dataset", "create", f"{pool.pool}/other")
    assert "was not made of this backup" in backed.mount(f"{pool.pool}/other", at, ok=False)
    # The pool's server is killed while the rest is fetched.
    backed.mount(name, at, "--hydrate", "--rate", "2M")
    server.start()
    time.sleep(1)
    server.expect_no_disk()
    pid = pool.server_pid()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: proc.start_time(pid) is None)
    server.kill()
    pool.pagefold("unmount", at)
    backed.mount(name, at, "--hydrate", "--rate", "1G")
    server.start()
    log = backed.run.logs / f"{pool.pool}.log"
    wait_for(lambda: f'the backup is not needed any more dataset="{name}"' in log.read_text())
    away = backed.run.fresh("gone")
    backed.repository.rename(away)
    try:
        assert sums(server) == backed.expected
        assert server.sql("SELECT max(bbalance) FROM pgbench_branches", database="bench") == "4711"
        server.stop()
        pool.pagefold("unmount", at)
        for reader in backed.readers():
            proc.kill_tree(reader["pid"], proc.start_time(reader["pid"]))
        pool.pagefold("mount", name, at)
        server.start()
        server.amcheck("bench")
        assert sums(server) == backed.expected
        pool.pagefold("snapshot", f"{name}@whole")
        pool.pagefold("destroy", f"{name}@half")
        server.stop()
    finally:
        away.rename(backed.repository)


def test_untouched_it_becomes_the_same_as_what_was_backed_up(backed):
    name, at = f"{backed.pool.pool}/copy", backed.folder("copy")
    backed.mount(name, at, "-o", "atime=off", "--hydrate")
    log = backed.run.logs / f"{backed.pool.pool}.log"
    wait_for(lambda: f'the backup is not needed any more dataset="{name}"' in log.read_text())
    assert tree(at) == backed.original
    backed.pool.pagefold("unmount", at)


def test_two_mounts_of_one_backup_at_once_share_a_reader(backed):
    pool = backed.pool
    for reader in backed.readers():
        proc.kill_tree(reader["pid"], proc.start_time(reader["pid"]))
    for number in range(4):
        places = [(f"{pool.pool}/both{number}{side}", backed.folder(f"both{number}{side}")) for side in "ab"]
        argv = [pagefold(), "backup", "mount", backed.repository, "1", "--key-file", backed.key]
        environment = {**os.environ, **pool.environment}
        started = [
            subprocess.Popen([*argv, name, at], env=environment, stderr=subprocess.PIPE, text=True) for name, at in places
        ]
        told = [process.communicate(timeout=60)[1] for process in started]
        backed.run.process(backed.reader()["pid"], "pagefold")
        assert [process.returncode for process in started] == [0, 0], told
        for name, at in places:
            assert (at / "data" / "PG_VERSION").read_text() == "15\n"
            pool.pagefold("unmount", at)
            pool.pagefold("destroy", name)
        backed.kill_reader()


def test_a_read_only_mount_keeps_its_reader_after_a_takeover(backed):
    """A reader to which nobody is connected ends after a minute, and then what is absent cannot be read."""
    pool = backed.pool
    pool.pagefold("unmount", pool.pool)
    name, at = f"{pool.pool}/still", backed.folder("still")
    backed.mount(name, at, "-o", "ro,takeover=on")
    (socket,) = [file for file in Path(pool.environment["PAGEFOLD_RUNTIME_DIR"]).glob("*.reader") if is_connected(file)]
    before, restarts = pool.server_pid(), pool.figures("status")["takeover"]["restarts"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{before}").exists())
    assert (at / "data" / "PG_VERSION").stat().st_size == 3
    assert pool.figures("status")["takeover"]["restarts"] == restarts + 1
    wait_for(lambda: is_connected(socket))
    # The same holds for another reader, which nobody has asked for a page yet.
    backed.kill_reader()
    wait_for(lambda: not is_connected(socket))
    assert "is read on" in backed.mount(name, at, "-o", "ro")
    wait_for(lambda: is_connected(socket))
    assert (at / "data" / "PG_VERSION").read_text() == "15\n"


def is_connected(socket: Path) -> bool:
    """Returns true if somebody is connected to a socket."""
    connected = "03"
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return any(fields[5] == connected and fields[-1] == str(socket) for fields in sockets)


def test_a_dead_reader_and_a_dead_server_take_no_mount_away(backed):
    pool = backed.pool
    pool.pagefold("unmount", pool.pool)
    name, at = f"{pool.pool}/part", backed.folder("part")
    other, beside = f"{pool.pool}/beside", backed.folder("beside")
    pool.pagefold("dataset", "create", other)
    pool.pagefold("mount", other, beside, "-o", "takeover=on")
    backed.mount(name, at)
    pool.pagefold("snapshot", f"{name}@then")
    then = backed.folder("then")
    pool.pagefold("mount", f"{name}@then", then)
    (beside / "x").write_text("before")
    backed.kill_reader()
    restarts = pool.figures("status")["takeover"]["restarts"]
    os.kill(pool.server_pid(), signal.SIGKILL)
    # The other mount is served on, and names of the read-only one are there.
    (beside / "y").write_text("after")
    assert (beside / "x").read_text() == "before"
    assert pool.figures("status")["takeover"]["restarts"] == restarts + 1
    assert (then / "data" / "PG_VERSION").stat().st_size == 3
    # Pages that are absent wait for another reader.
    asked = subprocess.Popen(["cat", then / "data" / "global" / "pg_control"], stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        asked.wait(1)
    assert "is read on" in backed.mount(name, at)
    assert len(asked.communicate(timeout=60)[0]) == 8192
    assert tree(then) == backed.original
    pool.pagefold("unmount", pool.pool)
    pool.pagefold("mount", other, beside)
