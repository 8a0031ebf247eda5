"""`python3 -m lab.sqlite_writer DATABASE JOURNAL FIRST`: inserts numbered rows, each its own transaction, and prints
each number after its commit. It changes an older row in the same transaction, so that pages in the middle are
overwritten, too."""

from __future__ import annotations

import os
import sqlite3
import sys

from .load import payload


def main(database: str, journal: str, first: int) -> None:
    """Writes until it is killed or a write fails."""
    connection = sqlite3.connect(database, isolation_level=None)
    # A database keeps no other mode than WAL: each connection starts with DELETE.
    assert connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()[0] == journal
    # With FULL, SQLite does not sync the directory after it has removed the rollback journal, which is its commit: the
    # last transaction may be rolled back after a crash, on any file system. EXTRA does.
    connection.execute("PRAGMA synchronous = EXTRA")
    number = first
    while True:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO acknowledged VALUES (?, ?)", (number, payload(number)))
        connection.execute("UPDATE churn SET n = n + 1 WHERE id = ?", (number * 7919 % 2000,))
        connection.execute("COMMIT")
        # SQLite syncs the directory after it has removed the journal. If it cannot even open the directory, since the
        # file system died in between, it says nothing and calls the transaction committed.
        os.close(os.open(os.path.dirname(database), os.O_RDONLY))
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
