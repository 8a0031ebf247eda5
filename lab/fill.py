"""`lab fill`: verifies that a pool never fills up by overwrites.

Files that take at most 70 % of the pool are overwritten, in small random pages and in long runs, with ten times the pool's
size. No write may fail, every page must read back as last written, deleting everything must give the space back, and the
offline check must find nothing.
"""

from __future__ import annotations

import array
import multiprocessing
import os
import random
import struct
import time
from pathlib import Path

from . import ui
from .ledger import Run
from .paths import require_room
from .storage import Place, place

PAGE = 8192
FILES = 8
LIVE = 0.66
"""Share of the pool's size that the live files take, compressed, data alone: with metadata below 70 %."""
COMPRESSIBLE_TO = 0.5
"""Share that the compressible half of the files shrinks to, about: every second 64-byte run is a constant."""
NOISE_BYTES = 16 << 20
HEADER = struct.Struct("<QQQ")
"""First bytes of every page: file, page, generation. The rest follows from them."""


class Content:
    """Content of page `page` of file `number` in a generation: a header, then a stretch of fixed noise whose place in
    the noise follows from the header. Files with an odd number are compressible."""

    def __init__(self, seed: int):
        raw = random.Random(seed).randbytes(NOISE_BYTES + PAGE)
        self.raw = memoryview(raw)
        soft = bytearray(raw)
        for at in range(0, len(soft) - 64, 128):
            soft[at : at + 64] = b"\x20" * 64
        self.soft = memoryview(bytes(soft))

    def page(self, number: int, page: int, generation: int) -> bytes:
        """Returns the page's bytes."""
        noise = self.soft if number % 2 else self.raw
        at = (number * 0x9E3779B1 + page * 0x85EBCA77 + generation * 0xC2B2AE3D) % NOISE_BYTES
        return HEADER.pack(number, page, generation) + bytes(noise[at : at + PAGE - HEADER.size])


class Worker:
    """Overwrites some of the files and remembers every page's generation."""

    def __init__(self, folder: Path, numbers: list[int], pages: int, seed: int):
        self.content = Content(seed)
        self.random = random.Random(seed * 1000 + numbers[0])
        self.pages = pages
        self.files = {n: os.open(folder / f"file{n}", os.O_RDWR | os.O_CREAT, 0o600) for n in numbers}
        self.generations = {n: array.array("Q", bytes(8 * pages)) for n in numbers}
        self.written = 0

    def write(self, number: int, first: int, count: int) -> None:
        """Writes `count` pages of the next generation in one call."""
        generations = self.generations[number]
        run = []
        for page in range(first, first + count):
            generations[page] += 1
            run.append(self.content.page(number, page, generations[page]))
        data = b"".join(run)
        if os.pwrite(self.files[number], data, first * PAGE) != len(data):
            raise RuntimeError(f"file{number}: short write at page {first}")
        self.written += len(data)

    def fill(self) -> None:
        """Writes every page once."""
        for number in self.files:
            for first in range(0, self.pages, 64):
                self.write(number, first, min(64, self.pages - first))

    def overwrite(self, budget: int, progress) -> None:
        """Writes `budget` bytes more: half in single pages, half in runs of up to 1 MiB, an fsync now and then."""
        goal = self.written + budget
        numbers = list(self.files)
        while self.written < goal:
            number = self.random.choice(numbers)
            for _ in range(256):
                self.write(number, self.random.randrange(self.pages), 1)
            for _ in range(4):
                count = self.random.randint(2, 128)
                self.write(number, self.random.randrange(self.pages - count), count)
            os.fdatasync(self.files[number])
            progress(self.written)

    def verify(self) -> int:
        """Reads every page and compares it; returns the number of right pages, raises at the first wrong one."""
        count = 0
        for number, handle in self.files.items():
            for first in range(0, self.pages, 128):
                length = min(128, self.pages - first)
                data = os.pread(handle, length * PAGE, first * PAGE)
                for i in range(length):
                    page = first + i
                    wanted = self.content.page(number, page, self.generations[number][page])
                    if data[i * PAGE : (i + 1) * PAGE] != wanted:
                        found = HEADER.unpack_from(data[i * PAGE : (i + 1) * PAGE].ljust(HEADER.size, b"\0"))
                        raise RuntimeError(
                            f"file{number}, page {page}: expected {HEADER.unpack_from(wanted)}, found {found}"
                        )
                    count += 1
        return count


