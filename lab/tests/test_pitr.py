"""A PostgreSQL cluster that archives into a repository, restored to points in time."""

from __future__ import annotations

import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import time
from pathlib import Path

import pytest

from lab import proc
from lab.paths import pagefold, postgres_bin
from lab.pitr import Production, drawn, exact, verified
from lab.pool import Pool
from lab.postgres import USER

pytestmark = pytest.mark.long

POOL_BYTES = 3 << 30


@pytest.fixture(scope="module")
def production(run, request):
    """Provides a cluster under load, with a backup."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("backups of Pagefold are needed")
    with Pool(run, POOL_BYTES) as pool:
        production = Production(pool, rate=100)
        production.create()
        yield production
        production.stop()
        pool.unmount()
        pool.check()


def started(production: Production, *words, cwd=None, user=None) -> subprocess.CompletedProcess:
    """Runs `pagefold`, however it ends."""
    environment = {**os.environ, **production.pool.environment}
    argv = [pagefold(), *map(str, words), "--key-file", str(production.key)]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, cwd=cwd, **proc.as_user(user))


def archive(production: Production, *words, **more) -> subprocess.CompletedProcess:
    return started(production, "archive", *words, cwd=production.server.data, user=USER, **more)


def newest(production: Production) -> str:
    """Returns the name of the segment that is being written."""
    return production.server.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")


def names(production: Production) -> list[str]:
    """Returns the names of archived segments, in order."""
    found = (path.name.partition("-")[2] for path in (production.repository / "wal").iterdir())
    return sorted(name for name in found if len(name) == 24)


def test_points_under_load_have_the_rows_up_to_them_and_none_later(production):
    moments = random.Random(time.time_ns())
    points = [drawn(production, moments) for _ in range(2)]
    production.create()
    # One point lies soon behind the backup.
    time.sleep(0.5)
    points += [drawn(production, moments)]
    production.client.wait_for(len(production.client.rows) + 3)
    production.archived()
    backups = [re.search(r"from backup (\d+)", verified(production, point))[1] for point in points]
    # Each restore takes the newest backup from before its point.
    assert backups[0] == "1" and backups[-1] == "2", backups


def test_a_file_is_archived_once_and_comes_back(production, run):
    production.archived()
    repository, name = production.repository, names(production)[-1]
    to = run.fresh("fetched")
    to.mkdir()
    proc.run(["chown", f"{USER}:", to])
    assert archive(production, "fetch", repository, name, to / name).returncode == 0
    assert (to / name).stat().st_size == 1 << 20 and [path.name for path in to.iterdir()] == [name]
    # Another push of the same segment succeeds, as is needed after a crash of the server.
    assert archive(production, "push", repository, to / name).returncode == 0
    other = bytearray((to / name).read_bytes())
    other[-1] ^= 1
    (to / name).write_bytes(other)
    done = archive(production, "push", repository, to / name)
    assert done.returncode == 1 and "with another content" in done.stderr and "archive_mode=off" in done.stderr, done
    # A file that is no segment is refused, and so is one whose name is that of another.
    (to / name).write_bytes(b"x" * 100)
    assert "does not begin as a segment" in archive(production, "push", repository, to / name).stderr
    (to / "0000000100000000000000F0").write_bytes(other)
    assert "its first page is that of" in archive(production, "push", repository, to / "0000000100000000000000F0").stderr
    assert archive(production, "push", repository, to / "x").returncode == 2
    done = archive(production, "push", "--system", "5", repository, production.server.data / "pg_wal" / "00000009.history")
    assert done.returncode == 1 and "No such file" in done.stderr
    # The server's user can neither enter this repository nor write to it.
    closed = run.fresh("closed")
    production.pool.pagefold("backup", "init", closed, "--unencrypted")
    assert closed.stat().st_mode & 0o777 == 0o700
    argv = [pagefold(), "archive", "push", str(closed), str(production.server.data / "pg_wal" / newest(production))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, **proc.as_user(USER))
    assert done.returncode == 1 and f"chgrp GROUP {closed} && chmod 750 {closed}" in done.stderr, done
    proc.run(["chgrp", USER, closed])
    closed.chmod(0o750)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, **proc.as_user(USER))
    assert done.returncode == 1 and f"install -d -o postgres {closed}/wal" in done.stderr, done
    # One that others may enter as it was made before, and is not encrypted.
    open_to_all = run.fresh("open")
    open_to_all.mkdir(0o755)
    done = subprocess.run([pagefold(), "backup", "init", open_to_all, "--unencrypted"], capture_output=True, text=True, env=production.pool.environment)
    assert done.returncode == 0 and f"chmod 700 {open_to_all}" in done.stderr, done
    # Segments of another cluster are kept apart.
    assert archive(production, "fetch", "--system", "5", repository, name, to / "y").returncode == 1


def test_a_push_that_was_killed_is_done_again(production, run):
    """Whatever a killed push has left, the file is there as a whole, or is not there."""
    production.archived()
    repository, folder = run.fresh("killed"), run.fresh("segments")
    production.pool.pagefold("backup", "init", repository, "--unencrypted")
    folder.mkdir()
    proc.run(["chown", f"{USER}:", folder])
    name, whole = names(production)[-1], folder / "whole"
    assert archive(production, "fetch", "--system", system(production), production.repository, name, whole).returncode == 0
    segment = bytearray(whole.read_bytes())
    moments, before = random.Random(1), 0
    for number in range(1, 9):
        # The first page of a segment (of 1 MiB) tells its place in the log.
        segment[8:16] = struct.pack("<Q", number << 20)
        file = folder / f"0000000100000000{number:08X}"
        file.write_bytes(segment)
        argv = [pagefold(), "archive", "push", str(repository), str(file)]
        process = subprocess.Popen(argv, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.0, 0.04))
        process.kill()
        process.wait(10)
        before += any(path.name.endswith(file.name) for path in (repository / "wal").glob("*"))
        proc.run(argv)
        proc.run([pagefold(), "archive", "fetch", "--system", system(production), repository, file.name, folder / "back"])
        assert (folder / "back").read_bytes() == segment
    assert "8 files of logs" in proc.run([pagefold(), "backup", "verify", repository], env=production.pool.environment)
    print(f"{before} of 8 were there when it was killed")


def system(production: Production) -> str:
    """Returns the cluster's system identifier."""
    return production.server.sql("SELECT system_identifier FROM pg_control_system()")


