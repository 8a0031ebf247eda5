"""`lab demo`: shows a PostgreSQL on a compressed pool.

Loads real and generated rows, shows the space that they take here and on other file systems, runs queries, kills the
file system's server in mid-load, and shows that nothing committed was lost.
"""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .. import load, proc, ui, verify
from ..crash import crash_under_load
from ..ledger import Run
from ..paths import require_room
from ..pool import Pool
from ..postgres import USER, Postgres
from ..storage import Place, Usage, place
from . import compare, documents

HERE = Path(__file__).parent
POOL_BYTES = 6 << 30
IMAGE_BYTES = 5 << 30
ROOM_BYTES = 3 << 30
"""Bytes that the demo takes of the disc at its peak: the pool, and a copy of the database on ext4."""
DATABASE = "demo"

HASH_FUNCTIONS = """
CREATE FUNCTION pick(i bigint, seed int, n int) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE sql
    AS 'SELECT ((hashint8extended(i, seed) & 2147483647) % n)::int';
CREATE FUNCTION spread(i bigint, seed int, n int) RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE sql
    AS 'SELECT (power((hashint8extended(i, seed) & 2147483647) / 2147483648.0::float8, 2) * n)::int % n';
"""
"""`pick` returns a number below n, all equally often. `spread` returns low ones more often, as with towns and house
numbers."""

QUERIES = [
    (
        "what a home cost, by year",
        """
        SELECT 'from ' || min(p) || ' to ' || max(p) FROM
        (SELECT extract(year FROM date_of_transfer), avg(price)::int AS p FROM price_paid GROUP BY 1) y""",
    ),
    (
        "the town with the most sales",
        """
        SELECT town || ': ' || count(*) FROM price_paid GROUP BY town ORDER BY count(*) DESC, town LIMIT 1""",
    ),
    (
        "revenue of discounted items (in the manner of TPC-H Q6)",
        """
        SELECT 'revenue ' || round(sum(extendedprice * discount)) FROM lineitem
        WHERE shipdate >= date '1994-01-01' AND shipdate < date '1995-01-01'
        AND discount BETWEEN 0.05 AND 0.07 AND quantity < 24""",
    ),
    (
        "documents that mention compression and databases",
        """
        SELECT count(*) || ' of ' || (SELECT count(*) FROM documents) || ', the longest is ' ||
               (array_agg(name ORDER BY length(body) DESC, name))[1]
        FROM documents WHERE body ILIKE '%compress%' AND body ILIKE '%database%'""",
    ),
]


FOOTNOTE = """\
  Ratio: logical size / what it takes. Pagefold: the live database, each 8 KiB page readable alone. Elsewhere: the
  same files copied; pagefold-page has models learned from them, and was folded (also each page alone); btrfs (zlib:3,
  zstd:3) compresses 128 KiB at once, zfs-fuse has recordsize=8K, compression=gzip.
"""


class Scale:
    """Amounts that are loaded: all, or a tenth."""

    def __init__(self, small: bool):
        factor = 10 if small else 1
        self.pgbench = 20 // factor
        self.prices = 1_500_000 // factor
        self.items = 2_000_000 // factor
        self.document_bytes = 160_000_000 // factor


def demo(*, small: bool, on: str, keep_logs: Path) -> int:
    """Runs the whole demonstration; returns an exit status."""
    require_room(ROOM_BYTES)
    steps = ui.Steps()
    scale = Scale(small)
    print("\nPagefold: a PostgreSQL on a compressed, copy-on-write pool\n")
    with Run("demo", keep_logs=keep_logs) as run:
        with steps.step("a pool in a file, compression=zstd, mounted") as step:
            where = place(run, on, POOL_BYTES)
            where.create()
            where.mount()
            step.note(f"{where.mountpoint}")
        empty = where.used_bytes()
        server = Postgres(run, where.folder("pg", USER), settings=settings(where))
        with steps.step("PostgreSQL started on it, full_page_writes=off (pages never tear)"):
            server.initdb()
            server.start()
            server.createdb(DATABASE)
        load_all(server, scale, steps)
        with steps.step("VACUUM, CHECKPOINT"):
            server.sql("VACUUM ANALYZE", database=DATABASE)
            server.sql("CHECKPOINT")
        run_queries(server, steps)
        files = compare.groups(server, DATABASE)
        server.stop()
        print()
        columns = compare_all(run, where, server.data, files, empty, steps)
        print(f"\n{compare.render(columns)}\n")
        print(f"  {compare.summary(columns)}")
        print(FOOTNOTE)
        if isinstance(where, Pool):
            print(f"  {pool_line(where)}\n")
        survived = crash(run, where, server, steps)
        with steps.step("everything stopped, unmounted, verified offline, removed"):
            server.stop()
            where.unmount()
            where.check()
            where.destroy()
    print(f"\n{survived}\nThe demo took {time.monotonic() - steps.began:.0f} s. Logs: {keep_logs}\n")
    return 0


def pool_line(pool: Pool) -> str:
    """Returns lines about the live pool as a whole, with PostgreSQL's log, other databases, and dead space that folding
    will reuse."""
    figures = pool.figures()
    used, taken = figures["used_bytes"], figures["allocated_bytes"]
    return (
        f"The pool as a whole, PostgreSQL's log included: {ui.size(used)} in use, in chunks of {ui.size(taken)} in all;\n"
        f"  what is dead in them is folded away when space is wanted."
    )


