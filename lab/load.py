"""Puts load on databases that are to crash, and keeps records of acknowledged transactions."""

from __future__ import annotations

import hashlib
import subprocess
import threading
import time
from pathlib import Path

from . import proc
from .ledger import Run
from .mariadb import MariaDB
from .paths import ROOT, tool
from .postgres import Postgres
from .server import Server


def words() -> list[str]:
    """Returns the words of two of the project's documents, as English text for tables of tests. Figures of different days
    compare only as far as the documents stay the same."""
    return [word for name in ("ARCHITECTURE.md", "INTERNALS.md") for word in (ROOT / "docs" / name).read_text().split()]


class Load:
    """A load generator in the background, until it is stopped or its server dies under it."""

    def __init__(self, run: Run, argv: list[str], log: Path):
        self.run, self.log = run, log
        self.process = proc.spawn(argv, log=log)
        self._entry = run.process(self.process.pid, Path(argv[0]).name)

    def stop(self) -> None:
        """Kills the generator."""
        if self.process.poll() is None:
            proc.kill_tree(self.process.pid, proc.start_time(self.process.pid))
        self.process.wait(30)
        self.run.done(self._entry)

    def require_running(self) -> None:
        """Raises if the generator has ended by itself: a crash without load would prove nothing."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the load ended by itself; its log ends:\n{proc.tail(self.log)}")


def pgbench_load(server: Postgres, database: str, clients: int = 4, rate: int | None = None) -> Load:
    """Starts pgbench's TPC-B-like transactions without end: as many as possible, or `rate` a second."""
    options = ["-n", "-c", str(clients), "-j", "2", "-T", "86400", *([f"--rate={rate}"] if rate else [])]
    return Load(server.run, server.client("pgbench", *options, database=database), server.run.logs / "pgbench.log")


def sysbench(server: MariaDB, database: str, command: str, *, tables: int = 2, rows: int = 20000, threads: int = 4):
    """Returns the command line of sysbench's oltp_read_write."""
    options = [f"--mysql-socket={server.socket}", "--mysql-user=root", f"--mysql-db={database}", f"--tables={tables}"]
    options += [f"--table-size={rows}", f"--threads={threads}", "--time=86400", "--db-driver=mysql"]
    return [tool("sysbench"), *options, "oltp_read_write", command]


def sysbench_load(server: MariaDB, database: str, rate: int | None = None, **options) -> Load:
    """Starts sysbench oltp_read_write without end: as many transactions as possible, or `rate` a second."""
    limit = [f"--rate={rate}"] if rate else []
    return Load(server.run, [*sysbench(server, database, "run", **options), *limit], server.run.logs / "sysbench.log")


CREATE_ACKNOWLEDGED = "CREATE TABLE acknowledged (id bigint PRIMARY KEY, payload text NOT NULL)"


def prepare_pgbench(server: Postgres, database: str, scale: int, *initdb: str) -> None:
    """Makes a new cluster, with the options `initdb`, and starts it; its `database` has pgbench's tables and the
    acknowledgement table."""
    server.initdb(*initdb)
    server.start()
    server.createdb(database)
    proc.run(server.client("pgbench", "-i", "-q", "-s", str(scale), database=database))
    server.sql(CREATE_ACKNOWLEDGED, database=database)


def prepare_sysbench(server: MariaDB, database: str, rows: int) -> None:
    """Makes a new server and starts it; its `database` has sysbench's tables and the acknowledgement table."""
    server.install()
    server.start()
    server.sql(f"CREATE DATABASE {database}")
    proc.run(sysbench(server, database, "prepare", rows=rows))
    server.sql(CREATE_ACKNOWLEDGED, database=database)


def payload(number: int) -> str:
    """Returns the payload of row `number` of the acknowledgement table: 64 to 704 characters that follow from the
    number."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return digest * (1 + number % 11)


class Acknowledged:
    """A client that inserts numbered rows, each its own transaction, one at a time, and appends each number to a file
    outside of the pool once the server has acknowledged it. After a crash every number in the file must be found."""

    def __init__(self, run: Run, argv: list[str], record: Path, first: int, echo: str):
        self.run, self.record, self.next, self.echo = run, record, first, echo
        self.count = 0
        self.times_ns: dict[int, int] = {}
        """Time at which each row was acknowledged, by the monotonic clock, by its number."""
        self._stopping = False
        log = run.logs / "acknowledged.log"
        self._client = proc.spawn(argv, log=log, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._entry = run.process(self._client.pid, "client")
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with open(self.record, "a", buffering=1) as record:
            while not self._stopping:
                statement = f"INSERT INTO acknowledged VALUES ({self.next}, '{payload(self.next)}');\n"
                try:
                    self._client.stdin.write((statement + self.echo.format(self.next) + "\n").encode())
                    self._client.stdin.flush()
                    answer = self._client.stdout.readline().strip()
                except (OSError, ValueError):
                    return  # the client has ended: the server died
                if answer != str(self.next).encode():
                    return  # no acknowledgement: this row may be there or not
                self.times_ns[self.next] = time.monotonic_ns()
                record.write(f"{self.next}\n")
                self.next += 1
                self.count += 1

    def wait_for(self, count: int, *, timeout_s: float = 60) -> None:
        """Waits until `count` rows have been acknowledged."""
        deadline = time.monotonic() + timeout_s
        while self.count < count:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise RuntimeError(f"only {self.count} of {count} rows were acknowledged in {timeout_s:.0f} s")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends the client, whatever it is doing; its record is complete afterwards."""
        self._stopping = True
        if self._client.poll() is None:
            proc.kill_tree(self._client.pid, proc.start_time(self._client.pid))
        self._client.wait(30)
        self._thread.join(30)
        if self._thread.is_alive():
            raise RuntimeError("the acknowledging client does not end")
        self.run.done(self._entry)


def acknowledged(server: Server, database: str, record: Path, first: int) -> Acknowledged:
    """Starts an acknowledging client of `server`, whose first row has the number `first`."""
    argv, echo = server.echoing_client(database)
    return Acknowledged(server.run, argv, record, first, echo)
