"""`lab snapshots`: takes snapshots of databases under load, at random moments; clones, mounts, recovers and verifies
each.

A snapshot of a running database has the files as they were at one instant, as a loss of power would have left them. So
every clone has to recover, have all that was acknowledged before the snapshot was asked for, and be without a damaged
page.
"""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from pathlib import Path

from . import load, proc, verify
from .ledger import Run
from .mariadb import USER as MYSQL
from .mariadb import MariaDB
from .paths import require_room
from .pool import Pool, wait_until_steady
from .postgres import USER as POSTGRES
from .postgres import Postgres
from .server import Server

POOL_BYTES = 6 << 30
PGBENCH_SCALE = 3
SYSBENCH_ROWS = 10_000
KEEP = 12
"""Largest number of snapshots that are kept at a time; the one that is destroyed is drawn by lot."""
ROUNDS_PER_POOL = 50
"""Number of rounds before there is a new pool and a new database, since the growing data of the old ones slow the
rounds and find nothing more."""
RATES = (None, 100, 300, 300)
"""Bounds of the load in transactions a second, of which each pool gets one. Without a bound, the load takes all
processors and makes rounds slow."""
QUIET_S = 8
"""Seconds after which nothing is coded again that was written in haste: pages are, some seconds after their last write
(docs/SEMANTICS.md), and take less room then."""
FREED_SLACK_BYTES = 4 << 20
"""Bytes of the pool's own metadata and of the load's writes meanwhile. The exact comparison is made without load, at
the end."""


class Mounted:
    """A dataset of a pool, mounted at a folder of its own."""

    def __init__(self, pool: Pool, name: str):
        self.pool, self.name = pool, f"{pool.pool}/{name}"
        self.mountpoint = pool.run.fresh(name.replace("/", "-"))
        self._entry: int | None = None

    def mount(self) -> None:
        """Mounts it."""
        self.mountpoint.mkdir(exist_ok=True)
        self._entry = self.pool.run.mount(self.mountpoint)
        self.pool.pagefold("mount", self.name, self.mountpoint)

    def unmount(self) -> None:
        """Unmounts it."""
        self.pool.pagefold("unmount", self.mountpoint)
        self.forget()

    def forget(self) -> None:
        """Notes that it is not mounted any more."""
        self.pool.run.done(self._entry)

    def folder(self, name: str, owner: str) -> Path:
        """Makes a folder in the dataset, which belongs to `owner`."""
        path = self.mountpoint / name
        path.mkdir(mode=0o700)
        proc.run(["chown", f"{owner}:", path])
        return path


