"""Branches of real databases: runs `pagefold branch` as people do, and verifies the branches.

`lab branches` makes a database of pgbench, a branch of it that is timed, and then many branches at once, which all answer and write.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from . import load, proc, verify
from .ledger import Run
from .paths import pagefold, postgres_bin, require_room, tool
from .pool import Pool
from .postgres import USER as POSTGRES
from .postgres import Postgres
from .snapshots import Mounted, wait_until_freed

BYTES_PER_SCALE = 15 << 20
"""Bytes of a database of pgbench per unit of scale."""
POOL_BYTES = 24 << 30
"""Bytes of the sparse file in which the pool lies."""
WRITES_PER_BRANCH = 200
"""Number of pgbench's transactions on each branch."""
FULL_EVERY = 25
"""One branch in this many has all of its accounts summed up."""
DATABASE = "lab"


class Branches:
    """The branches of a pool. The run deletes those that a failure leaves."""

    def __init__(self, pool: Pool):
        self.pool = pool

    def create(self, source: str, name: str, *options: str | Path) -> dict:
        """Runs `branch create`; returns its JSON about the branch."""
        dataset = f"{self.pool.pool}/{name}"
        argv = [pagefold(), "branch", "delete", "-r", dataset]
        # The command needs the laboratory's folders, which the ledger does not know.
        self.pool.run.command("env", *[f"{k}={v}" for k, v in self.pool.environment.items()], *argv)
        return json.loads(self.pool.pagefold("branch", "create", source, name, *options, "--json", timeout_s=600))

    def verb(self, verb: str, name: str, *options: str) -> str:
        """Runs another verb on the branch of this name."""
        return self.pool.pagefold("branch", verb, *options, f"{self.pool.pool}/{name}", timeout_s=600)

    def list(self) -> dict[str, dict]:
        """Returns all branches by name, without the pool's part of the name."""
        told = json.loads(self.pool.pagefold("branch", "list", "--json", self.pool.pool))["branches"]
        return {branch["name"].partition("/")[2]: branch for branch in told}

    def names(self, kind: str) -> list[str]:
        """Returns the names of datasets or snapshots."""
        told = json.loads(self.pool.pagefold("list", "-t", kind, "--json", self.pool.pool))["datasets"]
        return [one["name"] for one in told]


def psql(branch: dict, query: str, *, database: str = DATABASE) -> str:
    """Runs SQL on a branch, over TCP as its connection string says."""
    where = branch["connection"].replace("//", f"//{POSTGRES}@").rpartition("/")[0]
    argv = [postgres_bin("psql"), "-qAtX", "-v", "ON_ERROR_STOP=1", f"{where}/{database}"]
    return proc.run(argv, input=query).strip()


def maria(branch: dict, query: str, *, database: str = DATABASE) -> str:
    """Runs SQL on a branch, through its socket."""
    argv = [tool("mariadb"), "--no-defaults", f"--socket={branch['socket']}", "--user=root", "--batch", "--skip-column-names"]
    return proc.run([*argv, database], input=query).strip()


class At:
    """A branch that takes the place of a server in calls of `lab.verify`."""

    def __init__(self, branch: dict, separator: str, ask):
        self.branch, self.separator, self.ask = branch, separator, ask

    def sql(self, query: str, *, database: str = DATABASE) -> str:
        """Runs SQL and returns its rows."""
        return self.ask(self.branch, query, database=database)


def amcheck(branch: dict) -> None:
    """Runs amcheck on all tables and B-tree indexes; raises if it finds anything."""
    where = ["--host=localhost", f"--port={branch['port']}", f"--username={POSTGRES}"]
    options = ["--install-missing", "--parent-check", "--heapallindexed"]
    proc.run([postgres_bin("pg_amcheck"), *where, *options, DATABASE], timeout_s=1200)


def cluster(pool: Pool, scale: int, settings: dict[str, str] | None = None) -> tuple[Mounted, Postgres]:
    """Makes a running cluster with pgbench's tables and the acknowledgement table, on a dataset of its own."""
    dataset = Mounted(pool, "prod")
    pool.pagefold("dataset", "create", dataset.name)
    dataset.mount()
    ours = {"full_page_writes": "off", "max_wal_size": "2GB", "checkpoint_timeout": "300s", **(settings or {})}
    server = Postgres(pool.run, dataset.folder("data", POSTGRES), settings=ours, name="prod")
    load.prepare_pgbench(server, DATABASE, scale)
    return dataset, server


def branch_under_load(pool: Pool, branches: Branches, server: Postgres, dataset: Mounted, rounds: int, tell) -> None:
    """Makes branches one after the other under load, and tells the time until each answers. The longer ago production's
    last checkpoint was, the more log a branch has to recover, so every third round begins with one."""
    work = load.pgbench_load(server, DATABASE)
    try:
        for number in range(rounds):
            if number % 3 == 0:
                server.sql("CHECKPOINT")
            time.sleep(2)
            log = server.sql("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), redo_lsn)::bigint FROM pg_control_checkpoint()")
            name, mark = f"timed-{number}", time.monotonic()
            branches.create(dataset.name, name)
            made = time.monotonic()
            told = json.loads(branches.verb("start", name, "--json"))
            began, answers = time.monotonic(), psql(told, "SELECT count(*) FROM pgbench_branches")
            assert int(answers) > 0
            work.require_running()
            tell(
                f"branches: under load, {int(log) / 1e6:.0f} MB of log to recover: snapshot, clone, mount and LSN {made - mark:.2f} s, PostgreSQL until it answers "
                f"{began - made:.2f} s, first query {time.monotonic() - began:.2f} s: {time.monotonic() - mark:.2f} s in all; LSN {told['lsn']}"
            )
            balances(told)
            branches.verb("delete", name)
    finally:
        work.stop()


