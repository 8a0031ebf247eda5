"""`lab takeover`: kills the file system's server under load, again and again, and verifies that no client notices.

From the first kill to the last there run: PostgreSQL under pgbench, a client that records acknowledged rows, fio, which
verifies what it wrote, and a probe that measures the time of one small write and read. Since they live on while the
server dies, all that they wrote must be there, synced or not.
"""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

from . import load, proc, verify
from .ledger import Run
from .load import Load
from .paths import require_room, tool
from .pool import Pool
from .postgres import USER as POSTGRES
from .postgres import Postgres

POOL_BYTES = 4 << 30
PGBENCH_SCALE = 5
OPTIONS = "takeover=on"
PATIENCE_S = 30
"""Seconds within which another server must go on."""
SERVED_S = 1.1
"""Seconds that a server runs before it is killed. One that ends earlier looks to its supervisor like one that cannot run,
and after five such servers in a row the supervisor gives up."""


class Probe:
    """Makes one small write and read after the other, and compares each; the longest tells the time that clients had to
    wait."""

    def __init__(self, path: Path):
        self.path, self.longest_s, self.count = path, 0.0, 0
        self.error: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._stopping:
                began = time.monotonic()
                data = self.count.to_bytes(8, "little") * 64
                new = self.path.with_suffix(".new")
                new.write_bytes(data)
                new.rename(self.path)
                if self.path.read_bytes() != data:
                    raise AssertionError(f"write {self.count} of the probe is not there")
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.count += 1
                time.sleep(0.002)
        except BaseException as e:
            self.error = e

    def check(self) -> None:
        """Raises the error that the probe met, if it met one."""
        if self.error is not None:
            raise RuntimeError(f"the probe met an error after {self.count} writes: {self.error}") from self.error

    def stop(self) -> None:
        """Ends it."""
        self._stopping = True
        self._thread.join(PATIENCE_S)
        self.check()


def fio_load(run: Run, folder: Path) -> Load:
    """Starts fio, which writes, reads and compares without end."""
    job = ["--name=verify", f"--directory={folder}", "--rw=randwrite", "--bs=8k", "--size=48m", "--ioengine=libaio"]
    job += ["--iodepth=8", "--numjobs=2", "--direct=1", "--verify=crc32c", "--verify_backlog=256", "--verify_fatal=1"]
    job += ["--time_based", "--runtime=86400", "--continue_on_error=none"]
    return Load(run, [tool("fio"), *job], run.logs / "fio.log")


def kill(pool: Pool) -> int:
    """Kills the server, waits until another goes on, and returns the milliseconds in which no server answered."""
    before = pool.figures("status")
    os.kill(int(before["pid"]), 9)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            now = pool.figures("status")["takeover"]
        except (proc.CommandFailed, KeyError):
            now = None
        if now and now["restarts"] > before["takeover"]["restarts"] and now["last_stall_ms"] is not None:
            return int(now["last_stall_ms"])
        time.sleep(0.02)
    raise RuntimeError(f"no other server goes on {PATIENCE_S} s after the death of process {before['pid']}")


def campaign(run: Run, rounds: int, moments: random.Random) -> str:
    """Kills the server `rounds` times under load; returns a line about it."""
    with Pool(run, POOL_BYTES, options=OPTIONS) as pool:
        settings = {"checkpoint_timeout": "30s", "max_wal_size": "256MB"}
        server = Postgres(run, pool.folder("pg", POSTGRES), settings=settings)
        load.prepare_pgbench(server, "lab", PGBENCH_SCALE)
        record = run.dir / "acknowledged"
        client = load.acknowledged(server, "lab", record, 1)
        loads = [load.pgbench_load(server, "lab"), fio_load(run, pool.folder("fio", "root"))]
        probe = Probe(pool.folder("probe", "root") / "file")
        client.wait_for(20)
        stalls: list[int] = []
        for number in range(rounds):
            time.sleep(SERVED_S + moments.uniform(0.0, 1.5))
            acknowledged = client.count
            stalls.append(kill(pool))
            for one in loads:
                one.require_running()
            probe.check()
            client.wait_for(acknowledged + 1)
            print(f"takeover {number + 1}: nobody answered for {stalls[-1]} ms", flush=True)
        probe.stop()
        for one in loads:
            one.stop()
        client.stop()
        no_errors(run.logs)
        rows = verify.acknowledged_rows(server, "lab", record)
        history = verify.pgbench_balances(server, "lab")
        verify.postgres_healthy(server, "lab")
        no_errors(run.logs)
        server.stop()
        pool.unmount()
        pool.check()
        return (
            f"{rounds} kills, no client saw an error; nobody answered for {max(stalls)} ms at most, "
            f"{sorted(stalls)[len(stalls) // 2]} ms in the middle; the probe ({probe.count} writes) waited "
            f"{1000 * probe.longest_s:.0f} ms at most; {rows} acknowledged rows, {history} pgbench transactions"
        )


def no_errors(logs: Path) -> None:
    """Verifies that no log of a database, a client or fio tells of an error of the file system."""
    for log in sorted(logs.glob("*.log")):
        text = log.read_text(errors="replace")
        for word in ("PANIC", "aborted in command", "Input/output error", "Transport endpoint", "verify: bad", "err= "):
            if word in text:
                raise AssertionError(f"{log.name} has {word!r}:\n{proc.tail(log)}")


def takeover(rounds: int, *, seed: int | None, keep_logs: Path) -> int:
    """Runs the campaign; returns an exit status."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"takeover: {rounds} rounds, seed {seed} (repeat with SEED={seed}); logs in {keep_logs}", flush=True)
    require_room(2 << 30)
    with Run("takeover", keep_logs=keep_logs) as run:
        print(f"takeover: {campaign(run, rounds, random.Random(seed))}", flush=True)
    return 0
