"""`lab defaults`: measures the ratios of a user who sets nothing.

A database of each shape is loaded into a real PostgreSQL on a new pool with default settings, by COPY or by its
benchmark's own loader. Its largest relation is measured right after the load and again a minute later. Beside it stand
the estimate of `pagefold analyze` for the same files, and the space that they and the whole folder take on btrfs.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import load, proc, tpcc, ui
from .demo import compare
from .ledger import Run
from .paths import postgres_bin, require_room
from .pool import Pool
from .postgres import USER, Postgres
from .predictions import predict
from .storage import Place

RIGHT_AFTER = 0.75
"""Smallest ratio right after the load, as a share of the predicted one."""
LATER = 0.97
"""Smallest ratio a minute later, as a share of the predicted one."""
LATER_S = 60
OF_ZLIB = 1.8
"""Smallest ratio of the relation, as a multiple of that on btrfs with zlib:3."""
FOLDER_OF_ZSTD = 1.35
"""Smallest ratio of the whole folder, log and all, as a multiple of that on btrfs with zstd:3."""
ROWS_MB = 600
"""MB that `--scale 1` loads."""
BATCH = 5000


@dataclass
class Shape:
    """A database: the table that is measured, the SQL that makes it, and rows for COPY (or a function that fills
    it)."""

    table: str
    create: str = ""
    rows: Callable[[random.Random, int], Iterator[tuple]] | None = None
    fill: Callable[[Run, Postgres, float], None] | None = None
    row_bytes: int = 100


def _skewed(dice: random.Random, choices: list[str]) -> str:
    return choices[int(len(choices) * dice.random() ** 3)]


def _wide(dice: random.Random, count: int) -> Iterator[tuple]:
    """Yields rows of 17 columns: random ids as text, towns, streets, dates, prices, repeated free texts, empty ones."""
    words = load.words()
    towns = sorted({word.strip(".,`|()*").upper() for word in words if word.isalpha() and len(word) > 5})[:400]
    counties = [f"{town[:4]}SHIRE" for town in towns]
    streets = [f"{word.upper()} {kind}" for word in towns for kind in ("ROAD", "STREET", "CLOSE", "LANE")]
    notes = [" ".join(words[at : at + 9]).replace("\t", " ") for at in range(0, len(words) - 9, 9)]
    for at in range(count):
        place = int(len(towns) * dice.random() ** 2)
        day = f"20{dice.randrange(10, 26)}-{dice.randrange(1, 13):02}-{dice.randrange(1, 29):02}"
        yield (
            f"{{{dice.getrandbits(128):032X}}}", int(40_000 + 900_000 * dice.random() ** 3) // 50 * 50, day,
            f"{towns[place][:2]}{dice.randrange(1, 30)} {dice.randrange(1, 10)}{dice.choice('ABDEFGHJ')}{dice.choice('ABDEFGHJ')}",
            dice.choice("DSTFO"), dice.choice("YN"), dice.choice("FL"), dice.randrange(1, 300),
            f"FLAT {dice.randrange(1, 40)}" if dice.random() < 0.12 else "", _skewed(dice, streets), "", towns[place], counties[place // 8],
            at // 1000, "A", _skewed(dice, notes), "",
        )  # fmt: skip


def _documents(dice: random.Random, count: int) -> Iterator[tuple]:
    """Yields events as JSON: the same keys, users by a skewed distribution, texts, a random token."""
    words = load.words()
    kinds = ["page_view", "click", "purchase", "login", "logout", "error"]
    for at in range(count):
        text = " ".join(dice.choices(words, k=dice.randrange(3, 12))).replace("\\", "").replace('"', "").replace("\t", " ")
        yield (
            at,
            f'{{"kind": "{_skewed(dice, kinds)}", "user": {int(200_000 * dice.random() ** 3)}, "session": "{dice.getrandbits(64):016x}", '
            f'"at": "2026-11-{1 + at * 28 // count:02}T{dice.randrange(24):02}:{dice.randrange(60):02}:00Z", "text": "{text}", '
            f'"device": {{"os": "{_skewed(dice, ["android", "ios", "windows", "linux"])}", "width": {dice.choice([390, 412, 1440, 1920])}}}}}',
        )


def _series(dice: random.Random, count: int) -> Iterator[tuple]:
    """Yields samples of 500 sensors, a minute apart, whose values swing."""
    level = [dice.uniform(5, 900) for _ in range(500)]
    for at in range(count):
        sensor = at % 500
        level[sensor] += dice.gauss(0, 0.4)
        yield 1_700_000_000 + at // 500 * 60, sensor, f"{level[sensor]:.2f}", f"{level[sensor] * 0.1 + dice.gauss(0, 0.01):.4f}", "ok"


def _pgbench(run: Run, server: Postgres, scale: float) -> None:
    server.createdb("lab")
    factor = max(1, round(40 * scale))
    proc.run(server.client(postgres_bin("pgbench"), "-i", "-q", "-s", str(factor), database="lab"), timeout_s=3600)
    del run


def _tpcc(run: Run, server: Postgres, scale: float) -> None:
    server.createdb("lab")
    tpcc.prepare(server, "lab", max(1, round(6 * scale)), random_strings=True)
    del run


SHAPES = {
    "rows": Shape(
        "sales",
        "CREATE TABLE sales (id text, price int, sold date, postcode text, kind char, fresh char, held char, number int, flat text, street text, "
        "locality text, town text, county text, batch int, category char, note text, spare text)",
        _wide,
        row_bytes=230,
    ),
    "json": Shape("events", "CREATE TABLE events (id bigint, body jsonb)", _documents, row_bytes=330),
    "series": Shape("samples", "CREATE TABLE samples (at bigint, sensor int, value float8, drift float8, state text)", _series, row_bytes=70),
    "pgbench": Shape("pgbench_accounts", fill=_pgbench),
    "tpcc": Shape("stock", fill=_tpcc),
}
"""Shapes by name."""


def _load(run: Run, server: Postgres, shape: Shape, scale: float) -> None:
    if shape.fill is not None:
        shape.fill(run, server, scale)
        return
    server.createdb("lab")
    server.sql(shape.create, database="lab")
    path = run.fresh(f"{shape.table}.tsv")
    dice = random.Random(11)
    with path.open("w") as out:
        for row in shape.rows(dice, int(ROWS_MB * scale * 1e6 / shape.row_bytes)):
            out.write("\t".join(map(str, row)) + "\n")
    path.chmod(0o644)
    proc.run(server.client(postgres_bin("psql"), "-qc", f"\\copy {shape.table} FROM '{path}'", database="lab"), timeout_s=3600)
    path.unlink()


def _ratio(place: Place, paths: list[Path]) -> float:
    return place.usage([place.mountpoint / path for path in paths]).ratio


def _folder_ratio(place: Place, data: Path) -> float:
    root = place.mountpoint / data
    return place.usage([path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]).ratio


def defaults(*, scale: float, sets: list[str], later_s: int, keep_logs: Path) -> int:
    """Loads each shape and judges; returns an exit status."""
    rows, missed = [], 0
    with Run("defaults", keep_logs=keep_logs) as run:
        for name in sets:
            shape, steps = SHAPES[name], ui.Steps()
            image_bytes = int(max(2 << 30, 6 * ROWS_MB * scale * 1e6))
            require_room(2 * image_bytes)
            with Pool(run, image_bytes, compression="auto") as pool:
                server = Postgres(run, pool.folder("pg", USER) / "data", name=name)
                data = Path("pg") / "data"
                server.initdb()
                server.start()
                with steps.step(f"{name}: loading"):
                    _load(run, server, shape, scale)
                found = server.relation_files("lab", shape.table)
                files = [path.relative_to(pool.mountpoint) for path in found]
                right_after = _ratio(pool, files)
                with steps.step(f"{name}: {later_s} s later"):
                    time.sleep(later_s)
                later, folder = _ratio(pool, files), _folder_ratio(pool, data)
                heap = run.fresh("heap")
                heap.mkdir()
                for path in files:
                    shutil.copyfile(pool.mountpoint / path, heap / path.name)
                with steps.step(f"{name}: what analyze says"):
                    total = predict(heap, "auto")["total"]
                foretold = sum(path.stat().st_size for path in heap.iterdir()) / total["stored"]["bytes"]
                others = {}
                server.stop()
                for title, rival in compare.rivals(run, image_bytes, pool):
                    if title not in ("btrfs-zlib", "btrfs-zstd"):
                        continue
                    with rival, steps.step(f"{name}: the same files on {title}"):
                        proc.run(["cp", "-a", "--sparse=always", pool.mountpoint / "pg", rival.mountpoint], timeout_s=3600)
                        # btrfs does not count data that are not on its device yet.
                        os.sync()
                        rival.settle()
                        others[title] = (_ratio(rival, files), _folder_ratio(rival, data))
            verdicts = [
                ("right after", right_after / foretold, RIGHT_AFTER),
                (f"{later_s} s later", later / foretold, LATER),
                ("of btrfs-zlib", later / others["btrfs-zlib"][0], OF_ZLIB),
                ("folder, of btrfs-zstd", folder / others["btrfs-zstd"][1], FOLDER_OF_ZSTD),
            ]
            missed += sum(reached < asked for _, reached, asked in verdicts)
            head = f"{right_after:.2f}, then {later:.2f}; foretold {foretold:.2f}; folder {folder:.2f}"
            rows += [[name if at == 0 else "", head if at == 0 else "", words, f"{reached:.2f}", f"{asked}", "" if reached >= asked else "MISSED"]
                     for at, (words, reached, asked) in enumerate(verdicts)]  # fmt: skip
            print(f"\n{ui.table(['data', 'ratios', 'share', 'reached', 'asked', ''], rows)}\n", flush=True)
    return 1 if missed else 0
