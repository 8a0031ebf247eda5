"""`lab pitr`: restores a database, which archives its log under load, to random points in time. Each restore must have
the ledger's rows up to its point and none later.

Only the ledger's client writes to its table. It notes when each row was sent, when its commit was acknowledged, and the
place in the log at that time. The server notes the time of each commit (track_commit_timestamp), with which recovery
compares a target. So the rows that must be there are known exactly for each point.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from . import load, proc
from .ledger import Run
from .paths import pagefold, postgres_bin, require_room
from .pool import Pool
from .postgres import USER, Postgres
from .snapshots import Mounted

POOL_BYTES = 8 << 30
DATABASE = "lab"
BATCH = 10
"""Number of points that are drawn before they are restored."""


@dataclass
class Row:
    """The client's notes of a row that it wrote; times in microseconds since 1970."""

    number: int
    sent_us: int
    acknowledged_us: int
    lsn: str


class LedgerClient:
    """Inserts numbered rows, each its own transaction, one at a time."""

    def __init__(self, server: Postgres):
        self.run, self.rows = server.run, []
        self._stopping = False
        argv, _ = server.echoing_client(DATABASE)
        self._client = proc.spawn(argv, log=self.run.logs / "ledger.log", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._entry = self.run.process(self._client.pid, "client")
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._stopping:
            number += 1
            sent = time.time_ns() // 1000
            text = f"INSERT INTO ledger VALUES ({number}, '{load.payload(number)}');\nSELECT pg_current_wal_lsn();\n"
            try:
                self._client.stdin.write(text.encode())
                self._client.stdin.flush()
                answer = self._client.stdout.readline().decode().strip()
            except (OSError, ValueError):
                return
            if "/" not in answer:
                return
            self.rows.append(Row(number, sent, time.time_ns() // 1000, answer))

    def require_running(self) -> None:
        """Raises if the client has ended by itself."""
        if not self._thread.is_alive():
            raise RuntimeError(f"the ledger's client has ended; its log ends:\n{proc.tail(self.run.logs / 'ledger.log')}")

    def wait_for(self, count: int, timeout_s: float = 60) -> None:
        """Waits until the ledger has `count` rows."""
        deadline = time.monotonic() + timeout_s
        while len(self.rows) < count:
            self.require_running()
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(self.rows)} of {count} rows in {timeout_s:.0f} s")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends the client."""
        self._stopping = True
        if self._client.poll() is None:
            proc.kill_tree(self._client.pid, proc.start_time(self._client.pid))
        self._client.wait(30)
        self._thread.join(30)
        self.run.done(self._entry)


def exact(micros: int) -> str:
    """Returns a time in the form that `--to-time` takes."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(micros // 1_000_000)) + f".{micros % 1_000_000:06}+00"


def keyed_repository(pool: Pool, folder: str, user: str) -> tuple[Path, Path]:
    """Makes an encrypted repository, into whose `folder` the server's user may archive. Returns it and its key file."""
    repository, key = pool.run.fresh("repository"), pool.run.fresh("key")
    key.write_text("horse battery")
    proc.run(["chown", f"{user}:", key])
    key.chmod(0o600)
    pool.pagefold("backup", "init", repository, "--key-file", key)
    proc.run(["chgrp", user, repository])
    repository.chmod(0o710)
    (repository / folder).mkdir()
    proc.run(["chown", f"{user}:", repository / folder])
    return repository, key


class Production:
    """A cluster on a dataset of its own, which archives into an encrypted repository."""

    def __init__(self, pool: Pool, *, rate: int | None = None):
        self.pool, self.run = pool, pool.run
        self.dataset = Mounted(pool, "db")
        pool.pagefold("dataset", "create", self.dataset.name)
        self.dataset.mount()
        self.repository, self.key = keyed_repository(pool, "wal", USER)
        archive = f"'{pagefold()}' archive push --key-file '{self.key}' '{self.repository}' %p"
        settings = {"archive_mode": "on", "archive_command": archive, "track_commit_timestamp": "on", "full_page_writes": "off"}
        settings |= {"checkpoint_timeout": "30s", "max_wal_size": "64MB", "min_wal_size": "8MB", "shared_buffers": "32MB"}
        self.server = Postgres(self.run, self.dataset.folder("data", USER), settings=settings, name="production")
        # Segments are short, so that there are many, and moments lie in all parts of one.
        load.prepare_pgbench(self.server, DATABASE, 1, "--wal-segsize=1")
        self.server.sql("CREATE TABLE ledger (id bigint PRIMARY KEY, payload text NOT NULL)", database=DATABASE)
        self.generator = load.pgbench_load(self.server, DATABASE, clients=2, rate=rate)
        self.client = LedgerClient(self.server)
        self.client.wait_for(20)
        self.restores = 0

    def stop(self) -> None:
        """Ends load and database."""
        self.generator.require_running()
        self.generator.stop()
        self.client.stop()
        self.server.stop()
        self.dataset.unmount()

    def backup(self, *arguments: str, json_of: bool = False):
        """Runs `pagefold backup`, or `archive`, on the repository; returns its output, or its JSON."""
        words = [*arguments, "--key-file", self.key, *(["--json"] if json_of else [])]
        out = self.pool.pagefold(*words, timeout_s=600)
        return json.loads(out) if json_of else out

    def create(self) -> dict:
        """Makes a backup; returns its JSON."""
        return self.backup("backup", "create", self.dataset.name, "--to", self.repository, json_of=True)["created"]["backup"]

    def archived(self, timeout_s: float = 120) -> None:
        """Waits until all log that was written by now is archived."""
        name = self.server.sql("SELECT pg_walfile_name(pg_switch_wal())")
        deadline = time.monotonic() + timeout_s
        while True:
            last, failed = self.server.sql("SELECT last_archived_wal, failed_count FROM pg_stat_archiver").split("|")
            if last[:24] >= name:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} is not archived in {timeout_s:.0f} s, the last one is {last}, {failed} failed:\n{proc.tail(self.server.log)}")
            time.sleep(0.05)

    def commit_times(self) -> dict[int, int]:
        """Returns the commit time of each row by its number, as the server noted it, in microseconds since 1970."""
        query = "SELECT id, (extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint FROM ledger"
        lines = self.server.sql(query, database=DATABASE).splitlines()
        return {int(number): int(micros) for number, micros in (line.split("|") for line in lines)}

    def restore(self, *point: str) -> Restored:
        """Restores to a point into a new dataset, and lets the server recover."""
        self.restores += 1
        name, mountpoint = f"{self.pool.pool}/then-{self.restores}", self.run.fresh("then")
        mountpoint.mkdir()
        entry = self.run.mount(mountpoint)
        words = ["--start", "--mountpoint", mountpoint, "--set", "shared_buffers=32MB"]
        told = self.backup("backup", "restore", self.repository, self.dataset.name, name, *point, *words, json_of=True)
        return Restored(self, name, mountpoint, entry, told)


class Restored:
    """A restored cluster, whose server runs."""

    def __init__(self, of: Production, name: str, mountpoint: Path, entry: int, told: dict):
        self.of, self.name, self.mountpoint, self._entry, self.told = of, name, mountpoint, entry, told
        self.data = mountpoint / told["point"]["data"]
        self.log = Path(told["point"]["log"])
        self.pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        self._process = of.run.process(self.pid, "postgres")

    def sql(self, query: str) -> str:
        """Runs SQL and returns the rows as psql prints them."""
        where = [f"--host={self.data}", f"--port={self.told['point']['port']}", f"--username={USER}"]
        argv = [postgres_bin("psql"), *where, "-qAtX", "-v", "ON_ERROR_STOP=1", DATABASE]
        return proc.run(argv, input=query).strip()

    def rows(self) -> set[int]:
        """Returns the numbers of the ledger's rows, and verifies the payload of each."""
        found = [line.partition("|") for line in self.sql("SELECT id, payload FROM ledger").splitlines()]
        wrong = [number for number, _, text in found if text != load.payload(int(number))]
        assert not wrong, f"{len(wrong)} rows hold something else than was written"
        return {int(number) for number, _, _ in found}

    def balances(self) -> None:
        """Verifies pgbench's invariant, which half a transaction would break."""
        sums = self.sql(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),"
            "(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"
        ).split("|")
        assert len(set(sums)) == 1, f"accounts, tellers, branches, history add up to {sums}"

    def destroy(self) -> None:
        """Ends the server, and destroys the dataset."""
        os.kill(self.pid, signal.SIGQUIT)
        deadline = time.monotonic() + 30
        while proc.start_time(self.pid) is not None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server of {self.name} does not end")
            time.sleep(0.02)
        self.of.run.done(self._process)
        # The server's children take a moment longer to end.
        for attempt in range(100):
            try:
                # If the dataset is still in use, unmount fails once, but nothing is mounted there afterwards.
                if os.path.ismount(self.mountpoint):
                    self.of.pool.pagefold("unmount", self.mountpoint)
                self.of.pool.pagefold("destroy", "-r", self.name)
                break
            except proc.CommandFailed:
                if attempt == 99:
                    raise
                time.sleep(0.1)
        self.of.run.done(self._entry)
        self.log.unlink(missing_ok=True)


