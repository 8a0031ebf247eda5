"""Databases on a pool that becomes full under them: what was acknowledged is there, and they go on once there is room.

Every byte that the load writes is random, so that nothing becomes smaller; the pool is full within seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import load, proc, verify
from lab.mariadb import USER as MYSQL
from lab.mariadb import MariaDB
from lab.pool import Pool
from lab.postgres import USER as POSTGRES
from lab.postgres import Postgres
from lab.server import Server

POOL_BYTES = 256 << 20
BALLAST_BYTES = 48 << 20
"""Bytes of a file on the pool that is deleted when the pool is full."""
NO_SPACE = ("no space left on device", "is full", "io error: 28", "errno: 28", "system error 28")


class FullPostgres:
    """PostgreSQL without full_page_writes, and the statements that fill it."""

    def __init__(self, run, pool: Pool):
        settings = {"full_page_writes": "off", "shared_buffers": "16MB", "max_wal_size": "48MB", "min_wal_size": "32MB"}
        self.server = Postgres(run, pool.folder("pg", POSTGRES), settings=settings, name="full-pg")

    def prepare(self) -> None:
        """Makes the cluster and its tables."""
        self.server.initdb()
        self.server.start()
        self.server.createdb("lab")
        self.prepare_filler()

    def prepare_filler(self) -> None:
        """Makes the table that takes all the room."""
        self.server.sql("CREATE TABLE filler (data bytea)", database="lab")
        self.server.sql("ALTER TABLE filler ALTER data SET STORAGE EXTERNAL", database="lab")

    def grow(self, kib: int) -> str:
        """Returns a statement that writes `kib` KiB."""
        random = "(SELECT decode(string_agg(md5(random()::text || g), ''), 'hex') FROM generate_series(1, 64) g WHERE n > 0)"
        return f"INSERT INTO filler SELECT {random} FROM generate_series(1, {kib}) n"

    def healthy(self) -> None:
        """Verifies that the database's own tools find nothing."""
        verify.postgres_healthy(self.server, "lab")


class FullMariaDB:
    """MariaDB without doublewrite, and the statements that fill it."""

    def __init__(self, run, pool: Pool):
        # By default ibdata1 grows by 64 MiB at once. When undo logs make it grow, the pool would refuse that while more
        # than half of it is free.
        settings = {"innodb_buffer_pool_size": "32M", "innodb_log_file_size": "16M", "innodb_autoextend_increment": "1"}
        self.server = MariaDB(run, pool.folder("maria", MYSQL), settings=settings, name="full-maria")

    def prepare(self) -> None:
        """Makes the server and its tables."""
        self.server.install()
        self.server.start()
        self.server.sql("CREATE DATABASE lab")
        self.prepare_filler()

    def prepare_filler(self) -> None:
        """Makes the table that takes all the room."""
        self.server.sql("CREATE TABLE filler (id bigint AUTO_INCREMENT PRIMARY KEY, data varbinary(1024))", database="lab")

    def grow(self, kib: int) -> str:
        """Returns a statement that writes `kib` KiB."""
        return f"INSERT INTO filler (data) SELECT random_bytes(1024) FROM seq_1_to_{kib}"

    def healthy(self) -> None:
        """Verifies that the database's own tools find nothing."""
        verify.mariadb_healthy(self.server, "lab")


@pytest.fixture(scope="module", params=[FullPostgres, FullMariaDB], ids=["postgres", "mariadb"])
def side(run, request) -> Iterator[tuple]:
    """Provides a database with an acknowledgement table on a small pool of its own, which is checked offline at the
    end."""
    with Pool(run, POOL_BYTES) as pool:
        side = request.param(run, pool)
        side.prepare()
        side.server.sql(load.CREATE_ACKNOWLEDGED, database="lab")
        yield side, pool
        side.server.stop()
        pool.unmount()
        pool.check()


@pytest.mark.long
def test_what_was_acknowledged_survives_a_full_pool(side, run):
    side, pool = side
    record = fill_under_load(side, pool, run, first=1)
    make_room_and_go_on(side, pool, record)


@pytest.mark.long
def test_a_full_pool_survives_the_end_of_its_server(side, run):
    """Kills the file system's server while the pool is full, and the database with it."""
    side, pool = side
    first = 1 + int(side.server.sql("SELECT coalesce(max(id), 0) FROM acknowledged", database="lab"))
    record = fill_under_load(side, pool, run, first=first)
    side.server.expect_no_disk()
    pool.crash()
    side.server.kill()
    pool.recover()
    make_room_and_go_on(side, pool, record)