def test_all_that_was_archived_can_be_had_and_becomes_a_production(production):
    promised = {row.number for row in production.client.rows}
    production.archived()
    restored = production.restore("--to-latest")
    try:
        assert promised <= restored.rows()
        assert restored.sql("SHOW archive_mode") == "off"
        restored.sql("ALTER SYSTEM RESET archive_mode")
        restored.sql("ALTER SYSTEM RESET restore_command")
        settings = (restored.data / "postgresql.auto.conf").read_text()
        assert "archive_mode" not in settings and "restore_command" not in settings
        # The restored cluster is on a timeline of its own.
        assert restored.sql("SELECT timeline_id FROM pg_control_checkpoint()") == "2"
    finally:
        restored.destroy()


def test_the_latest_has_what_is_in_the_newest_backup_and_not_yet_in_the_archive(production):
    wal = production.repository / "wal"
    production.archived()
    # Nothing is archived from here on.
    proc.run(["chown", "root:", wal])
    try:
        production.server.sql("SELECT pg_switch_wal(); CHECKPOINT")
        production.client.wait_for(len(production.client.rows) + 3)
        promised = {row.number for row in production.client.rows}
        made = production.create()
        (log,) = production.backup("archive", "list", production.repository, json_of=True)["logs"]
        assert {line["backup"]: line for line in log["lines"]}[made["number"]]["until"] is None, log
        restored = production.restore("--to-latest")
        try:
            assert promised <= restored.rows(), max(restored.rows())
        finally:
            restored.destroy()
    finally:
        proc.run(["chown", f"{USER}:", wal])
    production.archived()


