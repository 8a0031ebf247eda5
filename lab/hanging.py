"""`lab hanging`: what a reader of a mirror waits for when one of its devices hangs, or suddenly takes a request now and then.

A mirror lies on two loop devices. One reader reads pages at random, one after another and past the cache of the kernel: first
as usual, then while one device is throttled to a few requests a second, and then while it does not answer at all. The same is
done by sixteen readers, for which both devices are throttled: then reads wait in queues, and none of them should be sent twice.
Told are the median, the 99th percentile and the longest read of each stretch, and how many reads were sent to a second device.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .ledger import Run
from .paths import require_room
from .pool import Pool
from .storage import Loop
from .throttle import MIB, throttled

DEVICE_BYTES = 320 << 20
BELOW_BYTES = 640 << 20
FILE_BYTES = 96 << 20
PAGE_BYTES = 8192
READERS = 16
QUEUED_PER_S = 300
CACHE = "32M"
"""Smaller than the file: most reads reach a device."""


class HangingDisc:
    """A loop device over a file of a mounted pool: while that pool's server is stopped, nothing is answered."""

    def __init__(self, run: Run, below: Pool):
        self.below = below
        self.loop = Loop(run, below.mountpoint / "disc", DEVICE_BYTES)
        self.device = self.loop.attach()

    @contextlib.contextmanager
    def hangs(self, at_most_s: float):
        """Lets the device hang until the block ends. If that waits for the device, it answers in the end. Gives the
        process that is stopped."""
        pid = self.below.server_pid()
        end = threading.Timer(at_most_s, os.kill, (pid, signal.SIGCONT))
        end.start()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)
            end.cancel()
            end.join()


class HalfHanging(Pool):
    """A pool of one mirror: of a loop device over a file, and of one that can hang."""

    def __init__(self, run: Run, disc: HangingDisc, *, io_uring: str = "auto"):
        super().__init__(run, DEVICE_BYTES)
        self.disc = disc
        # Without times of access nothing is written meanwhile, which would wait for both devices.
        self.mount_options = [f"cache={CACHE}", f"io_uring={io_uring}", "noatime"]
        self.loop = Loop(run, run.fresh("image"), DEVICE_BYTES)

    def create(self) -> None:
        self.pagefold("create", self.pool, "mirror", self.loop.attach(), self.disc.device, "-o", "compression=off")

    def destroy(self) -> None:
        self.pagefold("destroy", "--force", self.pool)
        self.loop.detach()

    def fill(self) -> Path:
        """Writes a file of noise, and empties the caches. Returns its path."""
        path = self.mountpoint / "data"
        with open(path, "wb") as file:
            for _ in range(FILE_BYTES // MIB):
                file.write(os.urandom(MIB))
            os.fsync(file.fileno())
        self.unmount()
        self.mount()
        return path

    def hedged(self) -> tuple[int, int]:
        """Returns how many reads were sent to a second device, and how many of these it answered first."""
        counts = {one["name"]: one["operations"] for one in self.counters()}
        return counts.get("device_hedged_read", 0), counts.get("device_hedge_won", 0)


def read_pages(path: Path, goes_on: Callable[[int], bool], moments: random.Random) -> list[float]:
    """Reads pages at random, past the kernel's cache, while `goes_on` is true of their number. Returns the time of each in
    seconds."""
    took = []
    room = mmap.mmap(-1, PAGE_BYTES)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        while goes_on(len(took)):
            offset = moments.randrange(FILE_BYTES // PAGE_BYTES) * PAGE_BYTES
            began = time.monotonic()
            if os.preadv(fd, [room], offset) != PAGE_BYTES:
                raise RuntimeError(f"a page at byte {offset} of {path} was not read in full")
            took.append(time.monotonic() - began)
    finally:
        os.close(fd)
    return took


def read_by(readers: int, path: Path, seconds: float, moments: random.Random) -> list[float]:
    """Does the same with so many readers at once, for so many seconds."""
    end = time.monotonic() + seconds
    own = [random.Random(moments.random()) for _ in range(readers)]
    with ThreadPoolExecutor(readers) as threads:
        return [took for of_one in threads.map(lambda one: read_pages(path, lambda _: time.monotonic() < end, one), own) for took in of_one]


def _tell(name: str, took: list[float], hedged: tuple[int, int]) -> None:
    ms = sorted(1000 * seconds for seconds in took)
    told = f"{len(ms)} reads, median {ms[len(ms) // 2]:.2f} ms, p99 {ms[len(ms) * 99 // 100]:.2f} ms, longest {ms[-1]:.1f} ms"
    print(f"{name}: {told}; sent twice {hedged[0]}, won {hedged[1]}", flush=True)


@contextlib.contextmanager
def both_throttled(pool: HalfHanging, requests_per_s: int):
    """Limits both devices."""
    with throttled(pool.loop.device, 1 << 40, requests_per_s), throttled(pool.disc.device, 1 << 40, requests_per_s):
        yield


def hanging(seconds: float, requests_per_s: int, io_uring: str, keep_logs: Path) -> int:
    """Measures all stretches; returns an exit status."""
    require_room(3 << 30)
    moments = random.Random(1)
    usual = contextlib.nullcontext
    with Run("hanging", keep_logs=keep_logs) as run, Pool(run, BELOW_BYTES, compression="off") as below:
        disc = HangingDisc(run, below)
        with HalfHanging(run, disc, io_uring=io_uring) as pool:
            path = pool.fill()
            for name, readers, harm in (
                ("as usual", 1, usual),
                (f"one half of {requests_per_s} requests/s", 1, lambda: throttled(disc.device, 1 << 40, requests_per_s)),
                ("one half hangs", 1, lambda: disc.hangs(2 * seconds)),
                (f"{READERS} readers, as usual", READERS, usual),
                (f"{READERS} readers, both halves of {QUEUED_PER_S} requests/s", READERS, lambda: both_throttled(pool, QUEUED_PER_S)),
                (f"{READERS} readers, one half hangs", READERS, lambda: disc.hangs(2 * seconds)),
            ):
                # The caches have some of what was read: each stretch begins without.
                pool.unmount()
                pool.mount()
                read_by(readers, path, 1, moments)
                before = pool.hedged()
                with harm():
                    took = read_by(readers, path, seconds, moments)
                    now = pool.hedged()
                _tell(name, took, (now[0] - before[0], now[1] - before[1]))
        disc.loop.detach()
    return 0
