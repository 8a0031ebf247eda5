"""PostgreSQL on a pool whose pages are stored by learned models: models are learned, used and worth it. After a crash,
vacuum and remount, every check of the database finds its pages as they were."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lab import load, proc, verify
from lab.crash import crash_loses_nothing
from lab.demo import HASH_FUNCTIONS
from lab.demo import __file__ as demo_file
from lab.paths import pagefold
from lab.pool import Pool
from lab.postgres import USER, Postgres

from .conftest import POOL_BYTES, counter, survives_remount, wait_for_models

# Its tests go on from each other.
pytestmark = pytest.mark.long

DATABASE = "lab"
ROWS = 120_000

TABLES = """
CREATE TABLE events (id bigserial PRIMARY KEY, at timestamptz NOT NULL, kind smallint NOT NULL, session uuid, amount numeric(12,2),
                     note text, tags int[], payload jsonb, done boolean DEFAULT false);
INSERT INTO events (at, kind, session, amount, note, tags, payload)
SELECT timestamptz '2024-01-01' + i * interval '7 s', pick(i, 1, 12),
       CASE WHEN pick(i, 2, 5) > 0 THEN md5('s' || i / 20)::uuid END, pick(i, 3, 900000) / 100.0,
       CASE WHEN pick(i, 4, 3) = 0 THEN 'order ' || i || ' was ' || (ARRAY['paid','sent','lost','returned'])[1 + pick(i, 5, 4)] END,
       CASE WHEN pick(i, 6, 2) = 0 THEN ARRAY[pick(i, 7, 9), pick(i, 8, 90)] END,
       jsonb_build_object('user', pick(i, 9, 5000), 'ok', pick(i, 10, 2) = 0, 'via', (ARRAY['web','app','till'])[1 + pick(i, 11, 3)])
FROM generate_series(1, :rows) i;
CREATE INDEX events_at ON events (at);
CREATE INDEX events_session ON events (session);
CREATE INDEX events_note ON events (note);
CREATE INDEX events_payload ON events USING gin (payload);
CREATE TABLE texts AS SELECT i AS id, repeat(md5(i::text), 1 + pick(i, 12, 200)) AS body FROM generate_series(1::bigint, 3000) i;
ALTER TABLE texts ADD PRIMARY KEY (id);
"""

AGE = """
UPDATE events SET done = true, amount = amount + 1 WHERE id % 7 = 0;
DELETE FROM events WHERE id % 11 = 3;
UPDATE events SET note = note || ', again' WHERE id % 5 = 1;
VACUUM events;
INSERT INTO events (at, kind, note) SELECT now() + i * interval '1 s', 3, 'late ' || i FROM generate_series(1, 10000) i;
UPDATE price_paid SET price = price + 1000 WHERE pick(price, 13, 9) = 0;
VACUUM price_paid;
CHECKPOINT;
"""


GROW = """
INSERT INTO lineitem SELECT orderkey + 1000000, partkey, suppkey, linenumber, quantity, extendedprice, discount, tax, returnflag,
       linestatus, shipdate, commitdate, receiptdate, shipinstruct, shipmode, comment FROM lineitem;
INSERT INTO price_paid SELECT md5(transaction_id::text)::uuid, price, date_of_transfer + 9000, postcode, property_type, new_build,
       tenure, paon, saon, street, locality, town, district, county, category, status FROM price_paid;
