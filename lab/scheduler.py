"""`lab scheduler`: what reads that somebody waits for feel of everything else that a device does.

On loop devices that are throttled, files are read at random, 8 KiB at a time: alone, and beside a load that writes as fast as
it can; beside a scrub; beside a mirror's device that is filled; and beside all of them at once. The load is told, too: its
speed alone and beside the others. ext4 (with `dd`) and btrfs (with `dd` and `btrfs scrub`) are measured in the same run.

Two loads are written: with `dd`, and as a database loads a table, that is pages of 8 KiB and a log beside them that is
synced for each 16 MiB.

The run passes if the 99th percentile of reads beside everything is at most three times what it is alone, and the load keeps
0.7 of its speed.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import proc
from .figures import percentile
from .ledger import Run
from .paths import require_room, tool
from .pool import Pool
from .storage import Loop, LoopFs, Place
from .throttle import throttled

MIB = 1 << 20
PAGE = 8192
DEVICE_BYTES = 5 << 30
READ_BYTES = 1 << 30
"""Size of the file that is read: more than any cache of a pool that keeps none of it."""
LOAD_MIB = 64
"""Size of the piece of content that loads write again and again."""
TABLE_LOG_MIB = 16
P99_TIMES_MAX = 3.0
LOAD_SHARE_MIN = 0.7


@dataclass
class Settings:
    """Settings of a run."""

    seconds: float
    threads: int
    reads_per_s: int
    """Of all threads; 0 for as many as there can be."""
    mib_per_s: int
    requests_per_s: int


@dataclass
class Stretch:
    """Figures that were measured while something was under way."""

    reads_ms: list[float]
    load_mib_per_s: float | None
    others_mib_per_s: dict[str, float]
    """Speed of a pool's scrub and of its filling."""

    def percentile(self, part: float) -> float:
        return percentile(self.reads_ms, part)