@pytest.mark.long
def test_a_thin_pool_goes_on_after_a_device_was_added(side, run):
    """Promises three times the pool. The physical limit comes first; what was acknowledged is there, and with a further
    device the database goes on."""
    side, pool = side
    server: Server = side.server
    pool.pagefold("set", "logicalcapacity=3x", pool.pool)
    first = 1 + int(server.sql("SELECT coalesce(max(id), 0) FROM acknowledged", database="lab"))
    record = fill_under_load(side, pool, run, first=first)
    told = os.statvfs(pool.mountpoint)
    capacity = pool.figures("status")["capacity_bytes"]
    assert abs(told.f_blocks * told.f_frsize - 3 * capacity) <= told.f_frsize
    assert told.f_bavail * told.f_frsize < BALLAST_BYTES, "room is told that is not there"
    assert told.f_bfree * told.f_frsize > capacity, "the promise was kept"
    assert "this pool holds" in pool.pagefold("status", pool.pool)
    pool.pagefold("add", pool.pool, run.fresh("more"), "--size", str(POOL_BYTES))
    assert os.statvfs(pool.mountpoint).f_blocks > 2 * told.f_blocks
    if not alive(server):
        server.kill()
        server.start()
    verify.acknowledged_rows(server, "lab", record)
    client = load.acknowledged(server, "lab", record, 1 + int(server.sql("SELECT max(id) FROM acknowledged", database="lab")))
    try:
        client.wait_for(100)
    finally:
        client.stop()
    side.healthy()
    assert verify.acknowledged_rows(server, "lab", record) >= 120
    verify.no_torn_pages(server.log)


def fill_under_load(side, pool: Pool, run, *, first: int) -> Path:
    """Fills the pool while a client has rows acknowledged, until not even a page finds room. Returns the client's
    record."""
    server: Server = side.server
    ballast = pool.mountpoint / "ballast"
    with open(ballast, "wb") as f:
        for _ in range(BALLAST_BYTES >> 20):
            f.write(os.urandom(1 << 20))
        os.fsync(f.fileno())
    record = run.dir / f"acknowledged-{server.program}"
    client = load.acknowledged(server, "lab", record, first)
    said = []
    try:
        client.wait_for(20)
        for kib in (4096, 512, 64, 8, 1):
            said.append(grow_until_it_fails(side, kib))
    finally:
        client.stop()
    told = "\n".join([*said, server.log.read_text(errors="replace")]).lower()
    assert any(word in told for word in NO_SPACE), f"the database stopped for another reason:\n{proc.tail(server.log)}"
    status = pool.figures("status")
    assert status["available_bytes"] < BALLAST_BYTES // 2, f"the pool is not full: {status}"
    return record


def grow_until_it_fails(side, kib: int) -> str:
    """Repeats a statement until it fails, and returns its error."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            side.server.sql(side.grow(kib), database="lab", timeout_s=60)
        except proc.CommandFailed as e:
            return e.output
    raise AssertionError("the pool does not become full")


def make_room_and_go_on(side, pool: Pool, record: Path) -> None:
    """Deletes the file that was kept for this, brings the database back if it has ended, and verifies that everything
    acknowledged is there."""
    server: Server = side.server
    before = pool.figures("status")["available_bytes"]
    (pool.mountpoint / "ballast").unlink()
    wait_for_room(pool, before + BALLAST_BYTES // 2)
    if not alive(server):
        server.kill()
        server.start()
    verify.acknowledged_rows(server, "lab", record)
    server.sql("DROP TABLE filler", database="lab")
    wait_for_room(pool, before + BALLAST_BYTES)
    client = load.acknowledged(server, "lab", record, 1 + int(server.sql("SELECT max(id) FROM acknowledged", database="lab")))
    try:
        client.wait_for(100)
    finally:
        client.stop()
    side.healthy()
    assert verify.acknowledged_rows(server, "lab", record) >= 120
    verify.no_torn_pages(server.log)
    side.prepare_filler()


def alive(server: Server) -> bool:
    """Returns true if the server still answers."""
    if server.server is None or server.server.poll() is not None:
        return False
    try:
        server.sql("SELECT 1", timeout_s=30)
    except proc.CommandFailed:
        return False
    return True


def wait_for_room(pool: Pool, wanted_bytes: int) -> None:
    """Waits until `wanted_bytes` are available: space returns in the background."""
    deadline = time.monotonic() + 60
    while (available := pool.figures("status")["available_bytes"]) < wanted_bytes:
        assert time.monotonic() < deadline, f"{available} bytes are available a minute after deleting, not {wanted_bytes}"
        time.sleep(0.2)