INSERT INTO events (at, kind, session, amount, note, tags, payload, done)
SELECT at + interval '1 year', kind, session, amount, note, tags, payload, done FROM events;
CHECKPOINT;
"""


@pytest.fixture(scope="module")
def server(run, pages):
    """Provides a cluster with tables of several kinds, some of them aged."""
    server = Postgres(run, pages.folder("pg", USER), settings={"full_page_writes": "off", "checkpoint_timeout": "30s"})
    server.initdb()
    server.start()
    server.createdb(DATABASE)
    server.sql(HASH_FUNCTIONS, database=DATABASE)
    scripts = Path(demo_file).parent
    for script in (scripts / "prices.sql", scripts / "items.sql"):
        server.sql(f"\\set rows {ROWS}\n{script.read_text()}", database=DATABASE)
    server.sql(f"\\set rows {ROWS}\n{TABLES}", database=DATABASE)
    proc.run(server.client("pgbench", "-i", "-q", "-s", "5", database=DATABASE))
    server.sql(load.CREATE_ACKNOWLEDGED, database=DATABASE)
    server.sql(AGE, database=DATABASE)
    yield server
    server.kill()


def answers(server: Postgres) -> str:
    """Returns a digest of every row, by plans that read tables, and by plans that read indexes."""
    return server.sql(
        """
        SELECT count(*), sum(hashtextextended(e::text, 0)) FROM events e;
        SELECT count(*), sum(hashtextextended(p::text, 0)) FROM price_paid p;
        SELECT count(*), sum(hashtextextended(l::text, 0)) FROM lineitem l;
        SELECT count(*), sum(hashtextextended(t::text, 0)) FROM texts t;
        SET enable_seqscan = off;
        SELECT count(*) FROM price_paid WHERE date_of_transfer > '2000-01-01';
        SELECT count(*) FROM events WHERE at > '2024-01-02' AND kind < 3;
        SELECT count(*) FROM events WHERE payload @> '{"via": "till"}';""",
        database=DATABASE,
    )


def test_models_are_learned_and_used(server, pages):
    wait_for_models(pages, 8)
    before = counter(pages, "pages_by_model")["operations"]
    server.sql("VACUUM FULL price_paid; VACUUM FULL events; CHECKPOINT", database=DATABASE)
    wait_for_models(pages, 10)
    server.sql(GROW, database=DATABASE)
    pages.pagefold("sync", pages.pool)
    assert counter(pages, "pages_by_model")["operations"] > before + 1000
    models_are_told(server, pages)


def models_are_told(server: Postgres, pages) -> None:
    """Verifies that `status --models` names tables by their files, mounted or not."""
    paths = {f"{pages.pool}:/{path.relative_to(pages.mountpoint)}" for path in server.relation_files(DATABASE, "lineitem")}
    told = [model for model in pages.figures("status --models")["models"] if model["file"] in paths]
    assert len(told) == len(paths) == 1, told
    (lineitem,) = told
    assert lineitem["codec"] == "postgresheap" and lineitem["model"] > 0, lineitem
    assert 0 < lineitem["sampled_pages"] <= lineitem["learned_pages"] <= lineitem["pages"], lineitem
    assert 0 < lineitem["record_bytes"] < 8192 and lineitem["model_bytes"] > 0, lineitem
    text = pages.pagefold("status", "--models", pages.pool)
    assert paths.pop() in text and "CODEC" in text


def test_pages_come_back_from_the_device(server, pages):
    survives_remount(server, pages, lambda: answers(server))
    verify.postgres_healthy(server, DATABASE)
    verify.no_torn_pages(server.log)


@pytest.mark.parametrize("delay_s", [0.5, 5.0])
def test_crash_under_load_loses_nothing_acknowledged(server, pages, run, delay_s):
    record = run.dir / "acknowledged-page"
    expected = answers(server)
    crash_loses_nothing(pages, server, DATABASE, record, lambda: load.pgbench_load(server, DATABASE), delay_s)
    assert verify.pgbench_balances(server, DATABASE) > 0
    assert answers(server) == expected
    verify.postgres_healthy(server, DATABASE)
    verify.no_torn_pages(server.log)


def test_crash_while_models_are_learned(server, pages, run):
    """New relations are loaded, so that models are being learned and adopted when the server dies."""
    record = run.dir / "acknowledged-learning"
    statement = "DROP TABLE IF EXISTS again; CREATE TABLE again AS SELECT * FROM lineitem; CREATE INDEX ON again (shipdate, partkey)"
    script = run.dir / "again.sql"
    script.write_text(statement.replace("; ", ";\n") + ";\n")

    def start() -> load.Load:
        options = ["-n", "-c", "1", "-T", "86400", "-f", str(script)]
        return load.Load(server.run, server.client("pgbench", *options, database=DATABASE), run.logs / "again.log")

    crash_loses_nothing(pages, server, DATABASE, record, start, 3.0)
    verify.postgres_healthy(server, DATABASE)
    verify.no_torn_pages(server.log)


RELATIONS = ["events", "events_pkey", "events_at", "price_paid", "price_paid_pkey", "lineitem", "lineitem_pkey", "lineitem_part"]


def test_models_are_worth_it(server, pages, run):
    """Compares the files of large relations, after they have been folded under load, with the same files by zstd. Their
    size before is only printed, since it depends on how much was written before the first models were there."""
    files = [path for relation in RELATIONS for path in server.relation_files(DATABASE, relation)]
    server.stop()
    with Pool(run, POOL_BYTES, compression="zstd") as other:
        copies = [copy(path, other.mountpoint) for path in files]
        zstd, page = other.usage(copies), pages.usage(files)
        server.start()
        with_load = load.pgbench_load(server, DATABASE)
        try:
            folded = json.loads(pages.pagefold("fold", "--json", *files, timeout_s=300))["folded"]
            with_load.require_running()
        finally:
            with_load.stop()
        again = pages.usage(files)
        for path, twin in zip(files, copies, strict=True):
            print(f"{path.name:>8}: zstd {other.usage([twin]).ratio:6.2f}, page {pages.usage([path]).ratio:6.2f}")
    print(f"ratio: zstd {zstd.ratio:.2f}, page {page.ratio:.2f}, folded {again.ratio:.2f}; {folded}")
    assert zstd.logical == page.logical == again.logical
    assert again.ratio > 2.2 * zstd.ratio
    # The background has coded most pages again by now that were stored before the models. How much is left for `fold`
    # is only printed.
    assert again.ratio > 0.98 * page.ratio
    assert folded["after_bytes"] <= folded["before_bytes"]
    verify.pgbench_balances(server, DATABASE)


def test_pages_that_were_folded_are_as_they_were(server, pages):
    expected = answers(server)
    server.stop()
    pages.crash()
    pages.recover()
    server.start()
    assert answers(server) == expected
    verify.postgres_healthy(server, DATABASE)
    verify.no_torn_pages(server.log)


def test_crash_while_pages_are_folded(server, pages, run):
    server.sql("CREATE TABLE more AS SELECT * FROM lineitem; CREATE INDEX ON more (partkey, shipdate); CHECKPOINT", database=DATABASE)
    expected = answers(server)
    folding = None

    def start() -> load.Load:
        nonlocal folding
        argv = [pagefold(), "fold", "--rate", "40M", pages.pool]
        folding = subprocess.Popen(argv, env={**os.environ, **pages.environment}, stderr=subprocess.PIPE, text=True)
        return load.pgbench_load(server, DATABASE)

    crash_loses_nothing(pages, server, DATABASE, run.dir / "acknowledged-folding", start, 2.0)
    said = folding.communicate(timeout=60)[1]
    assert folding.returncode != 0 and "lost the server" in said, f"folding ended before the crash: {said}"
    assert answers(server) == expected
    verify.postgres_healthy(server, DATABASE)
    verify.no_torn_pages(server.log)


def copy(path: Path, target: Path) -> Path:
    """Copies a file into the folder `target`."""
    to = target / path.name
    to.write_bytes(path.read_bytes())
    return to
