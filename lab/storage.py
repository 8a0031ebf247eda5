"""Provides places for a database: Pagefold's rivals on loop devices, a plain folder, zfs-fuse.

Every place has the same interface (`Place`): mount, unmount, crash, recover, recordsize, and the space that files take.
`pool.Pool` is the place for Pagefold.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from . import proc
from .ledger import Run, is_mounted, unmount
from .paths import tool


@dataclass
class Usage:
    """Space of some files: `logical` bytes as read, `physical` bytes on the device, without metadata."""

    logical: int
    physical: int

    @property
    def ratio(self) -> float:
        """Logical over physical bytes; 1.0 if there are none."""
        return self.logical / self.physical if self.physical else 1.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.logical + other.logical, self.physical + other.physical)


class Place:
    """A mounted folder that databases can live on. Use as a context manager: mounted inside, gone afterwards."""

    name = "place"
    is_pagefold = False

    def __init__(self, run: Run, mountpoint: Path):
        self.run = run
        self.mountpoint = mountpoint
        self.empty_bytes = 0
        """Bytes in use right after the mount."""

    def __enter__(self):
        self.create()
        self.mount()
        return self

    def __exit__(self, failed, *_) -> None:
        # After a failure databases may still run here: the run's ledger undoes everything in the right order, and the
        # failure is not hidden behind one of our own.
        if failed is None:
            self.unmount()
            self.destroy()

    def create(self) -> None:
        """Makes the place, empty."""

    def mount(self) -> None:
        """Mounts the place at `mountpoint`."""
        self.mountpoint.mkdir(parents=True, exist_ok=True)

    def unmount(self) -> None:
        """Unmounts the place in an orderly way."""

    def destroy(self) -> None:
        """Removes the place with all that it took."""

    def crash(self) -> None:
        """Kills the file system's server; does nothing if the kernel serves it."""

    def recover(self) -> None:
        """Mounts the place again after `crash`."""

    def again(self) -> None:
        """Mounts the place anew: nothing of it is in memory then."""
        self.unmount()
        self.mount()

    def check(self) -> None:
        """Verifies the unmounted file system with its own tool; raises if that finds anything."""

    def settle(self) -> None:
        """Brings data into the form in which the place would keep them; does nothing in most places."""

    def used_bytes(self) -> int:
        """Returns the physical bytes in use, data and metadata, after everything written before was synced."""
        os.sync()
        stat = os.statvfs(self.mountpoint)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    def usage(self, paths: list[Path]) -> Usage:
        """Returns the space that these files take."""
        stats = [os.stat(p) for p in paths]
        return Usage(sum(s.st_size for s in stats), sum(s.st_blocks * 512 for s in stats))

    def recordsize(self, path: Path) -> int | None:
        """Returns the record size that was found for a file, in bytes; None if there is no such thing."""
        return None

    def folder(self, name: str, owner: str) -> Path:
        """Makes a folder in the place, which belongs to `owner`; no other user can read it."""
        path = self.mountpoint / name
        path.mkdir(mode=0o700)
        proc.run([tool("chown"), f"{owner}:", path])
        return path


class PlainDir(Place):
    """A folder of the file system that the laboratory's own folder is on, for developing the laboratory itself."""

    name = "dir"


class Loop:
    """A loop device over a sparse file, with direct I/O to it."""

    def __init__(self, run: Run, backing: Path, size_bytes: int):
        self.run, self.backing, self.size_bytes = run, backing, size_bytes
        self.device = ""
        self._entry: int | None = None

    def attach(self) -> str:
        """Makes the file and the device; returns the device's path."""
        with open(self.backing, "wb") as f:
            f.truncate(self.size_bytes)
        self.device = proc.run([tool("losetup"), "--find", "--show", "--direct-io=on", self.backing]).strip()
        self._entry = self.run.loop(self.device, self.backing)
        return self.device

    def detach(self) -> None:
        """Removes the device and the file."""
        if self.device:
            proc.run([tool("losetup"), "-d", self.device])
            self.run.done(self._entry)
            self.device = ""
        self.backing.unlink(missing_ok=True)


class LoopFs(Place):
    """ext4, XFS or btrfs on a loop device."""

    def __init__(self, run: Run, kind: str, size_bytes: int, compress: str | None = None):
        self.name = f"{kind}-{compress.replace(':', '-')}" if compress else kind
        super().__init__(run, run.fresh(self.name))
        self.kind, self.compress = kind, compress
        self.loop = Loop(run, run.fresh("image"), size_bytes)
        self._entry: int | None = None

    def create(self) -> None:
        device = self.loop.attach()
        # btrfs keeps its metadata twice unless told otherwise; the comparison is with metadata that are kept once.
        options = {
            "ext4": ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            "xfs": ["-q"],
            "btrfs": ["-q", "-m", "single"],
        }
        proc.run([tool(f"mkfs.{self.kind}"), *options[self.kind], device])

    def mount(self) -> None:
        super().mount()
        options = ["-o", f"compress={self.compress}"] if self.compress else []
        self._entry = self.run.mount(self.mountpoint)
        proc.run([tool("mount"), "-t", self.kind, *options, self.loop.device, self.mountpoint])
        self.empty_bytes = self.used_bytes()

    def unmount(self) -> None:
        unmount(self.mountpoint)
        self.run.done(self._entry)

    def destroy(self) -> None:
        self.loop.detach()

    def recover(self) -> None:
        """Does nothing, since the kernel serves it."""

    def used_bytes(self) -> int:
        proc.run([tool("sync"), "-f", self.mountpoint])
        return super().used_bytes()

    def usage(self, paths: list[Path]) -> Usage:
        if self.kind != "btrfs":
            return super().usage(paths)
        text = proc.run([tool("compsize"), "-b", *paths])
        return Usage(sum(os.stat(p).st_size for p in paths), parse_compsize(text))


