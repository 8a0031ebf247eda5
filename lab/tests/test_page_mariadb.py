"""MariaDB on a pool whose pages are stored by learned models: models are learned and used. After a remount and a crash,
every check of the server finds its pages as they were."""

from __future__ import annotations

import pytest

from lab import load, verify
from lab.crash import crash_loses_nothing
from lab.mariadb import USER, MariaDB
from lab.pool import Pool

from .conftest import counter, survives_remount, wait_for_models

ROWS = 50_000

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY AUTO_INCREMENT, customer int NOT NULL, state char(10), amount decimal(12,2),
  placed datetime, sent datetime, note varchar(300), KEY (customer, placed)) CHARSET utf8mb4;
INSERT INTO orders (customer, state, amount, placed, sent, note)
SELECT seq * 7919 % 5000, ELT(1 + seq % 3, 'new', 'paid', 'sent'), seq * 37 % 100000 / 100, '2024-01-01' + INTERVAL seq MINUTE,
  IF(seq % 3 = 2, '2024-01-02' + INTERVAL seq MINUTE, NULL), IF(seq % 5 = 0, CONCAT('call ', seq, ' before noon'), NULL) FROM seq_1_to_100000;
"""
AGE = """
UPDATE orders SET amount = amount + 1, note = CONCAT('again ', id) WHERE id % 7 = 0;
DELETE FROM orders WHERE id % 11 = 3;
UPDATE sbtest1 SET k = k + 1 WHERE id % 3 = 0;
UPDATE sbtest2 SET pad = REVERSE(pad) WHERE id % 5 = 0;
"""


@pytest.fixture(scope="module")
def server(run, pages):
    """Provides a server with sysbench's tables and one with nulls."""
    server = MariaDB(run, pages.folder("maria", USER), name="maria-page")
    load.prepare_sysbench(server, "lab", ROWS)
    server.sql(TABLES, database="lab")
    yield server
    server.kill()


def flush(server: MariaDB, pages: Pool) -> None:
    """Brings all changes of the server into the pool: a clean shutdown writes them."""
    server.stop()
    pages.pagefold("sync", pages.pool)
    server.start()


def sums(server: MariaDB) -> str:
    return server.sql("CHECKSUM TABLE sbtest1, sbtest2, orders", database="lab")


def test_models_are_learned_and_used(server, pages):
    flush(server, pages)
    wait_for_models(pages, 3)
    before = counter(pages, "pages_by_model")["operations"]
    server.sql(AGE, database="lab")
    flush(server, pages)
    assert counter(pages, "pages_by_model")["operations"] > before + 1000
    verify.mariadb_healthy(server, "lab")


def test_pages_come_back_from_the_device(server, pages):
    survives_remount(server, pages, lambda: sums(server))
    verify.mariadb_healthy(server, "lab")


def test_crash_under_load_loses_nothing_acknowledged(server, pages, run):
    record = run.dir / "acknowledged-maria-page"
    crash_loses_nothing(pages, server, "lab", record, lambda: load.sysbench_load(server, "lab", rows=ROWS), 4.0)
    verify.sysbench_rows(server, "lab", ROWS)
    verify.mariadb_healthy(server, "lab")
