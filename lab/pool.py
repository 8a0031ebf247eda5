"""A Pagefold pool in a file, driven through the pagefold program as a person would."""

from __future__ import annotations

import json
import os
from pathlib import Path

from . import proc
from .ledger import Run, is_mounted, unmount
from .paths import pagefold
from .storage import Place, Usage


class Pool(Place):
    """One pool over one file, mounted at one folder."""

    is_pagefold = True

    def __init__(self, run: Run, size_bytes: int, *, compression: str = "zstd", name: str | None = None):
        self.pool = name or f"lab{os.getpid()}"
        super().__init__(run, run.fresh("pool"))
        self.name = f"pagefold-{compression}"
        self.device = run.fresh("device")
        self.size_bytes, self.compression = size_bytes, compression
        self._server: tuple[int, int] | None = None
        self._entries: list[int] = []

    def create(self) -> None:
        with open(self.device, "wb") as f:
            f.truncate(self.size_bytes)
        proc.run([pagefold(), "create", self.pool, self.device, "-o", f"compression={self.compression}"])

    def mount(self) -> None:
        super().mount()
        self._start()
        self.empty_bytes = self.used_bytes()

    def _start(self) -> None:
        self._entries = [self.run.mount(self.mountpoint)]
        proc.run([pagefold(), "mount", self.device, self.mountpoint], timeout_s=60)
        if not is_mounted(self.mountpoint):
            raise RuntimeError(f"`pagefold mount` succeeded, and nothing is mounted at {self.mountpoint}")
        pid = self.server_pid()
        self._server = (pid, proc.start_time(pid))
        self._entries.append(self.run.process(pid, "pagefold"))

    def server_pid(self) -> int:
        """The server process, as `pagefold status` names it."""
        pid = int(find(self.json("status", self.pool), "pid"))
        if "pagefold" not in Path(f"/proc/{pid}/comm").read_text():
            raise RuntimeError(f"`pagefold status` names pid {pid}, which is no pagefold process")
        return pid

    def json(self, verb: str, *arguments: str | os.PathLike):
        """What `pagefold VERB --json ARGUMENTS` answers."""
        text = proc.run([pagefold(), verb, "--json", *arguments])
        return json.loads(text)

    def unmount(self) -> None:
        if not is_mounted(self.mountpoint):
            return
        proc.run([pagefold(), "unmount", self.mountpoint])
        if is_mounted(self.mountpoint):
            raise RuntimeError(f"`pagefold unmount` succeeded, and {self.mountpoint} is still mounted")
        self._forget()

    def _forget(self) -> None:
        for entry in self._entries:
            self.run.done(entry)
        self._entries, self._server = [], None

    def destroy(self) -> None:
        self.device.unlink(missing_ok=True)

    def crash(self) -> None:
        """SIGKILLs the server. Whoever uses the mount sees ENOTCONN from now on."""
        if self._server is None:
            raise RuntimeError(f"{self.pool} has no server to kill")
        pid, started = self._server
        proc.kill_tree(pid, started)

    def recover(self) -> None:
        """Removes the dead mount and mounts the pool again."""
        unmount(self.mountpoint, lazy=True)
        self._forget()
        self._start()

    def check(self) -> None:
        proc.run([pagefold(), "check", self.device], timeout_s=1200)

    def sync(self) -> None:
        """`pagefold sync`: everything accepted so far is durable when it returns."""
        proc.run([pagefold(), "sync", self.pool])

    def df(self) -> dict:
        """The pool's figures, in bytes."""
        answer = self.json("df", self.pool)
        rows = answer if isinstance(answer, list) else answer.get("pools", [answer])
        return rows[0]

    def used_bytes(self) -> int:
        self.sync()
        return int(find(self.df(), "physical"))

    def usage(self, paths: list[Path]) -> Usage:
        total = find(self.json("du", *paths), "total")
        return Usage(int(total["logical"]), int(total["physical"]))

    def recordsize(self, path: Path) -> int:
        """As `pagefold du` says it; stat's preferred I/O size must agree."""
        told = int(find(self.json("du", path), "recordsize"))
        preferred = os.stat(path).st_blksize
        if told != preferred:
            raise RuntimeError(f"{path}: `pagefold du` says recordsize {told}, stat says {preferred}")
        return told


def find(answer, key: str):
    """The first value called `key` in a JSON answer, breadth first; a KeyError that shows the answer otherwise."""
    queue = [answer]
    while queue:
        node = queue.pop(0)
        if isinstance(node, dict):
            if key in node:
                return node[key]
            queue.extend(node.values())
        elif isinstance(node, list):
            queue.extend(node)
    raise KeyError(f"no {key!r} in {json.dumps(answer)[:400]}")
