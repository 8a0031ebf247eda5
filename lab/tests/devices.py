"""Pools of several devices: their devices, what the program says of them, and files that are written meanwhile."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.ledger import Run
from lab.pool import Pool

MIB = 1 << 20
WRITTEN_MAX = 600
"""Number of files that a writer writes before it writes the first one again: a fast one would fill the pool."""


@contextmanager
def one_device(run: Run) -> Iterator[Pool]:
    """Provides a mounted pool of one device, for which others are made beside it, and checks it at the end."""
    with Pool(run, 256 * MIB) as pool:
        yield pool
        pool.unmount()
        pool.check()


def beside(pool: Pool, name: str, mib: int = 256) -> Path:
    """Makes a file for a device."""
    path = Path(pool.device).parent / name
    with open(path, "wb") as file:
        file.truncate(mib * MIB)
    return path


def status(pool: Pool) -> dict:
    """Returns what `pagefold status --json` says of the pool."""
    told = json.loads(pool.pagefold("status", "--json", pool.pool))
    return told["pools"][0] if "pools" in told else told


def states(pool: Pool) -> dict[str, str]:
    """Returns the state of each device, by name; missing ones by number."""
    return {Path(one["path"]).name or str(one["number"]): one["state"] for one in status(pool)["devices"]}


def known(pool: Pool) -> list[str]:
    """Returns the names of the devices that this machine knows of the pool."""
    registry = json.loads((Path(pool.environment["PAGEFOLD_STATE_DIR"]) / "pools.json").read_text())
    (found,) = [one for one in registry["pools"] if one["name"] == pool.pool]
    return [Path(path).name for path in found["devices"]]


def attach(pool: Pool, name: str) -> Path:
    """Gives the pool's device a mirror, and waits until that is whole."""
    new = beside(pool, name)
    pool.pagefold("attach", pool.pool, pool.device, new, "--wait")
    return new


class Writer(threading.Thread):
    """Writes and syncs files until it is told to stop; each is acknowledged before the next."""

    def __init__(self, directory: Path):
        super().__init__()
        self.directory, self.done, self.ended = directory, [], threading.Event()
        self.failed: OSError | None = None

    def run(self) -> None:
        while not self.ended.is_set() and self.failed is None:
            content = os.urandom(64 << 10)
            path = self.directory / f"w{len(self.done) % WRITTEN_MAX}"
            try:
                with open(path, "wb") as file:
                    file.write(content)
                    os.fsync(file.fileno())
            except OSError as error:
                self.failed = error
                return
            self.done.append(content)

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()
        assert self.failed is None, self.failed
        assert self.done

    def verify(self) -> None:
        """Reads all that was acknowledged."""
        # The oldest one may have been about to be written again.
        first = max(0, len(self.done) - WRITTEN_MAX + 1)
        for number, content in enumerate(self.done[first:], first):
            path = self.directory / f"w{number % WRITTEN_MAX}"
            assert path.exists() and path.read_bytes() == content, f"{path}: {number} of {len(self.done)}"


def stored(pool: Pool, name: str, mib: int) -> bytes:
    """Writes a file that does not compress, durably, and returns its content."""
    content = os.urandom(mib * MIB)
    with open(pool.mountpoint / name, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return content
