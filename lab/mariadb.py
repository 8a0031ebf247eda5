"""Runs a MariaDB server of our own, with direct I/O and without the doublewrite buffer."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import tool
from .server import Server

USER = "mysql"
# Bit 32 of `info_bits` marks an entry as deleted.
UNPURGED = re.compile(r"Warning\tInnoDB: Clustered index record not found for index .*\(info_bits=32,")


class MariaDB(Server):
    """One server."""

    product, program, user = "MariaDB", "mariadbd", USER
    shutdown, separator = signal.SIGTERM, "\t"

    def __init__(self, run: Run, data: Path, *, settings: dict[str, str] | None = None, name: str = "maria"):
        ours = {
            "innodb_flush_method": "O_DIRECT",
            "innodb_doublewrite": "OFF",
            "innodb_flush_log_at_trx_commit": "1",
            "innodb_buffer_pool_size": "128M",
            "innodb_log_file_size": "96M",
            "innodb_file_per_table": "ON",
            "innodb_checksum_algorithm": "full_crc32",
            "skip_log_bin": "ON",
        }
        super().__init__(run, data, settings={**ours, **(settings or {})}, name=name)
        self.socket = self.socket_dir / "s"
        # The server has a tmpdir of its own, since one that starts deletes every #sql file there, other servers' too.
        self.tmpdir = self.socket_dir / "tmp"
        proc.run(["install", "-d", "-o", USER, self.tmpdir])

    def install(self) -> None:
        """Makes the system tables."""
        options = [
            f"--datadir={self.data}",
            f"--tmpdir={self.tmpdir}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]
        proc.run([tool("mariadb-install-db"), "--no-defaults", *options], user=USER)

    def command(self) -> list:
        """Returns the server's command line."""
        settings = [f"--{key.replace('_', '-')}={value}" for key, value in self.settings.items()]
        fixed = [f"--datadir={self.data}", f"--socket={self.socket}", "--skip-networking", "--skip-grant-tables"]
        fixed += [f"--pid-file={self.socket_dir}/pid", f"--tmpdir={self.tmpdir}"]
        return [tool("mariadbd"), "--no-defaults", *fixed, *settings]

    def client(self, *arguments: str, database: str | None = None) -> list[str]:
        """Returns the command line of the `mariadb` client, with the options that connect it to this server."""
        fixed = ["--no-defaults", f"--socket={self.socket}", "--user=root", "--batch", "--skip-column-names"]
        return [tool("mariadb"), *fixed, *arguments, *([database] if database else [])]

    def echoing_client(self, database: str) -> tuple[list[str], str]:
        """Returns the mariadb client, which in batch mode stops at the first error."""
        return self.client("--unbuffered", database=database), "SELECT {};"

    def sql(self, query: str, *, database: str | None = None, timeout_s: float = 900) -> str:
        """Runs SQL and returns its rows, fields separated by tabs; any error raises."""
        return proc.run(self.client(database=database), input=query, timeout_s=timeout_s).strip()

    def tables(self, database: str) -> list[str]:
        """Returns the names of a database's tables."""
        return self.sql(f"SHOW TABLES FROM `{database}`").split()

    def check_tables(self, database: str) -> None:
        """Runs CHECK TABLE ... EXTENDED on every table; anything but OK raises.

        While purge is under way the check may warn of an index entry that is marked as deleted, and whose row it does not
        find any more. It did so once in 120 rounds of the same load on ext4, and a few seconds later found nothing. So
        such a warning counts only if it is still there when purge has come to its end."""
        for table in self.tables(database):
            found = self._check_table(database, table)
            if found and all(UNPURGED.search(line) for line in found):
                self.sql("SET GLOBAL innodb_max_purge_lag_wait=0")
                found = self._check_table(database, table)
            if found:
                raise AssertionError(f"CHECK TABLE found: {found[0]}")

    def _check_table(self, database: str, table: str) -> list[str]:
        """Returns all that CHECK TABLE says but that the table is OK."""
        lines = self.sql(f"CHECK TABLE `{table}` EXTENDED", database=database).splitlines()
        return [line for line in lines if not line.endswith("status\tOK")]

    def tablespaces(self, database: str | None = None) -> list[Path]:
        """Returns the tablespace files of a database, or of the whole server."""
        folder = self.data / database if database else self.data
        return sorted(p for p in folder.rglob("*.ibd"))

    def innochecksum(self) -> int:
        """Verifies the checksums of every page of every tablespace of the stopped server; raises if one is bad.
        Returns the number of files that were read."""
        files = [self.data / "ibdata1", *self.tablespaces()]
        for path in files:
            proc.run([tool("innochecksum"), path])
        return len(files)
