"""Verifies what must hold after a crash. Every function raises AssertionError with what it found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .load import payload
from .mariadb import MariaDB
from .postgres import Postgres
from .server import DISK_BACK, DISK_GONE, Server


def acknowledged(rows: list[tuple[int, str]], record: Path) -> int:
    """Verifies that every number in the record is among the rows, none is there twice, and every row has its payload.
    There may be more rows (those in flight at a crash). Returns the number of acknowledged rows."""
    promised = {int(line) for line in record.read_text().split()}
    assert promised, "nothing was acknowledged before the crash: the check would prove nothing"
    found = dict(rows)
    assert len(found) == len(rows), "the same id is there twice"
    lost = sorted(promised - found.keys())
    assert not lost, f"{len(lost)} acknowledged transactions are lost, among them {lost[:5]}"
    wrong = [number for number, text in rows if text != payload(number)]
    assert not wrong, f"{len(wrong)} rows hold something else than was written, among them {wrong[:5]}"
    return len(promised)


def rows(server: Server, database: str) -> list[tuple[int, str]]:
    """Returns the rows of the acknowledgement table, as the server finds them."""
    lines = server.sql("SELECT id, payload FROM acknowledged", database=database).splitlines()
    fields = [line.partition(server.separator) for line in lines]
    return [(int(number), text) for number, _, text in fields]


def acknowledged_rows(server: Server, database: str, record: Path) -> int:
    """Runs `acknowledged` on the rows that the server finds."""
    return acknowledged(rows(server, database), record)


def pgbench_balances(server: Postgres, database: str) -> int:
    """Verifies TPC-B's invariant: accounts, tellers, branches and the history add up to the same. Returns the number of
    transactions in the history."""
    query = """
        SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
               (SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
               (SELECT count(*) FROM pgbench_history)"""
    *sums, count = map(int, server.sql(query, database=database).split("|"))
    assert len(set(sums)) == 1, f"accounts, tellers, branches, history add up to {sums}"
    return count


def postgres_healthy(server: Postgres, database: str) -> None:
    """Verifies that amcheck finds nothing, and then (the server is restarted for it) that no page's checksum is
    wrong."""
    server.amcheck(database)
    server.stop()
    server.verify_checksums()
    server.start()


def sysbench_rows(server: MariaDB, database: str, rows: int) -> None:
    """Verifies that every table has its number of rows: sysbench deletes and inserts within one transaction."""
    for table in server.tables(database):
        if table.startswith("sbtest"):
            count = int(server.sql(f"SELECT count(*) FROM `{table}`", database=database))
            assert count == rows, f"{table} has {count} rows instead of {rows}"


def mariadb_healthy(server: MariaDB, database: str) -> None:
    """Verifies that CHECK TABLE finds nothing, and then (the server is restarted for it) that no page's checksum is
    wrong."""
    server.check_tables(database)
    server.stop()
    assert server.innochecksum() > 1, "no tablespaces to check"
    server.start()


def no_torn_pages(log: Path) -> None:
    """Verifies that the server's log tells of no damaged page, nor of an assertion that failed, while its file system
    was there."""
    words = ("assertion failure", "corrupt", "invalid page", "page verification failed", "checksum mismatch", "torn")
    # PostgreSQL guesses this whenever a recovery was interrupted, so it tells of no damage.
    guess = "This probably means that some data is corrupted"
    lines = [s for s in _with_disk(log.read_text(errors="replace").splitlines()) if guess not in s]
    bad = [s for s in lines if any(w in s.lower() for w in words)]
    assert not bad, "the server's log tells of damage:\n" + "\n".join(bad[:10])


def _with_disk(lines: list[str]) -> Iterator[str]:
    """Yields the lines except those of a server whose file system was killed: MariaDB's assertions then fail, and speak
    of corruption."""
    gone = False
    for line in lines:
        gone = line == DISK_GONE or (gone and line != DISK_BACK)
        if not gone:
            yield line
