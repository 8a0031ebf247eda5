"""`lab replay`: runs a database under load on a pool whose device is recorded. Then it makes many of the states that a
crash may have left from the recording. In each, the pool is mounted and the database must recover, with everything that
was acknowledged before.

Databases are small, and so is the pool, so that the recorded seconds hold checkpoints of the database and of the pool, and folding.
"""

from __future__ import annotations

import random
import shutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

from . import load, verify
from .ledger import Run
from .mariadb import USER as MYSQL
from .mariadb import MariaDB
from .paths import require_room
from .pool import Pool
from .postgres import USER as POSTGRES
from .postgres import Postgres
from .recording import KINDS, Recording, States, copy_sparse
from .server import Server

POOL_BYTES = 256 << 20
LOAD_S = 5.0
"""Seconds of load in a recording."""
RECORDING_STATES = 100
"""Number of states that are made from one recording; then there is a new one."""
RECOVERY_SHARE = 0.2
"""Share of states whose recovery is recorded, too, and crashes; the same share of those crashes once more."""
CHECK_EVERY = 10
"""Number of states after which the pool is checked offline, too."""


class Side(ABC):
    """A database, its load, and the checks of it after a crash."""

    server: Server
    unsafe: bool
    """True if the database does not flush. Then transactions may be missing at the end, and nowhere else."""

    @abstractmethod
    def prepare(self) -> None:
        """Makes the database with all its tables, and leaves it running."""

    @abstractmethod
    def generate(self) -> load.Load:
        """Starts the load."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Has the database write its changed pages."""

    @abstractmethod
    def verify(self) -> None:
        """Verifies the load's invariant, and runs the database's own checks of a running and of a stopped server;
        leaves the server stopped."""


class PostgresSide(Side):
    """PostgreSQL without full_page_writes, under pgbench."""

    def __init__(self, run: Run, pool: Pool, fsync: bool):
        self.unsafe = not fsync
        settings = {
            "full_page_writes": "off",
            "fsync": "on" if fsync else "off",
            "shared_buffers": "8MB",
            "min_wal_size": "4MB",
            "max_wal_size": "16MB",
            "checkpoint_completion_target": "0.5",
            "autovacuum_naptime": "1s",
            "max_connections": "20",
        }
        self.server = Postgres(run, pool.folder("pg", POSTGRES), settings=settings, name="replay-pg")

    def prepare(self) -> None:
        load.prepare_pgbench(self.server, "lab", 1, "--wal-segsize=1")
        self.server.sql("CREATE EXTENSION amcheck", database="lab")

    def generate(self) -> load.Load:
        return load.pgbench_load(self.server, "lab", clients=2)

    def checkpoint(self) -> None:
        self.server.sql("CHECKPOINT")

    def verify(self) -> None:
        verify.pgbench_balances(self.server, "lab")
        self.server.amcheck_here("lab")
        self.server.stop()
        self.server.verify_checksums()


class MariaSide(Side):
    """MariaDB with O_DIRECT and no doublewrite buffer, under sysbench."""

    ROWS = 2000

    def __init__(self, run: Run, pool: Pool, fsync: bool):
        self.unsafe = not fsync
        settings = {
            "innodb_flush_method": "O_DIRECT" if fsync else "nosync",
            "innodb_buffer_pool_size": "8M",
            "innodb_log_file_size": "4M",
            "innodb_buffer_pool_load_at_startup": "OFF",
            "innodb_buffer_pool_dump_at_shutdown": "OFF",
            "innodb_max_dirty_pages_pct_lwm": "1",
            "innodb_stats_persistent": "OFF",
        }
        self.server = MariaDB(run, pool.folder("maria", MYSQL), settings=settings, name="replay-maria")

    def prepare(self) -> None:
        load.prepare_sysbench(self.server, "lab", self.ROWS)

    def generate(self) -> load.Load:
        return load.sysbench_load(self.server, "lab", rows=self.ROWS, threads=2)

    def checkpoint(self) -> None:
        self.server.sql("FLUSH TABLES acknowledged FOR EXPORT; UNLOCK TABLES", database="lab")

    def verify(self) -> None:
        verify.sysbench_rows(self.server, "lab", self.ROWS)
        self.server.check_tables("lab")
        self.server.stop()
        assert self.server.innochecksum() > 1, "no tablespaces to check"


SIDES = {"postgres": PostgresSide, "mariadb": MariaSide}


