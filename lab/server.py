"""Starts, stops and kills a database server of our own, without touching any other on the machine."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path

from . import proc
from .ledger import Run

DISK_GONE = "== lab: the file system under the server is killed"
DISK_BACK = "== lab: the server is ended"
"""Lines in a server's log. Errors between them are due to the missing file system, and tell nothing of the data."""


class Server(ABC):
    """One server on `data`. It is reached only through a Unix socket, so no port on the machine can be in the way."""

    product: str
    """Its name in messages."""
    program: str
    """The name of its process."""
    user: str
    """User that it runs as."""
    shutdown: signal.Signals
    """Signal that asks for an orderly shutdown."""
    separator: str
    """Separator of a row's fields in the output of `sql`."""

    def __init__(self, run: Run, data: Path, *, settings: dict[str, str], name: str):
        self.run, self.data, self.name, self.settings = run, data, name, settings
        # The folder is not below the run's, since a socket's path may have 107 bytes only.
        self.socket_dir = Path(tempfile.mkdtemp(prefix="pflab-"))
        proc.run(["chown", f"{self.user}:", self.socket_dir])
        self.run.command("rm", "-rf", str(self.socket_dir))
        self.log = run.logs / f"{name}.log"
        self.server: subprocess.Popen | None = None
        self._entry: int | None = None
        self._without_disk = False

    @abstractmethod
    def command(self) -> list:
        """Returns the server's command line."""

    @abstractmethod
    def sql(self, query: str, *, database: str | None = None, timeout_s: float = 900) -> str:
        """Runs SQL and returns its rows; any error raises."""

    @abstractmethod
    def echoing_client(self, database: str) -> tuple[list[str], str]:
        """Returns the command line of a client that stops at the first error, and the statement by which it echoes a
        number."""

    def left_behind(self) -> list[int]:
        """Returns processes of the server that have outlived its main one."""
        return []

    def launch(self) -> None:
        """Starts the server, and does not wait."""
        self.server = proc.spawn(self.command(), log=self.log, user=self.user)
        self._entry = self.run.process(self.server.pid, self.program)

    def start(self, *, timeout_s: float = 120) -> None:
        """Starts the server and waits until it answers, recovery included."""
        self.launch()
        deadline = time.monotonic() + timeout_s
        while True:
            if self.server.poll() is not None:
                raise RuntimeError(f"{self.product} did not start; its log ends:\n{proc.tail(self.log)}")
            try:
                self.sql("SELECT 1")
                return
            except proc.CommandFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """Shuts the server down in an orderly way: it ends sessions, and writes all that has to be written."""
        if self.server is None:
            return
        self.server.send_signal(self.shutdown)
        try:
            status = self.server.wait(120)
        except subprocess.TimeoutExpired as e:
            raise RuntimeError(f"{self.product} does not stop; its log ends:\n{proc.tail(self.log)}") from e
        self._gone()
        if status != 0:
            raise RuntimeError(f"{self.product} stopped with status {status}; its log ends:\n{proc.tail(self.log)}")

    def expect_no_disk(self) -> None:
        """Notes in the log that the file system under the server is about to be killed; `kill` ends that."""
        self._note(DISK_GONE)
        self._without_disk = True

    def kill(self) -> None:
        """SIGKILLs the server and all its processes."""
        if self.server is None:
            return
        proc.kill_tree(self.server.pid, proc.start_time(self.server.pid))
        for pid in self.left_behind():
            proc.kill_tree(pid, proc.start_time(pid))
        self.server.wait(30)
        if self._without_disk:
            self._note(DISK_BACK)
            self._without_disk = False
        self._gone()

    def _note(self, line: str) -> None:
        with open(self.log, "a") as log:
            log.write(f"\n{line}\n")

    def _gone(self) -> None:
        self.run.done(self._entry)
        self.server = None
