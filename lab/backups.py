"""`lab backups`: kills backups, restores and prunes, their pool's server and their store at random points, again and
again.

The victim is drawn by lot: the program that makes a backup, restores or prunes; the pool's server; or the store, an S3
server whose objects are files (versitygw), which is started again at once. Every backup that was said to be complete,
and every one that the repository lists, has to be restored byte for byte, unless a prune forgot it. Then two writers
work at once, many times, and both backups have to be there. At last a PostgreSQL under load is backed up while somebody
is killed: what is restored has the files of its snapshot, recovers, has its balances right, and amcheck finds nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import time
from pathlib import Path

from . import load, proc, verify
from .ledger import Run, unmount
from .paths import pagefold, require_room
from .pool import Pool
from .postgres import USER, Postgres
from .snapshots import Mounted
from .stores import STORES, Store

POOL_BYTES = 4 << 30
NOISE_BYTES = 24 << 20
"""Bytes of the file of noise: more than one pack."""
KEEP = 8
DATABASE_SHARE = 10
"""For so many kills there is one more while a database is backed up."""
PGBENCH_SCALE, PGBENCH_RATE = 1, 100
PUT_BYTES = 8 << 20
"""Largest number of bytes per write request. A backup may take one request for each, and two more."""
TIMEOUT_S = 300
VICTIMS = ("writer", "reader", "pruner", "server", "store")


def digest(folder: Path) -> str:
    """Returns a digest of the names and contents of all files below a folder."""
    total = hashlib.blake2b()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink():
            total.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
            total.update(file.read_bytes())
    return total.hexdigest()


class Campaign:
    """A dataset, a repository, and the contents that restores have to bring back."""

    def __init__(self, run: Run, pool: Pool, store: Store, chance: random.Random, tell):
        self.run, self.pool, self.store, self.chance, self.tell = run, pool, store, chance, tell
        self.repository = store.repository
        self.environment = {**os.environ, **pool.environment, **store.environment, "LC_ALL": "C.UTF-8"}
        self.contents: dict[str, str] = {}
        """Digest of the contents of each snapshot, by its name."""
        self.complete: set[int] = set()
        """Numbers of the backups that were said to be complete, and not forgotten since."""
        self.database_complete: set[int] = set()
        """Numbers of the complete backups of the database, of which none is forgotten."""
        self.restores = self.backups = self.prunes = self.kills = 0
        self.longest = {"writer": 1.0, "reader": 1.0, "pruner": 0.5}
        self.ends: dict[str, list[int]] = {victim: [0, 0] for victim in VICTIMS}
        """By victim: number of runs that came to their end in spite of the kill, and of those that failed."""

    @property
    def source(self) -> Path:
        return self.pool.mountpoint

    def spawn(self, *words: str) -> subprocess.Popen:
        argv = [pagefold(), *words]
        return subprocess.Popen(argv, cwd="/", env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def done(self, *words: str) -> str:
        """Runs the program, which has to succeed, and returns its output."""
        process = self.spawn(*words)
        out, said = process.communicate(timeout=TIMEOUT_S)
        if process.returncode != 0:
            raise RuntimeError(f"`pagefold {' '.join(words)}` failed though nobody was killed: {said}")
        return out

    def change(self) -> None:
        """Writes into the dataset: a few places, or most of it."""
        with open(self.source / "noise", "r+b") as f:
            share = self.chance.choice([0.002, 0.05, 0.5])
            for _ in range(int(NOISE_BYTES / 8192 * share)):
                f.seek(self.chance.randrange(NOISE_BYTES // 8192) * 8192)
                f.write(self.chance.randbytes(8192))
        (self.source / f"text-{self.chance.randrange(5)}").write_text(f"{self.chance.random()}\n" * 3000)
        # A server that is killed may lose what was not synchronised (SEMANTICS.md, W3), and a backup would lack it.
        self.pool.pagefold("sync", self.pool.pool)

    def note(self, before: str) -> None:
        """Notes the digest `before` as the contents of the snapshots that were made since it was taken; nothing has
        changed in between."""
        for line in self.pool.pagefold("list", "-H", "-t", "snapshot", self.pool.pool).splitlines():
            name = line.split("\t")[0].partition("@")[2]
            if name.startswith("backup-"):
                self.contents.setdefault(name, before)

    def listed(self, dataset: str | None = None) -> dict[int, dict]:
        """Returns the backups of a dataset, the pool's own unless said, by number."""
        told = json.loads(self.done("backup", "list", "--json", self.repository))["backups"]
        return {one["number"]: one for one in told if one["name"].partition("@")[0] == (dataset or self.pool.pool)}

    def require_listed(self) -> dict[int, dict]:
        """Verifies that all complete backups are listed, and returns the listed ones."""
        listed = self.listed()
        missing = self.complete - listed.keys()
        if missing:
            raise RuntimeError(f"backups {sorted(missing)} were said to be complete, and are not in the repository")
        return listed

    def round(self) -> None:
        """Kills once, and restores a backup."""
        # The program that makes a backup is the most frequent victim.
        victim = self.chance.choices(VICTIMS, (4, 2, 1, 3, 3))[0]
        doer = victim if victim in self.longest else self.chance.choices(list(self.longest), (4, 2, 1))[0]
        self.change()
        now = digest(self.source)
        match doer:
            case "writer":
                words = ["backup", "create", "--json", self.pool.pool, "--to", self.repository]
            case "pruner":
                words = ["backup", "prune", "--json", self.repository, "--keep", f"last={KEEP}"]
            case _:
                words = ["backup", "restore", self.repository, str(self.chance.choice(sorted(self.listed()))), f"{self.pool.pool}/killed"]
        forgettable = self.forgettable() if doer == "pruner" else set()
        process, begun = self.spawn(*words), time.monotonic()
        time.sleep(self.chance.random() * self.longest[doer] * 1.1)
        alive = process.poll() is None
        self.kill(victim, process)
        out, said = process.communicate(timeout=TIMEOUT_S)
        if victim == "server":
            self.pool.recover()
        self.kills += alive
        ended = process.returncode == 0
        self.ends[victim][0 if ended else 1] += 1
        if victim != doer and ended and victim != "store":
            self.longest[doer] = max(0.2, time.monotonic() - begun)
        if not ended and alive is False:
            raise RuntimeError(f"`pagefold {' '.join(words)}` failed before anybody was killed: {said}")
        if doer == "writer":
            self.backups += 1
            self.note(now)
            if ended:
                made = json.loads(out)
                self.complete.add(made["created"]["backup"]["number"])
                if victim == "writer":
                    self.require_few_requests(made)
        elif doer == "pruner":
            self.prunes += 1
            listed = self.listed()
            self.complete -= forgettable - listed.keys()
        else:
            self.give_up("killed")
        self.restore_one()

    def forgettable(self) -> set[int]:
        """Returns the backups that a prune may forget: all listed ones but the newest by their snapshots, also those
        that nobody was told to be complete."""
        listed = self.require_listed()
        by_age = sorted(listed, key=lambda number: (listed[number]["created"], number))
        return set(by_age[:-KEEP])

    def require_few_requests(self, made: dict) -> None:
        """Verifies the number of write requests of a backup that met no failure, and of the interrupted one that was
        finished before it."""
        requests = made["requests"]
        most = requests["put_bytes"] // PUT_BYTES + (4 if made["continued"] else 2)
        if requests["puts"] > most:
            raise RuntimeError(f"a backup took {requests['puts']} writes for {requests['put_bytes']} bytes, and {most} are enough")

    def kill(self, victim: str, process: subprocess.Popen) -> None:
        match victim:
            case "server":
                self.pool.crash()
            case "store":
                self.store.kill(self.chance)
                time.sleep(self.chance.random() * 0.5)
                self.store.start()
            case _:
                process.kill()

    def give_up(self, name: str) -> None:
        """Destroys a dataset that a restore was to make, or the part that was received of it."""
        pool = self.pool.pool
        told = json.loads(self.pool.pagefold("list", "-t", "partial", "--json", pool))["partials"]
        if any(one["name"] == f"{pool}/{name}" for one in told):
            self.pool.pagefold("receive", "--abort", f"{pool}/{name}")
        datasets = json.loads(self.pool.pagefold("dataset", "list", "--json", pool))["datasets"]
        if any(one["name"] == f"{pool}/{name}" for one in datasets):
            self.pool.pagefold("destroy", "-r", f"{pool}/{name}")

    def restore_one(self) -> None:
        """Restores one of the listed backups, drawn by lot."""
        listed = self.require_listed()
        if listed:
            self.restore(listed[self.chance.choice(sorted(listed))])

    def restore(self, backup: dict) -> None:
        """Restores a backup and compares it with the contents of its snapshot."""
        snapshot = backup["name"].partition("@")[2]
        self.done("backup", "restore", self.repository, str(backup["number"]), f"{self.pool.pool}/back")
        back = Mounted(self.pool, "back")
        back.mount()
        try:
            found = digest(back.mountpoint)
        finally:
            back.unmount()
            self.pool.pagefold("destroy", "-r", back.name)
        if found != self.contents[snapshot]:
            raise RuntimeError(f"backup {backup['number']} ({snapshot}) came back as something else")
        self.restores += 1

    def race(self, rounds: int) -> None:
        """Makes backups by two writers at once, each of a dataset of its own."""
        datasets = [Mounted(self.pool, name) for name in ("one", "two")]
        for dataset in datasets:
            self.pool.pagefold("dataset", "create", dataset.name)
            dataset.mount()
        numbers: set[int] = set()
        for number in range(rounds):
            for dataset in datasets:
                (dataset.mountpoint / "file").write_text(f"{number} {self.chance.random()}")
            words = [["backup", "create", "--json", dataset.name, "--to", self.repository] for dataset in datasets]
            both = [self.spawn(*one) for one in words]
            for process in both:
                out, said = process.communicate(timeout=TIMEOUT_S)
                if process.returncode != 0:
                    raise RuntimeError(f"one of two writers at once failed in round {number}: {said}")
                numbers.add(json.loads(out)["created"]["backup"]["number"])
        told = {one["number"] for one in json.loads(self.done("backup", "list", "--json", self.repository))["backups"]}
        if len(numbers) != 2 * rounds or not numbers <= told:
            raise RuntimeError(f"of {2 * rounds} backups by two writers at once, {len(numbers & told)} are there")
        for dataset in datasets:
            dataset.unmount()
        self.tell(f"two writers at once, {rounds} times: {len(numbers)} backups, none lost")


