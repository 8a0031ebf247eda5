"""A MariaDB server of our own, with direct I/O and without the doublewrite buffer."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import tool

USER = "mysql"


class MariaDB:
    """One server on `data`, reached through a Unix socket only."""

    def __init__(self, run: Run, data: Path, *, settings: dict[str, str] | None = None, name: str = "maria"):
        self.run, self.data, self.name = run, data, name
        self.settings = {
            "innodb_flush_method": "O_DIRECT",
            "innodb_doublewrite": "OFF",
            "innodb_flush_log_at_trx_commit": "1",
            "innodb_buffer_pool_size": "128M",
            "innodb_log_file_size": "96M",
            "innodb_file_per_table": "ON",
            "innodb_checksum_algorithm": "full_crc32",
            "skip_log_bin": "ON",
            **(settings or {}),
        }
        self.socket_dir = Path(tempfile.mkdtemp(prefix="pflab-"))
        proc.run(["chown", f"{USER}:", self.socket_dir])
        self.run.command("rm", "-rf", str(self.socket_dir))
        self.socket = self.socket_dir / "s"
        # A folder of its own: a server that starts deletes every #sql file in its tmpdir, other servers' too.
        self.tmpdir = self.socket_dir / "tmp"
        proc.run(["install", "-d", "-o", USER, self.tmpdir])
        self.log = run.logs / f"{name}.log"
        self.server: subprocess.Popen | None = None
        self._entry: int | None = None

    def install(self) -> None:
        """Makes the system tables."""
        options = [
            f"--datadir={self.data}",
            f"--tmpdir={self.tmpdir}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        proc.run([tool("mariadb-install-db"), "--no-defaults", *options], user=USER)

    def start(self, *, timeout_s: float = 120) -> None:
        """Starts the server and waits until it answers, recovery included."""
        settings = [f"--{key.replace('_', '-')}={value}" for key, value in self.settings.items()]
        fixed = [f"--datadir={self.data}", f"--socket={self.socket}", "--skip-networking", "--skip-grant-tables"]
        fixed += [f"--pid-file={self.socket_dir}/pid", f"--tmpdir={self.tmpdir}"]
        self.server = proc.spawn([tool("mariadbd"), "--no-defaults", *fixed, *settings], log=self.log, user=USER)
        self._entry = self.run.process(self.server.pid, "mariadbd")
        deadline = time.monotonic() + timeout_s
        while True:
            if self.server.poll() is not None:
                raise RuntimeError(f"MariaDB did not start; its log ends:\n{proc.tail(self.log)}")
            try:
                self.sql("SELECT 1")
                return
            except proc.CommandFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self) -> None:
        """An orderly shutdown."""
        if self.server is None:
            return
        self.server.send_signal(signal.SIGTERM)
        try:
            status = self.server.wait(120)
        except subprocess.TimeoutExpired as e:
            raise RuntimeError(f"MariaDB does not stop; its log ends:\n{proc.tail(self.log)}") from e
        self._gone()
        if status != 0:
            raise RuntimeError(f"MariaDB stopped with status {status}; its log ends:\n{proc.tail(self.log)}")

    def kill(self) -> None:
        """SIGKILLs the server."""
        if self.server is None:
            return
        proc.kill_tree(self.server.pid, proc.start_time(self.server.pid))
        self.server.wait(30)
        self._gone()

    def _gone(self) -> None:
        self.run.done(self._entry)
        self.server = None

    def client(self, *arguments: str, database: str | None = None) -> list[str]:
        """The command line of the `mariadb` client, connected to this server."""
        fixed = ["--no-defaults", f"--socket={self.socket}", "--user=root", "--batch", "--skip-column-names"]
        return [tool("mariadb"), *fixed, *arguments, *([database] if database else [])]

    def sql(self, query: str, *, database: str | None = None, timeout_s: float = 900) -> str:
        """Runs SQL and returns its rows, fields separated by tabs; any error raises."""
        return proc.run(self.client(database=database), input=query, timeout_s=timeout_s).strip()

    def tables(self, database: str) -> list[str]:
        """The names of a database's tables."""
        return self.sql(f"SHOW TABLES FROM `{database}`").split()

    def check_tables(self, database: str) -> None:
        """CHECK TABLE ... EXTENDED of every table; anything but OK raises."""
        for table in self.tables(database):
            for line in self.sql(f"CHECK TABLE `{table}` EXTENDED", database=database).splitlines():
                if not line.endswith("status\tOK"):
                    raise AssertionError(f"CHECK TABLE found: {line}")

    def tablespaces(self, database: str | None = None) -> list[Path]:
        """The tablespace files of a database, or of the whole server."""
        folder = self.data / database if database else self.data
        return sorted(p for p in folder.rglob("*.ibd"))

    def innochecksum(self) -> int:
        """Verifies the checksums of every page of every tablespace of the stopped server; raises if one is bad.
        Returns how many files were read."""
        files = [self.data / "ibdata1", *self.tablespaces()]
        for path in files:
            proc.run([tool("innochecksum"), path])
        return len(files)
