"""`pagefold basebackup` of real clusters: verified by pg_verifybackup, restored by tar, and started."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import load, proc, verify
from lab.paths import pagefold, postgres_bin
from lab.pool import Pool
from lab.postgres import USER, Postgres

POOL_BYTES = 3 << 30
DATABASE = "bench"
UNPACK = {"base.tar": [], "base.tar.gz": ["-I", "gzip"], "base.tar.lz4": ["-I", "lz4"], "base.tar.zst": ["-I", "zstd"]}


@pytest.fixture(scope="module")
def pool(run, request):
    """Provides a pool of its own, which is checked at the end."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("snapshots of Pagefold are needed")
    with Pool(run, POOL_BYTES) as pool:
        yield pool
        assert snapshots(pool) == []
        pool.unmount()
        pool.check()


@dataclass
class Production:
    """A cluster that is in use during backups, with a tablespace and an unlogged table."""

    server: Postgres
    client: load.Acknowledged
    record: Path
    space: Path


@pytest.fixture(scope="module")
def production(run, pool) -> Production:
    folder, space = folder_on(pool, "pg"), folder_on(pool, "space")
    server = Postgres(run, folder / "data")
    load.prepare_pgbench(server, DATABASE, 1)
    server.sql(f"CREATE TABLESPACE space LOCATION '{space}'")
    server.sql(
        "CREATE TABLE in_space TABLESPACE space AS SELECT n FROM generate_series(1, 1000) n;"
        "CREATE UNLOGGED TABLE unlogged AS SELECT n FROM generate_series(1, 1000) n; CHECKPOINT",
        database=DATABASE,
    )
    record = run.dir / "acknowledged"
    client = load.acknowledged(server, DATABASE, record, 1)
    work = load.pgbench_load(server, DATABASE, clients=2, rate=300)
    client.wait_for(20)
    yield Production(server, client, record, space)
    work.require_running()
    work.stop()
    client.stop()
    verify.acknowledged_rows(server, DATABASE, record)
    verify.no_torn_pages(server.log)
    server.stop()
    server.verify_checksums()


@pytest.fixture(scope="module")
def small(run, pool) -> Postgres:
    """Provides a cluster that was shut down, in a dataset of its own, which is not mounted."""
    name = f"{pool.pool}/small"
    pool.pagefold("dataset", "create", name)
    mountpoint = run.fresh("small")
    mountpoint.mkdir()
    pool.pagefold("mount", name, mountpoint)
    entry = run.mount(mountpoint)
    data = mountpoint / "data"
    data.mkdir()
    proc.run(["chown", f"{USER}:", data])
    server = Postgres(run, data, name="small")
    server.initdb()
    yield server
    pool.pagefold("unmount", mountpoint)
    run.done(entry)


def folder_on(pool: Pool, name: str) -> Path:
    folder = pool.mountpoint / name
    folder.mkdir()
    proc.run(["chown", f"{USER}:", folder])
    return folder


def snapshots(pool: Pool) -> list[str]:
    """Returns snapshots that were made for backups and are still there."""
    listed = pool.pagefold("list", "-H", "-t", "snapshot", pool.pool)
    return re.findall(r"^\S+@basebackup-\S+", listed, re.M)


def fails(pool: Pool, *arguments) -> str:
    """Runs the program, which has to fail, and returns its output."""
    with pytest.raises(proc.CommandFailed) as failure:
        pool.pagefold("basebackup", *arguments)
    assert failure.value.status in (1, 2)
    return failure.value.output


def verified(folder: Path) -> None:
    assert "successfully verified" in proc.run([postgres_bin("pg_verifybackup"), folder])


def unpacked(run, backup: Path) -> Path:
    """Restores an archive by tar, with its tablespaces beside it, and verifies it. Returns the data directory."""
    (base,) = [name for name in UNPACK if (backup / name).exists()]
    data = run.fresh("restored")
    data.mkdir(mode=0o700)
    proc.run(["tar", "-x", *UNPACK[base], "-f", backup / base, "-C", data])
    shutil.copy(backup / "backup_manifest", data)
    for archive in backup.glob("[0-9]*.tar*"):
        oid, folder = archive.name.split(".")[0], run.fresh("restored-space")
        folder.mkdir(mode=0o700)
        proc.run(["chown", f"{USER}:", folder])
        proc.run(["tar", "-x", *UNPACK[archive.name.replace(oid, "base")], "-f", archive, "-C", folder])
        link = data / "pg_tblspc" / oid
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
        proc.run(["chown", "-h", f"{USER}:", link])
        verified(data)
        if (data / "tablespace_map").exists():
            (data / "tablespace_map").write_text(f"{oid} {folder}\n")
    proc.run(["chown", f"{USER}:", data])
    return data


