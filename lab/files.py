"""The files of a pool's own directory, or of a dataset, with what is in them."""

from __future__ import annotations

from .pool import Pool


def files_of(pool: Pool) -> dict[str, bytes]:
    """The files of the pool's mount point, without directories."""
    return {file.name: file.read_bytes() for file in pool.mountpoint.iterdir() if file.is_file()}


def contents_once(pool: Pool, name: str) -> dict[str, bytes]:
    """The files of a dataset that is mounted for that and destroyed afterwards."""
    at = pool.run.fresh("restored")
    at.mkdir()
    pool.pagefold("mount", name, at)
    try:
        return {file.name: file.read_bytes() for file in at.iterdir() if file.is_file()}
    finally:
        pool.pagefold("unmount", at)
        pool.pagefold("destroy", "-r", name)