class Source(ABC):
    """A database on a dataset of its own, under load, and the checks of its clones."""

    name: str

    def __init__(self, pool: Pool, rate: int | None):
        self.pool, self.run, self.rate = pool, pool.run, rate
        self.dataset = Mounted(pool, self.name)
        pool.pagefold("dataset", "create", self.dataset.name)
        self.dataset.mount()
        self.record = self.run.dir / f"acknowledged-{self.name}"
        self.server = self.at(self.dataset, self.name)
        self.prepare()
        self.client = load.acknowledged(self.server, "lab", self.record, 1)
        self.generator = self.generate()
        self.client.wait_for(20)

    def at(self, dataset: Mounted, name: str) -> Server:
        """Returns a server on the database folder in that dataset, which is made if it is not there."""
        data = dataset.mountpoint / "data"
        return self.on(data if data.exists() else dataset.folder("data", self.user), name)

    user: str

    @abstractmethod
    def on(self, data: Path, name: str) -> Server:
        """Returns a server on that folder."""

    @abstractmethod
    def prepare(self) -> None:
        """Starts the database with the load's tables and the acknowledgement table."""

    @abstractmethod
    def generate(self) -> load.Load:
        """Starts the load."""

    @abstractmethod
    def verify(self, clone: Server, record: Path) -> str:
        """Verifies all that must hold for a clone that has recovered, and stops it. Returns a line about it."""

    def stop(self) -> None:
        """Ends load and database."""
        self.generator.require_running()
        self.generator.stop()
        self.client.stop()
        self.server.stop()

    def round(self, number: int, moments: random.Random) -> str:
        """Takes one snapshot, clones it and verifies the clone. Returns a line about it."""
        time.sleep(moments.uniform(0.0, 1.5))
        self.generator.require_running()
        record = self.run.dir / f"{self.name}-{number}.acknowledged"
        # All rows in the file were acknowledged before the snapshot.
        lines = self.record.read_text()
        record.write_text(lines[: lines.rfind("\n") + 1])
        began = time.monotonic()
        self.pool.pagefold("snapshot", f"{self.dataset.name}@s{number}")
        taken = time.monotonic() - began
        clone = Mounted(self.pool, f"clone-{self.name}-{number}")
        self.pool.pagefold("clone", f"{self.dataset.name}@s{number}", clone.name)
        clone.mount()
        # The file is that of the server whose data this is a copy of.
        (clone.mountpoint / "data" / "postmaster.pid").unlink(missing_ok=True)
        server = self.at(clone, f"{self.name}-clone")
        began = time.monotonic()
        server.start()
        recovered = time.monotonic() - began
        told = self.verify(server, record)
        verify.no_torn_pages(server.log)
        clone.unmount()
        self.pool.pagefold("destroy", clone.name)
        record.unlink()
        clone.mountpoint.rmdir()
        server.log.unlink()
        proc.run(["rm", "-rf", server.socket_dir])
        return f"snapshot in {1000 * taken:.0f} ms, recovered in {recovered:.1f} s, {told}"


class PostgresSource(Source):
    """PostgreSQL with full_page_writes=off under pgbench."""

    name, user = "pg", POSTGRES

    def on(self, data: Path, name: str) -> Server:
        settings = {"full_page_writes": "off", "checkpoint_timeout": "30s", "max_wal_size": "256MB"}
        return Postgres(self.run, data, settings={**settings, "shared_buffers": "32MB"}, name=name)

    def prepare(self) -> None:
        load.prepare_pgbench(self.server, "lab", PGBENCH_SCALE)
        self.server.sql("CREATE EXTENSION amcheck", database="lab")

    def generate(self) -> load.Load:
        return load.pgbench_load(self.server, "lab", rate=self.rate)

    def verify(self, clone: Postgres, record: Path) -> str:
        count = verify.acknowledged_rows(clone, "lab", record)
        history = verify.pgbench_balances(clone, "lab")
        clone.amcheck("lab")
        clone.stop()
        clone.verify_checksums()
        return f"{count} acknowledged rows, {history} transactions, amcheck and checksums clean"


class MariaSource(Source):
    """MariaDB with O_DIRECT and no doublewrite buffer under sysbench."""

    name, user = "maria", MYSQL

    def on(self, data: Path, name: str) -> Server:
        return MariaDB(self.run, data, settings={"innodb_buffer_pool_size": "32M"}, name=name)

    def prepare(self) -> None:
        load.prepare_sysbench(self.server, "lab", SYSBENCH_ROWS)

    def generate(self) -> load.Load:
        return load.sysbench_load(self.server, "lab", rate=self.rate, rows=SYSBENCH_ROWS)

    def verify(self, clone: MariaDB, record: Path) -> str:
        count = verify.acknowledged_rows(clone, "lab", record)
        verify.sysbench_rows(clone, "lab", SYSBENCH_ROWS)
        clone.check_tables("lab")
        clone.stop()
        return f"{count} acknowledged rows, {clone.innochecksum()} files with clean checksums"


SOURCES = {"postgresql": PostgresSource, "mariadb": MariaSource}


def listed(pool: Pool, kind: str) -> list[dict]:
    """Returns datasets or snapshots with their figures, in bytes."""
    return json.loads(pool.pagefold("list", "-t", kind, "--json", pool.pool))["datasets"]


