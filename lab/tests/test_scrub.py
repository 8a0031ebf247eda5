"""`pagefold scrub` on a pool in use: progress, stopping and resuming, and damage on the device."""

from __future__ import annotations

import json
import os
import time

import pytest

from lab import proc
from lab.pool import Pool

FILES, MIB = 12, 1 << 20


@pytest.fixture()
def pool(run):
    """Provides a pool with incompressible files."""
    with Pool(run, 256 << 20) as pool:
        for number in range(FILES):
            (pool.mountpoint / f"file{number}").write_bytes(os.urandom(4 * MIB))
        pool.pagefold("sync", pool.mountpoint)
        yield pool
        pool.unmount()


def scrub(pool: Pool, *options: str) -> dict:
    """Runs `pagefold scrub`; returns its JSON."""
    return json.loads(pool.pagefold("scrub", "--json", *options, pool.pool))["scrub"]


def wait_for(pool: Pool, state: str) -> dict:
    """Waits for a state of the scrub, and returns its JSON."""
    deadline = time.monotonic() + 60
    while (now := scrub(pool, "--status"))["state"] != state:
        assert time.monotonic() < deadline, f"a minute later: {now}"
        time.sleep(0.1)
    return now


def test_a_sound_pool(pool):
    assert scrub(pool, "--status") is None
    done = scrub(pool, "--wait")
    assert done["state"] == "finished" and done["damaged"] == done["unreadable"] == 0
    assert done["done_bytes"] >= FILES * 4 * MIB and done["sound"] >= FILES * 4
    assert "no damage" in pool.pagefold("status", pool.pool)
    pool.unmount()
    pool.check()
    pool.mount()
    assert scrub(pool, "--status") == done


def test_it_is_stopped_and_goes_on_after_a_mount_and_after_a_crash(pool):
    assert scrub(pool, "--rate", "4M")["state"] == "running"
    with pytest.raises(proc.CommandFailed, match="under way"):
        scrub(pool)
    time.sleep(1.5)
    scrub(pool, "--stop")
    with pytest.raises(proc.CommandFailed, match="no scrub is under way"):
        scrub(pool, "--stop")
    stopped = scrub(pool, "--status")
    assert stopped["state"] == "stopped" and 0 < stopped["done_bytes"] < stopped["total_bytes"]
    pool.unmount()
    pool.mount()
    assert scrub(pool, "--status") == stopped
    assert scrub(pool, "--rate", "4M")["started"] == stopped["started"]
    pool.crash()
    pool.recover()
    pool.pagefold("scrub", "--status", pool.pool)
    done = wait_for(pool, "finished")
    assert done["done_bytes"] >= FILES * 4 * MIB and done["damaged"] == 0


def test_damage_is_found_told_and_counted(pool):
    path = pool.mountpoint / "victim"
    data = os.urandom(MIB)
    path.write_bytes(data)
    pool.pagefold("sync", pool.mountpoint)
    with open(pool.device, "r+b", buffering=0) as device:
        offset = device.read().index(data[100_000:100_064])
        os.pwrite(device.fileno(), b"damage", offset)
        os.fsync(device.fileno())
    with pytest.raises(proc.CommandFailed, match="is damaged"):
        scrub(pool, "--wait")
    found = scrub(pool, "--status")
    assert found["state"] == "finished" and found["damaged"] >= 1
    status = pool.figures("status")
    assert status["devices"][0]["checksum_errors"] == found["damaged"]
    damaged = "1 record damaged" if found["damaged"] == 1 else f"{found['damaged']} records damaged"
    assert damaged in pool.pagefold("status", pool.pool)
    assert "scrub: damage" in pool.pagefold("events", pool.pool)
    with pytest.raises(proc.CommandFailed):
        pool.unmount()
        pool.check()