def parse_compsize(text: str) -> int:
    """Returns the bytes on disc from `compsize -b`'s TOTAL line; without such a line all files are empty, and it is
    0."""
    total = re.search(r"^TOTAL\s+\d+%\s+(\d+)\s+(\d+)\s+(\d+)", text, re.MULTILINE)
    if total is not None:
        return int(total[1])
    if "No files" in text or "All empty" in text:
        return 0
    raise ValueError(f"compsize said something unknown: {text!r}")


class ZfsFuse(Place):
    """ZFS by Debian's zfs-fuse, with a daemon of our own over a sparse file."""

    def __init__(self, run: Run, size_bytes: int, recordsize: str = "8K", compression: str = "gzip"):
        super().__init__(run, run.fresh("zfs"))
        self.name = f"zfs-fuse-{recordsize}-{compression}"
        self.backing = run.fresh("image")
        self.size_bytes, self._recordsize, self.compression = size_bytes, recordsize, compression
        self.pool = f"lab{os.getpid()}"
        self.vdevs: list[str] = []
        """Devices instead of the file, as `zpool create` takes them."""
        self.daemon = None
        self._entries: list[int] = []

    @staticmethod
    def available() -> str | None:
        """Returns None if it can run here, and otherwise the reason why it cannot."""
        try:
            tool("zfs-fuse"), tool("zpool")
        except RuntimeError as e:
            return str(e)
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    if Path(f"/proc/{entry}/comm").read_text().strip() == "zfs-fuse":
                        return f"a zfs-fuse daemon runs already (pid {entry})"
                except OSError:
                    continue
        return None

    def create(self) -> None:
        if not self.vdevs:
            with open(self.backing, "wb") as f:
                f.truncate(self.size_bytes)
        log = self.run.logs / "zfs-fuse.log"
        self.daemon = proc.spawn([tool("zfs-fuse"), "--no-daemon", "--pidfile", self.run.dir / "zfs-fuse.pid"], log=log)
        self._entries.append(self.run.process(self.daemon.pid, "zfs-fuse"))
        deadline = time.monotonic() + 20
        while True:
            listed = proc.run([tool("zpool"), "list"], check=False, timeout_s=20)
            if listed or self.daemon.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        if not listed:
            raise RuntimeError(f"zfs-fuse did not start:\n{proc.tail(log)}")

    def mount(self) -> None:
        super().mount()
        self._entries.append(self.run.mount(self.mountpoint))
        self._entries.append(self.run.command(tool("zpool"), "destroy", "-f", self.pool))
        options = [f"compression={self.compression}", f"recordsize={self._recordsize}", "atime=off"]
        argv = [tool("zpool"), "create", "-f", *(w for o in options for w in ("-O", o))]
        proc.run([*argv, "-m", self.mountpoint, self.pool, *(self.vdevs or [self.backing])])
        if not is_mounted(self.mountpoint):
            raise RuntimeError(f"zfs-fuse did not mount {self.mountpoint}")
        self.empty_bytes = self.used_bytes()

    def used_bytes(self) -> int:
        # zfs-fuse counts blocks when their transaction group is written, up to half a minute later, and its mount caches
        # attributes: exporting and importing ends both.
        self.again()
        return int(proc.run([tool("zfs"), "get", "-Hpo", "value", "used", self.pool]).strip())

    def again(self) -> None:
        self._zpool("export", self.pool)
        self._zpool("import", "-d", "/dev" if self.vdevs else self.backing.parent, self.pool)
        if not is_mounted(self.mountpoint):
            raise RuntimeError(f"zfs-fuse did not mount {self.mountpoint} again")

    def _zpool(self, *arguments) -> None:
        for attempt in range(40):
            try:
                proc.run([tool("zpool"), *arguments])
                return
            except proc.CommandFailed as e:
                if "busy" not in e.output or attempt == 39:
                    raise
                time.sleep(0.5)

    def unmount(self) -> None:
        if is_mounted(self.mountpoint):
            self._zpool("destroy", "-f", self.pool)

    def destroy(self) -> None:
        if self.daemon is not None:
            proc.kill_tree(self.daemon.pid, proc.start_time(self.daemon.pid))
            self.daemon.wait()
        for entry in self._entries:
            self.run.done(entry)
        self.backing.unlink(missing_ok=True)


def place(run: Run, spec: str, size_bytes: int) -> Place:
    """Returns a place by its name on the command line: `pagefold`, `dir`, `ext4`, `xfs`, `btrfs`, `btrfs:zstd:3`,
    `zfs`."""
    from .pool import Pool

    kind, _, option = spec.partition(":")
    match kind:
        case "pagefold":
            return Pool(run, size_bytes, compression=option or "zstd")
        case "dir":
            return PlainDir(run, run.fresh("plain"))
        case "ext4" | "xfs" | "btrfs":
            return LoopFs(run, kind, size_bytes, option or None)
        case "zfs":
            return ZfsFuse(run, size_bytes)
    raise ValueError(f"--on {spec}: unknown; one of pagefold[:CODEC], dir, ext4, xfs, btrfs[:CODEC[:LEVEL]], zfs")
