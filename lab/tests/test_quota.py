"""Databases on datasets whose quota they reach, and back; another dataset is not disturbed."""

from __future__ import annotations

import os
import time

import pytest

from lab import load, proc, verify
from lab.mariadb import USER as MYSQL
from lab.mariadb import MariaDB
from lab.pool import Pool
from lab.postgres import USER as POSTGRES
from lab.postgres import Postgres
from lab.snapshots import Mounted

POOL_BYTES = 1 << 30
QUOTA_BYTES = 160 << 20
ACCOUNTED_SLACK_BYTES = 24 << 20
"""Bytes that may be above a quota: tree nodes that were not stored, and the ends of truncated files (SEMANTICS.md)."""
GROW = (
    "INSERT INTO filler SELECT (SELECT decode(string_agg(md5(random()::text || g), ''), 'hex') "
    "FROM generate_series(1, 64) g WHERE n > 0) FROM generate_series(1, {kib}) n"
)


@pytest.fixture(scope="module")
def pool(run, request):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("quotas of datasets are Pagefold's own")
    with Pool(run, POOL_BYTES) as pool:
        yield pool
        pool.unmount()
        pool.check()


def dataset(pool: Pool, name: str, *options: str) -> Mounted:
    made = Mounted(pool, name)
    pool.pagefold("dataset", "create", *options, made.name)
    made.mount()
    return made


def held(pool: Pool, name: str) -> int:
    return int(pool.pagefold("get", "-Hp", "used", name).split("\t")[2])


def cluster(place: Mounted, name: str) -> Postgres:
    settings = {"full_page_writes": "off", "shared_buffers": "16MB", "max_wal_size": "48MB", "min_wal_size": "32MB"}
    server = Postgres(place.pool.run, place.folder("data", POSTGRES), settings=settings, name=name)
    server.initdb()
    server.start()
    server.createdb("lab")
    server.sql(load.CREATE_ACKNOWLEDGED, database="lab")
    return server


@pytest.mark.long
def test_postgres_runs_into_its_quota_and_back(pool, run):
    bounded, free = dataset(pool, "bounded", "-o", f"quota={QUOTA_BYTES}"), dataset(pool, "free")
    pinched, other = cluster(bounded, "pinched"), cluster(free, "other")
    records = {server: run.dir / f"acknowledged-{name}" for server, name in ((pinched, "pinched"), (other, "other"))}
    undisturbed = load.acknowledged(other, "lab", records[other], 1)
    client = load.acknowledged(pinched, "lab", records[pinched], 1)
    client.wait_for(20)
    pinched.sql("CREATE TABLE filler (data bytea)", database="lab")
    pinched.sql("ALTER TABLE filler ALTER data SET STORAGE EXTERNAL", database="lab")
    said = fill(pinched)
    client.stop()
    assert "No space left on device" in said + pinched.log.read_text(errors="replace"), said
    assert held(pool, bounded.name) <= QUOTA_BYTES + ACCOUNTED_SLACK_BYTES
    free_bytes = os.statvfs(bounded.mountpoint)
    assert free_bytes.f_blocks * free_bytes.f_frsize == QUOTA_BYTES
    assert "% of quota of" in pool.pagefold("status", pool.pool)
    # The other database has not noticed, and has room for more.
    before = int(other.sql("SELECT count(*) FROM acknowledged", database="lab"))
    undisturbed.wait_for(before + 50)
    # The rows of the full database are there, once it has room again.
    pool.pagefold("set", f"quota={2 * QUOTA_BYTES}", bounded.name)
    if not answers(pinched):
        pinched.kill()
        pinched.start()
    verify.acknowledged_rows(pinched, "lab", records[pinched])
    pinched.sql("DROP TABLE filler", database="lab")
    pinched.sql("CHECKPOINT", database="lab")
    wait_until(lambda: held(pool, bounded.name) < QUOTA_BYTES)
    pool.pagefold("set", f"quota={QUOTA_BYTES}", bounded.name)
    client = load.acknowledged(pinched, "lab", records[pinched], 1 + int(pinched.sql("SELECT max(id) FROM acknowledged", database="lab")))
    client.wait_for(50)
    client.stop()
    undisturbed.stop()
    for server in (pinched, other):
        verify.postgres_healthy(server, "lab")
        verify.acknowledged_rows(server, "lab", records[server])
        verify.no_torn_pages(server.log)
        server.stop()
    bounded.unmount()
    free.unmount()


def fill(server: Postgres) -> str:
    """Writes until not even a page finds room; returns the last error."""
    said = ""
    for kib in (4096, 512, 64, 8):
        deadline = time.monotonic() + 300
        while True:
            assert time.monotonic() < deadline, "the quota is never reached"
            try:
                server.sql(GROW.format(kib=kib), database="lab", timeout_s=60)
            except proc.CommandFailed as e:
                said = e.output
                break
    return said


def answers(server: Postgres) -> bool:
    if server.server is None or server.server.poll() is not None:
        return False
    try:
        server.sql("SELECT 1", timeout_s=30)
    except proc.CommandFailed:
        return False
    return True


def wait_until(true) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "space does not return within a minute"
        time.sleep(0.2)


@pytest.mark.long
def test_mariadb_goes_on_at_its_quota_if_its_log_has_room_of_its_own(pool, run):
    """Verifies what docs/SEMANTICS.md advises: InnoDB ends the server if its log has no room."""
    bounded, log = dataset(pool, "tables"), dataset(pool, "log", "-o", "reservation=64M")
    server = MariaDB(run, bounded.folder("data", MYSQL), settings={"innodb_log_file_size": "16M"}, name="pinched-maria")
    server.install()
    home = log.folder("innodb", MYSQL)
    server.settings["innodb_log_group_home_dir"] = str(home)
    proc.run(["mv", server.data / "ib_logfile0", home])
    proc.run(["chown", f"{MYSQL}:", home / "ib_logfile0"])
    server.start()
    try:
        server.sql("CREATE DATABASE lab; CREATE TABLE lab.filler (n int, data longblob)")
        pool.pagefold("set", f"quota={held(pool, bounded.name) + (24 << 20)}", bounded.name)
        for rows in (500, 50, 5, 1):
            with pytest.raises(proc.CommandFailed, match="is full"):
                for _ in range(200):
                    server.sql(f"INSERT INTO filler SELECT seq, random_bytes(1000) FROM seq_1_to_{rows}", database="lab")
        # The same server answers, has lost nothing, and goes on when there is room.
        count = int(server.sql("SELECT count(*) FROM filler", database="lab"))
        pool.pagefold("set", "quota=none", bounded.name)
        server.sql("INSERT INTO filler SELECT seq, random_bytes(1000) FROM seq_1_to_500", database="lab")
        assert server.sql("SELECT count(*) FROM filler", database="lab") == str(count + 500)
        verify.mariadb_healthy(server, "lab")
    finally:
        pool.pagefold("set", "quota=none", bounded.name)
        server.stop()
        for made in (log, bounded):
            made.unmount()
            pool.pagefold("destroy", made.name)
