"""Devices are added, grow, are removed and get their part of the data while files are written."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from lab import proc
from lab.pool import Pool
from lab.tests.devices import MIB, Writer, attach, beside, one_device, states, status, stored


@pytest.fixture()
def pool(run):
    """Provides a mounted pool of one device."""
    with one_device(run) as pool:
        yield pool


def test_a_full_pool_gets_more_devices_under_writes(pool):
    def room() -> int:
        found = os.statvfs(pool.mountpoint)
        return found.f_blocks * found.f_frsize

    before = room()
    told = pool.pagefold("add", "-n", pool.pool, "mirror", beside(pool, "new1"), beside(pool, "new2"))
    assert "nothing was changed" in told and room() == before
    with pytest.raises(OSError, match="No space left"):
        with open(pool.mountpoint / "large", "wb", buffering=0) as file:
            while file.write(os.urandom(MIB)):
                pass
    (pool.mountpoint / "large").unlink()
    with Writer(pool.mountpoint) as writer:
        pool.pagefold("add", pool.pool, "mirror", beside(pool, "new1"), beside(pool, "new2"))
        pool.pagefold("add", pool.pool, beside(pool, "new3"))
        assert room() > 3 * before
        content = os.urandom(250 * MIB)
        (pool.mountpoint / "large").write_bytes(content)
    writer.verify()
    assert len({one["group"] for one in status(pool)["devices"]}) == 3
    pool.unmount()
    pool.mount()
    assert (pool.mountpoint / "large").read_bytes() == content
    writer.verify()
    pool.pagefold("offline", pool.pool, Path(pool.device).parent / "new2")
    pool.pagefold("online", pool.pool, Path(pool.device).parent / "new2", "--wait")
    with pytest.raises(proc.CommandFailed, match="only device"):
        pool.pagefold("detach", pool.pool, Path(pool.device).parent / "new3")


def test_a_server_that_is_killed_while_devices_are_added_leaves_the_pool_with_them_or_without(pool):
    content = os.urandom(8 * MIB)
    with open(pool.mountpoint / "file", "wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    devices = 1
    for number, delay_s in enumerate([0.02, 0.05, 0.08, 0.1, 0.12, 0.14, 0.16, 0.2, 0.25]):
        new = [Path(pool.device).parent / f"new{number}{half}" for half in "ab"]
        failed: list[proc.CommandFailed] = []

        def add() -> None:
            try:
                pool.pagefold("add", pool.pool, "mirror", *new, "--size", "160M")
            except proc.CommandFailed as error:
                failed.append(error)

        adding = threading.Thread(target=add)
        adding.start()
        time.sleep(delay_s)
        pool.crash()
        adding.join()
        pool.recover()
        now = len(status(pool)["devices"])
        assert now == devices + 2 or failed and now == devices, failed
        devices = now
        assert (pool.mountpoint / "file").read_bytes() == content


def test_devices_that_have_grown_are_used_when_somebody_says_so_or_by_the_way(pool):
    def room() -> int:
        found = os.statvfs(pool.mountpoint)
        return found.f_blocks * found.f_frsize

    before = room()
    assert "already" in pool.pagefold("online", "-e", pool.pool, pool.device)
    with pytest.raises(proc.CommandFailed, match="online -e"):
        pool.pagefold("online", pool.pool, pool.device)
    second = attach(pool, "second")
    with Writer(pool.mountpoint) as writer:
        os.truncate(pool.device, 600 * MIB)
        assert "already" in pool.pagefold("online", "-e", pool.pool, pool.device)
        assert room() == before
        os.truncate(second, 700 * MIB)
        assert "more than before" in pool.pagefold("online", "-e", pool.pool, second)
        grown = room()
        assert grown > 2 * before
        content = os.urandom(int(before * 1.2))
        (pool.mountpoint / "large").write_bytes(content)
    pool.pagefold("set", "autoexpand=on", pool.pool)
    for device in (pool.device, second):
        os.truncate(device, 1200 * MIB)
    deadline = time.monotonic() + 60
    while room() < 1.5 * grown:
        assert time.monotonic() < deadline, "what the devices have grown by is not taken up"
        time.sleep(0.1)
    writer.verify()
    most = room()
    pool.crash()
    pool.recover()
    assert room() == most
    pool.unmount()
    # Larger while nobody looks: it is taken up soon after the next mount.
    for device in (pool.device, second):
        os.truncate(device, 2000 * MIB)
    pool.mount()
    deadline = time.monotonic() + 60
    while room() < 1.3 * most:
        assert time.monotonic() < deadline, "what the devices have grown by is not taken up"
        time.sleep(0.1)
    assert (pool.mountpoint / "large").read_bytes() == content


def test_a_device_is_removed_under_writes_and_holds_no_pool_then(pool):
    old, second = pool.device, beside(pool, "second")
    pool.pagefold("add", pool.pool, second)
    content = stored(pool, "large", 60)
    told = pool.pagefold("remove", "-n", pool.pool, old)
    assert "would move off" in told and "nothing was changed" in told
    with pytest.raises(proc.CommandFailed, match="is still in use|is a device of pool|holds"):
        pool.pagefold("create", "other", old)
    with Writer(pool.mountpoint) as writer:
        pool.pagefold("remove", pool.pool, old, "--wait")
        assert list(states(pool)) == ["second"]
        time.sleep(0.5)
    writer.verify()
    assert (pool.mountpoint / "large").read_bytes() == content
    assert "has left" in pool.pagefold("status", pool.pool)
    third = beside(pool, "third")
    pool.pagefold("add", pool.pool, third)
    told = pool.pagefold("remove", "-n", pool.pool, second)
    assert "would take about" in told and "as the last removal" in told and "1/3 of the time" in told, told
    pool.pagefold("remove", pool.pool, third, "--wait")
    pool.device = second
    pool.crash()
    pool.recover()
    writer.verify()
    pool.unmount()
    # It can be used for anything else, and the machine does not look for it.
    pool.pagefold("create", "other", old)
    pool.pagefold("destroy", "-f", "other")
    os.unlink(old)
    pool.mount()
    assert list(states(pool)) == ["second"]
    assert (pool.mountpoint / "large").read_bytes() == content
    writer.verify()


def test_a_server_that_is_killed_again_and_again_goes_on_removing_a_mirror(pool):
    attach(pool, "second")
    pool.pagefold("add", pool.pool, "mirror", beside(pool, "third"), beside(pool, "fourth"))
    content = stored(pool, "large", 70)
    with pytest.raises(proc.CommandFailed, match="is one device of mirror-1"):
        pool.pagefold("remove", pool.pool, pool.device.with_name("third"))
    pool.pagefold("remove", pool.pool, "mirror-1")
    kills = 0
    while len(states(pool)) > 2:
        assert kills < 60, pool.pagefold("status", pool.pool)
        # On a busy disc, too, it gets somewhere at last.
        time.sleep(0.2 + 0.1 * (kills % 5) + kills / 20)
        pool.crash()
        pool.recover()
        kills += 1
    assert kills > 0
    assert sorted(states(pool).values()) == ["ONLINE", "ONLINE"]
    assert (pool.mountpoint / "large").read_bytes() == content


def test_a_removal_is_stopped_and_what_cannot_be_removed_is_told(pool):
    with pytest.raises(proc.CommandFailed, match="no other device"):
        pool.pagefold("remove", pool.pool, pool.device)
    with pytest.raises(proc.CommandFailed, match="no device of pool .* is being removed"):
        pool.pagefold("remove", "--stop", pool.pool)
    second = beside(pool, "second")
    pool.pagefold("add", pool.pool, second)
    content = stored(pool, "large", 90)
    with pytest.raises(proc.CommandFailed, match="is no device of pool"):
        pool.pagefold("remove", pool.pool, "mirror-0")
    pool.pagefold("remove", pool.pool, second)
    with pytest.raises(proc.CommandFailed, match="is being removed already|is no device of pool"):
        pool.pagefold("remove", pool.pool, second)
    try:
        pool.pagefold("remove", "--stop", pool.pool)
    except proc.CommandFailed as error:
        # It had come to its end.
        assert "no device of pool" in str(error) and len(states(pool)) == 1
    else:
        assert len(states(pool)) == 2
        more = stored(pool, "more", 60)
        with pytest.raises(proc.CommandFailed, match="have room for"):
            pool.pagefold("remove", pool.pool, second)
        with pytest.raises(proc.CommandFailed, match="have room for"):
            pool.pagefold("remove", "-n", pool.pool, second)
        assert (pool.mountpoint / "more").read_bytes() == more
    assert (pool.mountpoint / "large").read_bytes() == content


def parts(pool: Pool) -> list[float]:
    """Returns the part of each device that is in use."""
    return [one["allocated_bytes"] / one["size_bytes"] for one in status(pool)["devices"]]


def test_devices_that_were_added_get_their_part_under_writes(pool):
    with pytest.raises(proc.CommandFailed, match="nothing to balance"):
        pool.pagefold("balance", pool.pool)
    with pytest.raises(proc.CommandFailed, match="is not being balanced"):
        pool.pagefold("balance", "--stop", pool.pool)
    content = stored(pool, "large", 100)
    second = beside(pool, "second")
    pool.pagefold("add", pool.pool, second)
    before = parts(pool)
    assert before[0] - before[1] > 0.25, before
    told = pool.pagefold("balance", "-n", pool.pool)
    assert f"would move from {pool.device} to {second}" in told and "nothing was changed" in told
    assert parts(pool)[1] < 0.15
    with Writer(pool.mountpoint) as writer:
        pool.pagefold("balance", pool.pool, "--wait")
    after = parts(pool)
    assert abs(after[0] - after[1]) < 0.1, after
    told = status(pool)["balance"]
    assert told["finished"] > 0 and told["left_bytes"] == 0 and 0 < told["moved_bytes"] < 100 * MIB, told
    assert told["work_bytes_per_s"] > 0 and told["left_s"] is None, told
    assert "moved" in pool.pagefold("status", pool.pool)
    writer.verify()
    pool.crash()
    pool.recover()
    writer.verify()
    assert (pool.mountpoint / "large").read_bytes() == content


def test_a_server_that_is_killed_again_and_again_goes_on_balancing(pool):
    content = stored(pool, "large", 100)
    pool.pagefold("add", pool.pool, beside(pool, "second"))
    pool.pagefold("balance", pool.pool)
    kills = 0
    while abs(parts(pool)[0] - parts(pool)[1]) > 0.1:
        assert kills < 100
        time.sleep(0.02 * kills)
        pool.crash()
        pool.recover()
        kills += 1
    assert (pool.mountpoint / "large").read_bytes() == content
    pool.unmount()
    pool.mount()
    # It has ended, or does so within moments.
    deadline = time.monotonic() + 60
    while (told := status(pool)["balance"]) and not told["finished"]:
        assert time.monotonic() < deadline, told
        time.sleep(0.1)
    assert "equally full already" in pool.pagefold("balance", pool.pool)
