"""`pagefold replicate`: a repository that is kept some seconds behind, whatever the store does; `pagefold backup restore-pool`."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from lab import proc
from lab.files import contents_once, files_of
from lab.paths import pagefold, tool
from lab.pool import Pool

POOL_BYTES = 1 << 30
DAY_S = 86_400


@pytest.fixture
def pool(run, request):
    """Provides a mounted pool with some contents."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("backups are Pagefold's own")
    with Pool(run, POOL_BYTES) as pool:
        (pool.mountpoint / "noise").write_bytes(random.Random(1).randbytes(8 << 20))
        (pool.mountpoint / "text").write_text("a row of a table\n" * 50_000)
        yield pool
        pool.unmount()
        pool.check()


class Process:
    """`pagefold replicate`, until the end of the block."""

    def __init__(self, pool: Pool, *words):
        self.pool, self.words = pool, words

    def __enter__(self):
        environment = {**os.environ, **self.pool.environment}
        argv = [pagefold(), "replicate", *map(str, self.words)]
        self.process = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.said = self.process.communicate(timeout=60)[1]

    def kill(self):
        self.process.kill()
        self.process.wait(60)


def replica(pool: Pool) -> dict:
    return pool.figures("status")["replicas"][0]


def wait_for(pool: Pool, holds, seconds: float = 30.0) -> dict:
    """Waits until `holds` is true of the replica's status, and returns the status."""
    until, told = time.monotonic() + seconds, None
    while time.monotonic() < until:
        all_ = pool.figures("status")["replicas"]
        told = all_[0] if all_ else None
        if told and holds(told):
            return told
        time.sleep(0.2)
    raise AssertionError(f"it did not come to that: {told}")


def snapshots(pool: Pool) -> list[str]:
    return [line.split("\t")[0] for line in pool.pagefold("list", "-H", "-t", "snapshot", pool.pool).splitlines()]


def backups(pool: Pool, repository) -> list[dict]:
    return json.loads(pool.pagefold("backup", "list", "--json", repository))["backups"]


def restored(pool: Pool, repository) -> dict[str, bytes]:
    """Returns the files of the newest backup."""
    name = f"{pool.pool}/back"
    pool.pagefold("backup", "restore", repository, pool.pool, name)
    return contents_once(pool, name)


def objects(repository) -> list:
    return sorted(file for file in repository.rglob("*") if file.is_file())