def _work(index: int, folder: Path, numbers: list[int], pages: int, seed: int, budget: int, written, results) -> None:
    try:
        worker = Worker(folder, numbers, pages, seed)

        def progress(so_far: int) -> None:
            written[index] = so_far

        worker.fill()
        worker.overwrite(budget - worker.written, progress)
        for handle in worker.files.values():
            os.fsync(handle)
        total = worker.written
        results.put(("ok", worker.verify(), total))
    except Exception as e:  # handed to the parent, which raises it
        results.put(("failed", f"{type(e).__name__}: {e}", 0))


def fill(pool_bytes: int, write_bytes: int, *, seed: int, on: str) -> int:
    """Runs the test; returns an exit status."""
    compressed_page_share = (1 + COMPRESSIBLE_TO) / 2
    pages = int(pool_bytes * LIVE / compressed_page_share / FILES / PAGE)
    print(f"fill: pool of {ui.size(pool_bytes)}, {FILES} files of {ui.size(pages * PAGE)}, seed {seed}")
    require_room(pool_bytes + (256 << 20))
    steps = ui.Steps()
    failures = 0
    with Run("fill") as run, place(run, on, pool_bytes) as where:
        empty = where.used_bytes()
        with steps.step(f"writing {ui.size(write_bytes)} over {ui.size(pages * FILES * PAGE)} of live data") as step:
            count, written = _run_workers(where, pages, seed, write_bytes, step)
            step.note(f"{ui.size(written)} written, {count} pages read back right")
        full = where.used_bytes()
        print(f"  in use: {ui.size(full)} of {ui.size(pool_bytes)}")
        with steps.step("deleting everything") as step:
            for path in where.mountpoint.glob("file*"):
                path.unlink()
            left = _settle(where, empty, pool_bytes)
            step.note(f"in use: {ui.size(left)}, {ui.size(empty)} when it was new")
        if left - empty > pool_bytes // 50:
            print(f"fill: FAILED: space does not return: {ui.size(left)} still in use")
            failures += 1
        with steps.step("unmounting, exporting, checking offline"):
            where.unmount()
            where.check()
    # The four tests: no write failed, all pages were read back right, space returned, the check found nothing.
    print(f"{4 - failures} passed, {failures} failed")
    return 1 if failures else 0


def _run_workers(where: Place, pages: int, seed: int, write_bytes: int, step) -> tuple[int, int]:
    context = multiprocessing.get_context("fork")
    written, results = context.Array("Q", 2), context.Queue()
    workers = []
    for half in range(2):
        numbers = [n for n in range(FILES) if (n // 2) % 2 == half]  # as many compressible files in each half
        arguments = (half, where.mountpoint, numbers, pages, seed + half, write_bytes // 2, written, results)
        workers.append(context.Process(target=_work, args=arguments))
    for worker in workers:
        worker.start()
        where.run.process(worker.pid, "fill")
    answers = []
    while len(answers) < len(workers):
        try:
            answers.append(results.get(timeout=0.5))
        except Exception:  # queue.Empty; a worker that died silently is found below
            step.progress(sum(written) / write_bytes)
            if not any(w.is_alive() for w in workers) and results.empty():
                raise RuntimeError("a worker ended without an answer") from None
    for worker in workers:
        worker.join()
    if bad := [message for state, message, _ in answers if state != "ok"]:
        raise RuntimeError("; ".join(bad))
    return sum(a[1] for a in answers), sum(a[2] for a in answers)


def _settle(where: Place, empty: int, pool_bytes: int, timeout_s: float = 60) -> int:
    """Returns the bytes in use, once background work has had the time to give space back."""
    deadline = time.monotonic() + timeout_s
    while True:
        used = where.used_bytes()
        if used - empty <= pool_bytes // 100 or time.monotonic() > deadline:
            return used
        time.sleep(1)