def held_bytes(pool: Pool) -> int:
    """Returns the bytes that all datasets and snapshots hold."""
    return sum(d["used_by_dataset_bytes"] + d["used_by_snapshots_bytes"] for d in listed(pool, "dataset"))


def wait_until_freed(pool: Pool, timeout_s: float = 120) -> None:
    """Waits until the background has freed everything that was destroyed."""
    deadline = time.monotonic() + timeout_s
    while pool.figures("status")["freeing"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"what was destroyed is not freed in {timeout_s:.0f} s")
        time.sleep(0.1)


def destroy_exactly(pool: Pool, what: str) -> int:
    """Destroys snapshots of a database that rests, and verifies that this frees as many bytes as were told before.
    Returns that number."""
    told = json.loads(pool.pagefold("destroy", "-n", "--json", what))
    held, used = held_bytes(pool), pool.used_bytes()
    pool.pagefold("destroy", what)
    wait_until_freed(pool)
    freed = held - held_bytes(pool)
    assert freed == told["freed_bytes"], f"destroying {what} freed {freed} bytes, told were {told['freed_bytes']}"
    physical = used - pool.used_bytes()
    slack = FREED_SLACK_BYTES + told["freed_bytes"] // 50
    assert abs(physical - freed) < slack, f"destroying {what} freed {freed} bytes, and the pool has {physical} more"
    return freed


def campaign(run: Run, product: str, rounds: int, moments: random.Random, tell=print) -> None:
    """Takes `rounds` snapshots of a database under a load of a random rate, and verifies a clone of each. At the end
    all are destroyed, and the pool is checked."""
    with Pool(run, POOL_BYTES) as pool:
        source = SOURCES[product](pool, moments.choice(RATES))
        kept: list[int] = []
        for number in range(rounds):
            line = source.round(number, moments)
            kept.append(number)
            if len(kept) > KEEP:
                gone = kept.pop(moments.randrange(len(kept)))
                pool.pagefold("destroy", f"{source.dataset.name}@s{gone}")
            tell(f"snapshots: round {number + 1:>3} of {rounds}  {product:<10}  {line}")
        source.stop()
        # The dataset is unmounted, since access times would still be written.
        source.dataset.unmount()
        wait_until_steady(lambda: held_bytes(pool), QUIET_S)
        names = [s["name"] for s in listed(pool, "snapshot")]
        assert names == [f"{source.dataset.name}@s{n}" for n in kept], names
        freed = 0
        moments.shuffle(kept)
        while kept:
            freed += destroy_exactly(pool, f"{source.dataset.name}@" + ",".join(f"s{n}" for n in kept[:3]))
            del kept[:3]
        tell(f"snapshots: {product}: all destroyed, {freed >> 10} KiB freed as told")
        pool.unmount()
        pool.check()


def snapshots(rounds: int, *, seed: int | None, keep_logs: Path) -> int:
    """Runs the campaign for both databases: `rounds` of PostgreSQL and two fifths as many of MariaDB. Returns an exit
    status."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"snapshots: {rounds} rounds, seed {seed} (repeat with SEED={seed}); logs in {keep_logs}", flush=True)
    require_room(8 << 30)
    began = time.monotonic()
    for product, count in (("postgresql", rounds), ("mariadb", max(1, rounds * 2 // 5))):
        for first in range(0, count, ROUNDS_PER_POOL):
            now = min(ROUNDS_PER_POOL, count - first)
            with Run("snapshots", keep_logs=keep_logs) as run:
                campaign(run, product, now, random.Random(seed + first), tell=lambda line: print(line, flush=True))
            print(f"snapshots: {product}: {first + now} of {count} recovered", flush=True)
    print(f"snapshots: all passed, seed {seed}, {time.monotonic() - began:.0f} s")
    return 0
