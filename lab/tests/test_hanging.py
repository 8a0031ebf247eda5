"""A mirror one of whose devices hangs: it is a loop device over a file of another pool, whose server is stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from lab.hanging import BELOW_BYTES, DEVICE_BYTES, FILE_BYTES, PAGE_BYTES, HalfHanging, HangingDisc, read_pages
from lab.paths import pagefold
from lab.pool import Pool
from lab.proc import CommandFailed
from lab.storage import Loop

SWITCH = Path("/sys/module/fuse/parameters/enable_uring")
READS = 2000
SYNCS = 100
TOLD_AFTER_S = 2
PATIENCE_S = 300
"""Time after which the device goes on by itself: a read that waits for it ends then, and the test fails."""


@contextlib.contextmanager
def switched_as_before():
    """Leaves the kernel's switch for rings as it was, which mounts with io_uring=on turn on."""
    before = SWITCH.read_text() if SWITCH.exists() else None
    try:
        yield
    finally:
        if before is not None:
            SWITCH.write_text(before)


@pytest.mark.parametrize("io_uring", ["off", "on"])
def test_reads_of_a_mirror_go_on_while_one_of_its_devices_hangs(run, io_uring):
    if io_uring == "on" and not SWITCH.exists():
        pytest.skip("this kernel's FUSE has no io_uring")
    moments = random.Random(1)
    with switched_as_before(), Pool(run, BELOW_BYTES, compression="off") as below:
        disc = HangingDisc(run, below)
        with HalfHanging(run, disc, io_uring=io_uring) as pool:
            path = pool.fill()
            read_pages(path, lambda done: done < READS, moments)
            assert read_device(pool, disc.device) > 0, "both devices are read"
            sent_twice, _ = pool.hedged()
            with disc.hangs(PATIENCE_S) as stopped:
                end = time.monotonic() + TOLD_AFTER_S
                read_pages(path, lambda done: done < READS or time.monotonic() < end, moments)
                assert is_stopped(stopped), "nobody has waited for the device"
            now = pool.hedged()
            assert now[0] > sent_twice
            end = time.monotonic() + PATIENCE_S
            while not told_of(pool, disc.device):
                assert time.monotonic() < end, "the events do not tell of the device that hung"
                time.sleep(0.1)
            assert [one["state"] for one in pool.figures("status")["devices"]] == ["ONLINE", "ONLINE"]
            pool.pagefold("scrub", pool.pool, "--wait")
            assert all(one["read_errors"] == one["checksum_errors"] == 0 for one in pool.figures("status")["devices"])
        disc.loop.detach()


def sync_pages(path: Path, count: int, moments: random.Random) -> None:
    """Writes so many pages, each durably."""
    fd = os.open(path, os.O_WRONLY)
    try:
        for _ in range(count):
            os.pwrite(fd, moments.randbytes(PAGE_BYTES), moments.randrange(FILE_BYTES // PAGE_BYTES) * PAGE_BYTES)
            os.fdatasync(fd)
    finally:
        os.close(fd)


def states(pool: Pool) -> list[str]:
    return [one["state"] for one in pool.figures("status")["devices"]]


def test_writes_to_a_mirror_go_on_without_the_device_that_hangs(run):
    moments = random.Random(2)
    with Pool(run, BELOW_BYTES, compression="off") as below:
        disc = HangingDisc(run, below)
        with HalfHanging(run, disc) as pool:
            path = pool.fill()
            pool.pagefold("set", "devicewait=2s", pool.pool)
            sync_pages(path, SYNCS, moments)
            assert states(pool) == ["ONLINE", "ONLINE"]
            with disc.hangs(PATIENCE_S) as stopped:
                sync_pages(path, SYNCS, moments)
                assert is_stopped(stopped), "the writes have waited for the device"
                assert states(pool) == ["ONLINE", "FAULTED"]
                assert any(disc.device in line and "does not answer" in line for line in pool.pagefold("events", pool.pool).splitlines())
                # A late write would replace what is written now.
                with pytest.raises(CommandFailed, match="has not answered all requests"):
                    pool.pagefold("online", pool.pool, disc.device)
                sync_pages(path, SYNCS, moments)
            end = time.monotonic() + PATIENCE_S
            while "has answered the requests" not in pool.pagefold("events", pool.pool):
                assert time.monotonic() < end, "the events do not tell that the device answers again"
                time.sleep(0.1)
            digest = hashlib.sha256(path.read_bytes()).digest()
            pool.pagefold("online", pool.pool, disc.device, "--wait")
            assert states(pool) == ["ONLINE", "ONLINE"]
            pool.pagefold("scrub", pool.pool, "--wait")
            status = pool.figures("status")
            assert all(one["checksum_errors"] == 0 for one in status["devices"])
            # It has all that it missed: alone it gives the same.
            pool.pagefold("offline", pool.pool, pool.loop.device)
            pool.unmount()
            pool.mount()
            assert hashlib.sha256(path.read_bytes()).digest() == digest
        disc.loop.detach()


def search(below: Pool, *words: str) -> subprocess.Popen:
    """Starts `import` with these words."""
    environment = os.environ | below.environment
    return subprocess.Popen([pagefold(), "import", *words], env=environment, stdout=PIPE, stderr=PIPE, text=True)


def test_import_leaves_out_a_device_that_does_not_answer(run):
    with Pool(run, BELOW_BYTES, compression="off") as below:
        disc, loop = HangingDisc(run, below), Loop(run, run.fresh("image"), DEVICE_BYTES)
        other, name = loop.attach(), f"{below.pool}-other"
        below.pagefold("create", name, other)
        below.pagefold("export", name)
        where = ["-d", disc.device, "-d", other]
        with disc.hangs(PATIENCE_S) as stopped:
            for number in (signal.SIGINT, signal.SIGTERM):
                with search(below, *where) as ended:
                    assert f"waiting for {disc.device}" in ended.stderr.readline()
                    ended.send_signal(number)
                    assert ended.wait(timeout=PATIENCE_S) == -number
            shown, errors = (all_of := search(below, "--json", *where)).communicate(timeout=PATIENCE_S)
            assert all_of.returncode == 1, errors
            assert f"{disc.device} does not answer, and was left out" in errors
            told = json.loads(shown)
            assert [pool["name"] for pool in told["pools"]] == [name]
            assert told["left_out"] == [disc.device]
            _, errors = (named := search(below, *where, name)).communicate(timeout=PATIENCE_S)
            assert named.returncode == 0, errors
            assert "was left out" in errors
            assert is_stopped(stopped), "the searches have waited for the device"
        below.pagefold("destroy", "--force", name)
        loop.detach()
        disc.loop.detach()


def told_of(pool: Pool, device: str) -> bool:
    """Returns true if the events of a pool tell that a device did not answer."""
    lines = pool.pagefold("events", pool.pool).splitlines()
    return any(device in line and ("does not answer" in line or "took long to answer" in line) for line in lines)


def is_stopped(pid: int) -> bool:
    """Returns true if a process is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def read_device(pool: Pool, path: str) -> int:
    """Returns how many reads somebody waited for a device has done."""
    devices = json.loads(pool.pagefold("iostat", "--json", pool.pool))["pools"][0]["devices"]
    (device,) = [device for device in devices if device["path"] == path]
    return sum(one["operations"] for one in device["requests"] if one["class"] == "sync_read")