class Replay:
    """A pool with a database that is recorded once, and the states that are made from the recording."""

    def __init__(self, run: Run, database: str, fsync: bool, draw: random.Random):
        self.run, self.draw = run, draw
        self.pool = Pool(run, POOL_BYTES)
        self.pool.create()
        self.pool.mount()
        self.side: Side = SIDES[database](run, self.pool, fsync)
        self.server = self.side.server
        self.side.prepare()
        self.server.stop()
        self.pool.unmount()
        self.base, self.image = run.fresh("base"), run.fresh("image")
        self.acknowledged_ns: dict[int, int] = {}
        copy_sparse(self.pool.device, self.base)

    def record(self) -> Recording:
        """Runs the load on the recorded pool; both end by SIGKILL."""
        path = self._mount_recorded()
        self.server.start()
        generator, client = self.side.generate(), None
        try:
            client = load.acknowledged(self.server, "lab", self.run.fresh("acknowledged"), 1)
            end = time.monotonic() + LOAD_S
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, self.draw.uniform(0.1, 1.5)))
                self.side.checkpoint()
            client.wait_for(20)
            generator.require_running()
            self.pool.crash()
        finally:
            generator.stop()
            if client is not None:
                client.stop()
                self.acknowledged_ns = client.times_ns
        self.server.kill()
        self.pool.detach()
        return Recording(path)

    def state(self, states: States, recording: Recording, position: int, kind: str) -> int:
        """Makes one state and verifies it; returns the number of acknowledged transactions that had to be there."""
        states.advance(position)
        states.make(self.pool.device, kind, self.draw)
        self.pool.go_back()
        moment_ns = recording.events[position - 1].time_ns
        promised = {number for number, at_ns in self.acknowledged_ns.items() if at_ns <= moment_ns}
        while self.draw.random() < RECOVERY_SHARE:
            self._crash_in_recovery()
        copy_sparse(self.pool.device, self.image)
        self.server.log.unlink(missing_ok=True)
        self._mount()
        self.server.start()
        self._require(promised)
        self.side.verify()
        verify.no_torn_pages(self.server.log)
        return 0 if self.side.unsafe else len(promised)

    def end_state(self, check: bool) -> None:
        """Kills the pool's server and removes the mount; with `check`, checks the pool then."""
        self.pool.crash()
        self.pool.detach()
        if check:
            self.pool.check()

    def _require(self, promised: set[int]) -> None:
        rows = verify.rows(self.server, "lab")
        found = {number for number, _ in rows}
        assert len(found) == len(rows), "the same id is there twice"
        assert found == set(range(1, len(found) + 1)), "a row is missing before one that is there"
        wrong = [number for number, text in rows if text != load.payload(number)]
        assert not wrong, f"{len(wrong)} rows hold something else than was written, among them {wrong[:5]}"
        lost = sorted(promised - found)
        if not self.side.unsafe:
            assert not lost, f"{len(lost)} of {len(promised)} acknowledged transactions are lost, among them {lost[:5]}"

    def _crash_in_recovery(self) -> None:
        """Mounts the state with a recording, lets the database begin to recover, and puts a crash state of that in its
        place."""
        base = self.run.fresh("recovering")
        copy_sparse(self.pool.device, base)
        path = self._mount_recorded()
        self.server.launch()
        time.sleep(self.draw.uniform(0.0, 0.7))
        self.pool.crash()
        self.server.kill()
        self.pool.detach()
        recording = Recording(path)
        if recording.events:
            states = States(recording, base)
            states.advance(self.draw.randrange(len(recording.events)) + 1)
            states.make(self.pool.device, self.draw.choice(KINDS), self.draw)
            self.pool.go_back()
        recording.close()
        path.unlink()
        base.unlink()

    def _mount_recorded(self) -> Path:
        path = self.run.fresh("recording")
        self.pool.mount_options = [f"record={path}"]
        try:
            self._mount()
        finally:
            self.pool.mount_options = []
        return path

    def _mount(self) -> None:
        Pool._start(self.pool)
        # The process id in the file may belong to another process by now.
        (self.server.data / "postmaster.pid").unlink(missing_ok=True)

def positions(recording: Recording, count: int, draw: random.Random) -> list[int]:
    """Returns the moments at which to crash, ascending."""
    return sorted(draw.randrange(1, len(recording.events) + 1) for _ in range(count))


def replay(database: str, states: int, *, seed: int | None, fsync: bool, keep_logs: Path) -> int:
    """Makes and verifies `states` states; returns an exit status. The first that fails ends the run, and its image is
    kept."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    draw = random.Random(seed)
    told = f"{database}{'' if fsync else ' with fsync=off'}"
    print(f"replay: {states} crash states of {told}, seed {seed}; logs in {keep_logs}", flush=True)
    require_room(1 << 30)
    began, done, kinds, asked = time.monotonic(), 0, Counter(), 0
    try:
        while done < states:
            count = min(states - done, RECORDING_STATES)
            with Run("replay", keep_logs=keep_logs) as run:
                for kind, promised in _of_one_recording(run, database, fsync, draw, count, keep_logs):
                    done, asked = done + 1, asked + promised
                    kinds[kind] += 1
            print(f"replay: {done} of {states} states recovered, {time.monotonic() - began:.0f} s", flush=True)
    except Exception as e:  # whatever failed, the state and the seed belong to the report
        print(f"replay: state {done + 1} of {states} ({told}, seed {seed}) FAILED: {e}", flush=True)
    told_kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    print(f"replay: {told}: {told_kinds}; {asked} acknowledged transactions were asked for and found", flush=True)
    print(f"{done} passed, {1 if done < states else 0} failed", flush=True)
    return 0 if done == states else 1


def _of_one_recording(run: Run, database: str, fsync: bool, draw: random.Random, count: int, keep: Path):
    this = Replay(run, database, fsync, draw)
    recording = this.record()
    states = States(recording, this.base)
    told = f"{len(recording.events)} events, {len(this.acknowledged_ns)} transactions acknowledged"
    print(f"replay: recorded {told}", flush=True)
    for number, position in enumerate(positions(recording, count, draw)):
        kind = draw.choice(KINDS)
        try:
            promised = this.state(states, recording, position, kind)
            this.end_state(check=number % CHECK_EVERY == CHECK_EVERY - 1 or number == count - 1)
        except Exception as e:
            shutil.move(this.image, run.logs / "failed.image")
            raise RuntimeError(f"after {position} events, {kind}: {e}\n(the state is {keep / 'failed.image'})") from e
        yield kind, promised
    recording.close()
