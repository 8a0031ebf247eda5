"""`lab soak`: kills the file system's server under load, again and again, and verifies that nothing is lost.

Rounds alternate between PostgreSQL under pgbench with full_page_writes=off and MariaDB under sysbench with the doublewrite
buffer off: exactly the settings under which a torn page or a lost write of the file system destroys the database.
One pool and its databases live through all rounds.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from pathlib import Path

from . import load, verify
from .crash import crash_under_load
from .ledger import Run
from .mariadb import USER as MYSQL
from .mariadb import MariaDB
from .paths import require_room
from .postgres import USER as POSTGRES
from .postgres import Postgres
from .server import Server
from .storage import Place, place

POOL_BYTES = 4 << 30
PGBENCH_SCALE = 5
SYSBENCH_ROWS = 20_000
KEEP_ROUNDS = 4
"""Number of rounds whose acknowledged rows are kept and verified again; older ones are deleted to keep the tables
small."""
CHECK_EVERY = 25
"""Number of rounds after which the pool is unmounted and verified offline, too."""


class Side(ABC):
    """A database on the pool, and the load it is under."""

    name: str

    def __init__(self, server: Server, record: Path):
        self.server, self.record = server, record
        self.next = 1
        self.firsts: list[int] = []

    @abstractmethod
    def prepare(self) -> None:
        """Makes the database, the load's tables and the acknowledgement table."""

    @abstractmethod
    def generate(self) -> load.Load:
        """Starts the load."""

    @abstractmethod
    def verify(self) -> str:
        """Verifies all that must hold; returns a line about it for the log."""

    def start_load(self) -> tuple[load.Load, load.Acknowledged]:
        """Starts the load, and beside it the client that records acknowledgements."""
        client = load.acknowledged(self.server, "lab", self.record, self.next)
        return self.generate(), client

    def forget_before(self, first: int) -> None:
        """Deletes acknowledged rows below a number."""
        self.server.sql(f"DELETE FROM acknowledged WHERE id < {first}", database="lab")
        kept = [n for n in self.record.read_text().split() if int(n) >= first]
        self.record.write_text("".join(f"{n}\n" for n in kept))


class PostgresSide(Side):
    """PostgreSQL with full_page_writes=off under pgbench."""

    name = "postgresql"

    def __init__(self, run: Run, place: Place):
        settings = {"full_page_writes": "off", "checkpoint_timeout": "30s", "max_wal_size": "256MB"}
        super().__init__(Postgres(run, place.folder("pg", POSTGRES), settings=settings), run.dir / "acknowledged-pg")

    def prepare(self) -> None:
        """Makes the cluster, pgbench's tables and the acknowledgement table."""
        load.prepare_pgbench(self.server, "lab", PGBENCH_SCALE)

    def generate(self) -> load.Load:
        """Starts pgbench."""
        return load.pgbench_load(self.server, "lab")

    def verify(self) -> str:
        count = verify.acknowledged_rows(self.server, "lab", self.record)
        history = verify.pgbench_balances(self.server, "lab")
        """Verifies all that must hold; returns a line about it for the log."""
        verify.postgres_healthy(self.server, "lab")
        verify.no_torn_pages(self.server.log)
        return f"{count} acknowledged rows, {history} pgbench transactions"


class MariaSide(Side):
    """MariaDB with O_DIRECT and no doublewrite buffer under sysbench."""

    name = "mariadb"

    def __init__(self, run: Run, place: Place):
        super().__init__(MariaDB(run, place.folder("maria", MYSQL)), run.dir / "acknowledged-maria")

    def prepare(self) -> None:
        """Makes system tables, sysbench's tables and the acknowledgement table."""
        load.prepare_sysbench(self.server, "lab", SYSBENCH_ROWS)

    def generate(self) -> load.Load:
        """Starts sysbench."""
        return load.sysbench_load(self.server, "lab", rows=SYSBENCH_ROWS)

    def verify(self) -> str:
        count = verify.acknowledged_rows(self.server, "lab", self.record)
        verify.sysbench_rows(self.server, "lab", SYSBENCH_ROWS)
        """Verifies all that must hold; returns a line about it for the log."""
        verify.mariadb_healthy(self.server, "lab")
        verify.no_torn_pages(self.server.log)
        return f"{count} acknowledged rows"


def soak(rounds: int, *, seed: int | None, on: str, keep_logs: Path) -> int:
    """Runs the rounds; returns an exit status. The first round that fails ends the soak: its state is the evidence."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    moments = random.Random(seed)
    print(f"soak: {rounds} rounds on {on}, seed {seed} (repeat with SEED={seed}); logs in {keep_logs}", flush=True)
    require_room(2 << 30)
    began = time.monotonic()
    passed = 0
    with Run("soak", keep_logs=keep_logs) as run, place(run, on, POOL_BYTES) as where:
        sides: list[Side] = [PostgresSide(run, where), MariaSide(run, where)][: max(1, min(rounds, 2))]
        for side in sides:
            side.prepare()
            side.server.stop()
        print(f"soak: prepared in {time.monotonic() - began:.0f} s", flush=True)
        for number in range(rounds):
            side = sides[number % len(sides)]
            try:
                line = _round(side, where, moments)
                if (number + 1) % CHECK_EVERY == 0 or number + 1 == rounds:
                    where.unmount()
                    where.check()
                    where.mount()
                    line += ", pool checked"
            except Exception as e:  # whatever failed, the round and the seed belong to the report
                print(f"soak: round {number + 1} of {rounds} ({side.name}, seed {seed}) FAILED: {e}", flush=True)
                side.server.kill()
                break
            passed += 1
            print(f"soak: round {number + 1:>3} of {rounds}  {side.name:<10}  {line}", flush=True)
    print(f"soak: seed {seed}, {time.monotonic() - began:.0f} s")
    print(f"{passed} passed, {rounds - passed} failed", flush=True)
    return 0 if passed == rounds else 1


def _round(side: Side, where: Place, moments: random.Random) -> str:
    began = time.monotonic()
    delay_s = moments.uniform(0.5, 6.0)
    side.server.start()
    side.firsts.append(side.next)
    if len(side.firsts) > KEEP_ROUNDS:
        side.forget_before(side.firsts[-KEEP_ROUNDS])
    figures = crash_under_load(where, side.server, side.start_load, delay_s)
    side.next = figures["next"]
    told = side.verify()
    side.server.stop()
    times = f"killed after {delay_s:.2f} s, mounted in {figures['mount_s']:.2f} s, recovered in {figures['recovery_s']:.1f} s"
    return f"{figures['acknowledged']} acknowledged, {times}, {told}, {time.monotonic() - began:.1f} s"
