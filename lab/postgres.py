"""A PostgreSQL cluster of our own: made, started, stopped and killed without touching any other on the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import postgres_bin

USER = "postgres"
"""Whom the server runs as: PostgreSQL refuses to be root."""


class Postgres:
    """One cluster in `data`. Reached through a Unix socket only, so no port on the machine can be in the way."""

    def __init__(self, run: Run, data: Path, *, settings: dict[str, str] | None = None, name: str = "pg"):
        self.run, self.data, self.name = run, data, name
        self.settings = {
            "listen_addresses": "",
            "shared_buffers": "128MB",
            "max_wal_size": "1GB",
            "checkpoint_timeout": "60s",
            "fsync": "on",
            "synchronous_commit": "on",
            "logging_collector": "off",
            "wal_level": "replica",
            "max_wal_senders": "4",
            **(settings or {}),
        }
        # Not below the run's folder: a socket's path may have 107 bytes only.
        self.socket_dir = Path(tempfile.mkdtemp(prefix="pflab-"))
        proc.run(["chown", f"{USER}:", self.socket_dir])
        self.run.command("rm", "-rf", str(self.socket_dir))
        self.log = run.logs / f"{name}.log"
        self.server: subprocess.Popen | None = None
        self._entry: int | None = None

    def initdb(self) -> None:
        """Makes the cluster, with data checksums."""
        options = ["--data-checksums", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C.UTF-8"]
        proc.run([postgres_bin("initdb"), *options, "-D", self.data], user=USER)

    def start(self, *, timeout_s: float = 120) -> None:
        """Starts the server and waits until it answers, recovery included."""
        settings = [w for k, v in self.settings.items() for w in ("-c", f"{k}={v}")]
        self.server = proc.spawn(
            [postgres_bin("postgres"), "-D", self.data, "-k", self.socket_dir, *settings], log=self.log, user=USER
        )
        self._entry = self.run.process(self.server.pid, "postgres")
        deadline = time.monotonic() + timeout_s
        while True:
            if self.server.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start; its log ends:\n{proc.tail(self.log)}")
            try:
                self.sql("SELECT 1", database="postgres")
                return
            except proc.CommandFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """A fast shutdown: sessions are ended, a checkpoint is written."""
        if self.server is None:
            return
        self.server.send_signal(signal.SIGINT)
        try:
            status = self.server.wait(120)
        except subprocess.TimeoutExpired as e:
            raise RuntimeError(f"PostgreSQL does not stop; its log ends:\n{proc.tail(self.log)}") from e
        self._gone()
        if status != 0:
            raise RuntimeError(f"PostgreSQL stopped with status {status}; its log ends:\n{proc.tail(self.log)}")

    def kill(self) -> None:
        """SIGKILLs the server and all its processes."""
        if self.server is None:
            return
        proc.kill_tree(self.server.pid, proc.start_time(self.server.pid))
        # A postmaster that dies first leaves its children to init; they are found by the data folder they serve.
        for pid in _serving(self.data):
            proc.kill_tree(pid, proc.start_time(pid))
        self.server.wait(30)
        self._gone()

    def _gone(self) -> None:
        self.run.done(self._entry)
        self.server = None

    def client(self, program: str, *arguments: str, database: str | None = "postgres") -> list[str]:
        """The command line of a client program, connected to this cluster."""
        where = [f"--host={self.socket_dir}", f"--username={USER}"]
        return [postgres_bin(program), *where, *arguments, *([database] if database else [])]

    def sql(self, query: str, *, database: str = "postgres", timeout_s: float = 900) -> str:
        """Runs SQL in psql and returns its rows, unaligned, fields separated by |; any error raises."""
        argv = self.client("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", database=database)
        return proc.run(argv, input=query, timeout_s=timeout_s).strip()

    def createdb(self, name: str) -> None:
        """Makes a database."""
        self.sql(f'CREATE DATABASE "{name}"')

    def relation_files(self, database: str, relation: str) -> list[Path]:
        """The files of a relation (its main fork and segments) that hold something."""
        path = self.data / self.sql(f"SELECT pg_relation_filepath('{relation}')", database=database)
        found = [path, *sorted(path.parent.glob(f"{path.name}.*"))]
        return [p for p in found if p.stat().st_size > 0]

    def amcheck(self, database: str) -> None:
        """verify_heapam on every table, bt_index_parent_check with heapallindexed on every B-tree index. Anything
        found raises."""
        options = ["--install-missing", "--parent-check", "--heapallindexed", "--jobs=2"]
        proc.run(self.client("pg_amcheck", *options, database=database))

    def verify_checksums(self) -> None:
        """pg_checksums over the stopped cluster; anything found raises."""
        proc.run([postgres_bin("pg_checksums"), "--check", "-D", self.data], user=USER)


def _serving(data: Path) -> list[int]:
    """PostgreSQL processes whose working directory is, or was, the data folder. Their cwd can be read even when the
    file system below has gone."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                cwd = os.readlink(f"/proc/{entry}/cwd")
                name = Path(f"/proc/{entry}/comm").read_text().strip()
            except OSError:
                continue
            if name == "postgres" and cwd.removesuffix(" (deleted)") == str(data):
                found.append(int(entry))
    return found
