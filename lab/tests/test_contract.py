"""The contract (docs/SEMANTICS.md), as a process sees it through the kernel, across a SIGKILL of the server."""

from __future__ import annotations

import errno
import os
import random
import time

import pytest

from lab.crash import crash_beside_writer
from lab.pool import Pool

MIB = 1 << 20

WRITER = """
import os, sys
from lab.tests.test_contract import block
path, synced, first = sys.argv[1], sys.argv[2] == "sync", int(sys.argv[3])
handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
generation = first
while True:
    assert os.pwrite(handle, block(generation), 0) == len(block(generation))
    if synced:
        os.fdatasync(handle)
    if synced or generation == first:
        print(generation, flush=True)
    generation += 1
"""

NAMES = """
import os, sys
os.chdir(sys.argv[1])
number = 0
while True:
    handle = os.open(f"new{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(handle, str(number).encode() * 1000)
    os.close(handle)
    os.rename(f"new{number}", f"file{number}")
    if number % 50 == 49:
        folder = os.open(".", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        print(number, flush=True)
    number += 1
"""


def block(generation: int) -> bytes:
    """Returns one incompressible mebibyte that follows from a number."""
    return generation.to_bytes(8, "little") + random.Random(generation).randbytes(MIB - 8)


def written(data: bytes) -> int:
    """Returns the generation of a block, and compares every byte."""
    generation = int.from_bytes(data[:8], "little")
    whole = block(generation)
    length = next((i for i in range(0, len(whole), 4096) if data[i : i + 4096] != whole[i : i + 4096]), None)
    assert length is None and len(data) == len(whole), (
        f"torn: generation {generation} up to byte {length} of {len(data)}"
    )
    return generation


@pytest.mark.parametrize("round_number", range(3))
def test_w1_a_write_of_one_mebibyte_is_never_torn(where, run, round_number):
    path = where.mountpoint / "whole"
    first = 1 + (int.from_bytes(path.read_bytes()[:8], "little") if path.exists() else 0)
    crash_beside_writer(run, where, ["-c", WRITER, str(path), "no", str(first)], run.dir / "started", 1, 1.5 + 0.37 * round_number)
    assert written(path.read_bytes()) > first, "nothing of the load became durable within more than a second"


def test_w3_what_was_synced_is_there(where, run):
    path = where.mountpoint / "synced"
    acknowledged = crash_beside_writer(run, where, ["-c", WRITER, str(path), "sync", "1"], run.dir / "synced", 10, 0.5)
    assert acknowledged[-1] <= written(path.read_bytes()) <= acknowledged[-1] + 2


def test_w2_a_crash_keeps_a_prefix_of_creations_and_renames(where, run):
    folder = where.mountpoint / "names"
    folder.mkdir()
    acknowledged = crash_beside_writer(run, where, ["-c", NAMES, str(folder)], run.dir / "names-record", 5, 0.7)
    found = set(os.listdir(folder))
    finished = sorted(int(name[4:]) for name in found if name.startswith("file"))
    unfinished = [name for name in found if not name.startswith("file")]
    assert finished == list(range(len(finished))), "a file is missing before one that is there"
    assert len(finished) > acknowledged[-1], f"{acknowledged[-1] + 1} files were synced, {len(finished)} are there"
    assert unfinished in ([], [f"new{len(finished)}"])
    for number in finished:
        assert (folder / f"file{number}").read_bytes() == str(number).encode() * 1000


def test_w3_everything_else_follows_within_a_second(where):
    path = where.mountpoint / "lazy"
    path.write_bytes(b"not synced by anybody")
    time.sleep(2)
    where.crash()
    where.recover()
    assert path.read_bytes() == b"not synced by anybody"


def test_pagefold_sync_makes_durable(where):
    if not where.is_pagefold:
        pytest.skip("not a pool")
    for number in range(5):
        path = where.mountpoint / f"by-sync{number}"
        path.write_bytes(b"synced")
        where.pagefold("sync", where.mountpoint)
        where.crash()
        where.recover()
        assert path.read_bytes() == b"synced"


def test_w5_a_full_pool_keeps_what_it_took_and_lets_delete(run, where):
    if not where.is_pagefold:
        pytest.skip("not a pool")
    with Pool(run, 256 << 20) as small:
        taken = fill_up(small)
        assert len(taken) > 100, f"a pool of 256 MiB took {len(taken)} MiB only"
        small.unmount()
        small.check()
        small.mount()
        for number in taken:
            assert written((small.mountpoint / f"block{number}").read_bytes()) == number
        used = small.used_bytes()
        for number in taken:
            (small.mountpoint / f"block{number}").unlink()
        deadline = time.monotonic() + 30
        while small.used_bytes() > used // 10 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert small.used_bytes() <= used // 10, "space does not return after deletion on a full pool"
        again = fill_up(small)
        assert len(again) >= 0.95 * len(taken), f"{len(taken)} MiB the first time, {len(again)} MiB after deleting all"


def fill_up(pool: Pool) -> list[int]:
    """Writes blocks of incompressible data, each in its own file, synced, until ENOSPC; returns the numbers of those
    that were accepted."""
    taken = []
    for number in range(1024):
        path = pool.mountpoint / f"block{number}"
        data = block(number)
        try:
            with open(path, "wb", buffering=0) as f:
                assert f.write(data) == len(data)
                os.fsync(f.fileno())
        except OSError as e:
            assert e.errno == errno.ENOSPC, f"expected ENOSPC, got {e}"
            path.unlink(missing_ok=True)
            return taken
        taken.append(number)
    raise AssertionError("a pool of 256 MiB took 1 GiB of incompressible data")
