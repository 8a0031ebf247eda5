"""`pagefold iostat`, as people use it: each load of a mounted pool is found in the figures of its class."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lab.pool import Pool

MIB = 1 << 20


@pytest.fixture()
def pool(run):
    """Provides a mounted pool of one device."""
    with Pool(run, 256 * MIB) as pool:
        yield pool
        pool.unmount()
        pool.check()


def devices(pool: Pool) -> list[dict]:
    """Returns what `pagefold iostat --json` says of each device."""
    return json.loads(pool.pagefold("iostat", "--json", pool.pool))["pools"][0]["devices"]


def sums(of: list[dict]) -> dict[tuple[str, str], dict]:
    """Returns the figures of these devices by class and kind."""
    found: dict[tuple[str, str], dict] = {}
    for figures in (figures for device in of for figures in device["requests"]):
        sum_ = found.setdefault((figures["class"], figures["kind"]), dict.fromkeys(["operations", "bytes", "errors", "in_flight"], 0))
        for name in sum_:
            sum_[name] += figures[name]
    return found


def moved(before: dict, after: dict, kind: tuple[str, str]) -> int:
    """Returns the bytes of requests of a class and kind between two instants."""
    return after.get(kind, {}).get("bytes", 0) - before.get(kind, {}).get("bytes", 0)


def test_each_load_is_told_by_class_and_device(pool):
    path = pool.mountpoint / "file"
    start = sums(devices(pool))
    with open(path, "wb") as file:
        file.write(os.urandom(32 * MIB))
        os.fsync(file.fileno())
    written = sums(devices(pool))
    assert moved(start, written, ("log", "write")) >= 32 * MIB
    assert moved(start, written, ("cleaning", "write")) == moved(start, written, ("scrub", "read")) == 0

    pool.unmount()
    pool.mount()
    start = sums(devices(pool))
    assert path.read_bytes()
    read = sums(devices(pool))
    assert moved(start, read, ("sync_read", "read")) >= 32 * MIB
    assert moved(start, read, ("log", "write")) < MIB

    pool.pagefold("scrub", pool.pool, "--wait")
    scrubbed = sums(devices(pool))
    assert moved(read, scrubbed, ("scrub", "read")) >= 32 * MIB
    assert moved(read, scrubbed, ("sync_read", "read")) < 4 * MIB

    second = Path(pool.device).parent / "second"
    with open(second, "wb") as file:
        file.truncate(256 * MIB)
    pool.pagefold("attach", pool.pool, pool.device, second, "--wait")
    told = devices(pool)
    assert len(told) == 2 and len({device["group"] for device in told}) == 1
    of_first, of_second = (sums([device]) for device in told)
    assert of_first["filling", "read"]["bytes"] >= 32 * MIB
    assert of_second["filling", "write"]["bytes"] == of_first["filling", "read"]["bytes"]
    names = [line.split("\t")[0] for line in pool.pagefold("iostat", "-vH", pool.pool).splitlines()]
    assert names == [pool.pool, f"mirror-{told[0]['group']}", str(pool.device), str(second)]

    pool.pagefold("trim", pool.pool, "--wait")
    assert sums(devices(pool)).get(("discard", "discard"), {}).get("bytes", 0) > 0
    # Filling is followed by a scrub; when that has ended and nobody uses the pool, nothing is under way.
    deadline = time.monotonic() + 60
    while any(figures["in_flight"] for figures in sums(devices(pool)).values()):
        assert time.monotonic() < deadline, sums(devices(pool))
        time.sleep(0.2)
    assert all(figures["errors"] == 0 for figures in sums(devices(pool)).values())
