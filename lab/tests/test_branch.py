"""`pagefold branch` with real servers, beside a production server under load that must not notice."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from lab import load, proc, verify
from lab.branches import DATABASE, At, Branches, amcheck, cluster, maria, psql
from lab.mariadb import USER as MYSQL
from lab.mariadb import MariaDB
from lab.paths import postgres_bin
from lab.pool import Pool
from lab.postgres import USER as POSTGRES
from lab.snapshots import Mounted

POOL_BYTES = 4 << 30
SCALE = 2
ROWS = 5000


@pytest.fixture(scope="module")
def pool(run, request):
    """Provides a pool of its own, which is checked at the end."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("branches are Pagefold's own")
    with Pool(run, POOL_BYTES) as pool:
        yield pool
        pool.unmount()
        pool.check()


@pytest.fixture(scope="module")
def branches(pool):
    return Branches(pool)


@pytest.fixture(scope="module")
def archive(run) -> Path:
    """Provides the folder that production archives its log to."""
    folder = run.fresh("archive")
    folder.mkdir()
    proc.run(["chown", f"{POSTGRES}:", folder])
    return folder


@pytest.fixture(scope="module")
def production(pool, archive):
    """Provides a server with an archive, a replication slot and a pid file of its own, under load. Its settings are in
    its files, as on other machines."""
    dataset, server = cluster(pool, SCALE)
    pid_file = server.socket_dir / "production.pid"
    server.sql("SELECT pg_create_physical_replication_slot('standby', true)")
    server.stop()
    with open(server.data / "postgresql.conf", "a") as config:
        config.write(
            f"archive_mode = on\narchive_command = 'cp %p {archive}/%f'\nexternal_pid_file = '{pid_file}'\n"
            "wal_level = logical\nlogging_collector = on\nlog_directory = 'log'\nfull_page_writes = off\n"
            "synchronous_standby_names = ''\nport = 5432\nlisten_addresses = '*'\n"
        )
    for name in ("wal_level", "logging_collector"):
        server.settings.pop(name, None)
    server.settings["logging_collector"] = "off"
    server.start()
    record = pool.run.dir / "acknowledged-prod"
    client, work = load.acknowledged(server, DATABASE, record, 1), load.pgbench_load(server, DATABASE)
    client.wait_for(20)
    yield dataset, server, record, pid_file
    work.require_running()
    work.stop()
    client.stop()
    verify.acknowledged_rows(server, DATABASE, record)
    verify.pgbench_balances(server, DATABASE)
    verify.no_torn_pages(server.log)
    server.stop()
    server.verify_checksums()
    dataset.unmount()


def controldata(data: Path, name: str) -> str:
    text = proc.run([postgres_bin("pg_controldata"), data], env={"LC_ALL": "C"})
    return re.search(rf"^{name}:\s+(\S+)", text, re.M).group(1)


def promised(record: Path, pool: Pool) -> Path:
    """Copies the record of rows acknowledged by now, and returns the copy."""
    lines, kept = record.read_text(), pool.run.fresh("promised")
    kept.write_text(lines[: lines.rfind("\n") + 1])
    return kept


def test_a_branch_of_a_running_server_recovers_and_is_its_own(pool, branches, production, archive):
    dataset, server, record, pid_file = production
    before = promised(record, pool)
    branch = branches.create(dataset.name, "feature-x", "--start")
    try:
        assert branch["state"] == "running" and branch["database"] == "postgresql" and branch["version"]
        assert branch["mounted"] == f"{dataset.mountpoint}-feature-x"
        assert branch["origin"] == f"{dataset.name}@branch-feature-x"
        verify.acknowledged_rows(At(branch, "|", psql), DATABASE, before)
        verify.pgbench_balances(At(branch, "|", psql), DATABASE)
        amcheck(branch)
        # The branch tells the same as PostgreSQL's own program reads from the snapshot's control file.
        snapshot = dataset.mountpoint / ".pagefold" / "snapshot" / "branch-feature-x" / "data"
        assert branch["lsn"] == controldata(snapshot, "Latest checkpoint's REDO location")
        assert branch["checkpoint_lsn"] == controldata(snapshot, "Latest checkpoint location")
        assert branch["system_identifier"] == controldata(snapshot, "Database system identifier")
        # The branch is a copy of production, and does nothing to it.
        settings = dict(line.split("|") for line in psql(branch, "SELECT name, setting FROM pg_settings").splitlines())
        for name, value in {
            "archive_mode": "off",
            "listen_addresses": "localhost",
            "external_pid_file": "branch.pid",
            "logging_collector": "off",
            "max_logical_replication_workers": "0",
            "port": str(branch["port"]),
        }.items():
            assert settings[name] == value, name
        (log,) = Path(pool.environment["PAGEFOLD_LOG_DIR"]).glob("branch-*feature-x.log")
        assert "external PID file" not in log.read_text()
        assert psql(branch, "SELECT count(*) FROM pg_replication_slots") == "0"
        assert server.sql("SELECT slot_name FROM pg_replication_slots") == "standby"
        assert int(pid_file.read_text()) == server.server.pid
        assert listening(branch["port"]) and listening(branch["port"]) <= LOCALHOST
        segments = len(list(archive.iterdir()))
        psql(branch, "CREATE TABLE mine AS SELECT generate_series(1, 1000) AS n; SELECT pg_switch_wal(); CHECKPOINT")
        assert psql(branch, "SELECT last_archived_wal IS NULL AND archived_count = 0 FROM pg_stat_archiver") == "t"
        server.sql("SELECT pg_switch_wal()")
        deadline = time.monotonic() + 30
        while len(list(archive.iterdir())) <= segments:
            assert time.monotonic() < deadline, "production archives no more"
            time.sleep(0.1)
        assert server.sql("SELECT to_regclass('mine') IS NULL", database=DATABASE) == "t"
    finally:
        branches.verb("delete", "feature-x")
    assert not Path(branch["mounted"]).exists()
    assert branches.names("snapshot") == [] and not any(name.endswith("feature-x") for name in branches.names("dataset"))


