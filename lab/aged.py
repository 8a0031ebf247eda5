"""`lab aged`: verifies that a pool accepts as much as it says to be available, however old and full it is, and that
nothing wedges it.

Bulk: a file that takes a share of a pool is overwritten at random for some seconds, with an fsync now and then. Then a
second file is written as fast as possible, with one sync at the end, until the pool is full or all is written. No write
may fail while there is room, none may take long, and the pool stays ONLINE.

Hot and cold: on a small pool a hot file is overwritten again and again, beside a cold one that grows by a few bytes
each round, with fdatasync, until the pool is full. A round takes as long at the end as at the beginning, no error but
ENOSPC is ever told, and the space of all that is deleted returns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import statistics
import time
from pathlib import Path

from .ledger import Run
from .pool import Pool
from .storage import Loop

MIB = 1 << 20
PAGE = 8192
LEFT_BYTES = 8 * MIB
"""Bytes that may be left when a pool says that it is full: claims of writes under way, rounded up."""
SMALL_BYTES = 140 * MIB
SETTLE_S = 60
"""Seconds within which deleted space returns."""
BLKIO = "blkio.throttle.{way}_{unit}_device"


@contextlib.contextmanager
def throttled(device: str, mib_per_s: int, requests_per_s: int | None = None):
    """Limits the device to `mib_per_s` each way, and to a number of requests, by the blkio controller of cgroup v1. The rules
    are those of the root, where direct I/O of servers is accounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(m[1]) for m in mounts if m[2] == "cgroup" and "blkio" in m[3].split(",")]
    if not roots:
        raise RuntimeError("no blkio controller (cgroup v1) is mounted: devices cannot be throttled here")
    number = os.stat(device).st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    limits = {"bps": mib_per_s * MIB, "iops": requests_per_s}
    rules = [(roots[0] / BLKIO.format(way=way, unit=unit), limit) for unit, limit in limits.items() if limit for way in ("read", "write")]
    try:
        for rule, limit in rules:
            rule.write_text(f"{name} {limit}")
        yield
    finally:
        for rule, _ in rules:
            rule.write_text(f"{name} 0")


@contextlib.contextmanager
def pool_of(run: Run, size_bytes: int, compression: str, mib_per_s: int | None):
    """Makes a mounted pool, on a throttled loop device if a rate is given. It is checked at the end."""
    with contextlib.ExitStack() as stack:
        pool = Pool(run, size_bytes, compression=compression)
        if mib_per_s is None:
            pool.create()
        else:
            loop = Loop(run, run.fresh("backing"), size_bytes)
            device = loop.attach()
            stack.callback(loop.detach)
            stack.enter_context(throttled(device, mib_per_s))
            pool.pagefold("create", pool.pool, device, "-o", f"compression={compression}", timeout_s=300)
        pool.mount()
        yield pool
        pool.unmount()
        pool.check()
        pool.pagefold("destroy", "--force", pool.pool)
        pool.device.unlink(missing_ok=True)


def state(pool: Pool) -> None:
    """Raises unless the pool is ONLINE."""
    figures = pool.figures("status")
    if figures["state"] != "ONLINE":
        raise RuntimeError(f"the pool is {figures['state']}: {figures.get('problem')}")


