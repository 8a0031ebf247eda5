"""SQLite on the pool, with a rollback journal and with a write-ahead log."""

from __future__ import annotations

import sqlite3

import pytest

from lab import load, verify
from lab.crash import crash_beside_writer

from .conftest import expect_recordsize


def create(path, journal: str, page_size: int) -> None:
    """Makes a database with an acknowledgement table and a table whose rows are changed in place."""
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        assert connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()[0] == journal
        connection.execute(load.CREATE_ACKNOWLEDGED)
        connection.execute("CREATE TABLE churn (id integer PRIMARY KEY, n integer, filler text)")
        connection.executemany("INSERT INTO churn VALUES (?, 0, ?)", ((i, load.payload(i)) for i in range(2000)))
    connection.close()


def check(path, record) -> None:
    """Verifies that the database is sound and has all acknowledged rows."""
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute("SELECT id, payload FROM acknowledged").fetchall()
        changed = connection.execute("SELECT sum(n) FROM churn").fetchone()[0]
        verify.acknowledged(rows, record)
        assert changed == len(rows), f"{len(rows)} transactions inserted a row, {changed} changed one"
    finally:
        connection.close()


@pytest.mark.parametrize(("journal", "page_size"), [("delete", 4096), ("wal", 4096), ("wal", 16384), ("persist", 1024)])
def test_crash_under_load_loses_nothing_acknowledged(where, run, journal, page_size):
    path = where.mountpoint / f"{journal}{page_size}.db"
    record = run.dir / f"acknowledged-{journal}{page_size}"
    create(path, journal, page_size)
    if page_size >= 4096:
        expect_recordsize(where, path, page_size)
    first = 1
    for delay_s in (0.2, 1.5):
        writer = ["-m", "lab.sqlite_writer", str(path), journal, str(first)]
        numbers = crash_beside_writer(run, where, writer, record, 20, delay_s)
        check(path, record)
        first = 2 + max(numbers)


def test_vacuum_and_remount(where, run):
    path = where.mountpoint / "vacuum.db"
    create(path, "delete", 8192)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM churn WHERE id % 3 = 0")
    connection.execute("VACUUM")
    dump = list(connection.iterdump())
    connection.close()
    expect_recordsize(where, path, 8192)
    where.unmount()
    where.mount()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert list(connection.iterdump()) == dump
    connection.close()
