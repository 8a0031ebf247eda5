"""Space returns to the disc: after deletion and `pagefold trim`, a pool takes as much of its file as it says to use, on
a sparse file and on a loop device over one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lab import proc
from lab.pool import Pool
from lab.storage import Loop
from .conftest import counter

MIB = 1 << 20
CHUNK = 4 * MIB
POOL_BYTES = 512 * MIB
FILES, FILE_BYTES, KEPT = 20, 12 * MIB, (3, 11)
RESERVED = 3 * 192 << 10
"""Bytes that are written in the reserved places of a device of this size."""


class LoopPool(Pool):
    """A pool on a loop device."""

    def create(self) -> None:
        self.loop = Loop(self.run, self.run.fresh("backing"), self.size_bytes)
        self.device = Path(self.loop.attach())
        self.pagefold("create", self.pool, self.device)

    def destroy(self) -> None:
        self.pagefold("destroy", "--force", self.pool)
        self.loop.detach()

    @property
    def backing(self) -> Path:
        """The file that holds it."""
        return self.loop.backing


class FilePool(Pool):
    """A pool in a sparse file."""

    @property
    def backing(self) -> Path:
        """The file that holds it."""
        return self.device


@pytest.fixture(params=[FilePool, LoopPool], ids=["file", "loop"])
def pool(run, request):
    """Provides a pool, which is checked at the end."""
    with request.param(run, POOL_BYTES) as pool:
        yield pool
        pool.unmount()
        pool.check()


def allocated(pool: Pool) -> int:
    """Returns the bytes that the pool takes on the disc."""
    proc.run(["sync", pool.backing])
    return pool.backing.stat().st_blocks * 512


def fill(pool: Pool) -> None:
    for number in range(FILES):
        (pool.mountpoint / f"file{number}").write_bytes(os.urandom(FILE_BYTES))
    pool.pagefold("sync", pool.mountpoint)


def delete(pool: Pool) -> None:
    for number in set(range(FILES)) - set(KEPT):
        (pool.mountpoint / f"file{number}").unlink()
    pool.pagefold("sync", pool.mountpoint)
    # Deleted files are freed in the background.
    deadline = time.monotonic() + 60
    while used(pool) > (len(KEPT) + 1) * FILE_BYTES:
        assert time.monotonic() < deadline, f"a minute later: {used(pool)} bytes"
        time.sleep(0.1)


def used(pool: Pool) -> int:
    return pool.figures("df")["used_bytes"]


def discarded(pool: Pool) -> int:
    """Returns the bytes that the device was told of since the pool was mounted."""
    return counter(pool, "device_discard")["bytes"]


def trim(pool: Pool, *options: str) -> dict:
    return json.loads(pool.pagefold("trim", "--json", *options, pool.pool))


def test_a_pool_is_as_small_on_the_disc_as_it_says(pool):
    fill(pool)
    before = allocated(pool)
    assert before > FILES * FILE_BYTES
    kept = {number: (pool.mountpoint / f"file{number}").read_bytes() for number in KEPT}
    delete(pool)
    assert trim(pool, "-n")["trim"] is None and allocated(pool) > before - CHUNK, "nobody was told anything yet"
    done = trim(pool, "--wait")["trim"]
    assert done["state"] == "finished" and done["errors"] == 0 and done["done_bytes"] == done["total_bytes"]
    # The pool takes no more than the chunks in use (those that are not full have holes, too), and those that wait for
    # the next checkpoint.
    assert allocated(pool) - RESERVED <= pool.figures("df")["allocated_bytes"] + 2 * CHUNK
    excess = allocated(pool) - RESERVED - used(pool)
    print(f"after deletion and trim: {excess / MIB:.1f} MiB more than is used")
    # The excess is in chunks in which the kept files begin and end.
    assert excess < (2 + 2 * len(KEPT)) * CHUNK
    # A second trim only tells the device of chunks that were given out and freed since.
    again = trim(pool, "--wait")["trim"]
    assert again["done_bytes"] <= 4 * CHUNK
    # Fold codes nothing of such data again, and moves nothing: whether the kept files begin and end in three chunks or in
    # four depends on what the log was doing when they were written.
    pool.pagefold("fold", pool.pool)
    trim(pool, "--wait")
    excess = allocated(pool) - RESERVED - used(pool)
    print(f"after fold and trim: {excess / MIB:.1f} MiB more than is used")
    assert excess < (2 + 2 * len(KEPT)) * CHUNK
    pool.unmount()
    pool.check()
    pool.mount()
    assert all((pool.mountpoint / f"file{number}").read_bytes() == kept[number] for number in KEPT)


@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "busy"])
def test_autotrim_tells_by_the_way(pool, is_idle):
    pool.pagefold("set", "autotrim=on", pool.pool)
    fill(pool)
    before = allocated(pool)
    delete(pool)
    freed = (FILES - len(KEPT) - 4) * FILE_BYTES
    deadline = time.monotonic() + 60
    # While somebody writes at full speed, what he frees waits for the next checkpoint, and so the device never has as
    # little as `freed` says; but it is told.
    while not is_idle and discarded(pool) < freed:
        assert time.monotonic() < deadline, f"a minute later: {discarded(pool)} bytes told"
        (pool.mountpoint / f"file{KEPT[0]}").write_bytes(os.urandom(FILE_BYTES))
        pool.pagefold("sync", pool.mountpoint)
    # Deleted files are freed in steps, and chunks by a checkpoint: an idle pool makes one for them.
    while allocated(pool) > before - freed:
        assert time.monotonic() < deadline, f"a minute later: {allocated(pool)} bytes"
        time.sleep(0.5)


def test_a_trim_is_stopped_and_keeps_to_its_rate(pool):
    assert trim(pool, "--rate", "4M")["trim"]["state"] == "running"
    with pytest.raises(proc.CommandFailed, match="under way"):
        trim(pool)
    stopped = trim(pool, "--stop")["trim"]
    assert stopped["state"] == "stopped" and stopped["done_bytes"] < stopped["total_bytes"]
    assert trim(pool, "-n")["untrimmed_bytes"] > POOL_BYTES // 2
    with pytest.raises(proc.CommandFailed, match="no trim is under way"):
        trim(pool, "--stop")
    assert trim(pool, "--wait")["untrimmed_bytes"] < 4 * CHUNK
    assert "told of" in pool.pagefold("status", pool.pool)
