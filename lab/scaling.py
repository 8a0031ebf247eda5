"""`lab scaling`: how much faster several devices are than one, and a mirror of which one device is slow.

Loop devices are throttled, each to so many MB/s and requests per second, each way. Files are written, the file system is
mounted anew, and fio scans them, reads pages of them at random, and overwrites pages with fsync: with one device, with four,
and with a mirror of two. The same on btrfs (raid0, raid1) and on zfs-fuse (stripe, mirror), in the same run. Told are figures
and how many times those of one device they are.

Then one device of a mirror answers each read so many times later than it did, and pages are read at random again: by one
reader, and by sixteen, past the cache of the kernel.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from . import proc
from .ledger import Run
from .mirrors import BadDisc, Mirror
from .paths import require_room, tool
from .pool import Pool
from .storage import Loop, LoopFs, Place, ZfsFuse
from .throttle import throttled

DEVICE_BYTES = 8 << 30
MIRROR = "mirror"


class PagefoldOver(Pool):
    """A pool over loop devices, with the default settings."""

    def __init__(self, run: Run, devices: list[str], mirrored: bool):
        super().__init__(run, 0)
        self.devices, self.mirrored, self.name = devices, mirrored, "pagefold"

    def create(self) -> None:
        self.pagefold("create", self.pool, *([MIRROR] if self.mirrored else []), *self.devices, timeout_s=300)

    def destroy(self) -> None:
        self.pagefold("destroy", "--force", self.pool)


class BtrfsOver(LoopFs):
    """btrfs over loop devices: raid0 for data and metadata, or raid1."""

    def __init__(self, run: Run, devices: list[str], mirrored: bool):
        super().__init__(run, "btrfs", 0)
        self.devices, self.profile = devices, "raid1" if mirrored else "raid0" if len(devices) > 1 else "single"
        self.loop.device = devices[0]

    def create(self) -> None:
        proc.run([tool("mkfs.btrfs"), "-q", "-f", "-m", self.profile, "-d", self.profile, *self.devices])

    def destroy(self) -> None:
        """Leaves the devices to whom they belong."""


class ZfsOver(ZfsFuse):
    """zfs-fuse over loop devices, as a stripe or a mirror, with records of 8 KiB, not compressed."""

    def __init__(self, run: Run, devices: list[str], mirrored: bool):
        super().__init__(run, 0, compression="off")
        self.name = "zfs-fuse"
        self.vdevs = ([MIRROR] if mirrored else []) + devices


SYSTEMS = {"pagefold": PagefoldOver, "btrfs": BtrfsOver, "zfs": ZfsOver}


@dataclass
class Work:
    """A load, as fio makes it: by so many threads, each of which has a file of its own. The kernel lets one fsync of a
    FUSE file wait for another one of the same file."""

    name: str
    unit: str
    words: list[str]
    threads: int = 1

    def run(self, place: Place, size_bytes: int, seconds: int = 0) -> float:
        """Returns MB/s or pages per second. All files together have `size_bytes`; without `seconds` all of it is
        read or written once."""
        names = [str(place.mountpoint / f"data.{number}") for number in range(FILES)]
        whole = self.threads == 1
        files = [f"--filename={':'.join(names)}"] if whole else [f"--directory={place.mountpoint}", "--filename_format=data.$jobnum"]
        size = size_bytes if whole else size_bytes // FILES
        words = [*files, f"--size={size}", f"--numjobs={self.threads}", "--thread", "--file_service_type=sequential", *self.words]
        if seconds:
            words += ["--time_based", f"--runtime={seconds}"]
        # fio takes a job for a file if something in its folder, which is the root here, has the job's name.
        told = proc.run([tool("fio"), "--output-format=json", "--group_reporting", f"--name={JOB}", *words], timeout_s=900)
        (job,) = json.loads(told[told.index("{") :])["jobs"]
        side = job["write"] if job["write"]["total_ios"] else job["read"]
        return side["bw_bytes"] / 1e6 if self.unit == "MB/s" else side["iops"]


FILES = 16
JOB = "pagefold-lab-scaling"
FILL = Work("fill", "MB/s", ["--rw=write", "--bs=1M", "--end_fsync=1", "--refill_buffers"])
SCAN = Work("scan", "MB/s", ["--rw=read", "--bs=1M"])
READS = Work("random reads", "pages/s", ["--rw=randread", "--bs=8k"], threads=FILES)
OVERWRITES = Work("overwrites with fsync", "pages/s", ["--rw=randwrite", "--bs=8k", "--fsync=1"], threads=FILES)
WORKS = [SCAN, READS, OVERWRITES]
# A mirror's devices are not throttled where one is slow: without the kernel's cache, which soon has all of the files.
PAST_CACHE = ["--rw=randread", "--bs=8k", "--direct=1"]
READS_OF_MIRROR = [
    Work("random reads, one after another", "pages/s", PAST_CACHE),
    Work("random reads", "pages/s", PAST_CACHE, threads=FILES),
]


@dataclass
class Rate:
    """Limits of each device, each way."""

    bytes_per_s: int
    requests_per_s: int


def measure(run: Run, system: str, devices: int, mirrored: bool, file_bytes: int, seconds: int, rate: Rate) -> list[float]:
    """Returns the figures of all works, with so many devices."""
    figures = []
    with contextlib.ExitStack() as stack:
        paths = []
        for _ in range(devices):
            loop = Loop(run, run.fresh("backing"), DEVICE_BYTES)
            paths.append(loop.attach())
            stack.callback(loop.detach)
        place = stack.enter_context(SYSTEMS[system](run, paths, mirrored))
        FILL.run(place, file_bytes)
        for work in WORKS:
            place.again()
            with contextlib.ExitStack() as limits:
                for path in paths:
                    limits.enter_context(throttled(path, rate.bytes_per_s, rate.requests_per_s))
                figures.append(work.run(place, file_bytes, 0 if work is SCAN else seconds))
    return figures


SHAPES = {"one device": (1, False), "four devices": (4, False), "mirror of two": (2, True)}


def _tell(name: str, figures: list[tuple[Work, float, float]]) -> None:
    told = "; ".join(f"{work.name} {figure:,.0f} {work.unit} ({figure / one:.2f})" for work, figure, one in figures)
    print(f"{name}: {told}", flush=True)


def slow_half(run: Run, file_bytes: int, seconds: int, times: int) -> None:
    """Prints what a mirror reads when one of its devices takes so many times as long for a read."""
    discs = [BadDisc(run), BadDisc(run)]
    with Mirror(run, discs) as pool:
        FILL.run(pool, file_bytes)
        figures: dict[str, list[float]] = {}
        usual_us = 0.0
        for state in ("both as usual", "one slow", "the slow one offline"):
            match state:
                case "one slow":
                    discs[1].tell("delay", round(usual_us * times))
                case "the slow one offline":
                    pool.pagefold("offline", pool.pool, discs[1].device)
            figures[state] = []
            for work in READS_OF_MIRROR:
                pool.again()
                figures[state].append(work.run(pool, file_bytes, seconds))
            if state == "both as usual":
                usual_us = 1e6 / figures[state][0]
            alone = figures["both as usual"]
            _tell(f"mirror, {state}", list(zip(READS_OF_MIRROR, figures[state], alone)))
        for disc in discs:
            disc.tell("delay", 0)
        pool.pagefold("online", pool.pool, discs[1].device, "--wait", timeout_s=300)
    for disc in discs:
        disc.remove()


def scaling(systems: list[str], file_bytes: int, seconds: int, rate: Rate, times: int, keep_logs: Path) -> int:
    """Measures all systems; returns an exit status."""
    require_room(12 << 30)
    print(
        f"scaling: devices of {rate.bytes_per_s / 1e6:.0f} MB/s and {rate.requests_per_s} requests/s each way, files of "
        f"{file_bytes >> 20} MiB, in parentheses: times one device's",
        flush=True,
    )
    with Run("scaling", keep_logs=keep_logs) as run:
        for system in systems:
            one: list[float] = []
            for shape, (devices, mirrored) in SHAPES.items():
                figures = measure(run, system, devices, mirrored, file_bytes, seconds, rate)
                one = one or figures
                _tell(f"{system}, {shape}", list(zip(WORKS, figures, one)))
        if "pagefold" in systems:
            slow_half(run, min(file_bytes, 1 << 30), seconds, times)
    return 0