def settings(where: Place) -> dict[str, str]:
    """Returns the server's settings. full_page_writes is off only on Pagefold, where pages cannot tear."""
    safe = "off" if where.is_pagefold else "on"
    return {"full_page_writes": safe, "shared_buffers": "256MB", "maintenance_work_mem": "256MB", "max_wal_size": "1GB"}


def load_all(server: Postgres, scale: Scale, steps: ui.Steps) -> None:
    """Loads documents, pgbench's tables, prices and items; two at a time, as the machine has two cores at least."""
    server.sql(HASH_FUNCTIONS + documents.CREATE, database=DATABASE)

    def script(name: str, rows: int) -> None:
        variables = ["-v", "ON_ERROR_STOP=1", "-v", f"rows={rows}"]
        proc.run(server.client("psql", "-qAtX", *variables, "-f", str(HERE / name), database=DATABASE))

    def pgbench() -> None:
        proc.run(server.client("pgbench", "-i", "-q", "-s", str(scale.pgbench), database=DATABASE))

    with ThreadPoolExecutor(2) as pool:
        with steps.step(f"loading {scale.prices:,} sales of homes, package lists, documentation") as step:
            prices = pool.submit(script, "prices.sql", scale.prices)
            count = load_documents(server, scale.document_bytes)
            prices.result()
            step.note(f"{count:,} documents")
        with steps.step(f"loading {scale.items:,} order items, and pgbench at scale {scale.pgbench}"):
            items = pool.submit(script, "items.sql", scale.items)
            pgbench()
            items.result()


def load_documents(server: Postgres, limit_bytes: int) -> int:
    """COPYs the documents; returns their number."""
    argv = server.client("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", "-c", "COPY documents FROM STDIN", database=DATABASE)
    log = server.run.logs / "copy.log"
    client = proc.spawn(argv, log=log, stdin=subprocess.PIPE)
    count = 0
    with client.stdin:
        for line in documents.copy_lines(limit_bytes):
            client.stdin.write(line)
            count += 1
    if client.wait(600) != 0:
        raise RuntimeError(f"COPY documents failed:\n{proc.tail(log)}")
    return count


def run_queries(server: Postgres, steps: ui.Steps) -> None:
    """Runs a few queries, and shows each answer."""
    for title, query in QUERIES:
        with steps.step(title) as step:
            step.note(server.sql(query, database=DATABASE))


def compare_all(
    run: Run, where: Place, data: Path, files: dict[str, list[Path]], empty: int, steps: ui.Steps
) -> list[compare.Column]:
    """Measures the space that the files take here, then on every rival, one after the other."""
    with steps.step("what it takes here"):
        here = compare.measure("pagefold" if where.is_pagefold else where.name, where, data, files, empty)
        here.total_physical -= others(where, data, files).physical
    columns = [here]
    candidates = compare.rivals(run, IMAGE_BYTES, where)
    zfs = compare.zfs(run, IMAGE_BYTES)
    if isinstance(zfs, str):
        print(f"  - zfs-fuse is left out: {zfs}")
    else:
        candidates.append(zfs)
    for title, rival in candidates:
        with steps.step(f"the same files on {title}") as step:
            columns.append(compare.copy_and_measure(title, rival, data, files, step))
    return columns


def others(where: Place, data: Path, files: dict[str, list[Path]]) -> Usage:
    """Returns the space of the cluster's other files, which are no part of the comparison: log, other databases."""
    compared = {data / path for paths in files.values() for path in paths}
    rest = [p for p in sorted(data.rglob("*")) if p.is_file() and p not in compared and p.stat().st_size > 0]
    return where.usage(rest) if rest else Usage(0, 0)


def crash(run: Run, where: Place, server: Postgres, steps: ui.Steps) -> str:
    """Puts load on, kills the server with kill -9, remounts, recovers and verifies; returns the sentence that sums it
    up."""
    record = run.dir / "acknowledged"
    with steps.step("PostgreSQL started again"):
        server.start()
        server.sql(load.CREATE_ACKNOWLEDGED, database=DATABASE)

    def start():
        client = load.acknowledged(server, DATABASE, record, 1)
        return load.pgbench_load(server, DATABASE), client

    with steps.step("pgbench load for 8 s, then kill -9 of the file system's server") as step:
        figures = crash_under_load(where, server, start, 8.0)
        step.note(f"mounted again in {figures['mount_s']:.2f} s, PostgreSQL recovered in {figures['recovery_s']:.2f} s")
    with steps.step("is every acknowledged transaction there?") as step:
        count = verify.acknowledged_rows(server, DATABASE, record)
        total = verify.pgbench_balances(server, DATABASE)
        step.note(f"{count:,} of {count:,} recorded outside; the balances of {total:,} pgbench transactions add up")
    with steps.step("is every page sound? amcheck of everything, data checksums"):
        verify.postgres_healthy(server, DATABASE)
        verify.no_torn_pages(server.log)
    return f"Killed in mid-load, recovered, nothing lost: {count:,} acknowledged transactions, {total:,} of pgbench."