@dataclass
class Point:
    """A point that was drawn, with what is known of it at that time."""

    words: list[str]
    time_us: int | None
    through: int
    """Number of a row up to which all rows have to be there; there may be more."""


def drawn(production: Production, moments: random.Random) -> Point:
    """Returns the present as a point: as a time, or as a place in the log."""
    time.sleep(moments.uniform(0.0, 1.0))
    production.generator.require_running()
    production.client.require_running()
    if moments.random() < 0.6:
        now = time.time_ns() // 1000
        return Point(["--to-time", exact(now)], now, 0)
    row = production.client.rows[-1]
    return Point(["--to-lsn", row.lsn], None, row.number)


def verified(production: Production, point: Point) -> str:
    """Restores to a point, and verifies the ledger. Returns a line about it."""
    began = time.monotonic()
    restored = production.restore(*point.words)
    took = time.monotonic() - began
    try:
        found = restored.rows()
        restored.balances()
        if point.time_us is None:
            wanted = set(range(1, point.through + 1))
        else:
            client = production.client.rows
            promised = {row.number for row in client if row.acknowledged_us < point.time_us}
            later = {row.number for row in client if row.sent_us > point.time_us}
            assert promised <= found, f"acknowledged before {point.words[1]}, and not there: {sorted(promised - found)[:5]}"
            assert not later & found, f"sent after {point.words[1]}, and there: {sorted(later & found)[:5]}"
            wanted = {number for number, micros in production.commit_times().items() if micros <= point.time_us}
        assert found == wanted, f"{point.words}: missing {sorted(wanted - found)[:5]}, too many {sorted(found - wanted)[:5]}"
        backup = restored.told["backup"]["number"]
    finally:
        restored.destroy()
    return f"{' '.join(point.words)}: {len(found)} rows, from backup {backup}, restored and recovered in {took:.1f} s"


