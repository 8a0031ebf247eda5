"""Makes, starts, stops and kills a PostgreSQL cluster of our own, without touching any other on the machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import postgres_bin
from .server import Server

USER = "postgres"
"""User that the server runs as: PostgreSQL refuses to be root."""


class Postgres(Server):
    """One cluster."""

    product, program, user = "PostgreSQL", "postgres", USER
    shutdown, separator = signal.SIGINT, "|"

    def __init__(self, run: Run, data: Path, *, settings: dict[str, str] | None = None, name: str = "pg"):
        ours = {
            "listen_addresses": "",
            "shared_buffers": "128MB",
            "max_wal_size": "1GB",
            "checkpoint_timeout": "60s",
            "fsync": "on",
            "synchronous_commit": "on",
            "logging_collector": "off",
            "wal_level": "replica",
            "max_wal_senders": "4",
        }
        super().__init__(run, data, settings={**ours, **(settings or {})}, name=name)

    def initdb(self, *more: str) -> None:
        """Makes the cluster, with data checksums; `more` are further options."""
        options = ["--data-checksums", "--auth=trust", f"--username={USER}", "--encoding=UTF8", "--locale=C.UTF-8", *more]
        proc.run([postgres_bin("initdb"), *options, "-D", self.data], user=USER)

    def command(self) -> list:
        """Returns the server's command line."""
        settings = [w for k, v in self.settings.items() for w in ("-c", f"{k}={v}")]
        return [postgres_bin("postgres"), "-D", self.data, "-k", self.socket_dir, *settings]

    def left_behind(self) -> list[int]:
        """Returns the children of a postmaster that has died, which init has adopted; they are found by the data folder
        that they serve."""
        return _serving(self.data)

    def client(self, program: str, *arguments: str, database: str | None = "postgres") -> list[str]:
        """Returns the command line of a client program, with the options that connect it to this cluster."""
        where = [f"--host={self.socket_dir}", f"--username={USER}"]
        return [postgres_bin(program), *where, *arguments, *([database] if database else [])]

    def echoing_client(self, database: str) -> tuple[list[str], str]:
        """Returns psql, which stops at the first error, so that an echo follows only success."""
        return self.client("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", database=database), "\\echo {}"

    def sql(self, query: str, *, database: str = "postgres", timeout_s: float = 900) -> str:
        """Runs SQL in psql and returns its rows, unaligned, fields separated by |; any error raises."""
        argv = self.client("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", database=database)
        return proc.run(argv, input=query, timeout_s=timeout_s).strip()

    def createdb(self, name: str) -> None:
        """Makes a database."""
        self.sql(f'CREATE DATABASE "{name}"')

    def relation_files(self, database: str, relation: str) -> list[Path]:
        """Returns the files of a relation (the segments of its main fork) that are not empty."""
        path = self.data / self.sql(f"SELECT pg_relation_filepath('{relation}')", database=database)
        found = [path, *sorted(path.parent.glob(f"{path.name}.*"))]
        return [p for p in found if p.stat().st_size > 0]

    def amcheck(self, database: str) -> None:
        """Runs verify_heapam on every table, and bt_index_parent_check with heapallindexed on every B-tree index.
        Raises if they find anything."""
        options = ["--install-missing", "--parent-check", "--heapallindexed", "--jobs=2"]
        proc.run(self.client("pg_amcheck", *options, database=database))

    def amcheck_here(self, database: str) -> None:
        """Runs the checks of `amcheck` in one session; the extension must be there already."""
        indexes = """SELECT count(bt_index_parent_check(i.indexrelid, true)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE c.relam = 403 AND c.relpersistence = 'p' AND i.indisready AND i.indisvalid"""
        tables = """SELECT c.relname, v FROM pg_class c, verify_heapam(c.oid) v
            WHERE c.relkind IN ('r', 't', 'm') AND c.relpersistence = 'p'"""
        counted, _, found = self.sql(f"{indexes}; {tables}", database=database).partition("\n")
        assert int(counted) > 100, "the indexes of the catalogue alone are more"
        assert not found, f"verify_heapam found: {found}"

    def verify_checksums(self) -> None:
        """Runs pg_checksums over the stopped cluster; raises if it finds anything."""
        proc.run([postgres_bin("pg_checksums"), "--check", "-D", self.data], user=USER)


def _serving(data: Path) -> list[int]:
    """Returns PostgreSQL processes whose working directory is, or was, the data folder. It can be read even if the file
    system below has gone."""
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
