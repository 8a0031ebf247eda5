"""Backups by policy: `pagefold set backup=...`, `pagefold backup run`, and what `pagefold status` tells of them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time

import pytest

from lab import proc
from lab.paths import pagefold
from lab.pool import Pool

POOL_BYTES = 1 << 30


@pytest.fixture
def pool(run, request):
    """Provides a pool with datasets db, db/log and scratch, mounted."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("backups are Pagefold's own")
    with Pool(run, POOL_BYTES) as pool:
        for name in ("db", "db/log", "scratch"):
            pool.pagefold("dataset", "create", f"{pool.pool}/{name}")
        (pool.mountpoint / "text").write_text("a row of a table\n" * 5000)
        yield pool
        pool.unmount()
        pool.check()


def started(pool: Pool, *words: str) -> subprocess.CompletedProcess:
    """Runs `pagefold backup`, however it ends."""
    environment = {**os.environ, **pool.environment}
    return subprocess.run([pagefold(), "backup", *map(str, words)], env=environment, capture_output=True, text=True, timeout=120)


def runs(pool: Pool, *words: str) -> dict:
    """Runs `pagefold backup run --json`, which must succeed, and returns its JSON."""
    done = started(pool, "run", "--json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def names(told: dict) -> list[str]:
    return [backup["name"] for backup in told["backups"]]


def standings(pool: Pool) -> dict[str, dict]:
    return {one["name"]: one for one in pool.figures("status")["backups"]}


def listed(pool: Pool, repository) -> list[str]:
    return [one["name"].partition("@")[0] for one in json.loads(pool.pagefold("backup", "list", "--json", repository))["backups"]]


def test_what_is_due_is_made_and_told(pool, run):
    tank, repository = pool.pool, run.fresh("repository")
    assert runs(pool) == {"backups": [], "failures": [], "pruned": []}
    assert pool.figures("status")["backups"] == []
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("set", f"backup={repository}, every=60m,last=1,key-file=none", f"{tank}/db")
    assert pool.pagefold("get", "-H", "backup", f"{tank}/db/log").split("\t")[2:] == [
        f"{repository},every=1h,last=1,key-file=none", f"inherited from {tank}/db\n",
    ]
    assert {name: one["newest"] for name, one in standings(pool).items()} == {f"{tank}/db": None, f"{tank}/db/log": None}
    assert "none yet" in pool.pagefold("status", tank)
    # No backup at all is as wrong as one that is too old.
    assert all(one["overdue"] for one in standings(pool).values())
    with pytest.raises(proc.CommandFailed, match="something is wrong"):
        pool.pagefold("status", "-x", tank)
    # Both are backed up in the same run; then none until the hour is over.
    begun = time.time()
    told = runs(pool)
    assert names(told) == [f"{tank}/db", f"{tank}/db/log"] and len(told["pruned"]) == 1, told
    if int(begun // 3600) == int(time.time() // 3600):
        assert names(runs(pool, tank)) == []
    assert all(one["age_s"] < 60 and not one["failed"] and not one["overdue"] for one in standings(pool).values())
    assert f"backup: {tank}/db: " in pool.pagefold("status", tank) and "old, every 1h" in pool.pagefold("status", tank)
    # With --now, backups are made whether they are due or not. Older ones go as the policy says, and those of others
    # stay.
    pool.pagefold("backup", "create", f"{tank}/scratch", "--to", repository)
    pool.pagefold("backup", "create", f"{tank}/scratch", "--to", repository)
    assert len(names(runs(pool, "--now"))) == 2
    assert sorted(listed(pool, repository)) == [f"{tank}/db", f"{tank}/db/log", f"{tank}/scratch", f"{tank}/scratch"]
    pool.pagefold("inherit", "backup", f"{tank}/db")
    assert runs(pool, "--now")["backups"] == [] and pool.figures("status")["backups"] == []


def test_each_dataset_keeps_what_its_own_policy_says(pool, run):
    tank, repository = pool.pool, run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("set", f"backup={repository},last=3,key-file=none", f"{tank}/db")
    pool.pagefold("set", f"backup={repository},last=1,key-file=none", f"{tank}/db/log")
    pool.pagefold("set", f"backup={repository},key-file=none", f"{tank}/scratch")
    for _ in range(4):
        runs(pool, "--now")
    assert sorted(listed(pool, repository)) == sorted([f"{tank}/db"] * 3 + [f"{tank}/db/log"] + [f"{tank}/scratch"] * 4)


def test_what_fails_does_not_keep_the_others_and_is_told(pool, run):
    tank, repository, key = pool.pool, run.fresh("repository"), run.fresh("key")
    key.write_text("horse battery")
    pool.pagefold("backup", "init", repository, "--key-file", key)
    pool.pagefold("set", f"backup={run.dir}/none,key-file=none", f"{tank}/db")
    pool.pagefold("set", f"backup={repository},key-file={key}", f"{tank}/db/log")
    done = started(pool, "run")
    assert done.returncode == 1 and f"1 of 2 could not be backed up: {tank}/db" in done.stderr, done.stderr
    assert "there is no directory" in done.stderr and f"{tank}/db/log@" in done.stdout
    told = standings(pool)
    assert "there is no directory" in told[f"{tank}/db"]["failed"]["what"] and told[f"{tank}/db/log"]["number"] == 1, told
    assert "FAILED" in pool.pagefold("status", tank)
    # Monitoring asks for problems only.
    with pytest.raises(proc.CommandFailed, match="something is wrong"):
        pool.pagefold("status", "-x", tank)
    # The backup is tried again in the next run, and the status tells when it works.
    pool.pagefold("backup", "init", f"{run.dir}/none", "--unencrypted")
    assert f"{tank}/db" in names(runs(pool))
    assert not standings(pool)[f"{tank}/db"]["failed"]
    # The error tells of a wrong key, and the newest backup is still known.
    key.write_text("cow")
    assert started(pool, "run", "--now").returncode == 1
    one = standings(pool)[f"{tank}/db/log"]
    assert "not that of the repository" in one["failed"]["what"] and one["number"] == 1, one


def test_a_snapshot_that_is_held_stays_and_fails_no_backup(pool, run):
    tank, repository = pool.pool, run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("set", f"backup={repository},key-file=none", f"{tank}/scratch")
    snapshots = lambda: [  # noqa: E731
        line.split("\t")[0] for line in pool.pagefold("list", "-H", "-t", "snapshot", tank).splitlines()
    ]
    runs(pool, "--now")
    (held,) = snapshots()
    pool.pagefold("hold", "keep", held)
    for number in range(2, 5):
        done = started(pool, "run", "--now")
        assert done.returncode == 0 and f"{held} stays" in done.stderr, done.stderr
        one = standings(pool)[f"{tank}/scratch"]
        assert one["number"] == number and not one["failed"], one
        assert held in snapshots() and len(snapshots()) == 2, snapshots()
    pool.pagefold("release", "keep", held)
    runs(pool, "--now")
    assert len(snapshots()) == 1 and held not in snapshots()


def test_a_memory_that_is_not_whole_stops_no_backup(pool, run):
    tank, repository = pool.pool, run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("set", f"backup={repository},last=1,key-file=none", f"{tank}/scratch")
    runs(pool)
    folder = run.dir / "state" / "backup"
    os.truncate(folder / "policies.json", 0)
    done = started(pool, "run")
    assert done.returncode == 0 and f"{tank}/scratch@" in done.stdout, done.stdout + done.stderr
    assert "warning" in done.stderr and "policies.json" in done.stderr, done.stderr
    assert json.loads((folder / "policies.json").read_text())["datasets"][f"{tank}/scratch"]["number"] == 2
    assert started(pool, "run").stderr == ""
    os.truncate(folder / "pruned.json", 0)
    done = started(pool, "run")
    assert done.returncode == 0 and "pruned.json" in done.stderr, done.stderr
    assert started(pool, "run").stderr == ""


def test_a_day_lies_between_prunes_of_all_processes(pool, run):
    tank, repository = pool.pool, run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("set", f"backup={repository},last=1,key-file=none", f"{tank}/scratch")
    pool.pagefold("backup", "prune", repository)
    assert runs(pool)["pruned"] == []
    file, key = run.dir / "state" / "backup" / "pruned.json", os.path.realpath(repository)

    def last(earlier: int = 0) -> int:
        """Returns the time of the last prune, after it was made earlier by so many seconds."""
        told = json.loads(file.read_text())
        if earlier:
            told["repositories"][key] -= earlier
            file.write_text(json.dumps(told))
        return told["repositories"][key]

    last(earlier=86_000)
    assert runs(pool)["pruned"] == []
    last(earlier=86_400)
    assert len(runs(pool)["pruned"]) == 1 and runs(pool)["pruned"] == []
    # A replica prunes when it is due, and the timer does not prune after it.
    before = last(earlier=86_400)
    environment = {**os.environ, **pool.environment}
    replica = subprocess.Popen([pagefold(), "replicate", f"{tank}/db", repository, "--every", "1s"], env=environment)
    try:
        until = time.monotonic() + 30
        while last() == before and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        replica.terminate()
        replica.wait(60)
    assert last() >= before + 86_400
    assert runs(pool)["pruned"] == []


def test_two_runs_exclude_each_other(pool, run):
    folder = run.dir / "state" / "backup"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = started(pool, "run")
        assert done.returncode == 1 and "under way" in done.stderr, done.stderr
    assert started(pool, "run").returncode == 0


def test_what_is_no_policy_is_refused(pool):
    for value, told in (("x", "no absolute path"), ("/b,every=0s", "at least 1s"), ("/b,daily=0", "nothing would be kept")):
        with pytest.raises(proc.CommandFailed, match=told):
            pool.pagefold("set", f"backup={value}", f"{pool.pool}/db")
    with pytest.raises(proc.CommandFailed, match='there is no pool "nowhere"'):
        pool.pagefold("backup", "run", "nowhere")


def test_a_pool_from_elsewhere_does_not_say_where_data_goes(pool):
    pool.unmount()
    pool.pagefold("set", "backup=/b", pool.pool)
    pool.pagefold("export", pool.pool)
    # The registry is changed as if another machine had made the pool.
    file = pool.run.dir / "state" / "pools.json"
    registry = json.loads(file.read_text())
    for known in registry["former"]:
        known["adopted"] = False
    file.write_text(json.dumps(registry))
    pool.pagefold("import", "-d", pool.device, pool.pool)
    pool.mount()
    assert runs(pool, "--now")["backups"] == []
    with pytest.raises(proc.CommandFailed, match="was not adopted here"):
        pool.pagefold("backup", "run", pool.pool)
