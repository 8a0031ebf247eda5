"""Throttles devices and bounds memory, by the controllers of cgroup v1."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MIB = 1 << 20


def controller(name: str) -> Path | None:
    """Returns the folder of a controller's root group, or None if it is not mounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return next((Path(m[1]) for m in mounts if m[2] == "cgroup" and name in m[3].split(",")), None)


@contextlib.contextmanager
def throttled(device: str, bytes_per_s: int, requests_per_s: int | None = None):
    """Limits the device to so many bytes and requests per second, each way. The rules are those of the root, where
    direct I/O of servers is accounted."""
    root = controller("blkio")
    if root is None:
        raise RuntimeError("no blkio controller (cgroup v1) is mounted: devices cannot be throttled here")
    number = os.stat(device).st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    limits = {"bps": bytes_per_s, "iops": requests_per_s}
    rules = [
        (root / f"blkio.throttle.{way}_{unit}_device", limit)
        for unit, limit in limits.items()
        for way in ("read", "write")
        if limit is not None
    ]
    try:
        for rule, limit in rules:
            rule.write_text(f"{name} {limit}")
        yield
    finally:
        for rule, _ in rules:
            rule.write_text(f"{name} 0")


@contextlib.contextmanager
def memory_group(limit_bytes: int):
    """A group whose processes and page cache take at most so many bytes; yields its folder. A process joins it by its id
    in cgroup.procs. All have to have ended, or left it, at the end."""
    root = controller("memory")
    if root is None:
        raise RuntimeError("no memory controller (cgroup v1) is mounted: memory cannot be bounded here")
    folder = root / f"pagefold-lab-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield folder
    finally:
        for process in (folder / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(process)
        folder.rmdir()


@contextlib.contextmanager
def within(group: Path):
    """Has this process in a memory group, and with it the processes that it starts meanwhile."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    before = next(path for _, names, path in lines if "memory" in names.split(","))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (controller("memory") / before.lstrip("/") / "cgroup.procs").write_text(str(os.getpid()))
