"""`lab ratios`: measures the space that files of databases take, file by file, on Pagefold with models and on the file
systems that it replaces.

The files are made here, aged by updates and copied to real mounts. Two verdicts of docs/CODEC.md are drawn from them.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

from . import load, proc, tpcc, ui
from .demo import compare
from .ledger import Run
from .paths import ROOT, require_room, tool
from .pool import Pool
from .postgres import USER, Postgres
from .storage import Usage

OVERALL = 6.5
"""Smallest ratio of PostgreSQL's relations without pgbench's, all metadata counted."""
OF_ZLIB = 1.9
"""Smallest ratio of these, as a multiple of that on btrfs with zlib."""
OF_ZSTD = 0.95
"""Smallest ratio of any relation, as a share of that on btrfs with zstd:3."""
RRD_STEP = 300


def ratios(*, scale: float, sets: list[str], source: Path | None, keep_logs: Path, out: Path | None) -> int:
    """Makes the sets (or takes those of `source`), compares and judges each; returns an exit status."""
    missed = []
    results = {}
    with Run("ratios", keep_logs=keep_logs) as run:
        for name in sets:
            steps = ui.Steps()
            root = source / name if source is not None else run.fresh(name)
            if source is None:
                with steps.step(f"{name}: making the files"):
                    MAKERS[name](run, root, scale)
            files: dict[str, list[Path]] = {}
            for path in sorted((root / "files").iterdir()):
                files.setdefault(path.name.partition("@")[0], []).append(path.relative_to(root))
            total = sum((root / path).stat().st_size for paths in files.values() for path in paths)
            if total == 0:
                raise RuntimeError(f"{root / 'files'} holds nothing to compare")
            require_room(2 * total)
            columns = compare_all(run, root, files, total, steps)
            print(f"\n{compare.render(columns)}\n")
            verdicts = judge(name, columns)
            for reached, words in verdicts:
                print(f"  {'reached' if reached else 'MISSED '}  {words}")
            print()
            missed += [words for reached, words in verdicts if not reached]
            results[name] = {c.title: figures(c) for c in columns}
            if source is None:
                proc.run([tool("rm"), "-rf", root])
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if missed else 0


def compare_all(run: Run, root: Path, files: dict, total: int, steps: ui.Steps) -> list[compare.Column]:
    """Measures the files on Pagefold (folded), then on every rival, one after the other."""
    image_bytes = max(3 * total, 1 << 30)
    places = [("pagefold", Pool(run, image_bytes, compression="page"))]
    places += [(title, place) for title, place in compare.rivals(run, image_bytes, places[0][1]) if title != "ext4"]
    zfs = compare.zfs(run, image_bytes)
    if isinstance(zfs, str):
        print(f"  - zfs-fuse is left out: {zfs}")
    else:
        places.append(zfs)
    columns = []
    for title, place in places:
        with steps.step(f"the files on {title}") as step:
            columns.append(compare.copy_and_measure(title, place, root, files, step))
    return columns


def figures(column: compare.Column) -> dict:
    """Returns a column as JSON, in bytes."""
    groups = {name: [usage.logical, usage.physical] for name, usage in column.groups.items()}
    return {"files": groups, "total_physical": column.total_physical}


def judge(name: str, columns: list[compare.Column]) -> list[tuple[bool, str]]:
    """Returns the promises about these files: for each, true if it holds, and a line."""
    ours = columns[0]
    rivals = {column.title: column for column in columns}
    zstd = rivals["btrfs-zstd"]
    lines = []
    for group, usage in ours.groups.items():
        share = usage.ratio / zstd.groups[group].ratio
        if share < OF_ZSTD:
            lines.append((False, f"{group}: {usage.ratio:.2f}, {share:.2f} of btrfs-zstd's ratio (at least {OF_ZSTD})"))
    if not lines:
        lines.append((True, f"no file has less than {OF_ZSTD} of btrfs-zstd's ratio"))
    if name == "postgres":
        # Metadata cannot be told apart by file, so each part pays for them by its share of the stored bytes.
        chosen = [group for group in ours.groups if not group.startswith("pgbench")]
        all_of, zlib_of = overall(ours, chosen), overall(rivals["btrfs-zlib"], chosen)
        lines.append((all_of >= OVERALL, f"without pgbench {all_of:.2f} (at least {OVERALL})"))
        words = f"that is {all_of / zlib_of:.2f} times btrfs-zlib's {zlib_of:.2f} (at least {OF_ZLIB})"
        lines.append((all_of / zlib_of >= OF_ZLIB, words))
    return lines


def overall(column: compare.Column, groups: list[str]) -> float:
    """Returns the ratio of some files with their share of the metadata."""
    chosen = sum((column.groups[g] for g in groups), Usage(0, 0))
    stored = sum(usage.physical for usage in column.groups.values())
    return chosen.logical / (chosen.physical * column.total_physical / stored)


def script(run: Run, name: str, root: Path, scale: float) -> None:
    """Runs a maker that is a program of its own. If it is interrupted, it has the time to stop its database server."""
    log = run.logs / f"{name}.log"
    argv = [ROOT / "scripts" / name, root, "--scale", str(scale)]
    # A process that a shell without job control started in the background has SIGINT ignored.
    maker = proc.spawn(argv, log=log, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    entry = run.process(maker.pid, name)
    try:
        status = maker.wait(3600)
    except BaseException:
        maker.send_signal(signal.SIGINT)
        maker.wait(60)
        raise
    run.done(entry)
    if status != 0:
        raise RuntimeError(f"scripts/{name} failed:\n{proc.tail(log)}")


def make_rrd(_run: Run, root: Path, scale: float) -> None:
    """Makes 718 files like those of collectd's rrdtool plugin, each with five days of samples of a load that swings."""
    folder = root / "files"
    folder.mkdir(parents=True)
    rng = random.Random(7)
    start = 1_700_000_000
    spans = [f"RRA:{kind}:0.1:{steps}:1200" for kind in ("AVERAGE", "MIN", "MAX") for steps in (1, 7, 50, 223, 2635)]
    for number in range(max(1, round(718 * min(scale, 1.0)))):
        count = 1 + number % 3
        path = folder / f"{count} sources@{number:03}.rrd"
        sources = [f"DS:value{n}:GAUGE:{2 * RRD_STEP}:U:U" for n in range(count)]
        proc.run([tool("rrdtool"), "create", path, "--start", str(start), "--step", str(RRD_STEP), *sources, *spans])
        level, updates = rng.uniform(0, 1000), []
        for at in range(1, 1441):
            level += rng.gauss(0, 5)
            values = ":".join(f"{level * (n + 1):.2f}" for n in range(len(sources)))
            updates.append(f"{start + at * RRD_STEP}:{values}")
        proc.run([tool("rrdtool"), "update", path, *updates])