def bulk(pool: Pool, fill: float, seed: int, age_s: float, bulk_mib: int) -> str:
    """Ages a file and writes another; returns a line about it, raises if a write was refused too early or took too
    long."""
    dice = random.Random(seed)
    noise = dice.randbytes(32 * MIB)
    aged = os.open(pool.mountpoint / "aged", os.O_CREAT | os.O_RDWR, 0o644)
    live = int(fill * pool.figures()["capacity_bytes"]) // PAGE * PAGE
    for at in range(0, live, MIB):
        start = dice.randrange(31 * MIB)
        os.pwrite(aged, noise[start : start + min(MIB, live - at)], at)
    os.fsync(aged)
    writes, longest, began = 0, 0.0, time.monotonic()
    while time.monotonic() < began + age_s:
        start = dice.randrange(32 * MIB - PAGE)
        before = time.monotonic()
        os.pwrite(aged, noise[start : start + PAGE], dice.randrange(live // PAGE) * PAGE)
        longest = max(longest, time.monotonic() - before)
        writes += 1
        if writes % 200 == 0:
            os.fsync(aged)
    os.fsync(aged)
    room = pool.figures()["available_bytes"]
    file = os.open(pool.mountpoint / "bulk", os.O_CREAT | os.O_RDWR, 0o644)
    done = 0
    try:
        while done < bulk_mib:
            os.write(file, noise[(done % 31) * MIB : (done % 31 + 1) * MIB])
            done += 1
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.ENOSPC or room - done * MIB > LEFT_BYTES:
            raise RuntimeError(f"{error} after {done} MiB, of {room // MIB} MiB that were available") from error
        os.fsync(file)
    state(pool)
    os.close(file)
    os.close(aged)
    return f"{writes} overwrites, the longest {1000 * longest:.0f} ms; then {done} of {room // MIB} MiB that were available"


def hot_and_cold(pool: Pool, rounds: int, seed: int) -> tuple[str, float, float]:
    """Overwrites and appends until the pool is full or all rounds are over, then deletes; raises if a round takes longer and longer."""
    dice = random.Random(seed)
    noise = dice.randbytes(17 * MIB)
    hot = os.open(pool.mountpoint / "hot", os.O_CREAT | os.O_RDWR, 0o644)
    os.setxattr(pool.mountpoint / "hot", b"user.pagefold.recordsize", b"1M")
    cold = os.open(pool.mountpoint / "cold", os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)
    per_round, done = [], 0
    try:
        for done in range(rounds):
            began = time.monotonic()
            for number in range(3):
                start = dice.randrange(16 * MIB)
                os.pwrite(hot, noise[start : start + MIB], (3 * done + number) % 8 * MIB)
            os.write(cold, dice.randbytes(4096))
            os.fdatasync(cold)
            per_round.append(time.monotonic() - began)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    rest = os.open(pool.mountpoint / "rest", os.O_CREAT | os.O_RDWR, 0o644)
    with contextlib.suppress(OSError):
        for _ in range(400):
            os.write(rest, dice.randbytes(MIB // 4))
            os.fsync(rest)
    state(pool)
    for handle, name in ((hot, "hot"), (cold, "cold"), (rest, "rest")):
        os.unlink(pool.mountpoint / name)
        os.close(handle)
    deadline = time.monotonic() + SETTLE_S
    while (used := pool.used_bytes()) > 4 * MIB:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{used} bytes are in use {SETTLE_S} s after everything was deleted")
        time.sleep(0.5)
    share = max(len(per_round) // 10, 1)
    first, last = statistics.median(per_round[:share]), statistics.median(per_round[-share:])
    return f"{len(per_round)} rounds, {1000 * first:.1f} ms each at first and {1000 * last:.1f} at last", first, last


def campaign(
    sizes: list[int], fills: list[float], seeds: int, rounds: int, compressions: list[str], mib_per_s: int | None, keep_logs: Path
) -> int:
    """Runs the campaign; returns the exit status."""
    failed = passed = 0
    with Run("aged", keep_logs=keep_logs) as run:
        for compression in compressions:
            jobs = [(size, fill, seed) for size in sizes for fill in fills for seed in range(1, seeds + 1)]
            for size, fill, seed in jobs:
                name = f"{size >> 30} GiB, {fill:.0%} full, {compression}, seed {seed}"
                try:
                    with pool_of(run, size, compression, mib_per_s) as pool:
                        told = bulk(pool, fill, seed, 8, (size >> 20) * 2)
                    print(f"{name}: {told}", flush=True)
                    passed += 1
                except RuntimeError as error:
                    print(f"{name}: FAILED: {error}", flush=True)
                    failed += 1
            try:
                with pool_of(run, SMALL_BYTES, compression, mib_per_s) as pool:
                    told, first, last = hot_and_cold(pool, rounds, 1)
                if last > 2 * first:
                    raise RuntimeError(f"rounds take longer and longer: {told}")
                print(f"hot and cold, {compression}: {told}")
                passed += 1
            except RuntimeError as error:
                print(f"hot and cold, {compression}: FAILED: {error}")
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