def content(mib: int, seed: int) -> bytes:
    """Returns pages as a database has them: about half of each is text and numbers that repeat, the rest does not compress."""
    dice = random.Random(seed)
    words = [dice.randbytes(6).hex().encode() for _ in range(500)]
    pages = []
    for number in range(mib * MIB // PAGE):
        rows = b"".join(b"%08d %s|" % (number * 40 + row, dice.choice(words)) for row in range(180))
        pages.append((dice.randbytes(PAGE // 2) + rows)[:PAGE])
    return b"".join(pages)


def _read(path: Path, settings: Settings, seed: int, ends: float, results) -> None:
    """Reads pages at random by several threads until `ends`; gives the milliseconds that each took to `results`."""
    pages = path.stat().st_size // PAGE
    times: list[list[float]] = [[] for _ in range(settings.threads)]
    pause = settings.threads / settings.reads_per_s if settings.reads_per_s else 0.0

    def work(number: int) -> None:
        dice = random.Random(seed + number)
        buffer = mmap.mmap(-1, PAGE)
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        due = time.monotonic() + pause * dice.random()
        while (now := time.monotonic()) < ends:
            if pause and now < due:
                time.sleep(due - now)
            began = time.monotonic()
            os.preadv(file, [buffer], dice.randrange(pages) * PAGE)
            times[number].append(1000 * (time.monotonic() - began))
            # One that was late does not make up for it.
            due = max(due + pause, time.monotonic())
        os.close(file)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(settings.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put([ms for one in times for ms in one])


def _load(folder: Path, source: Path, kind: str, ends: float, results) -> None:
    """Writes until `ends`, and syncs; gives the MiB per second to `results`."""
    began, done = time.monotonic(), 0
    if kind == "dd":
        while time.monotonic() < ends:
            # A name of its own each time: nothing is overwritten, and the next one need not wait for the last.
            target = folder / f"load-{done}"
            proc.run([tool("dd"), f"if={source}", f"of={target}", "bs=1M", "conv=fsync", "status=none"])
            done += LOAD_MIB
            if done >= 8 * LOAD_MIB:
                (folder / f"load-{done - 8 * LOAD_MIB}").unlink()
    else:
        pages = source.read_bytes()
        table = os.open(folder / "table", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        log = os.open(folder / "log", os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        at = 0
        while time.monotonic() < ends:
            for _ in range(TABLE_LOG_MIB * MIB // PAGE):
                start = at % len(pages)
                os.pwrite(table, pages[start : start + PAGE], at % (8 * LOAD_MIB * MIB))
                at += PAGE
            if at % (LOAD_MIB * MIB) == 0:
                # As a checkpoint does; otherwise a kernel's cache would take it all.
                os.fdatasync(table)
            start = random.randrange(len(pages) - MIB)
            os.pwrite(log, pages[start : start + MIB], at // 16 % (64 * MIB))
            os.fdatasync(log)
        done = at // MIB
    proc.run([tool("sync"), "-f", folder])
    if kind == "table":
        os.fsync(table)
    results.put(done / (time.monotonic() - began))


def measure(place: Place, source: Path, settings: Settings, *, reads: bool, load: str | None, seed: int) -> Stretch:
    """Reads and writes for a while; returns what that took."""
    ends = time.monotonic() + settings.seconds
    context = multiprocessing.get_context("fork")
    times, speed = context.Queue(), context.Queue()
    workers = []
    if reads:
        workers.append(context.Process(target=_read, args=(place.mountpoint / "read", settings, seed, ends, times)))
    if load:
        workers.append(context.Process(target=_load, args=(place.mountpoint, source, load, ends, speed)))
    for worker in workers:
        worker.start()
    before, began = _others_bytes(place), time.monotonic()
    reads_ms = times.get(timeout=600) if reads else []
    load_mib_per_s = speed.get(timeout=600) if load else None
    seconds = time.monotonic() - began
    others = {name: (done - before[name]) / MIB / seconds for name, done in _others_bytes(place).items() if name in before}
    stretch = Stretch(reads_ms, load_mib_per_s, {name: speed for name, speed in others.items() if speed > 0})
    for worker in workers:
        worker.join(600)
        if worker.exitcode:
            raise RuntimeError("reading or writing failed")
    for file in [*place.mountpoint.glob("load-*"), place.mountpoint / "table", place.mountpoint / "log"]:
        file.unlink(missing_ok=True)
    proc.run([tool("sync"), "-f", place.mountpoint])
    return stretch


def _others_bytes(place: Place) -> dict[str, int]:
    """Returns how much a pool's devices have read for scrubs, and written to be filled; nothing for other places."""
    if not isinstance(place, Pool):
        return {}
    devices = json.loads(place.pagefold("iostat", "--json", place.pool))["pools"][0]["devices"]
    done = dict.fromkeys(("scrub", "filling"), 0)
    for of in (of for device in devices for of in device["requests"]):
        if (of["class"], of["kind"]) in (("scrub", "read"), ("filling", "write")):
            done[of["class"]] += of["bytes"]
    return done


class ThrottledPool(Pool):
    """A pool on a loop device, and another one that becomes its mirror."""

    def __init__(self, run: Run, settings: Settings):
        super().__init__(run, DEVICE_BYTES, compression="zstd")
        self.settings = settings
        self.loops: list[Loop] = []

    def create(self) -> None:
        self.loops = [Loop(self.run, self.run.fresh("backing"), DEVICE_BYTES) for _ in range(2)]
        first, second = (loop.attach() for loop in self.loops)
        self.pagefold("create", self.pool, first, "-o", f"compression={self.compression}", timeout_s=300)
        self.first, self.second = first, second

    def mount(self) -> None:
        super().mount()
        # Each page that is read comes from the device.
        self.pagefold("set", "primarycache=metadata", self.pool)

    def destroy(self) -> None:
        self.pagefold("destroy", "--force", self.pool)
        for loop in self.loops:
            loop.detach()

    @contextlib.contextmanager
    def scrubbed(self) -> Iterator[None]:
        """Scrubs again and again meanwhile."""
        with _again(lambda: self.pagefold("scrub", self.pool), lambda: not self._is_scrubbed()):
            yield
        self._stop_scrub()

    def _stop_scrub(self) -> None:
        # It may have come to its end just now.
        with contextlib.suppress(proc.CommandFailed):
            self.pagefold("scrub", "--stop", self.pool)

    def _is_scrubbed(self) -> bool:
        return self.figures("status")["scrub"]["state"] == "running"

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """Has the second device filled meanwhile, from nothing."""
        self.pagefold("attach", "-f", self.pool, self.first, self.second)
        yield
        self.pagefold("detach", self.pool, self.second)
        # When the device was filled, a scrub was begun.
        self._stop_scrub()


@contextlib.contextmanager
def _again(begin: Callable[[], object], is_due: Callable[[], bool]) -> Iterator[None]:
    """Begins something, and begins it again whenever that is due."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.5):
            if is_due():
                begin()

    begin()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _btrfs_scrubbed(place: Place) -> Iterator[None]:
    running = lambda: "running" in proc.run([tool("btrfs"), "scrub", "status", place.mountpoint])
    begin = lambda: proc.run([tool("btrfs"), "scrub", "start", place.mountpoint], check=False)
    with _again(begin, lambda: not running()):
        yield
    proc.run([tool("btrfs"), "scrub", "cancel", place.mountpoint], check=False)


def _told(name: str, stretch: Stretch, alone: Stretch | None, load_alone: float | None) -> None:
    words = [f"{name:<34}"]
    if stretch.reads_ms:
        p50, p99 = stretch.percentile(0.5), stretch.percentile(0.99)
        times = f"{p99 / alone.percentile(0.99):5.2f}x" if alone else "      "
        words.append(f"{len(stretch.reads_ms):>7} reads  p50 {p50:7.2f} ms  p99 {p99:7.2f} ms {times}")
    else:
        words.append(" " * 53)
    if stretch.load_mib_per_s is not None:
        share = f"{stretch.load_mib_per_s / load_alone:5.2f}x" if load_alone else ""
        words.append(f"load {stretch.load_mib_per_s:6.1f} MiB/s {share}")
    words += [f"{other} {speed:.1f} MiB/s" for other, speed in stretch.others_mib_per_s.items()]
    print("  ".join(words), flush=True)


def _place(place: Place, source: Path, settings: Settings, others: dict, devices: list[str]) -> list[tuple[float, float]]:
    """Measures one place; `others` are what else it can do meanwhile. Returns, for each load beside everything, p99 in times
    of what it is alone, and the share of the load's speed that is left."""
    with open(place.mountpoint / "read", "wb") as file:
        piece = content(LOAD_MIB, 3)
        for _ in range(READ_BYTES // len(piece)):
            file.write(piece)
        os.fsync(file.fileno())
    results = []
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.enter_context(throttled(device, settings.mib_per_s * MIB, settings.requests_per_s))
        alone = measure(place, source, settings, reads=True, load=None, seed=1)
        _told(f"{place.name}: reads", alone, None, None)
        for name, other in others.items():
            with other():
                _told(f"{place.name}: reads, {name}", measure(place, source, settings, reads=True, load=None, seed=2), alone, None)
        for load in ("dd", "table"):
            load_alone = measure(place, source, settings, reads=False, load=load, seed=3)
            _told(f"{place.name}: {load}", load_alone, None, None)
            speed = load_alone.load_mib_per_s
            stretch = measure(place, source, settings, reads=True, load=load, seed=4)
            _told(f"{place.name}: reads, {load}", stretch, alone, speed)
            if others:
                with contextlib.ExitStack() as all_others:
                    for other in others.values():
                        all_others.enter_context(other())
                    stretch = measure(place, source, settings, reads=True, load=load, seed=5)
                _told(f"{place.name}: reads, {load}, {', '.join(others)}", stretch, alone, speed)
            results.append((stretch.percentile(0.99) / alone.percentile(0.99), stretch.load_mib_per_s / speed))
    return results


def scheduler(settings: Settings, places: list[str], *, keep_logs: Path) -> int:
    """Measures; returns an exit status."""
    rate = f"{settings.reads_per_s} reads/s" if settings.reads_per_s else "as many reads as there can be"
    print(
        f"scheduler: devices of {settings.mib_per_s} MiB/s and {settings.requests_per_s} requests/s each way, "
        f"{settings.threads} threads, {rate}, {settings.seconds:.0f} s each",
        flush=True,
    )
    require_room(12 << 30)
    passed = True
    with Run("scheduler", keep_logs=keep_logs) as run:
        source = run.fresh("source")
        source.write_bytes(content(LOAD_MIB, 7))
        if "pagefold" in places:
            with ThrottledPool(run, settings) as pool:
                others = {"scrub": pool.scrubbed, "filling": pool.filled}
                results = _place(pool, source, settings, others, [pool.first, pool.second])
                for load, (times, share) in zip(("dd", "table"), results, strict=True):
                    passed &= times <= P99_TIMES_MAX and share >= LOAD_SHARE_MIN
                    print(f"{load}: p99 of reads {times:.2f} times, load {share:.2f} of its speed", flush=True)
                pool.unmount()
                pool.check()
                pool.mount()
        for kind in ("ext4", "btrfs"):
            if kind in places:
                with LoopFs(run, kind, DEVICE_BYTES) as place:
                    others = {"scrub": lambda place=place: _btrfs_scrubbed(place)} if kind == "btrfs" else {}
                    _place(place, source, settings, others, [place.loop.device])
    print("passed" if passed else "FAILED: reads feel more, or the load keeps less, than they may")
    return 0 if passed else 1