def make_sqlite(_run: Run, root: Path, scale: float) -> None:
    """Makes a database like an application's, with a wide table, two indexes and text, and then updates and deletes
    parts of it."""
    folder = root / "files"
    folder.mkdir(parents=True)
    rng = random.Random(7)
    towns = ["LONDON", "MANCHESTER", "BRISTOL", "BIRMINGHAM", "NOTTINGHAM", "LEEDS", "LIVERPOOL", "SHEFFIELD"]
    words = load.words()
    connection = sqlite3.connect(folder / "app.sqlite")
    connection.executescript(
        "CREATE TABLE sales (id TEXT PRIMARY KEY, price INT, sold TEXT, town TEXT, street TEXT, number INT, note TEXT);"
        "CREATE INDEX sales_town ON sales (town, street); CREATE INDEX sales_sold ON sales (sold);"
    )

    def row():
        first = rng.randrange(len(words) - 12)
        return (
            f"{rng.getrandbits(128):032x}",
            int(50_000 + 950_000 * rng.random() ** 3) // 50 * 50,
            f"20{rng.randrange(26):02}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}",
            rng.choice(towns),
            f"{rng.choice(words).upper()} ROAD",
            rng.randrange(1, 200),
            " ".join(words[first : first + rng.randrange(3, 12)]),
        )

    connection.executemany("INSERT INTO sales VALUES (?, ?, ?, ?, ?, ?, ?)", (row() for _ in range(int(400_000 * scale))))
    connection.execute("UPDATE sales SET price = price + 1000 WHERE rowid % 13 = 0")
    connection.execute("DELETE FROM sales WHERE rowid % 17 = 0")
    connection.commit()
    connection.close()


def make_tpcc(run: Run, root: Path, scale: float, *, random_strings: bool) -> None:
    """Makes TPC-C's tables and indexes, with two thirds of their ageing before a vacuum and one third after it."""
    folder = root / "files"
    folder.mkdir(parents=True)
    data = run.fresh("cluster")
    data.mkdir(mode=0o700)
    shutil.chown(data, USER, USER)
    server = Postgres(run, data / "data", settings={"fsync": "off", "autovacuum": "off", "full_page_writes": "off"}, name="tpcc")
    server.initdb()
    server.start()
    server.createdb("tpcc")
    warehouses, transactions = max(1, round(3 * scale)), int(60_000 * scale)
    tpcc.prepare(server, "tpcc", warehouses, random_strings=random_strings)
    tpcc.age(server, "tpcc", warehouses, transactions * 2 // 3)
    server.sql("VACUUM", database="tpcc")
    tpcc.age(server, "tpcc", warehouses, transactions // 3)
    server.sql("CHECKPOINT")
    named = server.sql(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'i') AND relpages > 100 AND relnamespace = 'public'::regnamespace",
        database="tpcc",
    ).split()
    files = {name: server.relation_files("tpcc", name) for name in named}
    server.stop()
    for name, paths in files.items():
        for number, path in enumerate(paths):
            shutil.copyfile(path, folder / f"{name}@{number}")
    shutil.rmtree(data)


MAKERS: dict[str, Callable[[Run, Path, float], None]] = {
    "postgres": lambda run, root, scale: script(run, "page-corpus", root, scale),
    "tpcc": lambda run, root, scale: make_tpcc(run, root, scale, random_strings=False),
    "tpcc-random": lambda run, root, scale: make_tpcc(run, root, scale, random_strings=True),
    "innodb": lambda run, root, scale: script(run, "innodb-corpus", root, scale),
    "sqlite": make_sqlite,
    "rrd": make_rrd,
}
"""Makers of each set of files, below FOLDER/files. Files whose names are the same up to an @ are shown together."""