def balances(branch: dict) -> int:
    """Verifies TPC-B's invariant without the accounts, which are most of the database; returns the number of
    transactions in the history."""
    query = """
        SELECT (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT sum(bbalance) FROM pgbench_branches),
               (SELECT coalesce(sum(delta), 0) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)"""
    *sums, count = map(int, psql(branch, query).split("|"))
    assert len(set(sums)) == 1, f"tellers, branches, history add up to {sums}"
    return count


def memory_bytes(pids: list[int]) -> int:
    """Returns the proportional memory (Pss) of processes and their descendants, in bytes."""
    total = 0
    for pid in pids:
        for one in [pid, *proc.descendants(pid)]:
            try:
                found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{one}/smaps_rollup").read_text(), re.M)
            except OSError:
                continue
            total += int(found.group(1)) << 10 if found else 0
    return total


def many_at_once(pool: Pool, branches: Branches, server: Postgres, dataset: Mounted, count: int, tell) -> None:
    """Runs `count` branches at once: each answers, writes, and has what it wrote, and the space in use grows with the
    changes."""
    history = int(server.sql("SELECT count(*) FROM pgbench_history", database=DATABASE))
    began = time.monotonic()
    names = [f"many-{number}" for number in range(count)]
    told = [branches.create(dataset.name, name, "--start", "--set", "shared_buffers=8MB") for name in names]
    took = time.monotonic() - began
    pool.pagefold("sync", pool.pool)
    idle, before = branches.list(), pool.used_bytes()
    assert len({branch["port"] for branch in told}) == count
    began = time.monotonic()
    for number, branch in enumerate(told):
        where = ["--host=localhost", f"--port={branch['port']}", f"--username={POSTGRES}"]
        proc.run([postgres_bin("pgbench"), *where, "-n", "-c", "1", "-t", str(WRITES_PER_BRANCH), DATABASE])
        psql(branch, f"CREATE TABLE mine AS SELECT {number} AS branch; CHECKPOINT")
    wrote = time.monotonic() - began
    after, listed = pool.used_bytes(), branches.list()
    for number, (name, branch) in enumerate(zip(names, told, strict=True)):
        assert listed[name]["state"] == "running"
        assert psql(branch, "SELECT branch FROM mine") == str(number)
        assert balances(branch) == history + WRITES_PER_BRANCH
        if number % FULL_EVERY == 0:
            verify.pgbench_balances(At(branch, "|", psql), DATABASE)
    unique, at_first = (sorted(those[name]["used_bytes"] for name in names) for those in (listed, idle))
    memory = memory_bytes([listed[name]["pid"] for name in names])
    tell(
        f"branches: {count} at once: made, started and answering in {took:.1f} s ({took / count:.2f} s each), "
        f"USED {at_first[0] / 1e6:.2f} to {at_first[-1] / 1e6:.2f} MB each; "
        f"after {WRITES_PER_BRANCH} transactions and a checkpoint on each ({wrote:.1f} s) {(after - before) / count / 1e6:.2f} MB more of the pool each "
        f"(USED {unique[0] / 1e6:.2f} to {unique[-1] / 1e6:.2f} MB); memory of all servers {memory / 1e6:.0f} MB"
    )
    began = time.monotonic()
    for name in names:
        branches.verb("delete", name)
    tell(f"branches: {count} deleted in {time.monotonic() - began:.1f} s")
    wait_until_freed(pool)


def branches(scale: int, count: int, *, keep_logs: Path) -> int:
    """Runs the campaign; returns an exit status."""
    require_room(scale * BYTES_PER_SCALE * 2 + (4 << 30))
    began = time.monotonic()

    def tell(line: str) -> None:
        print(line, flush=True)

    with Run("branches", keep_logs=keep_logs) as run, Pool(run, POOL_BYTES) as pool:
        dataset, server = cluster(pool, scale)
        server.sql("CHECKPOINT")
        size = int(server.sql(f"SELECT pg_database_size('{DATABASE}')"))
        used = pool.used_bytes()
        tell(f"branches: a database of {size / 1e9:.2f} GB (scale {scale}), {used / 1e9:.2f} GB stored, {pool.name}")
        made = Branches(pool)
        branch_under_load(pool, made, server, dataset, 6, tell)
        server.sql("CHECKPOINT")
        many_at_once(pool, made, server, dataset, count, tell)
        verify.pgbench_balances(server, DATABASE)
        assert made.names("snapshot") == [], made.names("snapshot")
        server.stop()
        dataset.unmount()
        pool.unmount()
        pool.check()
    print(f"branches: all passed, {time.monotonic() - began:.0f} s")
    return 0