def campaign(run: Run, times: int, moments: random.Random, tell=print) -> None:
    """Restores to `times` points, which are drawn in batches under load; a backup is made between some of them."""
    with Pool(run, POOL_BYTES) as pool:
        production = Production(pool, rate=moments.choice((100, 300)))
        production.create()
        done = 0
        while done < times:
            points = []
            for number in range(min(BATCH, times - done)):
                if number in (3, 7):
                    production.create()
                points.append(drawn(production, moments))
            # A transaction behind the last point has to be archived, too.
            production.client.wait_for(len(production.client.rows) + 3)
            production.archived()
            for point in points:
                done += 1
                tell(f"pitr: {done:>3} of {times}  {verified(production, point)}")
        told = production.backup("archive", "list", production.repository, json_of=True)["logs"]
        assert len(told) == 1 and len(told[0]["stretches"]) == 1, told
        tell(f"pitr: {told[0]['files']} files of {told[0]['segment_bytes']} bytes take {told[0]['stored_bytes']} bytes")
        production.backup("backup", "check", production.repository)
        production.backup("backup", "verify", production.repository, "--sample", "20%")
        production.stop()
        pool.unmount()
        pool.check()


def pitr(times: int, *, seed: int | None, keep_logs: Path) -> int:
    """Runs the campaign; returns an exit status."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"pitr: {times} points, seed {seed} (repeat with SEED={seed}); logs in {keep_logs}", flush=True)
    require_room(10 << 30)
    began = time.monotonic()
    with Run("pitr", keep_logs=keep_logs) as run:
        campaign(run, times, random.Random(seed), tell=lambda line: print(line, flush=True))
    print(f"pitr: all passed, seed {seed}, {time.monotonic() - began:.0f} s")
    return 0