class Database:
    """A PostgreSQL under load on a dataset of its own, of which backups are made while somebody is killed."""

    VICTIMS = ("writer", "server", "store")

    def __init__(self, campaign: Campaign):
        self.campaign, self.pool, self.run = campaign, campaign.pool, campaign.run
        self.dataset = Mounted(self.pool, "db")
        self.pool.pagefold("dataset", "create", self.dataset.name)
        self.dataset.mount()
        self.server = self.on(self.dataset.folder("data", USER), "pg")
        load.prepare_pgbench(self.server, "lab", PGBENCH_SCALE)
        self.server.sql("CREATE EXTENSION amcheck", database="lab")
        self.load = self.start_load()
        self.longest = 1.0
        self.kills = self.transactions = 0

    def on(self, data: Path, name: str) -> Postgres:
        return Postgres(self.run, data, settings={"full_page_writes": "off", "shared_buffers": "32MB"}, name=name)

    def start_load(self) -> load.Load:
        return load.pgbench_load(self.server, "lab", clients=2, rate=PGBENCH_RATE)

    def round(self) -> None:
        """Kills once during a backup, and recovers the database from one of its backups."""
        campaign = self.campaign
        self.load.require_running()
        victim = campaign.chance.choice(self.VICTIMS)
        process, begun = campaign.spawn("backup", "create", "--json", self.dataset.name, "--to", campaign.repository), time.monotonic()
        time.sleep(campaign.chance.random() * self.longest * 1.1)
        alive = process.poll() is None
        if victim == "server":
            self.server.expect_no_disk()
        campaign.kill(victim, process)
        out, said = process.communicate(timeout=TIMEOUT_S)
        if victim == "server":
            self.load.stop()
            self.server.kill()
            unmount(self.dataset.mountpoint, lazy=True)
            self.dataset.forget()
            self.pool.recover()
            self.dataset.mount()
            self.server.start()
            self.load = self.start_load()
        self.kills += alive
        if process.returncode == 0:
            campaign.database_complete.add(json.loads(out)["created"]["backup"]["number"])
            self.longest = max(0.5, time.monotonic() - begun)
        elif not alive:
            raise RuntimeError(f"a backup of the database failed before anybody was killed: {said}")
        listed = campaign.listed(self.dataset.name)
        missing = campaign.database_complete - listed.keys()
        if missing:
            raise RuntimeError(f"backups {sorted(missing)} of the database were said to be complete, and are not in the repository")
        if listed:
            self.recover(listed[campaign.chance.choice(sorted(listed))])

    def recover(self, backup: dict) -> None:
        """Restores a backup, compares it with its snapshot if the pool still has that, and has PostgreSQL recover and
        verify it."""
        campaign, name = self.campaign, backup["name"].rpartition("/")[2]
        campaign.done("backup", "restore", campaign.repository, str(backup["number"]), f"{self.pool.pool}/db-back")
        back = Mounted(self.pool, "db-back")
        back.mount()
        snapshots = json.loads(self.pool.pagefold("list", "-t", "snapshot", "--json", self.pool.pool))["datasets"]
        if any(one["name"] == backup["name"] for one in snapshots):
            there = Mounted(self.pool, name)
            there.mount()
            same = digest(there.mountpoint) == digest(back.mountpoint)
            there.unmount()
            if not same:
                raise RuntimeError(f"backup {backup['number']} came back as something else than {backup['name']}")
        (back.mountpoint / "data/postmaster.pid").unlink(missing_ok=True)
        server = self.on(back.mountpoint / "data", "pg-back")
        server.start()
        self.transactions += verify.pgbench_balances(server, "lab")
        server.amcheck("lab")
        server.stop()
        server.verify_checksums()
        back.unmount()
        self.pool.pagefold("destroy", "-r", back.name)
        proc.run(["rm", "-rf", server.socket_dir])
        campaign.restores += 1

    def stop(self) -> None:
        self.load.stop()
        self.server.stop()
        self.dataset.unmount()


