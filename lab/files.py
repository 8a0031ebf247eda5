"""Reads the files of a pool's own directory, or of a dataset, with their contents."""

from __future__ import annotations

from .pool import Pool


def files_of(pool: Pool) -> dict[str, bytes]:
    """Returns the contents of the files at the pool's mount point, by name, without directories."""
    return {file.name: file.read_bytes() for file in pool.mountpoint.iterdir() if file.is_file()}


def contents_once(pool: Pool, name: str) -> dict[str, bytes]:
    """Returns the contents of a dataset's files, by name. The dataset is mounted for that and destroyed afterwards."""
    at = pool.run.fresh("restored")
    at.mkdir()
    pool.pagefold("mount", name, at)
    try:
        return {file.name: file.read_bytes() for file in at.iterdir() if file.is_file()}
    finally:
        pool.pagefold("unmount", at)
        pool.pagefold("destroy", "-r", name)