def last_record(data: Path, told: dict) -> str:
    """Returns the position of the last record in the log that a backup names."""
    where = ["-p", data / "pg_wal", "-t", str(told["timeline"]), "-s", told["start_lsn"], "-e", told["end_lsn"]]
    high, low = re.findall(r"lsn: ([0-9A-F]+)/([0-9A-F]+),", proc.run([postgres_bin("pg_waldump"), *where]))[-1]
    return f"{high}/{int(low, 16):X}"


CASES = [
    ("plain", None, False),
    ("tar", "none", False),
    ("tar", "gzip", False),
    ("tar", "lz4", False),
    ("tar", "zstd:level=5,workers=3", False),
    ("plain", None, True),
    ("tar", "zstd", True),
]


@pytest.mark.parametrize("form, compress, told", CASES, ids=lambda case: str(case))
def test_a_backup_of_a_running_server_is_verified_restored_and_complete(run, pool, production, form, compress, told):
    before = run.fresh("promised")
    production.client.wait_for(production.client.count + 5)
    lines = production.record.read_text()
    before.write_text(lines[: lines.rfind("\n") + 1])
    backup, space = run.fresh("backup"), run.fresh("moved-space")
    words = ["-F", form, *(["-Z", compress] if compress else []), *(["--server"] if told else [])]
    words += ["-T", f"{production.space}={space}"] if form == "plain" else []
    # The source is the data directory itself, as it is mounted.
    answer = json.loads(pool.pagefold("basebackup", production.server.data, "-D", backup, "--json", *words))
    assert answer["basebackup"]["wrong_pages"] == 0 and answer["basebackup"]["verified_files"] > 100
    assert answer["server"] == told and snapshots(pool) == []
    data = backup if form == "plain" else unpacked(run, backup)
    if form == "plain":
        verified(data)
    assert (data / "backup_label").exists() == told
    assert not (data / "postmaster.pid").exists()
    restored = Postgres(run, data, name=f"restored-{form}-{compress}-{told}".replace(":", "-"))
    last = None if told else last_record(data, answer["basebackup"])
    restored.start()
    try:
        # The server recovers exactly the log that the manifest names.
        assert last is None or f"redo done at {last} " in restored.log.read_text()
        verify.acknowledged_rows(restored, DATABASE, before)
        verify.pgbench_balances(restored, DATABASE)
        counts = "SELECT (SELECT count(*) FROM in_space), (SELECT count(*) FROM unlogged)"
        assert restored.sql(counts, database=DATABASE) == "1000|0"
        (link,) = (data / "pg_tblspc").iterdir()
        assert not link.readlink().is_relative_to(pool.mountpoint), "the copy uses production's tablespace"
        restored.amcheck(DATABASE)
        if told:
            assert "consistent recovery state reached" in restored.log.read_text()
    finally:
        restored.stop()
    verify.no_torn_pages(restored.log)
    shutil.rmtree(backup)
    shutil.rmtree(data, ignore_errors=True)


def begun(pool: Pool, to: Path, source: str, *words: str) -> subprocess.Popen:
    """Starts a backup that takes long, and returns when it is in the middle."""
    argv = [pagefold(), "basebackup", source, "-D", to, "-F", "tar", "--rate", "5M", *words]
    process = subprocess.Popen(argv, env={**os.environ, **pool.environment}, stderr=subprocess.PIPE, text=True)
    entry = pool.run.process(process.pid, "pagefold")
    deadline = time.monotonic() + 30
    while not (list(to.glob("*.partial")) if to.exists() else []):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "it does not begin"
        time.sleep(0.02)
    assert len(snapshots(pool)) == 1
    pool.run.done(entry)
    return process


