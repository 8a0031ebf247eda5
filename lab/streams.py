"""`lab streams`: sends a PostgreSQL database from one pool into another, as a whole and incrementally, with kills and
resumes. The copy must be the same file by file, and PostgreSQL must start on it. In the same run it measures the cost
of `pg_basebackup`.

The victim is drawn by lot: the sender, the receiver, or the server of either pool. The programs that are left have to
end with an error of their own, and the receiver's pool has to know how to resume.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import load, proc, verify
from .ledger import Run
from .paths import pagefold, require_room
from .pool import Pool
from .postgres import USER, Postgres
from .snapshots import Mounted, listed

POOL_BYTES = 24 << 30
"""Bytes of each of the sparse files in which the pools lie."""
CLUSTER_BYTES_PER_SCALE = 16 << 20
PUMP_BYTES = 64 << 10
LOAD_S = 5.0
"""Seconds for which pgbench changes the database between the two snapshots."""
VICTIMS = ("sender", "receiver", "source's server", "target's server")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process and its descendants, those that have ended included."""
    ticks = 0
    for one in [pid, *proc.descendants(pid)]:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS_PER_S


@dataclass
class Cost:
    """Cost of a transfer."""

    stream_bytes: int
    """Bytes of output."""
    cpu_s: float
    """CPU seconds of all processes that took part."""
    file_system_cpu_s: float
    """CPU seconds of the server of the file system below, if it is another process."""
    elapsed_s: float

    def per_gb(self, of_bytes: int) -> float:
        """Returns CPU seconds per GB of database."""
        return self.cpu_s / (of_bytes / 1e9)

    def line(self, what: str, of_bytes: int) -> str:
        """Returns the cost in words."""
        below = f", and {self.file_system_cpu_s:.2f} s of the file system" if self.file_system_cpu_s else ""
        return (
            f"streams: {what}: {self.stream_bytes / 1e6:.1f} MB in {self.elapsed_s:.1f} s, {self.cpu_s:.2f} s of CPU"
            f" ({self.per_gb(of_bytes):.2f} s per GB of database){below}"
        )


def measured(argv: list, servers: list[int], below: int | None = None, *, env: dict | None = None, user: str | None = None) -> Cost:
    """Runs a command, and counts its output and throws it away. The cost has its own CPU time and that of the servers
    that work for it."""
    before, below_before = sum(map(cpu_s, servers)), cpu_s(below) if below else 0.0
    children, began, size = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    with subprocess.Popen(
        [os.fspath(a) for a in argv], stdout=subprocess.PIPE, cwd="/", env=environment, **proc.as_user(user)
    ) as process:
        while piece := process.stdout.read(1 << 20):
            size += len(piece)
    if process.returncode != 0:
        raise RuntimeError(f"`{argv[0]}` failed with status {process.returncode}")
    elapsed, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = used.ru_utime + used.ru_stime - children.ru_utime - children.ru_stime
    there = sum(map(cpu_s, servers)) - before
    return Cost(size, own + there, (cpu_s(below) - below_before) if below else 0.0, elapsed)