def backups(kills: int, writers: int, *, store_name: str, seed: int | None, keep_logs: Path) -> int:
    """Runs the campaign; raises if anything is lost."""
    require_room(8 << 30)
    seed = random.randrange(1 << 32) if seed is None else seed
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"backups: {text}", flush=True)

    tell(f"seed {seed}")
    with Run("backups", keep_logs=keep_logs) as run:
        store = STORES[store_name](run)
        store.start()
        with Pool(run, POOL_BYTES) as pool:
            campaign = Campaign(run, pool, store, random.Random(seed), tell)
            (pool.mountpoint / "noise").write_bytes(campaign.chance.randbytes(NOISE_BYTES))
            key = run.fresh("key")
            key.write_text("a passphrase of the laboratory\n")
            campaign.environment["PAGEFOLD_BACKUP_PASSPHRASE"] = key.read_text().strip()
            campaign.done("backup", "init", campaign.repository)
            now = digest(pool.mountpoint)
            before = time.monotonic()
            made = json.loads(campaign.done("backup", "create", "--json", pool.pool, "--to", campaign.repository))
            campaign.longest["writer"] = campaign.longest["reader"] = time.monotonic() - before
            campaign.require_few_requests(made)
            campaign.complete.add(made["created"]["backup"]["number"])
            campaign.note(now)
            while campaign.kills < kills:
                campaign.round()
                if campaign.kills % 25 == 0:
                    tell(f"{campaign.kills} kills, {campaign.restores} restores")
            for backup in campaign.require_listed().values():
                campaign.restore(backup)
            for words in (["check"], ["verify"]):
                campaign.done("backup", *words, campaign.repository)
            ends = ", ".join(f"{victim} {went} went on and {failed} failed" for victim, (went, failed) in campaign.ends.items())
            tell(f"{campaign.kills} kills ({ends})")
            tell(f"{campaign.backups} backups, {campaign.prunes} prunes, {campaign.restores} restores, each byte for byte; none lost")
            campaign.race(writers)
            database = Database(campaign)
            while database.kills < max(1, kills // DATABASE_SHARE):
                database.round()
            tell(f"{database.kills} kills while a PostgreSQL under load was backed up, {len(campaign.database_complete)} backups complete, each that was restored recovered with its balances right, amcheck and checksums clean")
            database.stop()
            pool.unmount()
            pool.check()
        store.end()
    tell(f"passed in {time.monotonic() - begun:.0f} s")
    return 0