LOCALHOST = {"0100007F", "00000000000000000000000001000000"}
"""127.0.0.1 and ::1 as the kernel writes them."""


def listening(port: int) -> set[str]:
    """Returns the addresses on which a process listens at this port."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            address, _, number = line.split()[1].partition(":")
            if int(number, 16) == port and line.split()[3] == "0A":
                found.add(address)
    return found


def test_branches_are_known_after_a_restart_and_stop_and_start(pool, branches, production):
    dataset, _, record, _ = production
    branches.create(dataset.name, "one", "--start", "--set", "work_mem=7MB")
    try:
        listed = branches.list()["one"]
        port = listed["port"]
        assert listed["state"] == "running" and listed["age_seconds"] < 600
        psql(listed, "CREATE TABLE kept AS SELECT 42 AS n")
        branches.verb("stop", "one")
        assert branches.list()["one"]["state"] == "stopped"
        assert not [p for p in Path("/proc").glob("[0-9]*") if cwd(p) == str(Path(listed["socket"]).parent)]
        pool.pagefold("unmount", listed["mounted"])
        assert branches.list()["one"]["state"] == "unmounted"
        branches.verb("start", "one")
        again = branches.list()["one"]
        assert (again["port"], again["lsn"], again["state"]) == (port, listed["lsn"], "running")
        assert psql(again, "SELECT n FROM kept") == "42" and psql(again, "SHOW work_mem") == "7MB"
        # A server that was killed is not running, and is started again.
        proc.kill_tree(again["pid"], proc.start_time(again["pid"]))
        assert branches.list()["one"]["state"] == "stopped"
        branches.verb("start", "one")
        assert psql(branches.list()["one"], "SELECT n FROM kept") == "42"
        # A branch keeps a port that it was started with; the port of another server is refused.
        with pytest.raises(proc.CommandFailed, match="runs already"):
            branches.verb("start", "one", "--port", str(port + 1000))
        branches.verb("stop", "one")
        branches.verb("start", "one", "--port", str(port + 1000))
        assert branches.list()["one"]["port"] == port + 1000
        with pytest.raises(proc.CommandFailed, match="is in use"):
            branches.create(dataset.name, "two", "--start", "--port", str(port + 1000))
        assert branches.list()["two"]["state"] == "stopped"
        branches.verb("delete", "two")
    finally:
        branches.verb("delete", "one")


def cwd(process: Path) -> str | None:
    try:
        return os.readlink(process / "cwd")
    except OSError:
        return None


def test_reset_goes_back_and_to_the_present(pool, branches, production):
    dataset, server, record, _ = production
    branch = branches.create(dataset.name, "again", "--start", "--set", "work_mem=7MB")
    try:
        rows = psql(branch, "SELECT count(*) FROM acknowledged")
        psql(branch, "DROP TABLE acknowledged; CREATE TABLE mine (n int)")
        branches.verb("reset", "again")
        back = branches.list()["again"]
        assert (back["port"], back["state"], back["origin"]) == (branch["port"], "running", branch["origin"])
        assert psql(back, "SELECT count(*) FROM acknowledged") == rows
        assert psql(back, "SELECT to_regclass('mine') IS NULL") == "t" and psql(back, "SHOW work_mem") == "7MB"
        before = promised(record, pool)
        branches.verb("reset", "again", "--latest")
        now = branches.list()["again"]
        assert now["origin"] != branch["origin"] and now["port"] == branch["port"]
        verify.acknowledged_rows(At(now, "|", psql), DATABASE, before)
        assert branches.names("snapshot") == [now["origin"]], "the snapshot that it began as is not gone"
        # A snapshot of the branch is not lost without an error.
        pool.pagefold("snapshot", f"{now['name']}@mine")
        with pytest.raises(proc.CommandFailed, match="which would be lost"):
            branches.verb("reset", "again")
        with pytest.raises(proc.CommandFailed, match="branch delete -r"):
            branches.verb("delete", "again")
        assert branches.list()["again"]["state"] == "running"
        branches.verb("reset", "again", "-r")
    finally:
        branches.verb("delete", "again")
    assert branches.names("snapshot") == []


def test_a_branch_of_a_branch_and_of_a_snapshot(pool, branches, production):
    dataset, _, _, _ = production
    pool.pagefold("snapshot", f"{dataset.name}@monday")
    first = branches.create(f"{dataset.name}@monday", "first", "--start")
    psql(first, "CREATE TABLE of_first AS SELECT 1 AS n")
    second = branches.create(first["name"], "second", "--start")
    assert psql(second, "SELECT n FROM of_first") == "1" and second["port"] != first["port"]
    psql(first, "UPDATE of_first SET n = 2")
    assert psql(second, "SELECT n FROM of_first") == "1"
    with pytest.raises(proc.CommandFailed, match="has a clone"):
        branches.verb("delete", "first", "-r")
    assert branches.list()["first"]["state"] == "running"
    branches.verb("delete", "second")
    branches.verb("delete", "first")
    assert branches.names("snapshot") == [f"{dataset.name}@monday"]
    pool.pagefold("destroy", f"{dataset.name}@monday")


def test_what_would_write_into_production_is_refused(pool, branches, production, run):
    dataset, server, _, _ = production
    elsewhere = run.fresh("tablespace")
    elsewhere.mkdir()
    proc.run(["chown", f"{POSTGRES}:", elsewhere])
    server.sql(f"CREATE TABLESPACE outside LOCATION '{elsewhere}'")
    try:
        with pytest.raises(proc.CommandFailed, match="not in the branch"):
            branches.create(dataset.name, "refused", "--start")
    finally:
        server.sql("DROP TABLESPACE outside")
    assert branches.list() == {} and branches.names("snapshot") == []


def test_a_branch_of_a_standby_is_a_server_of_its_own(pool, branches, production, run):
    dataset, server, _, _ = production
    standby = Mounted(pool, "standby")
    pool.pagefold("dataset", "create", standby.name)
    standby.mount()
    data = standby.folder("data", POSTGRES)
    proc.run(server.client("pg_basebackup", "-D", str(data), "-R", "--checkpoint=fast", database=None), user=POSTGRES)
    assert (data / "standby.signal").exists()
    branch = branches.create(standby.name, "promoted", "--start")
    try:
        assert psql(branch, "SELECT pg_is_in_recovery()") == "f"
        assert psql(branch, "SHOW primary_conninfo") == ""
        psql(branch, "CREATE TABLE mine (n int)")
        assert server.sql("SELECT count(*) FROM pg_stat_replication") == "0"
    finally:
        branches.verb("delete", "promoted")
        standby.unmount()
        pool.pagefold("destroy", "-r", standby.name)


def test_a_server_that_does_not_start_is_told_with_its_log(branches, production):
    dataset, _, _, _ = production
    with pytest.raises(proc.CommandFailed, match="(?s)did not start.*the branch is there.*work_mem"):
        branches.create(dataset.name, "bad", "--start", "--set", "work_mem=lots")
    assert branches.list()["bad"]["state"] == "stopped"
    branches.verb("start", "bad", "--set", "work_mem=4MB")
    assert psql(branches.list()["bad"], "SHOW work_mem") == "4MB"
    branches.verb("delete", "bad")


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"skip_log_bin": None, "log_bin": "bin", "sync_binlog": "1"}], ids=["plain", "binlog"])
def test_a_branch_of_mariadb(pool, branches, settings):
    dataset = Mounted(pool, "maria")
    pool.pagefold("dataset", "create", dataset.name)
    dataset.mount()
    server = MariaDB(pool.run, dataset.folder("data", MYSQL), settings={"innodb_buffer_pool_size": "32M", **settings}, name="maria")
    server.settings = {k: v for k, v in server.settings.items() if v is not None}
    load.prepare_sysbench(server, DATABASE, ROWS)
    record = pool.run.dir / f"acknowledged-maria-{len(settings)}"
    client, work = load.acknowledged(server, DATABASE, record, 1), load.sysbench_load(server, DATABASE, rows=ROWS)
    client.wait_for(20)
    before = promised(record, pool)
    branch = branches.create(dataset.name, "m1", "--start", "--set", "skip-grant-tables=1", "--set", "innodb-doublewrite=OFF")
    try:
        at = At(branch, "\t", maria)
        assert branch["database"] == "mariadb" and branch["version"].startswith("10.") and int(branch["lsn"]) > 0
        verify.acknowledged_rows(at, DATABASE, before)
        for table in ("sbtest1", "sbtest2"):
            assert at.sql(f"SELECT count(*) FROM {table}") == str(ROWS)
            assert at.sql(f"CHECK TABLE {table} EXTENDED").endswith("status\tOK")
        assert at.sql("SELECT @@event_scheduler, @@bind_address") == "OFF\t127.0.0.1"
        assert at.sql("SELECT @@log_bin") == ("1" if settings else "0")
        at.sql("CREATE TABLE mine (n int); INSERT INTO mine VALUES (42)")
        branches.verb("stop", "m1")
        branches.verb("start", "m1")
        assert at.sql("SELECT n FROM mine") == "42"
        branches.verb("reset", "m1")
        assert at.sql("SHOW TABLES LIKE 'mine'") == ""
        work.require_running()
    finally:
        branches.verb("delete", "m1")
        work.stop()
        client.stop()
    verify.acknowledged_rows(server, DATABASE, record)
    server.stop()
    dataset.unmount()
    pool.pagefold("destroy", dataset.name)


def test_a_branch_of_mariadb_leaves_binary_logs_of_production_alone(pool, branches, run):
    dataset = Mounted(pool, "logs")
    pool.pagefold("dataset", "create", dataset.name)
    dataset.mount()
    data = dataset.folder("data", MYSQL)
    # An absolute name makes the list of logs absolute.
    server = MariaDB(pool.run, data, settings={"innodb_buffer_pool_size": "32M", "log_bin": str(data / "bin")}, name="logs")
    server.settings.pop("skip_log_bin")
    load.prepare_sysbench(server, DATABASE, 100)
    server.sql("FLUSH BINARY LOGS")

    def logs_in(folder: Path) -> list[str]:
        return sorted(path.name for path in folder.glob("bin.*"))

    assert str(data) in (data / "bin.index").read_text()
    before = logs_in(data)
    branch = branches.create(dataset.name, "l1", "--start", "--set", "skip-grant-tables=1", "--set", "innodb-doublewrite=OFF")
    try:
        root = Path(branch["socket"]).parent
        maria(branch, "RESET MASTER")
        assert logs_in(data) == before
        branches.verb("stop", "l1")
        assert "/" not in (root / "bin.index").read_text().replace("./", "")
        # Production's file of settings names its files, too.
        config = run.fresh("config")
        config.write_text(f"[mariadbd]\nlog_bin={data}/bin\nlog_bin_index={data}/bin.index\nrelay_log={data}/relay\nmaster_info_file={data}/bin.master\n")
        words = ["--config", config, "--set", "skip-grant-tables=1", "--set", "innodb-doublewrite=OFF"]
        second = branches.create(branch["name"], "l2", "--start", *words)
        kept = logs_in(root)
        maria(second, "FLUSH BINARY LOGS; RESET MASTER; CHANGE MASTER TO master_host='127.0.0.1', master_user='nobody'")
        assert logs_in(root) == kept and logs_in(data) == before and not list(data.glob("relay*"))
        assert list(Path(second["socket"]).parent.glob("pagefold-branch-relay.*"))
    finally:
        for name in ("l2", "l1"):
            if name in branches.list():
                branches.verb("delete", name)
    server.sql("FLUSH BINARY LOGS")
    server.stop()
    dataset.unmount()
    pool.pagefold("destroy", dataset.name)


def test_signals_are_not_sent_to_strangers(branches, production, run):
    """A process of the same owner that works in the data directory, and is no server, is left alone."""
    dataset, _, _, _ = production
    branch = branches.create(dataset.name, "watched")
    data = Path(branch["socket"]).parent
    stranger = proc.spawn(["sh", "-c", f"cd {data} && exec sleep 600"], log=run.logs / "stranger.log", user=POSTGRES)
    entry = run.process(stranger.pid, "sleep")
    try:
        (data / "postmaster.pid").write_text(f"{stranger.pid}\n{data}\n")
        deadline = time.monotonic() + 10
        while cwd(Path(f"/proc/{stranger.pid}")) != str(data):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        branches.verb("start", "watched")
        branches.verb("stop", "watched")
        assert stranger.poll() is None
        with pytest.raises(proc.CommandFailed, match="is in use"):
            branches.verb("delete", "watched")
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait(30)
        run.done(entry)
        branches.verb("delete", "watched")
