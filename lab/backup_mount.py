"""`lab backup-mount`: runs a PostgreSQL on a backup in a bucket that is 20 ms away. Measures when it answers, how much
was read by then, how fast the rest comes, and how fast a restore of the same backup is.

The store is versitygw (`go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`), behind a proxy that delays each
piece of a request.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

from . import load, proc
from .ledger import Run
from .paths import pagefold, require_room, tool
from .pool import Pool
from .postgres import Postgres

POOL_BYTES = 40 << 30
"""Bytes of the sparse file in which the pool lies."""
BYTES_PER_SCALE = 15 << 20
PIECE_BYTES = 256 << 10
KEYS = {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "password", "AWS_REGION": "us-east-1"}


class Delay:
    """A port on this machine that leads to another one. Bytes from a client arrive `seconds` later, answers at once."""

    def __init__(self, to: int, seconds: float):
        self.to, self.seconds = to, seconds
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.to))
            for here, there, delay in ((client, server, self.seconds), (server, client, 0.0)):
                threading.Thread(target=self._pump, args=(here, there, delay), daemon=True).start()

    def _pump(self, here: socket.socket, there: socket.socket, delay: float) -> None:
        try:
            while piece := here.recv(PIECE_BYTES):
                time.sleep(delay)
                there.sendall(piece)
            there.shutdown(socket.SHUT_WR)
        except OSError:
            here.close()
            there.close()


class Gateway:
    """versitygw over a directory."""

    def __init__(self, run: Run):
        folder = run.fresh("bucket")
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        keys = [f"ROOT_ACCESS_KEY={KEYS['AWS_ACCESS_KEY_ID']}", f"ROOT_SECRET_KEY={KEYS['AWS_SECRET_ACCESS_KEY']}"]
        program = os.environ.get("VERSITYGW") or tool("versitygw")
        argv = ["env", *keys, program, "--port", f"127.0.0.1:{self.port}", "posix", folder]
        self.process = proc.spawn(argv, log=run.logs / "versitygw.log")
        run.process(self.process.pid, "versitygw")
        (folder / "backups").mkdir()
        deadline = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5)
            except urllib.error.HTTPError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


class Campaign:
    def __init__(self, run: Run, pool: Pool, port: int):
        self.run, self.pool = run, pool
        self.access = ["--endpoint", f"http://127.0.0.1:{port}", "--key-file", run.fresh("key")]
        self.access[-1].write_text("horse battery")
        self.environment = {**os.environ, **pool.environment, **KEYS}

    def backup(self, *words, timeout_s: float = 3600) -> str:
        argv = [pagefold(), "backup", *map(str, words)]
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode != 0:
            raise proc.CommandFailed(argv, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def reader(self) -> dict:
        (reader,) = json.loads(self.backup("mounts", "--json"))["mounts"]
        self.run.process(reader["pid"], "pagefold")
        return reader

    def fill(self, scale: int) -> None:
        """Makes a database, and its backup."""
        tank = self.pool.pool
        self.pool.pagefold("dataset", "create", f"{tank}/db")
        at = self.run.fresh("db")
        at.mkdir()
        self.run.mount(at)
        self.pool.pagefold("mount", f"{tank}/db", at)
        data = at / "data"
        data.mkdir(mode=0o700)
        proc.run(["chown", "postgres:", data])
        server = Postgres(self.run, data, settings={"full_page_writes": "off", "max_wal_size": "4GB"})
        server.initdb()
        server.start()
        server.createdb("bench")
        proc.run(server.client("pgbench", "-i", "-q", "-s", str(scale), database="bench"), timeout_s=3600)
        server.sql("CHECKPOINT")
        self.logical = int(server.sql("SELECT pg_database_size('bench')"))
        self.backup("init", "s3://backups/tank", *self.access)
        self.backup("create", f"{tank}/db", "--to", "s3://backups/tank", *self.access)
        server.stop()
        self.pool.pagefold("unmount", at)

    def answer(self, scale: int) -> None:
        """Runs a PostgreSQL on the backup."""
        name, at = f"{self.pool.pool}/again", self.run.fresh("again")
        at.mkdir()
        self.run.mount(at)
        begun = time.monotonic()
        self.backup("mount", "s3://backups/tank", "1", name, at, *self.access)
        mounted_s = time.monotonic() - begun
        server = Postgres(self.run, at / "data", name="again")
        server.start()
        aid = scale * 100_000 * 7 // 9
        assert server.sql(f"SELECT aid FROM pgbench_accounts WHERE aid = {aid}", database="bench") == str(aid)
        answered_s = time.monotonic() - begun
        reader = self.reader()
        share = reader["read_bytes"] / reader["record_bytes"]
        print(
            f"database of {self.logical / 1e9:.2f} GB, stored {reader['record_bytes'] / 1e9:.2f} GB: mounted after {mounted_s:.2f} s, "
            f"first row after {answered_s:.2f} s, by then {share:.1%} read in {reader['requests']} requests",
            flush=True,
        )
        log = self.run.logs / f"{self.pool.pool}.log"
        begun, before = time.monotonic(), reader["read_bytes"]
        self.backup("mount", "s3://backups/tank", "1", name, at, *self.access, "--hydrate")
        while f'the backup is not needed any more dataset="{name}"' not in log.read_text():
            if time.monotonic() > begun + 3600:
                raise RuntimeError("the rest has not come in an hour")
            time.sleep(0.2)
        taken = time.monotonic() - begun
        rest = self.reader()["read_bytes"] - before
        print(f"the rest, {rest / 1e9:.2f} GB, after {taken:.1f} s: {rest / taken / 1e6:.0f} MB/s from the store", flush=True)
        assert server.sql("SELECT count(*) FROM pgbench_accounts", database="bench") == str(scale * 100_000)
        server.stop()
        self.pool.pagefold("unmount", at)

    def restore(self) -> None:
        begun = time.monotonic()
        told = json.loads(self.backup("restore", "--json", "s3://backups/tank", "1", f"{self.pool.pool}/whole", *self.access))
        taken, read = time.monotonic() - begun, told["requests"]["get_bytes"]
        print(f"a restore of the same: {read / 1e9:.2f} GB in {taken:.1f} s, {read / taken / 1e6:.0f} MB/s from the store", flush=True)


def run(scale: int, delay_ms: float) -> int:
    """Runs the campaign; returns its exit status."""
    require_room(3 * scale * BYTES_PER_SCALE)
    with Run("backup-mount") as ledger, Pool(ledger, POOL_BYTES, compression="page") as pool:
        delay = Delay(Gateway(ledger).port, delay_ms / 1000)
        campaign = Campaign(ledger, pool, delay.port)
        campaign.fill(scale)
        campaign.answer(scale)
        campaign.restore()
        pool.unmount()
    return 0
