"""A PostgreSQL cluster of our own: made, started, stopped and killed without touching any other on the machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import postgres_bin
from .server import Server

USER = "postgres"
"""Whom the server runs as: PostgreSQL refuses to be root."""


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
        """The server's command line."""
        settings = [w for k, v in self.settings.items() for w in ("-c", f"{k}={v}")]
        return [postgres_bin("postgres"), "-D", self.data, "-k", self.socket_dir, *settings]

    def left_behind(self) -> list[int]:
        """A postmaster that dies first leaves its children to init; they are found by the data folder they serve."""
        return _serving(self.data)

    def client(self, program: str, *arguments: str, database: str | None = "postgres") -> list[str]:
        """The command line of a client program, connected to this cluster."""
        where = [f"--host={self.socket_dir}", f"--username={USER}"]
        return [postgres_bin(program), *where, *arguments, *([database] if database else [])]

    def echoing_client(self, database: str) -> tuple[list[str], str]:
        """psql, which stops at the first error, so that an echo follows success only."""
        return self.client("psql", "-qAtX", "-v", "ON_ERROR_STOP=1", database=database), "\\echo {}"

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

    def amcheck_here(self, database: str) -> None:
        """What `amcheck` does, in one session; the extension is there already."""
        indexes = """SELECT count(bt_index_parent_check(i.indexrelid, true)) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
            WHERE c.relam = 403 AND c.relpersistence = 'p' AND i.indisready AND i.indisvalid"""
        tables = """SELECT c.relname, v FROM pg_class c, verify_heapam(c.oid) v
            WHERE c.relkind IN ('r', 't', 'm') AND c.relpersistence = 'p'"""
        counted, _, found = self.sql(f"{indexes}; {tables}", database=database).partition("\n")
        assert int(counted) > 100, "the indexes of the catalogue alone are more"
        assert not found, f"verify_heapam found: {found}"

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
