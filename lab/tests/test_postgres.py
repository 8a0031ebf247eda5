"""PostgreSQL on the pool, full_page_writes=off: crash, recovery, backup, and the pool's view of its files."""

from __future__ import annotations

import pytest

from lab import load, proc, verify
from lab.crash import crash_beside_client, crash_loses_nothing
from lab.paths import postgres_bin
from lab.postgres import USER, Postgres

from .conftest import expect_recordsize, survives_remount

SCALE = 10


@pytest.fixture(scope="module")
def server(run, where):
    """Provides a cluster on the pool with pgbench's tables and an acknowledgement table."""
    server = Postgres(run, where.folder("pg", USER), settings={"full_page_writes": "off", "checkpoint_timeout": "30s"})
    load.prepare_pgbench(server, "lab", SCALE)
    yield server
    server.kill()


def test_recordsize_of_relations_is_found(server, where):
    server.sql("CHECKPOINT")
    for relation in ("pgbench_accounts", "pgbench_accounts_pkey"):
        for path in server.relation_files("lab", relation):
            expect_recordsize(where, path, 8192)


def test_cluster_survives_an_orderly_remount(server, where):
    count = "SELECT count(*), sum(aid) FROM pgbench_accounts"
    survives_remount(server, where, lambda: server.sql(count, database="lab"))
    verify.postgres_healthy(server, "lab")


@pytest.mark.parametrize("delay_s", [0.3, 4.0])
def test_crash_under_load_loses_nothing_acknowledged(server, where, run, delay_s):
    record = run.dir / "acknowledged-pg"
    crash_loses_nothing(where, server, "lab", record, lambda: load.pgbench_load(server, "lab"), delay_s)
    assert verify.pgbench_balances(server, "lab") > 0
    verify.postgres_healthy(server, "lab")
    verify.no_torn_pages(server.log)


def test_basebackup_from_and_to_the_pool(server, where, run):
    outside = run.dir / "backup"
    outside.mkdir()
    proc.run(["chown", f"{USER}:", outside])
    inside = where.folder("backup", USER)
    expected = server.sql("SELECT count(*), sum(abalance) FROM pgbench_accounts", database="lab")
    for target in (outside, inside):
        argv = server.client(
            "pg_basebackup", "--checkpoint=fast", "--wal-method=stream", "-D", str(target), database=None
        )
        proc.run(argv, user=USER)
        proc.run([postgres_bin("pg_verifybackup"), target], user=USER)
    copy = Postgres(run, inside, settings={"full_page_writes": "off"}, name="pg-backup")
    copy.start()
    try:
        assert copy.sql("SELECT count(*), sum(abalance) FROM pgbench_accounts", database="lab") == expected
        verify.postgres_healthy(copy, "lab")
    finally:
        copy.kill()


@pytest.mark.long
def test_crash_with_fsync_off_keeps_a_consistent_prefix(server, where, run):
    """With fsync=off the last transactions may be lost, but not the database: a crash leaves the files as they were at
    one instant."""
    server.stop()
    server.settings["fsync"] = "off"
    try:
        server.start()
        record = run.dir / "unsafe"
        crash_beside_client(where, server, "lab", record, lambda: load.pgbench_load(server, "lab"), 3.0)
        verify.pgbench_balances(server, "lab")
        verify.postgres_healthy(server, "lab")
    finally:
        server.stop()
        server.settings["fsync"] = "on"
        server.start()
