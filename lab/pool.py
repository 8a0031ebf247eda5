"""Drives a Pagefold pool in a file by the pagefold program, as a person would."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from . import proc
from .ledger import Run, is_mounted, unmount
from .paths import pagefold
from .storage import Place, Usage


QUIET_S = 10
"""Seconds without a new model after which learning has ended. Models are learned one after the other, with rests in
between."""


def wait_until_steady(figure: Callable[[], object], quiet_s: float, timeout_s: float = 600) -> None:
    """Waits until a figure has not changed for so many seconds."""
    deadline = time.monotonic() + timeout_s
    before, since = figure(), time.monotonic()
    while time.monotonic() < since + quiet_s:
        if time.monotonic() > deadline:
            raise RuntimeError(f"it still changes after {timeout_s:.0f} s: {before}")
        time.sleep(0.2)
        if (now := figure()) != before:
            before, since = now, time.monotonic()


class Pool(Place):
    """One pool over one file, mounted at one folder."""

    is_pagefold = True

    def __init__(self, run: Run, size_bytes: int, *, compression: str = "zstd", options: str = "takeover=off"):
        super().__init__(run, run.fresh("pool"))
        self.pool = f"lab-{os.getpid()}-{self.mountpoint.name}"
        self.name = f"pagefold-{compression}"
        self.device = run.fresh("device")
        self.size_bytes, self.compression = size_bytes, compression
        # By default nothing takes over from a killed server; tests of takeover set other options.
        self.options = options
        self._server: tuple[int, int | None] | None = None
        self._entries: list[int] = []
        self.mount_options: list[str] = []
        """Options of the next mounts, in the form of -o."""
        # These folders are the laboratory's own: it does not see the machine's pools, and leaves nothing in the
        # machine's registry.
        self.environment = {
            "PAGEFOLD_STATE_DIR": str(run.dir / "state"),
            "PAGEFOLD_RUNTIME_DIR": str(run.dir / "run"),
            "PAGEFOLD_LOG_DIR": str(run.logs),
        }

    def pagefold(self, *arguments: str | os.PathLike, timeout_s: float = 120) -> str:
        """Runs the program and returns what it printed; raises CommandFailed if it fails."""
        return proc.run([pagefold(), *arguments], env=self.environment, timeout_s=timeout_s)

    def create(self) -> None:
        with open(self.device, "wb") as f:
            f.truncate(self.size_bytes)
        self.pagefold("create", self.pool, self.device, "-o", f"compression={self.compression}")

    def mount(self) -> None:
        super().mount()
        self._start()
        self.empty_bytes = self.used_bytes()

    def _start(self) -> None:
        self._entries = [self.run.mount(self.mountpoint)]
        options = [word for option in (self.options, *self.mount_options) for word in ("-o", option)]
        self.pagefold("mount", *options, self.pool, self.mountpoint)
        if not is_mounted(self.mountpoint):
            raise RuntimeError(f"`pagefold mount` succeeded, and nothing is mounted at {self.mountpoint}")
        pid = self.server_pid()
        self._server = (pid, proc.start_time(pid))
        self._entries.append(self.run.process(pid, "pagefold"))

    def figures(self, verb: str = "df") -> dict:
        """Returns the pool's figures, in bytes, as `status --json` or `df --json` tells them."""
        return json.loads(self.pagefold(*verb.split(), "--json", self.pool))["pools"][0]

    def counters(self) -> list[dict]:
        """Returns the counters of `pagefold iostat` since the pool was mounted."""
        return json.loads(self.pagefold("iostat", "--json", self.pool))["pools"][0]["counters"]

    def server_pid(self) -> int:
        """Returns the id of the server process, as `pagefold status` tells it."""
        pid = int(self.figures("status")["mount"]["pid"])
        if "pagefold" not in Path(f"/proc/{pid}/comm").read_text():
            raise RuntimeError(f"`pagefold status` names pid {pid}, which is no pagefold process")
        return pid

    def unmount(self) -> None:
        if not is_mounted(self.mountpoint):
            return
        self.pagefold("unmount", self.mountpoint)
        if is_mounted(self.mountpoint):
            raise RuntimeError(f"`pagefold unmount` succeeded, and {self.mountpoint} is still mounted")
        self._forget()

    def _forget(self) -> None:
        for entry in self._entries:
            self.run.done(entry)
        self._entries, self._server = [], None

    def destroy(self) -> None:
        if self.device.exists():
            self.pagefold("destroy", "--force", self.pool)
            self.device.unlink(missing_ok=True)

    def export(self) -> None:
        """Runs `pagefold export`, which closes the pool cleanly and forgets it."""
        self.pagefold("export", self.pool)
        self._forget()

    def crash(self) -> None:
        """SIGKILLs the server. Processes that use the mount get ENOTCONN from now on."""
        if self._server is None:
            raise RuntimeError(f"{self.pool} has no server to kill")
        pid, started = self._server
        if started is None or proc.start_time(pid) != started:
            raise RuntimeError(f"the server of {self.pool} (pid {pid}) has died before it was to be killed")
        proc.kill_tree(pid, started)

    def detach(self) -> None:
        """Removes the dead mount."""
        unmount(self.mountpoint, lazy=True)
        self._forget()

    def go_back(self) -> None:
        """Imports the pool after an earlier state was put on its device on purpose. Without --accept-older it would be
        refused as an older copy."""
        self.pagefold("import", "--accept-older", "-d", self.device, self.pool)

    def recover(self) -> None:
        """Removes the dead mount and mounts the pool again."""
        self.detach()
        self._start()

    def check(self) -> None:
        self.pagefold("check", self.pool, timeout_s=1200)

    def used_bytes(self) -> int:
        self.pagefold("sync", self.pool)
        return int(self.figures()["used_bytes"])

    def settle(self) -> None:
        """With models of pages: waits until no more are learned, and codes pages again that were stored before them."""
        if not self.compression.startswith("page"):
            return
        wait_until_steady(lambda: self.figures("status")["models"], QUIET_S)
        self.pagefold("fold", self.pool, timeout_s=600)

    def usage(self, paths: list[Path]) -> Usage:
        total = json.loads(self.pagefold("du", "--json", *paths))["total"]
        return Usage(int(total["size_bytes"]), int(total["stored_bytes"]))

    def recordsize(self, path: Path) -> int:
        """Returns the recordsize that `pagefold du` tells; stat's preferred I/O size must be the same."""
        (told,) = json.loads(self.pagefold("du", "--json", path))["recordsizes"]
        preferred = os.stat(path).st_blksize
        if told["record_size"] != preferred:
            raise RuntimeError(f"{path}: `pagefold du` says page size {told['record_size']}, stat says {preferred}")
        return preferred
