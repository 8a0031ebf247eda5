"""`lab commits`: how long a commit takes, as databases make them.

Writers overwrite files that are there, each its own, and call fdatasync after each write: 4 KiB one after the other, as a
write-ahead log is written, or 8 KiB at random. What they write is text in JSON with ids. A pool with the default settings, the
same with a log device in memory, and ext4 are measured by turns, on loop devices over files of the disc whose blocks are
allocated; then once more with so many requests a second of these devices, each way, as a disc or a network gives.

Told are medians of all rounds: commits per second of all writers, and how long fdatasync takes.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from . import proc
from .figures import percentile
from .ledger import Run
from .paths import require_room, tool
from .pool import Pool
from .storage import Loop, LoopFs, Place
from .throttle import throttled

DEVICE_BYTES = 2 << 30
LOG_BYTES = 1 << 30
FILE_BYTES = 64 << 20
TEXT_BYTES = 32 << 20
SETTLE_S = 1.5
"""Seconds after a file was made, so that its own commits are over."""
FAST = 1 << 40
"""A rate in bytes per second that limits nothing."""


@dataclass(frozen=True)
class Load:
    """Writes of each writer, each of which it commits."""

    name: str
    len_bytes: int
    at_random: bool


LOADS = [Load("4 KiB appended", 4096, False), Load("8 KiB at random", 8192, True)]


class PoolOver(Pool):
    """A pool over a loop device, with the default settings, and perhaps a log device."""

    def __init__(self, run: Run, name: str, device: str, log: str | None):
        super().__init__(run, 0)
        self.name, self.devices = name, [device, *(["log", log] if log else [])]

    def create(self) -> None:
        self.pagefold("create", self.pool, *self.devices, timeout_s=300)

    def destroy(self) -> None:
        self.pagefold("destroy", "--force", self.pool)


class Ext4Over(LoopFs):
    """ext4 over a loop device that somebody else has made."""

    def __init__(self, run: Run, device: str):
        super().__init__(run, "ext4", 0)
        self.loop.device = device

    def create(self) -> None:
        proc.run([tool("mkfs.ext4"), "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", self.loop.device])

    def destroy(self) -> None:
        """Leaves the device to whom it belongs."""


class AllocatedLoop(Loop):
    """A loop device over a file whose blocks are all written."""

    def attach(self) -> str:
        device = super().attach()
        zeros = bytes(4 << 20)
        with open(device, "r+b", buffering=0) as f:
            for _ in range(self.size_bytes // len(zeros)):
                f.write(zeros)
            os.fsync(f.fileno())
        return device


def text() -> bytes:
    """Returns documents in JSON, with ids and skewed words."""
    chance = random.Random(5)
    words = [f"{chance.choice('bdfgklmnprst')}{chance.choice('aeiou')}{chance.getrandbits(14):x}" for _ in range(5000)]
    lines: list[str] = []
    length = 0
    while length < TEXT_BYTES:
        some = [words[int(chance.paretovariate(0.7)) % len(words)] for _ in range(chance.randrange(5, 40))]
        user = int(chance.paretovariate(1.1)) % 100000
        lines.append(json.dumps({"id": chance.getrandbits(63), "user": user, "at": 1.76e9 + length, "text": " ".join(some)}))
        length += len(lines[-1]) + 1
    return "\n".join(lines).encode()


def _write(path: Path, content: bytes, load: Load, seconds: float, seed: int, ready, go, told) -> None:
    chance = random.Random(seed)
    with open(path, "r+b" if path.exists() else "w+b", buffering=0) as f:
        if os.fstat(f.fileno()).st_size < FILE_BYTES:
            at = chance.randrange(len(content) // 2)
            while f.tell() < FILE_BYTES:
                f.write(content[at : at + (1 << 20)])
                at = (at + (1 << 20)) % (len(content) // 2)
            os.fsync(f.fileno())
        ready.put(None)
        go.wait()
        took, pages, number = [], FILE_BYTES // load.len_bytes, 0
        at = chance.randrange(len(content) - load.len_bytes)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            page = chance.randrange(pages) if load.at_random else number % pages
            os.pwrite(f.fileno(), content[at : at + load.len_bytes], page * load.len_bytes)
            start = time.perf_counter()
            os.fdatasync(f.fileno())
            took.append(time.perf_counter() - start)
            at, number = (at + load.len_bytes) % (len(content) - load.len_bytes), number + 1
    told.put(took)


def _measure(place: Place, content: bytes, load: Load, writers: int, seconds: float, seed: int) -> list[float]:
    """Returns the seconds that each fdatasync took."""
    ready, told, go = multiprocessing.Queue(), multiprocessing.Queue(), multiprocessing.Event()
    clients = [
        multiprocessing.Process(
            target=_write,
            args=(place.mountpoint / f"log-{number}", content, load, seconds, seed + number, ready, go, told),
        )
        for number in range(writers)
    ]
    for client in clients:
        client.start()
    for _ in clients:
        ready.get(timeout=300)
    time.sleep(SETTLE_S)
    go.set()
    took = [one for _ in clients for one in told.get(timeout=seconds + 300)]
    for client in clients:
        client.join()
    return took


def commits(rounds: int, writers: list[int], seconds: float, requests_per_s: int, keep_logs: Path) -> int:
    """Measures; returns an exit status."""
    require_room(3 * DEVICE_BYTES)
    content = text()
    with Run("commits", keep_logs=keep_logs) as run, contextlib.ExitStack() as stack:
        devices = []
        for _ in range(3):
            loop = AllocatedLoop(run, run.fresh("backing"), DEVICE_BYTES)
            devices.append(loop.attach())
            stack.callback(loop.detach)
        memory = AllocatedLoop(run, Path(f"/dev/shm/pagefold-lab-log-{os.getpid()}"), LOG_BYTES)
        log = memory.attach()
        stack.callback(memory.detach)
        places: list[Place] = [
            stack.enter_context(PoolOver(run, "pagefold", devices[0], None)),
            stack.enter_context(PoolOver(run, "with a log device", devices[1], log)),
            stack.enter_context(Ext4Over(run, devices[2])),
        ]
        for limit in [None, requests_per_s]:
            print("as fast as the disc is:" if limit is None else f"{limit} reads and {limit} writes a second of each device that holds data:", flush=True)
            with contextlib.ExitStack() as limits:
                for device in devices if limit else []:
                    limits.enter_context(throttled(device, FAST, limit))
                for load in LOADS:
                    for count in writers:
                        _tell(places, load, count, rounds, seconds, content)
    return 0


def _tell(places: list[Place], load: Load, writers: int, rounds: int, seconds: float, content: bytes) -> None:
    found: dict[str, list[list[float]]] = {place.name: [] for place in places}
    for turn in range(rounds):
        for place in places:
            found[place.name].append(_measure(place, content, load, writers, seconds, 1000 * turn))
    for name, runs in found.items():
        rate = median(len(took) / seconds for took in runs)
        p50, p99 = (median(percentile(sorted(took), share) for took in runs) * 1e6 for share in (0.5, 0.99))
        print(f"  {load.name:<16} {writers:>2} writers  {name:<18} {rate:>7,.0f} commits/s  p50 {p50:>7,.0f} us  p99 {p99:>8,.0f} us", flush=True)
