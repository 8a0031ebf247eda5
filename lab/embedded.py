"""`lab embedded`: databases that are libraries, all at once on one pool, while the file system's server is killed.

In a round of the first kind the writers die with the server; then each database has every row that was acknowledged. One
that calls no fsync is whole, and has all rows up to some row. In a round of the second kind another server goes on, no
writer may notice, and no row may be missing.
"""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

from . import proc, verify
from .embedded_writer import ENGINES
from .ledger import Run
from .paths import ROOT, require_room, tool_program
from .pool import Pool
from .takeover import SERVED_S, kill

POOL_BYTES = 4 << 30
AT_LEAST = 20
"""Rows that each writer has acknowledged before a server is killed."""
PATIENCE_S = 120
KILLS = 3
"""Kills of a round in which another server goes on."""


class Writer:
    """A process that puts rows into a database."""

    def __init__(self, run: Run, engine: str, where: Path):
        self.run, self.engine, self.folder = run, engine, where / engine
        self.record, self.log = run.dir / f"acknowledged-{engine}", run.logs / f"{engine}.log"
        self.record.touch()
        self.first = 0

    def start(self) -> None:
        """Goes on behind the rows that are there."""
        with open(self.record, "ab") as sink:
            self.process = proc.spawn(self._argv(str(self.first)), log=self.log, stdout=sink, cwd=ROOT)
        self.entry = self.run.process(self.process.pid, self.engine)
        self.before = len(self.numbers())

    def _argv(self, what: str) -> list:
        return [tool_program("embedded"), "-m", "lab.embedded_writer", self.engine, self.folder, what]

    def numbers(self) -> list[int]:
        """Returns the rows that were acknowledged."""
        return [int(line) for line in self.record.read_text().split()]

    def wait(self) -> None:
        """Waits until it has put some rows since it was started."""
        deadline = time.monotonic() + PATIENCE_S
        while len(self.numbers()) < self.before + AT_LEAST:
            self.require_running()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.engine} puts no {AT_LEAST} rows within {PATIENCE_S} s")
            time.sleep(0.02)

    def require_running(self) -> None:
        """Raises if it has ended by itself."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the writer of {self.engine} ended by itself; its log ends:\n{proc.tail(self.log)}")

    def stop(self) -> None:
        """Kills it."""
        proc.kill_tree(self.process.pid, proc.start_time(self.process.pid))
        self.process.wait(30)
        self.run.done(self.entry)

    def verify(self, died: bool) -> int:
        """Verifies that the database has every acknowledged row, or may miss the last ones; returns their number."""
        done = subprocess.run(self._argv("rows"), cwd=ROOT, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise AssertionError(f"{self.engine} cannot be read: {done.stderr.strip()[-2000:]}")
        fields = [line.partition(" ") for line in done.stdout.splitlines()]
        rows = [(int(number), text) for number, _, text in fields]
        there = sorted(number for number, _ in rows)
        assert there == list(range(len(rows))), f"{self.engine} misses rows before its last one"
        if died and self.engine.endswith("-unsynced"):
            kept = [number for number in self.numbers() if number < len(rows)]
            self.record.write_text("".join(f"{number}\n" for number in kept))
        self.first = len(rows)
        return verify.acknowledged(rows, self.record)


def campaign(run: Run, rounds: int, moments: random.Random) -> None:
    """Runs rounds of both kinds by turns, and prints a line about each."""
    tool_program("embedded")
    with Pool(run, POOL_BYTES, compression="auto") as pool:
        writers = [Writer(run, engine, pool.mountpoint) for engine in ENGINES]
        for number in range(rounds):
            goes_on = number % 2 == 1
            pool.unmount()
            pool.check()
            pool.options = "takeover=on" if goes_on else "takeover=off"
            pool.mount()
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.wait()
            if goes_on:
                stalls = [_killed_unnoticed(pool, writers, moments) for _ in range(KILLS)]
                how = f"another server went on, after {', '.join(map(str, stalls))} ms"
            else:
                time.sleep(moments.uniform(0.2, 5.0))
                pool.crash()
                how = "the writers died with the server"
            for writer in writers:
                writer.stop()
            if not goes_on:
                pool.recover()
            for engine in ("lmdb", "lmdb-mapped", "lmdb-unsynced"):
                found = pool.recordsize(pool.mountpoint / engine / "data.mdb")
                assert found == 4096, f"the pages of {engine} have 4096 bytes, the recordsize is {found}"
            told = ", ".join(f"{writer.engine} {writer.verify(died=not goes_on)}" for writer in writers)
            print(f"embedded: round {number + 1:>3} of {rounds}  {how}; acknowledged and there: {told}", flush=True)


def _killed_unnoticed(pool: Pool, writers: list[Writer], moments: random.Random) -> int:
    time.sleep(SERVED_S + moments.uniform(0.0, 1.5))
    stall_ms = kill(pool)
    for writer in writers:
        writer.before = len(writer.numbers())
    for writer in writers:
        writer.wait()
    return stall_ms


def embedded(rounds: int, *, seed: int | None, keep_logs: Path) -> int:
    """Runs the campaign; returns an exit status."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"embedded: {rounds} rounds, seed {seed} (repeat with SEED={seed}); logs in {keep_logs}", flush=True)
    require_room(3 << 30)
    with Run("embedded", keep_logs=keep_logs) as run:
        campaign(run, rounds, random.Random(seed))
    print(f"{rounds} passed", flush=True)
    return 0
