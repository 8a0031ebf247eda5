"""`pagefold analyze`, compared with the space that the same files then take on a pool."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from lab import load, mariadb, predictions, proc
from lab.mariadb import MariaDB
from lab.paths import tool
from lab.postgres import USER, Postgres

POOL_BYTES = 2 << 30


def documents(run) -> Path:
    """Provides files of all sizes of text from the machine's packages."""
    folder = run.fresh("documents")
    predictions.documents(run, folder, 1)
    return folder


def sqlite(run) -> Path:
    """A database with an index."""
    folder = run.fresh("sqlite")
    folder.mkdir()
    values = random.Random(4)
    with sqlite3.connect(folder / "a.db") as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, customer text, total real, note text)")
        rows = ((i, f"customer {values.randrange(9000)}", values.random() * 900, load.payload(i)) for i in range(200_000))
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)
        connection.execute("CREATE INDEX by_customer ON orders (customer)")
    connection.close()
    return folder


def rrd(run) -> Path:
    """Round-robin databases, as collectd makes them."""
    folder = run.fresh("rrd")
    folder.mkdir()
    values = random.Random(5)
    for number in range(12):
        path = folder / f"{number}.rrd"
        archives = ["RRA:AVERAGE:0.5:1:4000", "RRA:AVERAGE:0.5:7:1200", "RRA:MAX:0.5:7:1200"]
        proc.run([tool("rrdtool"), "create", path, "--start", "1700000000", "--step", "10", "DS:rx:GAUGE:30:U:U", *archives])
        proc.run([tool("rrdtool"), "update", path, *(f"{1700000010 + 10 * i}:{values.gauss(50, 9)}" for i in range(3500))])
    return folder


def postgres(run) -> Path:
    """A stopped data directory."""
    folder = run.fresh("pg")
    folder.mkdir(mode=0o700)
    shutil.chown(folder, USER, USER)
    server = Postgres(run, folder / "data", settings={"max_wal_size": "64MB"})
    server.initdb()
    server.start()
    server.createdb("shop")
    server.sql(
        """
        SELECT setseed(0.5);
        CREATE TABLE orders AS SELECT i AS id, md5(i::text)::uuid AS guid, date '2020-01-01' + i / 500 AS day,
          'street ' || (random() * 900)::int AS street, (random() * 1e6)::numeric(12, 2) AS price FROM generate_series(1, 120000) i;
        CREATE INDEX ON orders (id);
        CREATE INDEX ON orders (street);
        CREATE TABLE notes AS SELECT i AS id, repeat(md5((i / 7)::text) || ' ', 9) AS body FROM generate_series(1, 15000) i;
        UPDATE orders SET price = price + 1 WHERE id % 9 = 0;
        VACUUM;
        """,
        database="shop",
    )
    server.stop()
    return folder


def innodb(run) -> Path:
    """A stopped data directory."""
    folder = run.fresh("maria")
    folder.mkdir(mode=0o700)
    shutil.chown(folder, mariadb.USER, mariadb.USER)
    server = MariaDB(run, folder / "data")
    server.install()
    server.start()
    server.sql(
        "CREATE DATABASE shop; USE shop; CREATE TABLE orders (id int PRIMARY KEY, street varchar(40), price decimal(12, 2), KEY (street)) "
        "SELECT seq AS id, concat('street ', seq * 7919 % 900) AS street, seq * 104729 % 1000000 / 100 AS price FROM seq_1_to_200000"
    )
    server.stop()
    return folder


@pytest.mark.parametrize("make", [documents, sqlite, rrd, postgres, innodb], ids=lambda make: make.__name__)
def test_a_prediction_comes_true(run, make):
    found = predictions.compare(run, make(run), "zstd", POOL_BYTES)
    assert found.holds, f"{found.predicted} predicted, {found.taken} taken"


@pytest.mark.long
@pytest.mark.parametrize("make", [documents, sqlite, rrd, postgres, innodb], ids=lambda make: make.__name__)
def test_a_prediction_with_models_comes_true(run, make):
    folder = make(run)
    without = predictions.predict(folder, "zstd")
    found = predictions.compare(run, folder, "page", POOL_BYTES)
    print(f"{make.__name__}: {found.predicted} predicted, {found.taken} taken, {found.difference:+.1%}")
    assert found.holds, f"{found.predicted} predicted, {found.taken} taken"
    if make in (postgres, innodb):
        assert found.report["total"]["model_bytes"] > 0
        assert found.taken < without["total"]["stored"]["bytes"]