def test_it_follows_and_idle_cycles_ask_for_nothing(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    with Process(pool, pool.pool, repository, "--every", "2s"):
        first = wait_for(pool, lambda told: told["number"] == 1 and told["idle_cycles"] >= 1)
        at_rest = wait_for(pool, lambda told: told["idle_cycles"] >= first["idle_cycles"] + 2)
        asked = lambda told: (told["puts"], told["others"])  # noqa: E731
        assert asked(at_rest) == asked(wait_for(pool, lambda told: told["idle_cycles"] >= at_rest["idle_cycles"] + 2))
        assert not at_rest["late"] and at_rest["lag_bytes"] is not None, at_rest
        for number in range(4):
            (pool.mountpoint / f"file-{number}").write_text(f"content {number}")
            written = time.time() * 1000
            told = wait_for(pool, lambda told: told["as_of_ms"] and told["as_of_ms"] > written)
            assert not told["failed"], told
        assert pool.pagefold("status", "-x", pool.pool) is not None
        assert told["worst_ms"] < 6000, told
        with pytest.raises(proc.CommandFailed, match="another process"):
            pool.pagefold("replicate", pool.pool, repository, "--once")
    # Only the newest backup stays. Each took two write requests, and one snapshot is held.
    assert [one["number"] for one in backups(pool, repository)] == [told["number"]]
    assert told["puts"] == 2 * told["number"], told
    assert len(snapshots(pool)) == 1
    assert restored(pool, repository) == files_of(pool)
    # No process replicates any more, and the status tells when the replica is too far behind.
    time.sleep(3)
    assert replica(pool)["late"] and "LATE" in pool.pagefold("status", pool.pool)
    with pytest.raises(proc.CommandFailed, match="something is wrong"):
        pool.pagefold("status", "-x", pool.pool)
    pool.pagefold("replicate", "--end", pool.pool)
    assert pool.figures("status")["replicas"] == [] and snapshots(pool) == []


def test_a_store_that_is_away_delays_it_alone(pool, run):
    repository, away = run.fresh("repository"), run.fresh("away")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    with Process(pool, pool.pool, repository, "--every", "1s") as process:
        wait_for(pool, lambda told: told["number"] == 1)
        shutil.move(repository, away)
        for number in range(5):
            (pool.mountpoint / f"meanwhile-{number}").write_bytes(random.Random(number).randbytes(1 << 20))
            time.sleep(0.5)
        told = wait_for(pool, lambda told: told["failed"] and told["late"] and told["lag_bytes"] > 4 << 20)
        assert len(snapshots(pool)) <= 2, snapshots(pool)
        assert told["lag_s"] >= 1
        shutil.move(away, repository)
        wait_for(pool, lambda told: not told["failed"] and not told["late"], 90)
    assert "replicated again" in process.said, process.said
    assert len(snapshots(pool)) == 1 and restored(pool, repository) == files_of(pool)


def test_killed_anywhere_it_goes_on(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    chance = random.Random(5)
    for number in range(12):
        (pool.mountpoint / "noise").write_bytes(random.Random(number).randbytes(4 << 20))
        with Process(pool, pool.pool, repository, "--every", "1s") as process:
            time.sleep(chance.random() * 0.5)
            process.kill()
        assert len(snapshots(pool)) <= 2, snapshots(pool)
    pool.pagefold("replicate", pool.pool, repository, "--once")
    # A second run is needed, since the first one has resumed the interrupted backup as it was.
    pool.pagefold("replicate", pool.pool, repository, "--once")
    assert len(snapshots(pool)) == 1 and restored(pool, repository) == files_of(pool)
    assert ": 0 errors" in pool.pagefold("backup", "verify", repository)
    # A process that was killed right behind its commit leaves no backup that nobody replaces.
    assert len(backups(pool, repository)) == 1


def test_a_backup_of_which_it_did_not_hear_is_replaced_by_the_next(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    # The folder of commits is flushed when a commit has its name: the backup is there, and the process hears of a fault.
    (commits,) = (repository / "log").iterdir()
    fails = ["-P", commits, "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1"]
    words = ["replicate", "--once", pool.pool, repository]
    argv = [tool("strace"), "-f", "-o", run.fresh("trace"), *fails, pagefold(), *words]
    environment = {**os.environ, **pool.environment}
    for number in (2, 3):
        (pool.mountpoint / "file").write_text(f"content {number}")
        done = subprocess.run([*map(str, argv)], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "os error 5" in done.stderr, done.stderr
        assert [one["number"] for one in backups(pool, repository)] == [number]
        assert len(snapshots(pool)) <= 2, snapshots(pool)
    (pool.mountpoint / "file").write_text("content 4")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert [one["number"] for one in backups(pool, repository)] == [4]
    assert len(snapshots(pool)) == 1 and restored(pool, repository) == files_of(pool)


def test_a_mount_that_a_killed_process_has_left_keeps_no_snapshot(pool, run):
    """Found by the test above: a process was killed while it looked for databases in its snapshot, which it mounts for that."""
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("replicate", pool.pool, repository, "--once")
    ended = subprocess.Popen(["true"])
    ended.wait()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    left = Path(pool.environment["PAGEFOLD_RUNTIME_DIR"]) / f"basebackup-1-{boot}_{ended.pid}_1"
    pool.pagefold("mount", snapshots(pool)[0], left)
    assert (left / "noise").exists()
    (pool.mountpoint / "noise").write_bytes(random.Random(2).randbytes(1 << 20))
    pool.pagefold("replicate", pool.pool, repository, "--once")
    assert len(snapshots(pool)) == 1 and not left.exists()
    assert restored(pool, repository) == files_of(pool)


def test_backups_that_it_did_not_make_stay(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("snapshot", f"{pool.pool}@monday")
    pool.pagefold("backup", "create", f"{pool.pool}@monday", "--to", repository)
    pool.pagefold("backup", "create", pool.pool, "--to", repository)
    for number in range(3):
        (pool.mountpoint / "file").write_text(str(number))
        pool.pagefold("replicate", pool.pool, repository, "--once")
        assert [one["number"] for one in backups(pool, repository)] == [1, 2, 3 + number]
    # The rule of what is kept holds for all.
    (pool.mountpoint / "file").write_text("last")
    pool.pagefold("replicate", pool.pool, repository, "--once", "--keep", "last=2")
    assert [one["number"] for one in backups(pool, repository)] == [5, 6]
    with pytest.raises(proc.CommandFailed, match="there is no dataset"):
        pool.pagefold("replicate", f"{pool.pool}/nowhere", repository, "--once")
    assert [one["name"] for one in pool.figures("status")["replicas"]] == [pool.pool]


def test_by_property_and_kept_by_the_hour(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    with pytest.raises(proc.CommandFailed, match="no policy"):
        pool.pagefold("replicate", pool.pool)
    pool.pagefold("set", f"backup={repository},every=10s,hourly=24,key-file=none", pool.pool)
    told = replica(pool)
    assert "pagefold-replicate@" in told["failed"]["what"] and told["late"], told
    # The backup timer leaves the dataset to the replicating process.
    assert json.loads(pool.pagefold("backup", "run", "--now", "--json"))["backups"] == []
    for number in range(3):
        (pool.mountpoint / "file").write_text(str(number))
        pool.pagefold("replicate", "--once", pool.pool)
    assert len(backups(pool, repository)) in (1, 2)
    assert not replica(pool)["late"]
    pool.pagefold("set", f"backup={repository},every=1h,key-file=none", pool.pool)
    with pytest.raises(proc.CommandFailed, match="by its policy"):
        pool.pagefold("replicate", pool.pool)


@pytest.mark.long
def test_a_pool_that_gets_full_loses_the_snapshot_and_not_the_database(pool, run):
    repository, away = run.fresh("repository"), run.fresh("away")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    shutil.move(repository, away)
    fill(pool)
    with pytest.raises(proc.CommandFailed, match="no directory"):
        pool.pagefold("replicate", "--once", pool.pool, repository)
    assert snapshots(pool) == []
    shutil.move(away, repository)
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert backups(pool, repository)[0]["number"] == 2 and len(snapshots(pool)) == 1


def fill(pool: Pool):
    """Writes until less than a twelfth of the pool is free."""
    noise = random.Random(9)
    with open(pool.mountpoint / "large", "wb") as f:
        while pool.figures("df")["available_bytes"] * 12 > pool.figures("df")["capacity_bytes"]:
            f.write(noise.randbytes(16 << 20))
            f.flush()
            os.fsync(f.fileno())


@pytest.mark.long
def test_a_pool_that_gets_full_loses_the_snapshot_that_was_half_sent(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    # No pack can be written, and everything can be read.
    shutil.rmtree(repository / "packs", ignore_errors=True)
    (repository / "packs").write_text("")
    with pytest.raises(proc.CommandFailed, match="packs"):
        pool.pagefold("replicate", "--once", pool.pool, repository)
    assert len(snapshots(pool)) == 1
    fill(pool)
    with pytest.raises(proc.CommandFailed, match="packs"):
        pool.pagefold("replicate", "--once", pool.pool, repository)
    assert snapshots(pool) == []
    (repository / "packs").unlink()
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert len(backups(pool, repository)) == 1 and len(snapshots(pool)) == 1


def test_a_snapshot_that_is_held_stays_and_fails_no_cycle(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    (held,) = snapshots(pool)
    pool.pagefold("hold", "keep", held)
    with Process(pool, pool.pool, repository, "--every", "1s") as process:
        for number in range(2, 5):
            (pool.mountpoint / "file").write_text(str(number))
            told = wait_for(pool, lambda told: told["number"] >= number)
            assert not told["failed"], told
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert held in snapshots(pool) and len(snapshots(pool)) == 2
    assert process.said.count(f"{held} stays") == 1, process.said
    pool.pagefold("release", "keep", held)
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert len(snapshots(pool)) == 1 and held not in snapshots(pool)


def test_a_repository_that_was_made_anew_gets_everything(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    (old,) = snapshots(pool)
    shutil.rmtree(repository)
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert [one["number"] for one in backups(pool, repository)] == [1]
    assert len(snapshots(pool)) == 1 and old not in snapshots(pool), snapshots(pool)
    # Nothing is newer than a backup that was forgotten, and it is made again.
    pool.pagefold("backup", "forget", repository, "1")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert [one["number"] for one in backups(pool, repository)] == [2]
    assert len(snapshots(pool)) == 1 and restored(pool, repository) == files_of(pool)


def test_a_state_that_is_not_whole_counts_as_none(pool, run):
    repository = run.fresh("repository")
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    state = run.dir / "state" / "backup" / f"{pool.pool}.replica"
    os.truncate(state, 0)
    assert pool.figures("status")["replicas"] == []
    (pool.mountpoint / "file").write_text("newer")
    pool.pagefold("replicate", "--once", pool.pool, repository)
    assert replica(pool)["number"] == 2 and len(snapshots(pool)) == 1
    os.truncate(state, 0)
    pool.pagefold("replicate", "--end", pool.pool)
    assert not state.exists()


def test_a_pool_with_a_dataset_restored_gets_another_for_its_own_files(pool, run):
    repository, tank = run.fresh("repository"), pool.pool
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("dataset", "create", f"{tank}/restored")
    pool.pagefold("dataset", "create", "-p", f"{tank}/restored-2/below")
    at = run.fresh("at")
    at.mkdir()
    pool.pagefold("mount", f"{tank}/restored", at)
    (at / "mine").write_text("of the dataset restored")
    pool.pagefold("unmount", at)
    for name in (tank, f"{tank}/restored", f"{tank}/restored-2/below"):
        pool.pagefold("backup", "create", name, "--to", repository)
    elsewhere = Elsewhere(pool, run)
    copy, device = f"{tank}-copy", run.fresh("device")
    said = elsewhere.pagefold("backup", "restore-pool", repository, copy, device, "--size", "512M")
    try:
        assert "3 datasets" in said and f"{copy}/restored-3: as of" in said, said
        back = run.fresh("back")
        back.mkdir()
        for name, files in (("restored", ["mine"]), ("restored-3", ["noise", "text"])):
            elsewhere.pagefold("mount", f"{copy}/{name}", back)
            assert sorted(file.name for file in back.iterdir() if not file.name.startswith(".")) == files
            elsewhere.pagefold("unmount", back)
    finally:
        elsewhere.pagefold("destroy", "--force", copy)


def test_why_a_dataset_was_not_restored_is_told(pool, run):
    repository, tank = run.fresh("repository"), pool.pool
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("dataset", "create", "-o", "compression=zstd-5", f"{tank}/db")
    at = run.fresh("at")
    at.mkdir()
    pool.pagefold("mount", f"{tank}/db", at)
    (at / "rows").write_text("rows\n" * 10_000)
    pool.pagefold("unmount", at)
    pool.pagefold("backup", "create", f"{tank}/db", "--to", repository)
    for pack in objects(repository / "packs"):
        pack.unlink()
    elsewhere = Elsewhere(pool, run)
    copy, device = f"{tank}-copy", run.fresh("device")
    environment = {**os.environ, **elsewhere.environment}
    argv = [pagefold(), "backup", "restore-pool", repository, copy, device, "--size", "512M"]
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and "packs/" in done.stderr, done.stderr
    finally:
        elsewhere.pagefold("destroy", "--force", copy)


def test_another_machine_makes_the_pool_of_it(pool, run):
    repository, tank = run.fresh("repository"), pool.pool
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("dataset", "create", "-o", "recordsize=16K", "-o", f"mountpoint={run.dir}/mnt", "-p", f"{tank}/a/b/c")
    pool.pagefold("set", "note:of=who knows", "compression=zstd-5", f"{tank}/a/b/c")
    pool.pagefold("set", "atime=off", f"backup={repository},every=1h,key-file=none", tank)
    at = run.fresh("c")
    at.mkdir()
    pool.pagefold("mount", f"{tank}/a/b/c", at)
    (at / "rows").write_text("rows\n" * 10_000)
    for name in (tank, f"{tank}/a/b/c"):
        pool.pagefold("backup", "create", name, "--to", repository)
    (at / "rows").write_text("newer rows\n" * 10_000)
    pool.pagefold("replicate", "--once", f"{tank}/a/b/c", repository)
    pool.pagefold("unmount", at)
    # The other machine knows nothing but the repository.
    elsewhere = Elsewhere(pool, run)
    copy, device = f"{tank}-copy", run.fresh("device")
    for words, told in ((["--from", "none"], "no backup of a pool none"), (["--into"], "cannot be used")):
        with pytest.raises(proc.CommandFailed, match=told):
            elsewhere.pagefold("backup", "restore-pool", repository, copy, device, "--size", "512M", *words)
    said = elsewhere.pagefold("backup", "restore-pool", repository, copy, device, "--size", "512M")
    try:
        assert f"{copy}/a/b/c: as of" in said and f"not set: backup={repository}" in said, said
        assert "2 datasets" in said and "Not there" in said
        values = lambda of: dict(  # noqa: E731
            line.split("\t")[1:3] for line in elsewhere.pagefold("get", "-H", "-p", "all", of).splitlines()
        )
        found = values(f"{copy}/a/b/c")
        assert (found["note:of"], found["compression"], found["recordsize"]) == ("who knows", "zstd-5", "16K"), found
        assert found["mountpoint"] == f"{run.dir}/mnt" and found["atime"] == "off" and values(copy)["backup"] == "none"
        back = run.fresh("back")
        back.mkdir()
        elsewhere.pagefold("mount", f"{copy}/a/b/c", back)
        assert (back / "rows").read_text() == "newer rows\n" * 10_000
        elsewhere.pagefold("unmount", back)
        elsewhere.pagefold("mount", f"{copy}/restored", back)
        assert (back / "text").read_text() == (pool.mountpoint / "text").read_text()
        elsewhere.pagefold("unmount", back)
        # Run again, as after an interruption, it keeps the datasets that are there and restores the others.
        elsewhere.pagefold("destroy", "-r", f"{copy}/a/b/c")
        again = elsewhere.pagefold("backup", "restore-pool", repository, copy, "--into")
        assert "1 dataset restored" in again and f"{copy}/restored: as of" in again, again
        assert "restored before, and left as it is now" in again, again
        elsewhere.pagefold("mount", f"{copy}/a/b/c", back)
        assert (back / "rows").read_text() == "newer rows\n" * 10_000
        elsewhere.pagefold("unmount", back)
    finally:
        elsewhere.pagefold("destroy", "--force", copy)
    assert backups(pool, repository)


def test_pools_of_one_name_keep_their_own_backups(pool, run):
    repository, tank = run.fresh("repository"), pool.pool
    pool.pagefold("backup", "init", repository, "--unencrypted")
    pool.pagefold("backup", "create", tank, "--to", repository)
    pool.pagefold("backup", "create", tank, "--to", repository)
    elsewhere = Elsewhere(pool, run)
    made = []
    try:
        elsewhere.pagefold("create", tank, run.fresh("other"), "--size", "512M")
        made.append(tank)
        policy = f"backup={repository},every=1h,daily=1,key-file=none"
        elsewhere.pagefold("set", policy, tank)
        at = run.fresh("at")
        at.mkdir()
        elsewhere.pagefold("mount", tank, at)
        for _ in range(3):
            elsewhere.pagefold("backup", "run", "--now", tank)
        # The policy of one pool forgets its own backups alone.
        found = backups(pool, repository)
        assert [one["number"] for one in found] == [1, 2, 5], found
        first, other = found[0]["pool_guid"], found[2]["pool_guid"]
        assert first == found[1]["pool_guid"] != other
        with pytest.raises(proc.CommandFailed, match="2 is the newest of pool"):
            pool.pagefold("backup", "show", repository, tank)
        copy = f"{tank}-copy"
        words = ("backup", "restore-pool", repository, copy, run.fresh("device"), "--size", "512M")
        with pytest.raises(proc.CommandFailed, match=f"(?s){first}.*backups 1, 2.*--from GUID"):
            elsewhere.pagefold(*words, "--from", tank)
        said = elsewhere.pagefold(*words, "--from", first)
        made.append(copy)
        assert "backup 2" in said, said
    finally:
        for name in made:
            elsewhere.pagefold("destroy", "--force", name)


class Elsewhere:
    """The program on a machine of its own."""

    def __init__(self, pool: Pool, run):
        folder = run.fresh("elsewhere")
        self.environment = {
            "PAGEFOLD_STATE_DIR": f"{folder}/state",
            "PAGEFOLD_RUNTIME_DIR": f"{folder}/run",
            "PAGEFOLD_LOG_DIR": f"{folder}/log",
        }
        for path in self.environment.values():
            os.makedirs(path, mode=0o700)

    def pagefold(self, *words) -> str:
        return proc.run([pagefold(), *words], env=self.environment, timeout_s=120)
