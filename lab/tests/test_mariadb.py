"""MariaDB on the pool, O_DIRECT, doublewrite off: crash, recovery, and the pool's view of its files."""

from __future__ import annotations

import pytest

from lab import load, verify
from lab.crash import crash_loses_nothing
from lab.mariadb import USER, MariaDB

from .conftest import expect_recordsize, survives_remount

ROWS = 50_000


@pytest.fixture(scope="module")
def server(run, where):
    """Provides a server on the pool with sysbench's tables and an acknowledgement table."""
    server = MariaDB(run, where.folder("maria", USER))
    load.prepare_sysbench(server, "lab", ROWS)
    yield server
    server.kill()


def test_settings_are_in_force(server):
    told = dict(
        line.split("\t") for line in server.sql("SHOW GLOBAL VARIABLES LIKE 'innodb%'").splitlines() if "\t" in line
    )
    assert told["innodb_flush_method"] == "O_DIRECT"
    assert told["innodb_doublewrite"] == "OFF"


def test_recordsize_of_tablespaces_is_found(server, where):
    paths = server.tablespaces("lab")
    assert len(paths) == 3
    for path in paths:
        expect_recordsize(where, path, 16384)


def test_server_survives_an_orderly_remount(server, where):
    checksums = "CHECKSUM TABLE sbtest1, sbtest2"
    survives_remount(server, where, lambda: server.sql(checksums, database="lab"))
    verify.mariadb_healthy(server, "lab")


@pytest.mark.parametrize("delay_s", [0.3, 4.0])
def test_crash_under_load_loses_nothing_acknowledged(server, where, run, delay_s):
    record = run.dir / "acknowledged-maria"
    crash_loses_nothing(where, server, "lab", record, lambda: load.sysbench_load(server, "lab", rows=ROWS), delay_s)
    verify.sysbench_rows(server, "lab", ROWS)
    verify.mariadb_healthy(server, "lab")
    verify.no_torn_pages(server.log)
