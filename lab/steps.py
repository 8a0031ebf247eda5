"""`lab steps`: verifies that truncating, punching or destroying ten million pages keeps no other process waiting.

A dataset gets three files of that many pages of 4 KiB. Beside it, in the pool's own dataset, a process writes a page
and waits for fdatasync, again and again. Meanwhile one file is truncated, another punched, a third truncated in a clone
(whose snapshot keeps the pages), and clone, snapshot and dataset are destroyed, each until the last page is freed. The
longest wait of the process may exceed its longest wait before that only by a bound, and the server's memory, whose
caches are full by then, may grow by 64 MiB.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import ui
from .ledger import Run
from .paths import require_room
from .pool import Pool

PAGE = 4096
CALL = 1 << 20
WRITER_BYTES = 32 << 20
ABOVE_S = 0.050
"""Seconds by which the longest wait may exceed that without anything freed."""
CACHE_MIB = 256
"""The server's budget in MiB: less than is written, so that its caches are full before anything is freed."""
GROWTH_BYTES = 64 << 20
"""Bytes by which the server's memory may grow."""
QUIET_S = 20
"""Seconds for which the writer is watched while nothing is freed."""
END_S = 600
PUNCH = 3
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE."""

libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Waits:
    """Times that a writer waited for its writes and their fdatasync, in seconds."""

    count: int
    middle: float
    p99: float
    longest: float

    @classmethod
    def of(cls, waits: list[float]) -> Waits:
        """Returns the figures of these waits, of which there must be at least one."""
        waits = sorted(waits)
        return cls(len(waits), waits[len(waits) // 2], waits[len(waits) * 99 // 100], waits[-1])

    def __str__(self) -> str:
        figures = ", ".join(
            f"{name} {1000 * value:.1f} ms"
            for name, value in (("median", self.middle), ("p99", self.p99), ("longest", self.longest))
        )
        return f"{self.count} writes, {figures}"


def _write(path: Path, told, seed: int) -> None:
    """Runs the writer. Whenever it is asked, it tells its waits since the last time; it ends when it is asked with
    False."""
    dice = random.Random(seed)
    handle = os.open(path, os.O_RDWR)
    waits: list[float] = []
    while True:
        if told.poll():
            goes_on = told.recv()
            told.send(waits)
            waits = []
            if not goes_on:
                return
        page = dice.randbytes(64) * (PAGE // 64)
        began = time.monotonic()
        os.pwrite(handle, page, dice.randrange(WRITER_BYTES // PAGE) * PAGE)
        os.fdatasync(handle)
        waits.append(time.monotonic() - began)


class Writer:
    """A process that writes a page and waits for it, again and again."""

    def __init__(self, run: Run, path: Path):
        path.write_bytes(random.Random(1).randbytes(WRITER_BYTES))
        self.told, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=_write, args=(path, other, 2), daemon=True)
        self.process.start()
        self.entry = run.process(self.process.pid, "writer")
        self.run = run

    def waits(self, *, goes_on: bool = True) -> Waits:
        """Returns the waits since the last call."""
        self.told.send(goes_on)
        return Waits.of(self.told.recv())

    def end(self) -> None:
        """Ends it."""
        self.waits(goes_on=False)
        self.process.join()
        self.run.done(self.entry)


class Memory:
    """Resident memory of a process, looked at all the time."""

    def __init__(self, pid: int):
        self.path = Path(f"/proc/{pid}/statm")
        self.most = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def now(self) -> int:
        """Returns the resident memory now, in bytes."""
        return int(self.path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _look(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, self.now())

    def peak(self) -> int:
        """Returns the highest resident memory since the last call, in bytes."""
        most, self.most = max(self.most, self.now()), 0
        return most


class Bed:
    """The pool, its dataset, and the files in it."""

    def __init__(self, run: Run, pool: Pool, pages: int):
        self.run, self.pool, self.pages = run, pool, pages
        self.dataset = f"{pool.pool}/big"
        pool.pagefold("dataset", "create", self.dataset, "-o", "recordsize=4K")
        self.folder = self.mounted(self.dataset)

    def mounted(self, dataset: str) -> Path:
        """Mounts a dataset, and returns the folder."""
        folder = self.run.fresh("mount")
        folder.mkdir()
        self.run.mount(folder)
        self.pool.pagefold("mount", dataset, folder)
        return folder

    def fill(self, name: str, step: ui.Step) -> Path:
        """Makes a file of all the pages, each of some random bytes and zeros."""
        run = b"".join(random.Random(page).randbytes(24) + bytes(PAGE - 24) for page in range(CALL // PAGE))
        path = self.folder / name
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        total = self.pages * PAGE
        for offset in range(0, total, CALL):
            length = min(CALL, total - offset)
            if os.pwrite(handle, run[:length], offset) != length:
                raise RuntimeError(f"{path}: short write at {offset}")
            if offset % (1 << 30) == 0:
                step.progress(offset / total)
        os.fsync(handle)
        # The kernel's cached pages are dropped here, so that the truncation is not charged with that.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
        return path

    def used(self) -> int:
        """Returns the stored bytes in use."""
        return int(self.pool.figures()["used_bytes"])


def freed(path: Path, blocks: int) -> Callable[[], bool]:
    """Returns a function that is true if a file takes no more than `blocks` blocks of 512 bytes."""
    return lambda: path.stat().st_blocks <= blocks


def punch(path: Path, offset: int, length: int) -> None:
    """Calls fallocate(2) with FALLOC_FL_PUNCH_HOLE."""
    handle = os.open(path, os.O_RDWR)
    try:
        if libc.fallocate(handle, PUNCH, ctypes.c_long(offset), ctypes.c_long(length)) != 0:
            raise OSError(ctypes.get_errno(), f"punching {path}")
    finally:
        os.close(handle)


def verify(path: Path, kept: list[range], size: int, seed: int) -> None:
    """Verifies that pages that were cut out read as zeros at once, and kept ones do not."""
    dice = random.Random(seed)
    handle = os.open(path, os.O_RDONLY)
    if os.fstat(handle).st_size != size:
        raise RuntimeError(f"{path}: {os.fstat(handle).st_size} bytes instead of {size}")
    edges = [page for pages in kept for page in (pages.start - 1, pages.start, pages.stop - 1, pages.stop)]
    for page in edges + [dice.randrange(max(1, size // PAGE)) for _ in range(200)]:
        data = os.pread(handle, PAGE, page * PAGE) if 0 <= page < size // PAGE else b""
        stays = any(page in pages for pages in kept)
        if data and (data != bytes(PAGE)) != stays:
            raise RuntimeError(f"{path}: page {page} is {'lost' if stays else 'still there'}")
    os.close(handle)


def steps(pages: int, *, keep_logs: Path) -> int:
    """Runs the test; returns an exit status."""
    stored = pages * 3 * 120
    size = max(4 << 30, 3 * stored)
    require_room(stored + (2 << 30))
    shown = ui.Steps()
    print(f"steps: three files of {pages:,} pages of 4 KiB, in a pool of {ui.size(size)}")
    with Run("steps", keep_logs=keep_logs) as run, Pool(run, size, compression="lz4") as pool:
        pool.unmount()
        pool.mount_options = [f"cache={CACHE_MIB}M"]
        pool.mount()
        bed = Bed(run, pool, pages)
        with shown.step("writing") as step:
            files = [bed.fill(name, step) for name in ("truncated", "punched", "destroyed")]
            pool.pagefold("sync", pool.pool)
            step.note(f"{ui.size(bed.used())} stored")
        writer, memory = Writer(run, pool.mountpoint / "writer"), Memory(pool.server_pid())
        with shown.step("a writer alone") as step:
            time.sleep(3)
            writer.waits()
            memory.peak()
            time.sleep(QUIET_S)
            alone, before = writer.waits(), memory.peak()
            step.note(f"{alone}; the server has {ui.size(before)}")
        watch = Watch(shown, writer, memory, alone, before)
        _free(bed, watch, files)
        writer.end()
        memory.over.set()
        with shown.step("the offline check"):
            pool.unmount()
            pool.check()
    for failure in watch.failures:
        print(f"  {failure}")
    print("steps: FAILED" if watch.failures else "steps: nobody had to wait")
    return 1 if watch.failures else 0


@dataclass
class Watch:
    """Watches the waits of a writer, and the server's memory, while something is freed, and compares them with those
    before."""

    shown: ui.Steps
    writer: Writer
    memory: Memory
    alone: Waits
    before: int

    def __post_init__(self):
        self.failures: list[str] = []

    def during(self, what: str, begin: Callable[[], None], ended: Callable[[], bool]) -> None:
        """Begins something, and watches until it has ended."""
        self.writer.waits()
        self.memory.peak()
        with self.shown.step(what) as step:
            began = time.monotonic()
            begin()
            answered = time.monotonic() - began
            while not ended():
                if time.monotonic() - began > END_S:
                    raise RuntimeError(f"{what}: not all is freed after {END_S} s")
                time.sleep(0.2)
            waits, most = self.writer.waits(), self.memory.peak()
            step.note(f"answered after {answered:.3f} s; {waits}; the server had {ui.size(most)} at most")
        if waits.longest > self.alone.longest + ABOVE_S:
            self.failures.append(
                f"{what}: a writer waited {1000 * waits.longest:.0f} ms, and {1000 * self.alone.longest:.0f} ms alone"
            )
        if most > self.before + GROWTH_BYTES:
            self.failures.append(f"{what}: the server grew from {ui.size(self.before)} to {ui.size(most)}")


def _free(bed: Bed, watch: Watch, files: list[Path]) -> None:
    truncated, punched, kept = files
    end, pool = bed.pages * PAGE, bed.pool

    def truncate(path: Path) -> None:
        os.truncate(path, PAGE)
        os.truncate(path, end)
        verify(path, [range(1)], end, 3)

    def punch_all() -> None:
        punch(punched, PAGE, end - 2 * PAGE)
        verify(punched, [range(1), range(bed.pages - 1, bed.pages)], end, 4)

    def gone(part: float) -> Callable[[], bool]:
        goal = bed.used() - int(part * bed.pages * (24 + 16))
        return lambda: bed.used() < goal

    watch.during("truncating", lambda: truncate(truncated), freed(truncated, 16))
    watch.during("punching", punch_all, freed(punched, 16))
    snapshot, clone = f"{bed.dataset}@kept", f"{pool.pool}/clone"
    pool.pagefold("snapshot", snapshot)
    pool.pagefold("clone", snapshot, clone)
    copy = bed.mounted(clone) / kept.name
    watch.during("truncating in a clone", lambda: truncate(copy), freed(copy, 16))
    pool.pagefold("unmount", copy.parent)
    pool.pagefold("destroy", clone)
    pool.pagefold("destroy", snapshot)
    pool.pagefold("unmount", bed.folder)
    watch.during("destroying", lambda: pool.pagefold("destroy", bed.dataset), gone(0.9))