def test_an_interrupted_backup_leaves_nothing_and_a_killed_one_nothing_that_lasts(run, pool, small):
    source, to = f"{pool.pool}/small", run.fresh("interrupted")
    process = begun(pool, to, source)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 1 and "it was interrupted" in process.stderr.read()
    assert not to.exists() and snapshots(pool) == []
    process = begun(pool, to, source)
    process.kill()
    process.wait(30)
    # The unfinished archive does not look whole; the next backup removes the snapshot.
    assert [path.name for path in to.iterdir()] == ["base.tar.partial"]
    (left,) = snapshots(pool)
    assert "is not empty" in fails(pool, source, "-D", to)
    shutil.rmtree(to)
    process = begun(pool, to, source)
    # Other backups leave the one that runs alone.
    (running,) = snapshots(pool)
    assert running != left
    other = run.fresh("other")
    pool.pagefold("basebackup", source, "-D", other, "-F", "tar", "-Z", "lz4")
    assert snapshots(pool) == [running]
    process.terminate()
    process.wait(30)
    assert snapshots(pool) == []


def test_of_snapshots_directories_and_names(run, pool, small, production):
    name = f"{pool.pool}/small"
    pool.pagefold("snapshot", f"{name}@kept")
    mountpoint = small.data.parent
    for source in (f"{name}@kept", small.data, mountpoint, mountpoint / ".pagefold/snapshot/kept/data"):
        to = run.fresh("named")
        form = "plain" if source == small.data else "tar"
        words = ["-D", to, "-F", form, "--json", "--manifest-checksums", "sha256"]
        told = json.loads(pool.pagefold("basebackup", source, *words))
        assert ("kept" in told["snapshot"]) == ("kept" in str(source))
        if form == "tar":
            assert sorted(os.listdir(to)) == ["backup_manifest", "base.tar"]
            continue
        verified(to)
        # The cluster was shut down, so the log ends with the checkpoint's record.
        control = proc.run([postgres_bin("pg_controldata"), to], env={"LC_ALL": "C"})
        assert f"Latest checkpoint location:           {told['basebackup']['start_lsn']}\n" in control
    assert "is a snapshot" in fails(pool, f"{name}@kept", "-D", run.fresh("x"), "--server")
    assert "no server runs" in fails(pool, name, "-D", run.fresh("x"), "--server")
    assert "which is not in" not in fails(pool, name, "-D", run.fresh("x"), "--data", "none")
    assert "standard output" in fails(pool, name, "-D", "-")
    assert "not compressed" in fails(pool, name, "-D", run.fresh("x"), "-Z", "zstd")
    assert "level" in fails(pool, name, "-D", run.fresh("x"), "-F", "tar", "-Z", "zstd:99")
    # Each tablespace needs an archive, and standard output takes only one.
    assert "standard output takes one" in fails(pool, pool.pool, "-D", "-", "-F", "tar")
    # This server belongs to another cluster.
    socket = production.server.socket_dir
    conninfo = f"host={socket} user={USER} dbname=postgres"
    assert "is not the one of this data directory" in fails(pool, name, "-D", run.fresh("x"), "--dbname", conninfo)
    assert "cannot log in" in fails(pool, name, "-D", run.fresh("x"), "--dbname", "host=/nowhere")
    pool.pagefold("destroy", f"{name}@kept")
    assert snapshots(pool) == [] and not list(run.dir.glob("x-*"))


def test_standard_output_of_a_dataset_that_is_not_mounted(run, pool, small):
    mountpoint, name = small.data.parent, f"{pool.pool}/small"
    pool.pagefold("unmount", mountpoint)
    to = run.fresh("piped")
    to.mkdir(mode=0o700)
    command = f"set -o pipefail; '{pagefold()}' basebackup {name} -D - -F tar -Z zstd | tar -x -I zstd -C {to}"
    proc.run(["bash", "-c", command], env=pool.environment)
    verified(to)
    # A reader that goes away is an error, and nothing is left.
    command = f"set -o pipefail; '{pagefold()}' basebackup {name} -D - -F tar | head -c 100000 > /dev/null"
    with pytest.raises(proc.CommandFailed) as failure:
        proc.run(["bash", "-c", command], env=pool.environment)
    assert "standard output" in failure.value.output
    assert snapshots(pool) == [] and not list((run.dir / "run").glob("basebackup-*"))
    # A backup that is killed leaves a mount and a snapshot, which the next one removes.
    killed = begun(pool, run.fresh("killed"), name)
    killed.kill()
    killed.wait(30)
    assert len(list((run.dir / "run").glob("basebackup-*"))) == 1
    pool.pagefold("basebackup", name, "-D", run.fresh("next"), "-F", "tar", "-z")
    assert snapshots(pool) == [] and not list((run.dir / "run").glob("basebackup-*"))
    pool.pagefold("mount", name, mountpoint)


