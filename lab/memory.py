"""`lab memory`: verifies that the server's resident memory stays below its budget and a fixed sum, whatever it is asked
to do.

One server mounts many datasets of one pool. In turn, there are large requests on all mounts at once, hundreds of
thousands of files are made and looked up, and pages of one file are written and read in random order. Meanwhile /proc
tells the resident memory of the server, and `status` its uses.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import ui
from .ledger import Run
from .paths import require_room
from .pool import Pool

PAGE = 8192
PAYLOAD = 64
"""Bytes of each page that are not zero."""
LARGE = 1 << 20
"""Bytes of the largest request that the kernel sends."""
FILES_PER_DIRECTORY = 1000
BESIDE_BYTES = 128 << 20
"""Bytes that the server may take beside `cache`: program, threads, buffers, memory that the allocator cannot give
back."""
SAMPLE_S = 0.1


@dataclass
class Sizes:
    """Amounts of work."""

    mounts: int = 16
    files: int = 1_000_000
    pages: int = 10_000_000
    cache_mib: int = 384
    transport: str = "on"
    """Value of the option io_uring."""

    @property
    def budget_bytes(self) -> int:
        """Returns the largest number of bytes that may be resident."""
        return (self.cache_mib << 20) + BESIDE_BYTES


class Watch:
    """Samples the resident memory of a process until it is told to stop."""

    def __init__(self, pid: int):
        self.pid = pid
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, resident(self.pid)["VmRSS"])

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._thread.join()


def resident(pid: int) -> dict[str, int]:
    """Returns the bytes of resident memory by the kernel's names: VmRSS, RssAnon, RssFile, RssShmem."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon", "RssFile", "RssShmem"):
            found[name] = int(value.split()[0]) << 10
    return found


class Mounts:
    """Datasets of one pool, mounted beside it."""

    def __init__(self, pool: Pool, count: int, transport: str):
        self.pool = pool
        self.dirs = [pool.mountpoint]
        self._entries = []
        for number in range(1, count):
            dataset, dir = f"{pool.pool}/d{number}", pool.run.fresh("mount")
            dir.mkdir()
            pool.pagefold("dataset", "create", dataset)
            self._entries.append(pool.run.mount(dir))
            pool.pagefold("mount", "-o", f"io_uring={transport}", dataset, dir)
            self.dirs.append(dir)

    def unmount(self) -> None:
        """Unmounts all datasets but the pool's own."""
        for dir, entry in zip(self.dirs[1:], self._entries, strict=True):
            self.pool.pagefold("unmount", dir)
            self.pool.run.done(entry)


