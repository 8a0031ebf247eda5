"""`lab backup-mount`: runs a PostgreSQL on a backup in a bucket that is 20 ms and a gigabit link away. Measures when it
answers, how much was read by then, how fast the rest comes, how fast a restore of the same backup is, and how fast plain
parallel downloads of the same objects are. The database has the rows of pgbench, which compress well, or those of a
land registry, which do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import xml.etree.ElementTree as ElementTree

from . import backup_compare, proc
from .ledger import Run
from .paths import pagefold, require_room, tool
from .pool import Pool
from .postgres import Postgres
from .stores import BUCKET, KEYS, STORES, FarHost, Store, s3, signed

POOL_BYTES = 40 << 30
"""Bytes of the sparse file in which the pool lies."""
BYTES_PER_SCALE = 15 << 20
ROWS_PER_SCALE = 100_000
"""Rows that pgbench makes for each unit of its scale."""
DOWNLOADS = 16
REPOSITORY = Store.repository


class Pgbench:
    """The tables of pgbench."""

    name = "bench"

    def __init__(self, gb: float):
        self.scale = round(gb * 1e9 / BYTES_PER_SCALE)
        self.count = f"SELECT count(*) = {self.scale * ROWS_PER_SCALE} FROM pgbench_accounts"
        aid = self.scale * ROWS_PER_SCALE * 7 // 9
        self.row = f"SELECT aid = {aid} FROM pgbench_accounts WHERE aid = {aid}"

    def load(self, server: Postgres) -> None:
        server.createdb(self.name)
        proc.run(server.client("pgbench", "-i", "-q", "-s", str(self.scale), database=self.name), timeout_s=3600)


class Prices:
    """The prices that were paid for houses, as in `lab backup-compare`."""

    name = backup_compare.DATABASE

    def __init__(self, gb: float):
        self.gb, rows = gb, int(gb * backup_compare.ROWS_PER_GB)
        self.count = f"SELECT count(*) = {rows} FROM price_paid"
        self.row = f"SELECT price > 0 FROM price_paid WHERE transaction_id = md5('transaction {rows * 7 // 9}')::uuid"

    def load(self, server: Postgres) -> None:
        backup_compare.load(server, self.gb, lambda text: None)


DATABASES = {"pgbench": Pgbench, "prices": Prices}


class Campaign:
    def __init__(self, run: Run, pool: Pool, store: Store, url: str):
        self.run, self.pool, self.store, self.url = run, pool, store, url
        self.access = ["--endpoint", url, "--key-file", run.fresh("key")]
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

    def fill(self, database: Pgbench | Prices) -> None:
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
        database.load(server)
        server.sql("CHECKPOINT")
        self.logical = int(server.sql(f"SELECT pg_database_size('{database.name}')"))
        self.backup("init", REPOSITORY, *self.access)
        self.backup("create", f"{tank}/db", "--to", REPOSITORY, *self.access)
        server.stop()
        self.pool.pagefold("unmount", at)

    def answer(self, database: Pgbench | Prices) -> None:
        """Runs a PostgreSQL on the backup."""
        name, at = f"{self.pool.pool}/again", self.run.fresh("again")
        at.mkdir()
        self.run.mount(at)
        begun = time.monotonic()
        self.backup("mount", REPOSITORY, "1", name, at, *self.access)
        mounted_s = time.monotonic() - begun
        server = Postgres(self.run, at / "data", name="again")
        server.start()
        assert server.sql(database.row, database=database.name) == "t"
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
        self.backup("mount", REPOSITORY, "1", name, at, *self.access, "--hydrate")
        while f'the backup is not needed any more dataset="{name}"' not in log.read_text():
            if time.monotonic() > begun + 3600:
                raise RuntimeError("the rest has not come in an hour")
            time.sleep(0.2)
        taken = time.monotonic() - begun
        rest = self.reader()["read_bytes"] - before
        print(f"the rest, {rest / 1e9:.2f} GB, after {taken:.1f} s: {rest / taken / 1e6:.0f} MB/s from the store", flush=True)
        assert server.sql(database.count, database=database.name) == "t"
        server.stop()
        self.pool.pagefold("unmount", at)

    def restore(self) -> None:
        begun = time.monotonic()
        told = json.loads(self.backup("restore", "--json", REPOSITORY, "1", f"{self.pool.pool}/whole", *self.access))
        taken, read = time.monotonic() - begun, told["requests"]["get_bytes"]
        print(f"a restore of the same: {read / 1e9:.2f} GB in {taken:.1f} s, {read / taken / 1e6:.0f} MB/s from the store", flush=True)


    def download(self) -> None:
        """Downloads all packs of the repository, as a plain client does it."""
        space = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}
        listed = ElementTree.fromstring(s3(self.store, "GET", "?list-type=2&max-keys=1000"))
        if listed.findtext("s3:IsTruncated", namespaces=space) == "true":
            raise RuntimeError("the repository has more than 1,000 objects")
        objects = [(one.findtext("s3:Key", namespaces=space), int(one.findtext("s3:Size", namespaces=space))) for one in listed.findall("s3:Contents", space)]
        packs = [(key, size) for key, size in objects if "/packs/" in key]
        config = self.run.fresh("curl")
        config.write_text("".join(f'url = "{self.url}/{BUCKET}/{key}"\noutput = "/dev/null"\n' for key, _ in packs))
        begun = time.monotonic()
        argv = [tool("curl", profile="backup"), "-s", "--fail", *signed(), "--parallel", "--parallel-max", str(DOWNLOADS), "--config", config]
        subprocess.run(argv, check=True, stderr=subprocess.DEVNULL)
        taken, read = time.monotonic() - begun, sum(size for _, size in packs)
        print(
            f"plain downloads of all {len(packs)} packs, {DOWNLOADS} at a time: {read / 1e9:.2f} GB in {taken:.1f} s, {read / taken / 1e6:.0f} MB/s",
            flush=True,
        )


def run(store_name: str, rows: str, gb: float, *, latency_ms: int, bytes_per_s: int) -> int:
    """Runs the campaign; returns its exit status."""
    require_room(int(3e9 * gb))
    database = DATABASES[rows](gb)
    with Run("backup-mount") as ledger, Pool(ledger, POOL_BYTES, compression="page") as pool:
        host = FarHost(ledger, bytes_per_s=bytes_per_s, latency_ms=latency_ms)
        store = STORES[store_name](ledger, host)
        store.start()
        print(f"{rows}, {store_name}, {latency_ms} ms away, {bytes_per_s / 1e6:.0f} MB/s", flush=True)
        campaign = Campaign(ledger, pool, store, host.delayed(store))
        campaign.fill(database)
        campaign.answer(database)
        # Its work on the pages that came would take processors from the restore.
        backup_compare.rest(pool, lambda text: print(text, flush=True))
        campaign.restore()
        campaign.download()
        pool.unmount()
        store.end()
    return 0