def test_a_gap_is_told_and_what_a_killed_restore_has_left_is_unmounted(production):
    made = production.create()
    for _ in range(3):
        production.client.wait_for(len(production.client.rows) + 1)
        production.archived()
    middle = names(production)[-2]
    (path,) = (path for path in (production.repository / "wal").iterdir() if path.name.endswith(middle))
    aside, name = production.run.fresh("aside"), f"{production.pool.pool}/gap"
    # A mount of a process that is gone, as a restore names it.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    left = Path(production.pool.environment["PAGEFOLD_RUNTIME_DIR"]) / f"restore-1-{boot}_4194303_1"
    production.pool.pagefold("dataset", "create", f"{production.pool.pool}/left")
    production.pool.pagefold("mount", f"{production.pool.pool}/left", left)
    shutil.move(path, aside)
    try:
        words = ["backup", "restore", production.repository, made["number"], name, "--to-latest"]
        done = started(production, *words)
        assert done.returncode == 0 and f"{middle} is missing in the archive: the log is whole up to" in done.stderr, done
        assert f"recovery goes on to the first gap of the archive, {middle}" in done.stdout, done
        assert not left.exists()
    finally:
        shutil.move(aside, path)
        if os.path.ismount(left):
            production.pool.pagefold("unmount", left)
        production.pool.pagefold("destroy", f"{production.pool.pool}/left")
        if name in production.pool.pagefold("list", "-H", production.pool.pool):
            production.pool.pagefold("destroy", "-r", name)


def test_only_what_is_not_there_ends_a_recovery(production, run):
    repository, name, to = production.repository, names(production)[0], run.fresh("to")
    assert archive(production, "fetch", repository, "0000000100000000000000FF", to).returncode == 1
    assert archive(production, "fetch", f"{repository}/none", name, to).returncode == 254
    assert archive(production, "fetch", repository, "x", to).returncode == 254
    assert archive(production, "fetch", repository).returncode == 254
    assert archive(production, "fetch", repository, name, "/nowhere/x").returncode == 254
    # Here the program is neither in a data directory nor told of one.
    assert started(production, "archive", "fetch", repository, name, to, cwd="/").returncode == 254
    (path,) = (path for path in (repository / "wal").iterdir() if path.name.endswith(name))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = archive(production, "fetch", repository, name, to)
    assert done.returncode == 254 and "damaged" in done.stderr and not to.exists(), done
    assert started(production, "backup", "verify", repository).returncode == 1
    path.write_bytes(whole)
    assert started(production, "backup", "verify", repository).returncode == 0