class Transfer:
    """A transfer of a database's snapshots from one pool into another."""

    def __init__(self, source: Pool, target: Pool, moments: random.Random, tell):
        self.source, self.target, self.moments, self.tell = source, target, moments, tell
        self.name, self.copy = f"{source.pool}/db", f"{target.pool}/db"
        self.kills = 0

    def token(self) -> str | None:
        """Returns the token to resume with, if a part was received."""
        told = json.loads(self.target.pagefold("list", "-t", "partial", "--json", self.target.pool))["partials"]
        return next((p["receive_resume_token"] for p in told if p["name"] == self.copy), None)

    def _spawn(self, pool: Pool, words: list[str], **pipes) -> subprocess.Popen:
        # Both pools have the same folders, which are those of the run.
        environment = {**os.environ, **pool.environment, "LC_ALL": "C.UTF-8"}
        return subprocess.Popen([pagefold(), *words], cwd="/", env=environment, stderr=subprocess.PIPE, **pipes)

    def attempt(self, words: list[str], victim: str | None, after_bytes: int) -> bool:
        """Sends the stream of `words`, and kills the victim after `after_bytes` bytes. Returns true if the stream
        arrived."""
        sender = self._spawn(self.source, ["send", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        receiver = self._spawn(self.target, ["receive", self.copy], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        moved, killed = 0, False
        while piece := sender.stdout.read(PUMP_BYTES):
            try:
                receiver.stdin.write(piece)
                receiver.stdin.flush()
            except BrokenPipeError:
                break
            moved += len(piece)
            if victim is not None and not killed and moved >= after_bytes:
                killed = True
                self._kill(victim, sender, receiver)
        sender.stdout.close()
        try:
            receiver.stdin.close()
        except BrokenPipeError:
            pass
        said = {name: (p.stderr.read().decode(errors="replace"), p.wait(120)) for name, p in (("sender", sender), ("receiver", receiver))}
        if killed:
            self.kills += 1
            self._require_clean(victim, said)
            if victim.endswith("server"):
                (self.source if victim.startswith("source") else self.target).recover()
        elif any(status for _, status in said.values()):
            raise RuntimeError(f"nobody was killed, and it failed: {said}")
        return said["receiver"][1] == 0

    def _kill(self, victim: str, sender: subprocess.Popen, receiver: subprocess.Popen) -> None:
        match victim:
            case "sender":
                sender.kill()
            case "receiver":
                receiver.kill()
            case "source's server":
                self.source.crash()
            case _:
                self.target.crash()

    def _require_clean(self, victim: str, said: dict) -> None:
        """Verifies that each process that was not killed ended well, or with an error of ours that tells what to do."""
        for name, (text, status) in said.items():
            if name == victim:
                continue
            assert status in (0, 1), f"after the {victim} was killed, the {name} ended with {status}: {text}"
            assert status == 0 or text.startswith("pagefold: "), f"after the {victim} was killed, the {name} said: {text}"
            assert "panicked" not in text, text

    def send(self, snapshot: str, base: str | None, kills: int, about_bytes: int) -> None:
        """Transfers a snapshot, with `kills` kills on the way."""
        whole = ["-i", base, f"{self.name}@{snapshot}"] if base else [f"{self.name}@{snapshot}"]
        left, arrived, began = kills, False, time.monotonic()
        while not arrived:
            token = self.token()
            victim, after = None, 0
            if left > 0:
                left -= 1
                victim = self.moments.choice(VICTIMS)
                # The kill comes early enough that something is left for later ones.
                after = int(self.moments.uniform(0.0, 1.5) * about_bytes / (kills + 1))
            arrived = self.attempt(["--resume", token, self.source.pool] if token else whole, victim, after)
            if victim is not None:
                self.tell(f"streams: @{snapshot}: the {victim} killed after {after / 1e6:.1f} MB; " + ("it had all" if arrived else "went on"))
        assert self.token() is None
        self.tell(f"streams: @{snapshot} arrived after {kills - left} kills, {time.monotonic() - began:.0f} s")


def database(pool: Pool, scale: int) -> tuple[Mounted, Postgres]:
    """Makes a running cluster with pgbench's tables on a dataset of its own."""
    dataset = Mounted(pool, "db")
    pool.pagefold("dataset", "create", dataset.name)
    dataset.mount()
    settings = {"full_page_writes": "off", "max_wal_size": "512MB"}
    server = Postgres(pool.run, dataset.folder("data", USER), settings=settings, name="source")
    server.initdb()
    server.start()
    server.createdb("lab")
    server.sql("CREATE EXTENSION amcheck", database="lab")
    proc.run(server.client("pgbench", "-i", "-q", "-s", str(scale), database="lab"), timeout_s=1800)
    server.sql("CHECKPOINT")
    return dataset, server


def figures(source: Pool, server: Postgres, cluster_bytes: int, tell) -> None:
    """Measures the CPU time of `send`, whole and incremental, and of pg_basebackup with zstd at the client, from the
    same mount."""
    pid = source.server_pid()
    send = [pagefold(), "send"]
    whole = measured([*send, f"{source.pool}/db@one"], [pid], env=source.environment)
    changed = measured([*send, "-i", "one", f"{source.pool}/db@two"], [pid], env=source.environment)
    server.start()
    options = ["--pgdata=-", "--format=tar", "--wal-method=fetch", "--checkpoint=fast", "--compress=client-zstd:3", "--no-manifest"]
    argv = server.client("pg_basebackup", *options, database=None)
    backup = measured(argv, [server.server.pid], below=pid, user=USER)
    server.stop()
    tell(whole.line("send, all", cluster_bytes))
    tell(changed.line("send, what changed", cluster_bytes))
    tell(backup.line("pg_basebackup, client-side zstd-3", cluster_bytes))
    tell(f"streams: send takes {whole.cpu_s / backup.cpu_s:.3f} of pg_basebackup's CPU (at most 0.1 is wanted)")


def verify_copy(transfer: Transfer, snapshot: str) -> str:
    """Verifies that the copy is the same, file by file, and that PostgreSQL recovers on a clone of it, with all that
    must hold. Returns a line about it."""
    source, target = Mounted(transfer.source, f"db@{snapshot}"), Mounted(transfer.target, f"clone-{snapshot}")
    target.pool.pagefold("clone", f"{transfer.copy}@{snapshot}", target.name)
    source.mount()
    target.mount()
    proc.run(["diff", "--recursive", "--no-dereference", source.mountpoint, target.mountpoint], timeout_s=1200)
    source.unmount()
    (target.mountpoint / "data" / "postmaster.pid").unlink(missing_ok=True)
    server = Postgres(target.pool.run, target.mountpoint / "data", settings={"full_page_writes": "off"}, name=f"copy-{snapshot}")
    server.start()
    history = verify.pgbench_balances(server, "lab")
    server.amcheck("lab")
    server.stop()
    server.verify_checksums()
    verify.no_torn_pages(server.log)
    target.unmount()
    target.pool.pagefold("destroy", target.name)
    return f"the same file by file; recovered, {history} transactions, amcheck and checksums clean"


def campaign(run: Run, scale: int, rounds: int, moments: random.Random, *, compression: str = "zstd", tell=print) -> None:
    """Runs the whole campaign."""
    with Pool(run, POOL_BYTES, compression=compression) as source, Pool(run, POOL_BYTES, compression=compression) as target:
        dataset, server = database(source, scale)
        work = load.pgbench_load(server, "lab")
        time.sleep(LOAD_S / 2)
        source.pagefold("snapshot", f"{dataset.name}@one")
        time.sleep(LOAD_S)
        source.pagefold("snapshot", f"{dataset.name}@two")
        work.require_running()
        work.stop()
        cluster_bytes = int(server.sql("SELECT sum(pg_database_size(oid)) FROM pg_database"))
        server.stop()
        source.pagefold("sync", source.pool)
        tell(f"streams: a cluster of {cluster_bytes / 1e9:.2f} GB, {source.name}")
        figures(source, server, cluster_bytes, tell)
        dataset.unmount()
        transfer = Transfer(source, target, moments, tell)
        sizes = [
            json.loads(source.pagefold("send", "-n", "--json", *words))["expected_bytes"]
            for words in ([f"{dataset.name}@one"], ["-i", "one", f"{dataset.name}@two"])
        ]
        of_changes = rounds // 3
        transfer.send("one", None, rounds - of_changes, sizes[0])
        tell(f"streams: @one: {verify_copy(transfer, 'one')}")
        transfer.send("two", "one", of_changes, sizes[1])
        tell(f"streams: @two: {verify_copy(transfer, 'two')}")
        assert transfer.kills >= rounds * 3 // 4, f"only {transfer.kills} of {rounds} kills came before the end"
        assert [s["name"] for s in listed(target, "snapshot")] == [f"{transfer.copy}@one", f"{transfer.copy}@two"]
        for pool in (source, target):
            pool.unmount()
            pool.check()


def streams(scale: int, rounds: int, *, seed: int | None, compression: str, keep_logs: Path) -> int:
    """Runs the campaign; returns an exit status."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"streams: scale {scale}, {rounds} kills, seed {seed} (repeat with SEED={seed}); logs in {keep_logs}", flush=True)
    require_room(2 * scale * CLUSTER_BYTES_PER_SCALE + (1 << 30))
    began = time.monotonic()
    with Run("streams", keep_logs=keep_logs) as run:
        campaign(
            run, scale, rounds, random.Random(seed), compression=compression, tell=lambda line: print(line, flush=True)
        )
    print(f"streams: all passed, seed {seed}, {time.monotonic() - began:.0f} s")
    return 0
