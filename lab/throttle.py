"""Throttles devices, by the blkio controller of cgroup v1."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MIB = 1 << 20


@contextlib.contextmanager
def throttled(device: str, bytes_per_s: int, requests_per_s: int | None = None):
    """Limits the device to so many bytes and requests per second, each way. The rules are those of the root, where
    direct I/O of servers is accounted."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(m[1]) for m in mounts if m[2] == "cgroup" and "blkio" in m[3].split(",")]
    if not roots:
        raise RuntimeError("no blkio controller (cgroup v1) is mounted: devices cannot be throttled here")
    number = os.stat(device).st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    limits = {"bps": bytes_per_s, "iops": requests_per_s}
    rules = [
        (roots[0] / f"blkio.throttle.{way}_{unit}_device", limit)
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