def test_what_cannot_be_restored_is_refused_before_anything_is_made(production):
    name = f"{production.pool.pool}/refused"
    for words, told in (
        (["--to-time", "2020-01-01 00:00:00+00"], "it is earlier than backup 1"),
        (["--to-time", exact(time.time_ns() // 1000 + 3_600_000_000)], "later than what is archived"),
        (["--to-lsn", "0/1000028"], "it is earlier than backup"),
        (["--to-lsn", "F/0"], "later than what is archived"),
        (["--to-lsn", "F/0"], f"archive list {production.repository} --key-file {production.key}"),
        (["--to-latest", "--start"], f"where is {name} to be mounted?"),
        (["--to-latest", "--mountpoint", production.run.dir / "x"], "without --start nothing is mounted"),
        (["--to-time", "2026-01-01 00:00:00"], "in which zone"),
        (["--to-lsn", "x"], "no place in a log"),
        (["--to-latest", "--timeline", "7"], "does not lead to the timeline"),
    ):
        done = started(production, "backup", "restore", production.repository, production.dataset.name, name, *words)
        assert done.returncode in (1, 2) and told in done.stderr, (words, done.stderr)
    assert name not in production.pool.pagefold("list", "-H", production.pool.pool)


def test_a_server_that_was_started_can_be_stopped_as_it_says(production):
    name, mountpoint = f"{production.pool.pool}/started", production.run.fresh("started")
    production.archived()
    words = ["--to-latest", "--start", "--mountpoint", mountpoint]
    entry = production.run.mount(mountpoint)
    said = production.backup("backup", "restore", production.repository, production.dataset.name, name, *words)
    try:
        assert (mountpoint / "data" / "postmaster.pid").exists()
        (stop,) = re.findall(r"^  to stop it, as the owner of the data: (.*)$", said, re.M)
        proc.run(shlex.split(stop), user=USER)
        assert not (mountpoint / "data" / "postmaster.pid").exists()
    finally:
        production.pool.pagefold("unmount", "--force", name)
        production.run.done(entry)
        production.pool.pagefold("destroy", "-r", name)


def test_the_server_itself_refuses_a_point_before_the_backup_is_consistent(production):
    """Verifies the ground of decision 0047: without a backup_label PostgreSQL takes the end of the log in the backup
    for the consistent point."""
    name, mountpoint = f"{production.pool.pool}/early", production.run.fresh("early")
    production.archived()
    production.backup("backup", "restore", production.repository, production.dataset.name, name, "--to-latest")
    mountpoint.mkdir()
    entry = production.run.mount(mountpoint)
    production.pool.pagefold("mount", name, mountpoint)
    try:
        data = mountpoint / "data"
        assert (data / "recovery.signal").exists() and not (data / "postmaster.pid").exists()
        control = proc.run([postgres_bin("pg_controldata"), data], env={"LC_ALL": "C"})
        redo = re.search(r"REDO location: +(\S+)", control)[1]
        with open(data / "postgresql.auto.conf", "a") as settings:
            settings.write(f"recovery_target_lsn = '{redo}'\nhot_standby = off\n")
        argv = [postgres_bin("postgres"), "-D", data, "-k", data, "-c", "listen_addresses="]
        with pytest.raises(proc.CommandFailed, match="requested recovery stop point is before consistent recovery point"):
            proc.run(argv, user=USER, timeout_s=60)
    finally:
        production.pool.pagefold("unmount", mountpoint)
        production.run.done(entry)
        production.pool.pagefold("destroy", "-r", name)


def test_the_list_tells_of_gaps_and_prune_keeps_what_is_needed(production):
    repository = production.repository
    production.archived()
    (log,) = production.backup("archive", "list", repository, json_of=True)["logs"]
    lines = {line["backup"]: line for line in log["lines"]}
    assert len(log["stretches"]) == 1 and all(line["missing"] is None for line in lines.values()), log
    assert "CLUSTER" in production.backup("backup", "list", repository)
    # A segment in the middle is taken away.
    middle = names(production)[-3]
    (path,) = (path for path in (repository / "wal").iterdir() if path.name.endswith(middle))
    aside = production.run.fresh("aside")
    shutil.move(path, aside)
    assert middle in production.backup("backup", "list", repository)
    (gap,) = production.backup("archive", "list", repository, json_of=True)["logs"]
    assert len(gap["stretches"]) == 2 and gap["lines"][0]["missing"] == middle, gap
    done = started(production, "backup", "check", repository)
    assert done.returncode == 1 and middle in done.stdout, done
    shutil.move(aside, path)
    assert started(production, "backup", "check", repository).returncode == 0
    # Segments from before the newest backup go with the second prune, and the newest can still be restored.
    production.server.sql("CHECKPOINT")
    newest = production.create()
    before = len(names(production))
    assert production.backup("backup", "prune", repository, "--keep", "last=1", json_of=True)["logs"]["deleted_files"] == 0
    pruned = production.backup("backup", "prune", repository, "--keep", "last=1", json_of=True)["logs"]
    assert pruned["deleted_files"] > 0 and len(names(production)) < before, pruned
    point = drawn(production, random.Random(1))
    production.client.wait_for(len(production.client.rows) + 3)
    production.archived()
    assert f"from backup {newest['number']}," in verified(production, point)