def large_requests(dir: Path) -> None:
    """Reads and writes of 1 MiB, many at a time, past the page cache and through it."""
    data = mmap.mmap(-1, LARGE)
    data.write(os.urandom(4096) * (LARGE // 4096))
    path = dir / "large"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)

    def one(number: int) -> None:
        os.pwritev(handle, [data], number * LARGE)
        into = mmap.mmap(-1, LARGE)
        if os.preadv(handle, [into], number * LARGE) != LARGE or into[:] != data[:]:
            raise RuntimeError(f"{path}: MiB {number} is not what was written")
        into.close()

    with ThreadPoolExecutor(32) as threads:
        list(threads.map(one, range(64)))
    os.close(handle)


def make_files(dir: Path, first: int, count: int) -> None:
    """Makes empty files, FILES_PER_DIRECTORY in each directory."""
    for number in range(first, first + count):
        where = dir / f"many{number // FILES_PER_DIRECTORY}"
        if number % FILES_PER_DIRECTORY == 0:
            where.mkdir(exist_ok=True)
        os.close(os.open(where / f"file{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def look_up(dir: Path, first: int, count: int) -> None:
    """Has the kernel look up each of the files."""
    for number in range(first, first + count):
        os.stat(dir / f"many{number // FILES_PER_DIRECTORY}" / f"file{number}")


class Scattered:
    """Pages of one file, in an order that jumps about and comes to each page once."""

    def __init__(self, path: Path, pages: int):
        self.path, self.pages = path, pages
        step = int(pages * 0.618) | 1
        while pages % 3 == 0 and step % 3 == 0 or pages % 5 == 0 and step % 5 == 0:
            step += 2
        self.step = step

    def content(self, page: int) -> bytes:
        """Returns the content of a page, which follows from its number."""
        random_part = ((page + 1) * 0x9E3779B97F4A7C15 % (1 << 448)).to_bytes(PAYLOAD - 8, "little")
        return (struct.pack("<Q", page) + random_part).ljust(PAGE, b"\0")

    def write(self, first: int, count: int, every: int) -> None:
        """Writes the pages of `count` turns from `first` on, with an fsync after each `every` pages."""
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        for turn in range(first, first + count):
            page = turn * self.step % self.pages
            os.pwrite(handle, self.content(page), page * PAGE)
            if turn % every == every - 1:
                os.fsync(handle)
        os.fsync(handle)
        os.close(handle)

    def read(self, count: int, seed: int) -> None:
        """Reads pages at random past the page cache, and compares them."""
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        into, numbers = mmap.mmap(-1, PAGE), random.Random(seed)
        for _ in range(count):
            page = numbers.randrange(self.pages)
            os.preadv(handle, [into], page * PAGE)
            if into[:] != self.content(page):
                raise RuntimeError(f"page {page} of {self.path} is not what was written")
        os.close(handle)


def in_parallel(run: Run, jobs: list[tuple]) -> None:
    """Runs each job (a function and its arguments) in a process of its own."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=function, args=arguments) for function, *arguments in jobs]
    for worker in workers:
        worker.start()
        run.process(worker.pid, "memory")
    for worker in workers:
        worker.join()
    if bad := [worker.exitcode for worker in workers if worker.exitcode != 0]:
        raise RuntimeError(f"{len(bad)} of {len(workers)} workers failed; their tracebacks are above")


def campaign(run: Run, sizes: Sizes) -> list[tuple[str, int, int]]:
    """Runs all steps; returns each with the highest and the last resident memory."""
    found = []
    pool_bytes = max(4 << 30, sizes.pages * 800)
    with Pool(run, pool_bytes, compression="lz4") as pool:
        pool.unmount()
        pool.mount_options = [f"cache={sizes.cache_mib}M", f"io_uring={sizes.transport}"]
        pool.mount()
        pid = pool.server_pid()
        steps = ui.Steps()

        def step(title: str, work) -> None:
            with steps.step(title) as shown, Watch(pid) as watch:
                work()
                now = resident(pid)
                peak = max(watch.peak_bytes, now["VmRSS"])
                told = ", ".join(f"{name} {ui.size(count)}" for name, count in now.items())
                shown.note(f"highest {ui.size(peak)}; now {told}{by_kind(pool)}")
            found.append((title, peak, now["VmRSS"]))

        mounts = None

        def mount_all() -> None:
            nonlocal mounts
            mounts = Mounts(pool, sizes.mounts, sizes.transport)

        step(f"{sizes.mounts} datasets mounted", mount_all)
        step("requests of 1 MiB on all of them", lambda: in_parallel(run, [(large_requests, dir) for dir in mounts.dirs]))
        dir, each = mounts.dirs[0], sizes.files // 2
        halves = [(0, each), (each, each)]
        step(f"{sizes.files:,} files made", lambda: in_parallel(run, [(make_files, dir, *half) for half in halves]))
        step(f"{sizes.files:,} files looked up", lambda: in_parallel(run, [(look_up, dir, *half) for half in halves]))
        file = Scattered(dir / "scattered", sizes.pages)
        each = sizes.pages // 2
        halves = [(0, each), (each, each)]
        every = 50_000
        step(
            f"{sizes.pages:,} pages written in random order",
            lambda: in_parallel(run, [(file.write, *half, every) for half in halves]),
        )
        reads = sizes.pages // 10
        step(f"{reads:,} of them read at random", lambda: in_parallel(run, [(file.read, reads // 2, n) for n in range(2)]))
        step("all at rest for ten seconds", lambda: time.sleep(10))
        mounts.unmount()
    return found


def by_kind(pool: Pool) -> str:
    """Returns the uses of memory that `status` tells, as a line."""
    memory = pool.figures("status").get("memory")
    if memory is None:
        return ""
    parts = [f"{name.removesuffix('_bytes')} {ui.size(count)}" for name, count in memory.items() if count]
    return "\n      " + ", ".join(parts)


def memory(sizes: Sizes, *, keep_logs: Path) -> int:
    """Runs the campaign; returns an exit status."""
    print(
        f"memory: cache={sizes.cache_mib}M, io_uring={sizes.transport}, {sizes.mounts} mounts, {sizes.files:,} files, {sizes.pages:,} pages"
    )
    require_room(sizes.pages * 800 + (1 << 30))
    with Run("memory", keep_logs=keep_logs) as run:
        found = campaign(run, sizes)
    title, peak, _ = max(found, key=lambda one: one[1])
    print(f"  highest: {ui.size(peak)} ({title}); {ui.size(sizes.budget_bytes)} are the bound")
    bad = [one for one in found if one[1] > sizes.budget_bytes]
    print(f"{len(found) - len(bad)} passed, {len(bad)} failed")
    return 1 if bad else 0
