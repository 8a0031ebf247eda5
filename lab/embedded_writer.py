"""`python3 -m lab.embedded_writer ENGINE FOLDER FIRST`: puts numbered rows into a database that is a library, each its own
transaction, and prints each number after its commit. That is durable unless ENGINE ends with `-unsynced`. The transaction also changes an older row. With `rows` in the
place of FIRST it reads the whole database and prints all rows, a number and its payload on each line.

It is run by the Python that has these libraries: `scripts/tool-program embedded`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from .load import payload

CHURNED = 2000
"""Number of rows that are changed again and again."""


class Lmdb:
    """LMDB, which writes pages and reads them through a mapping."""

    options: dict = {}

    def __init__(self, folder: Path):
        import lmdb

        folder.mkdir(exist_ok=True)
        self.database = lmdb.open(str(folder), map_size=1 << 32, **self.options)

    def put(self, number: int) -> None:
        """Commits a row."""
        with self.database.begin(write=True) as transaction:
            transaction.put(b"row%d" % number, payload(number).encode())
            transaction.put(b"churn%d" % (number * 7919 % CHURNED), b"%d" % number * 50)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Reads all keys and values."""
        with self.database.begin() as transaction:
            yield from ((bytes(key), bytes(value)) for key, value in transaction.cursor())


class LmdbMapped(Lmdb):
    """LMDB that stores into a mapping, and calls msync."""

    options = {"writemap": True}


class LmdbUnsynced(Lmdb):
    """LMDB that calls no fsync. Its manual promises that the database stays whole where writes keep their order."""

    options = {"sync": False}


class LevelDB:
    """LevelDB with small tables, so that it merges them all the time."""

    synced = True

    def __init__(self, folder: Path):
        import plyvel

        self.database = plyvel.DB(str(folder), create_if_missing=True, write_buffer_size=1 << 18, paranoid_checks=True)

    def put(self, number: int) -> None:
        """Commits a row."""
        with self.database.write_batch(sync=self.synced) as batch:
            batch.put(b"row%d" % number, payload(number).encode())
            batch.put(b"churn%d" % (number * 7919 % CHURNED), b"%d" % number * 50)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Reads all keys and values, and verifies them."""
        return self.database.iterator(verify_checksums=True)


class LevelDBUnsynced(LevelDB):
    """LevelDB whose log is not synced."""

    synced = False


class RocksDB:
    """RocksDB with small tables, so that it merges them all the time."""

    synced = True

    def __init__(self, folder: Path):
        from rocksdict import Options, Rdict, WriteOptions

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(1 << 18)
        options.set_paranoid_checks(True)
        self.choose(options)
        self.database = Rdict(str(folder), options)
        how = WriteOptions()
        how.sync = self.synced
        self.database.set_write_options(how)

    def choose(self, options) -> None:
        """Sets how files are read and written."""

    def put(self, number: int) -> None:
        """Commits a row."""
        self.database[b"churn%d" % (number * 7919 % CHURNED)] = b"%d" % number * 50
        self.database[b"row%d" % number] = payload(number).encode()

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Reads all keys and values, and verifies them."""
        return iter(self.database.items())


class RocksDBUnsynced(RocksDB):
    """RocksDB whose log is not synced."""

    synced = False


class RocksDBDirect(RocksDB):
    """RocksDB that reads and merges past the page cache."""

    def choose(self, options) -> None:
        options.set_use_direct_reads(True)
        options.set_use_direct_io_for_flush_and_compaction(True)


class RocksDBMapped(RocksDB):
    """RocksDB that reads and writes tables through mappings."""

    def choose(self, options) -> None:
        options.set_allow_mmap_reads(True)
        options.set_allow_mmap_writes(True)


class DuckDB:
    """DuckDB, which makes a checkpoint every 256 KB of log."""

    def __init__(self, folder: Path):
        import duckdb

        folder.mkdir(exist_ok=True)
        self.database = duckdb.connect(str(folder / "database"))
        self.database.execute("PRAGMA wal_autocheckpoint = '256KB'")
        self.database.execute("CREATE TABLE IF NOT EXISTS rows (id BIGINT PRIMARY KEY, payload VARCHAR)")
        self.database.execute("CREATE TABLE IF NOT EXISTS churn (id INTEGER PRIMARY KEY, n BIGINT)")
        self.database.execute("INSERT OR IGNORE INTO churn SELECT i, 0 FROM range(?) AS numbers (i)", [CHURNED])

    def put(self, number: int) -> None:
        """Commits a row."""
        self.database.execute("BEGIN")
        self.database.execute("INSERT INTO rows VALUES (?, ?)", [number, payload(number)])
        self.database.execute("UPDATE churn SET n = ? WHERE id = ?", [number, number * 7919 % CHURNED])
        self.database.execute("COMMIT")

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Reads all rows."""
        found = self.database.execute("SELECT id, payload FROM rows").fetchall()
        assert self.database.execute("SELECT count(*) FROM churn").fetchone()[0] == CHURNED
        return ((b"row%d" % number, text.encode()) for number, text in found)


ENGINES = {
    "lmdb": Lmdb,
    "lmdb-mapped": LmdbMapped,
    "lmdb-unsynced": LmdbUnsynced,
    "leveldb": LevelDB,
    "leveldb-unsynced": LevelDBUnsynced,
    "rocksdb": RocksDB,
    "rocksdb-unsynced": RocksDBUnsynced,
    "rocksdb-direct": RocksDBDirect,
    "rocksdb-mapped": RocksDBMapped,
    "duckdb": DuckDB,
}


def main(engine: str, folder: str, what: str) -> None:
    """Writes until it is killed or a write fails; or prints all rows."""
    database = ENGINES[engine](Path(folder))
    if what == "rows":
        for key, value in database.items():
            if key.startswith(b"row"):
                print(int(key[3:]), value.decode())
        return
    number = int(what)
    while True:
        database.put(number)
        print(number, flush=True)
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:4])
