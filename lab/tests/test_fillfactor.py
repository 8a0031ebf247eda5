"""Room that a table keeps free in its pages costs next to nothing: fillfactor 50, 75 and 100."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lab import ui
from lab.demo import HASH_FUNCTIONS
from lab.demo import __file__ as demo_file
from lab.pool import Pool
from lab.postgres import USER, Postgres

POOL_BYTES = 1 << 30
WITHIN = 0.08
"""Share by which the largest may exceed the smallest."""
ROWS = 150_000
DATABASE = "fill"
FACTORS = (50, 75, 100)


def relations(run) -> dict[int, Path]:
    """Provides files of the same table with each fillfactor."""
    data = run.fresh("cluster")
    data.mkdir(mode=0o700)
    shutil.chown(data, USER, USER)
    server = Postgres(run, data / "data", settings={"fsync": "off", "autovacuum": "off"}, name="fillfactor")
    server.initdb()
    server.start()
    server.createdb(DATABASE)
    server.sql(HASH_FUNCTIONS, database=DATABASE)
    script = Path(demo_file).parent / "prices.sql"
    server.sql(f"\\set rows {ROWS}\n{script.read_text()}", database=DATABASE)
    files = {}
    for factor in FACTORS:
        table = f"filled_{factor}"
        server.sql(
            f"CREATE TABLE {table} (LIKE price_paid) WITH (fillfactor = {factor}); INSERT INTO {table} SELECT * FROM price_paid; "
            f"VACUUM (FREEZE) {table}",
            database=DATABASE,
        )
        (files[factor],) = server.relation_files(DATABASE, table)
    server.stop()
    return files


@pytest.mark.long
def test_free_room_in_pages_costs_nothing(run):
    files = relations(run)
    taken, rows = {}, []
    for factor, path in files.items():
        with Pool(run, POOL_BYTES, compression="page") as pool:
            shutil.copyfile(path, pool.mountpoint / path.name)
            pool.settle()
            taken[factor] = pool.used_bytes() - pool.empty_bytes
        size = path.stat().st_size
        rows.append([str(factor), ui.size(size), ui.size(taken[factor]), f"{taken[factor] / taken[FACTORS[0]]:.3f}", str(size // 8192)])
    print(ui.table(["fillfactor", "logical", "taken, all metadata counted", "of fillfactor 50's", "pages"], rows))
    sizes = [path.stat().st_size for path in files.values()]
    assert sizes[0] > 1.9 * sizes[-1], "the tables are not filled as they should be"
    assert max(taken.values()) <= (1 + WITHIN) * min(taken.values()), taken