def test_a_wrong_checksum_is_told_and_kept(run, pool, small):
    (relation, *_) = sorted((small.data / "base/1").glob("1259"))
    whole = relation.read_bytes()
    with open(relation, "r+b") as file:
        file.seek(8192 + 4000)
        byte = file.read(1)
        file.seek(8192 + 4000)
        file.write(bytes([byte[0] ^ 1]))
    to = run.fresh("damaged")
    said = fails(pool, f"{pool.pool}/small", "-D", to)
    assert "base/1/1259, block 1: its checksum is" in said and "checksums of 1 page are wrong" in said
    # All files that were read are there.
    verified(to)
    again = run.fresh("damaged")
    pool.pagefold("basebackup", f"{pool.pool}/small", "-D", again, "--no-verify-checksums")
    with open(relation, "r+b") as file:
        file.write(whole)


def test_a_relative_link_to_a_tablespace_leads_to_the_copy(run, pool, small):
    mountpoint, name = small.data.parent, f"{pool.pool}/small"
    space = mountpoint / "space"
    space.mkdir()
    proc.run(["chown", f"{USER}:", space])
    small.start()
    small.sql(f"CREATE TABLESPACE space LOCATION '{space}'")
    small.sql("CREATE TABLE in_space TABLESPACE space AS SELECT n FROM generate_series(1, 1000) n")
    small.stop()
    (link,) = (small.data / "pg_tblspc").iterdir()
    link.unlink()
    link.symlink_to("../../space")
    # Without a mapping the copy's link would lead to other files than those of the copy.
    assert f"-T {space}=NEW" in fails(pool, name, "-D", run.fresh("x"))
    assert "no tablespace at" in fails(pool, name, "-D", run.fresh("x"), "-T", f"{mountpoint}/other=/new")
    small.start()
    try:
        for form, told in (("plain", []), ("tar", []), ("tar", ["--server"])):
            to, moved = run.fresh("relative"), run.fresh("relative-space")
            pool.pagefold("basebackup", name, "-D", to, "-F", form, "-T", f"{space}={moved}", *told)
            data = to
            if form == "tar":
                data = run.fresh("relative-data")
                for folder, archive in ((data, "base.tar"), (moved, f"{link.name}.tar")):
                    folder.mkdir(mode=0o700)
                    proc.run(["chown", f"{USER}:", folder])
                    proc.run(["tar", "-x", "-f", to / archive, "-C", folder])
                shutil.copy(to / "backup_manifest", data)
            if not told:
                verified(data)
            restored = Postgres(run, data, name=f"relative-{form}-{len(told)}")
            restored.start()
            try:
                assert (data / "pg_tblspc" / link.name).readlink() == moved
                assert restored.sql("SELECT count(*) FROM in_space") == "1000"
            finally:
                restored.stop()
    finally:
        small.sql("DROP TABLE in_space")
        small.sql("DROP TABLESPACE space")
        small.stop()
    assert snapshots(pool) == []


def test_what_lies_elsewhere_is_refused(run, pool, small):
    link, outside = small.data / "pg_tblspc/16999", run.fresh("outside")
    outside.mkdir()
    link.symlink_to(outside)
    said = fails(pool, f"{pool.pool}/small", "-D", run.fresh("x"))
    assert f"tablespace 16999 lies at {outside}, which is not in {pool.pool}/small" in said
    link.unlink()
    wal, moved = small.data / "pg_wal", run.fresh("wal")
    shutil.copytree(wal, moved)
    wal.rename(small.data / "pg_wal.away")
    wal.symlink_to(moved)
    assert f"log lies at {moved}" in fails(pool, f"{pool.pool}/small", "-D", run.fresh("x"))
    wal.unlink()
    # The log may be anywhere within the dataset.
    (small.data / "pg_wal.away").rename(small.data.parent / "wal")
    wal.symlink_to(small.data.parent / "wal")
    to = run.fresh("moved")
    pool.pagefold("basebackup", f"{pool.pool}/small", "-D", to)
    assert (to / "pg_wal").is_dir() and not (to / "pg_wal").is_symlink()
    verified(to)
    # With two clusters, it is not clear which one is meant.
    second = small.data.parent / "second"
    (second / "global").mkdir(parents=True)
    for name in ("PG_VERSION", "global/pg_control"):
        shutil.copy(small.data / name, second / name)
    assert "2 databases: data, second" in fails(pool, f"{pool.pool}/small", "-D", run.fresh("x"))
    pool.pagefold("basebackup", f"{pool.pool}/small", "-D", run.fresh("second"), "--data", "data", "-F", "tar")
    assert snapshots(pool) == []
