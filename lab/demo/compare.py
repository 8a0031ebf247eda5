"""Compares the space that the same files take on Pagefold and elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from .. import ui
from ..ledger import Run
from ..pool import Pool
from ..postgres import Postgres
from ..storage import LoopFs, Place, Usage, ZfsFuse

GROUPS = """
SELECT CASE c.relkind WHEN 't' THEN coalesce(owner.relname, c.relname) || ' (TOAST)'
            WHEN 'i' THEN coalesce(tt.relname, it.relname) || CASE WHEN tt.relname IS NULL THEN ' (indexes)' ELSE ' (TOAST)' END
            ELSE c.relname END AS grp,
       pg_relation_filepath(c.oid)
FROM pg_class c
LEFT JOIN pg_class owner ON owner.reltoastrelid = c.oid
LEFT JOIN pg_index x ON x.indexrelid = c.oid
LEFT JOIN pg_class it ON it.oid = x.indrelid
LEFT JOIN pg_class tt ON tt.reltoastrelid = it.oid
WHERE c.relkind IN ('r', 't', 'i') AND c.oid >= 16384 AND pg_relation_filepath(c.oid) IS NOT NULL
ORDER BY 1
"""
"""Relation group and file of every relation that is not PostgreSQL's own."""

SMALL = 4 << 20
"""Bytes of a group below which it is shown together with others."""


@dataclass
class Column:
    """One file system: the space of each group of files, and of the file system as a whole, metadata counted."""

    title: str
    groups: dict[str, Usage] = field(default_factory=dict)
    total_physical: int = 0


def groups(server: Postgres, database: str) -> dict[str, list[Path]]:
    """Returns the files of the database by group, relative to the data folder. Every file of the database is in exactly
    one group."""
    owner = dict(reversed(line.split("|")) for line in server.sql(GROUPS, database=database).splitlines())
    folder = server.data / "base" / server.sql(f"SELECT oid FROM pg_database WHERE datname = '{database}'")
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        relative = path.relative_to(server.data)
        stem = relative.name.partition(".")[0].partition("_")[0]
        group = owner.get(str(relative.parent / stem), "PostgreSQL's catalogues")
        found.setdefault(group, []).append(relative)
    return _merge_small(server.data, found)


def _merge_small(data: Path, found: dict[str, list[Path]]) -> dict[str, list[Path]]:
    merged: dict[str, list[Path]] = {}
    for group, paths in found.items():
        small = sum((data / p).stat().st_size for p in paths) < SMALL
        merged.setdefault("other relations" if small else group, []).extend(paths)
    if "other relations" in merged:
        merged["other relations"] = merged.pop("other relations")
    return merged


def measure(title: str, where: Place, root: Path, files: dict[str, list[Path]], empty_bytes: int) -> Column:
    """Fills a column from the files below `root`. The total is the space that the file system as a whole uses beyond
    that of an empty one, so all its metadata is in it."""
    total = where.used_bytes() - empty_bytes
    column = Column(title, total_physical=total)
    for group, paths in files.items():
        column.groups[group] = where.usage([root / p for p in paths])
    return column


def rivals(run: Run, image_bytes: int, here: Place) -> list[tuple[str, Place]]:
    """Returns the file systems to compare with, one at a time on the disc: first Pagefold with models of pages, unless
    that is `here`."""
    page = [] if here.name == "pagefold-page" else [("pagefold-page", Pool(run, image_bytes, compression="page"))]
    return [
        *page,
        ("ext4", LoopFs(run, "ext4", image_bytes)),
        ("btrfs-lzo", LoopFs(run, "btrfs", image_bytes, "lzo")),
        ("btrfs-zlib", LoopFs(run, "btrfs", image_bytes, "zlib:3")),
        ("btrfs-zstd", LoopFs(run, "btrfs", image_bytes, "zstd:3")),
    ]


def copy_and_measure(title: str, where: Place, source: Path, files: dict[str, list[Path]], step: ui.Step) -> Column:
    """Copies the files to another file system, measures, and removes it again."""
    total = sum((source / p).stat().st_size for paths in files.values() for p in paths)
    with where:
        root, done = where.mountpoint / "copy", 0
        for path in (p for paths in files.values() for p in paths):
            (root / path.parent).mkdir(parents=True, exist_ok=True)
            with open(source / path, "rb") as reader, open(root / path, "wb") as writer:
                shutil.copyfileobj(reader, writer, 1 << 20)
                done += writer.tell()
            step.progress(done / total)
        where.settle()
        return measure(title, where, root, files, where.empty_bytes)


def zfs(run: Run, image_bytes: int) -> tuple[str, Place] | str:
    """Returns zfs-fuse with 8 KiB records and gzip, or the reason for which it cannot run here."""
    return ZfsFuse.available() or ("zfs-fuse", ZfsFuse(run, image_bytes))


def render(columns: list[Column]) -> str:
    """Returns the table: for each group its logical size and the ratio on each file system, then for all files, then
    for all space in use."""
    first = columns[0]
    head = ["relation", "logical", "physical", *(c.title for c in columns)]
    rows: list[list[str] | None] = []
    for group, usage in first.groups.items():
        ratios = [f"{c.groups[group].ratio:.2f}x" for c in columns]
        rows.append([group, ui.size(usage.logical), ui.size(usage.physical), *ratios])
    logical = sum(u.logical for u in first.groups.values())
    physical = [sum(u.physical for u in c.groups.values()) for c in columns]
    rows.append(None)
    rows.append(["all files", ui.size(logical), ui.size(physical[0]), *(f"{logical / p:.2f}x" for p in physical)])
    totals = [f"{logical / c.total_physical:.2f}x" for c in columns]
    rows.append(["with all metadata", ui.size(logical), ui.size(first.total_physical), *totals])
    rows.append(["  takes", "", "", *(ui.size(c.total_physical) for c in columns)])
    return ui.table(head, rows)


def summary(columns: list[Column]) -> str:
    """Returns the ratio here in relation to that of each other file system, all metadata counted."""
    first = columns[0]
    shares = [f"{c.total_physical / first.total_physical:.2f} of {c.title}'s" for c in columns[1:]]
    return f"{first.title}'s ratio, all metadata counted, is " + ", ".join(shares) + "."
