"""A MariaDB whose binary log is archived while it is written, restored to points in time."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from lab import load, proc
from lab.mariadb import USER, MariaDB
from lab.paths import pagefold
from lab.pitr import keyed_repository
from lab.pool import Pool
from lab.snapshots import Mounted

pytestmark = pytest.mark.long

POOL_BYTES = 3 << 30
SETTINGS = {"skip_log_bin": "OFF", "log_bin": "bin", "max_binlog_size": "1M", "binlog_format": "MIXED"}
SETTINGS |= {"log_bin_compress": "ON", "log_bin_trust_function_creators": "ON"}
PART_BYTES = 8 << 20
"""Bytes of the longest part of a log."""


class Shop:
    """A server with a load and a ledger, whose log is archived."""

    def __init__(self, pool: Pool):
        self.pool, self.run = pool, pool.run
        self.dataset = Mounted(pool, "shop")
        pool.pagefold("dataset", "create", self.dataset.name)
        self.dataset.mount()
        self.repository, self.key = keyed_repository(pool, "binlog", USER)
        self.server = MariaDB(self.run, self.dataset.folder("data", USER), settings=SETTINGS, name="shop")
        load.prepare_sysbench(self.server, "lab", 2_000)
        # The server notes the time at which a statement begins, with which the log notes it as well.
        self.server.sql(
            "CREATE TABLE ledger (id INT PRIMARY KEY, at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, note TEXT)", database="lab"
        )
        self.number, self.stopping = 0, False
        self.generator = load.sysbench_load(self.server, "lab", rows=2_000)
        self.writer = threading.Thread(target=self._write, daemon=True)
        self.writer.start()

    def _write(self) -> None:
        while not self.stopping:
            self.number += 1
            note = json.dumps({"order": self.number, "customer": f"Müller & Söhne \\\\ '{self.number}'", "lines": [1, 2, 3]}, ensure_ascii=False)
            self.server.sql(f"INSERT INTO ledger (id, note) VALUES ({self.number}, {quoted(note)})", database="lab")
            time.sleep(0.02)

    def end_load(self) -> None:
        if not self.stopping:
            self.generator.require_running()
            self.generator.stop()
            self.stopping = True
            self.writer.join(60)

    def words(self, *words, **more) -> subprocess.CompletedProcess:
        """Runs `pagefold`, however it ends."""
        environment = {**os.environ, **self.pool.environment}
        argv = [pagefold(), *map(str, words), "--key-file", str(self.key)]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, **more)

    def follow(self, name: str = "shop", log: Path | None = None) -> subprocess.CompletedProcess:
        """Archives what there is, as the server's user."""
        user = proc.as_user(USER)
        return self.words("archive", "follow", self.repository, log or self.server.data, "--as", name, "--once", cwd="/", **user)

    def backup(self) -> int:
        done = self.words("backup", "create", self.dataset.name, "--to", self.repository, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["created"]["backup"]["number"]

    def restore(self, name: str, *target: str) -> subprocess.CompletedProcess:
        words = ["--start", "--mountpoint", str(self.run.fresh(f"at-{name}")), "--json"]
        return self.words("backup", "restore", self.repository, self.dataset.name, f"{self.pool.pool}/{name}", *target, *words)

    def rows(self, socket: str | None = None) -> dict[int, tuple[int, str]]:
        """Returns the ledger's rows: their times, and hashes of what they say."""
        words = self.server.client(database="lab")
        if socket:
            words = [word if not word.startswith("--socket=") else f"--socket={socket}" for word in words]
        rows = proc.run(words, input="SELECT id, UNIX_TIMESTAMP(at), SHA1(note) FROM ledger").splitlines()
        fields = (row.split("\t") for row in rows)
        return {int(number): (int(second), note) for number, second, note in fields}


def parts(shop: Shop, name: str) -> list[Path]:
    """Returns the archived parts of a log, in order."""
    return sorted((shop.repository / "binlog").glob(f"{name}-{'[0-9]' * 10}-*"))


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


@pytest.fixture(scope="module")
def shop(run, request):
    """Provides a server under load, with a backup."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("backups of Pagefold are needed")
    with Pool(run, POOL_BYTES) as pool:
        shop = Shop(pool)
        yield shop
        shop.end_load()
        shop.server.stop()
        shop.dataset.unmount()
        pool.unmount()
        pool.check()


def checked_point(shop: Shop, name: str, at_s: int | None) -> dict:
    """Restores to a second, or to the end; the ledger must have the rows up to it, and none later."""
    target = ["--to-latest"] if at_s is None else ["--to-time", time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(at_s))]
    done = shop.restore(name, *target)
    assert done.returncode == 0, done.stderr
    point = json.loads(done.stdout)["point"]
    socket = Path(point["mounted"]) / "data" / ".pagefold-branch.sock"
    expected = {number: row for number, row in shop.rows().items() if at_s is None or row[0] < at_s}
    try:
        found = shop.rows(str(socket))
        missing = expected.keys() - found.keys()
        assert found == {number: row for number, row in expected.items() if number not in missing}
        # One that was committed after one that began later is left out, and told.
        assert not missing or "began before that time, and were left out" in done.stderr, missing
        assert all(expected[number][0] >= at_s - 2 for number in missing), missing
        tables = proc.run(words_of(shop, socket), input="SHOW TABLES").split()
        if at_s is None:
            assert proc.run(words_of(shop, socket), input="SELECT COUNT(*), answer() FROM later").split() == ["4902", "42"]
        # The program that restored it has gone.
        assert not proc.run(words_of(shop, socket), input="SELECT User FROM mysql.user WHERE User LIKE 'pagefold%'").strip()
        assert not list((Path(point["mounted"]) / "data" / ".pagefold-branch-tmp").iterdir())
        for table in tables:
            assert proc.run(words_of(shop, socket), input=f"CHECK TABLE `{table}` EXTENDED").split()[-1] == "OK"
    finally:
        end_server(socket)
        shop.pool.pagefold("unmount", point["mounted"])
        shop.pool.pagefold("destroy", "-r", f"{shop.pool.pool}/{name}")
    return point


def words_of(shop: Shop, socket: Path) -> list[str]:
    """Returns the command line of a client of another server."""
    words = shop.server.client(database="lab")
    return [word if not word.startswith("--socket=") else f"--socket={socket}" for word in words]


def end_server(socket: Path) -> None:
    """Ends the server of a socket in an orderly way."""
    pid = int((socket.parent / ".pagefold-branch.pid").read_text())
    os.kill(pid, 15)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, "the server does not end"
        time.sleep(0.05)


def test_points_under_load_have_the_rows_up_to_them_and_none_later(shop):
    assert shop.follow().returncode == 0
    first = shop.backup()
    time.sleep(2)
    before = int(time.time())
    time.sleep(2)
    # Accounts, schemas, functions, loaded files, distributed transactions, savepoints, and a transaction of several
    # parts come back as well.
    loaded = shop.server.tmpdir / "loaded"
    loaded.write_text("".join(f"{number}\n" for number in range(100, 5000)))
    shop.server.sql(
        f"""CREATE TABLE later (i INT PRIMARY KEY) ENGINE=Aria; INSERT INTO later VALUES (1);
        XA START 'x'; INSERT INTO ledger (id, note) VALUES (1000001, 'xa'); XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x';
        START TRANSACTION; INSERT INTO ledger (id, note) VALUES (1000002, 'kept'); SAVEPOINT a;
        INSERT INTO ledger (id, note) VALUES (1000003, 'gone'); ROLLBACK TO a; COMMIT;
        CREATE DEFINER = root@localhost FUNCTION answer() RETURNS INT SQL SECURITY INVOKER RETURN 42;
        SET SESSION binlog_format = STATEMENT;
        LOAD DATA INFILE '{loaded}' INTO TABLE later; INSERT INTO later VALUES (answer());
        SET SESSION binlog_format = ROW;
        INSERT INTO ledger (id, note) SELECT 1100000 + seq, HEX(RANDOM_BYTES(1024)) FROM seq_1_to_16000;""",
        database="lab",
    )
    shop.server.sql("FLUSH PRIVILEGES; CREATE USER reader@localhost IDENTIFIED BY 'secret'; GRANT SELECT ON lab.* TO reader@localhost")
    assert shop.follow().returncode == 0
    second = shop.backup()
    assert second == first + 1
    time.sleep(2)
    between = int(time.time())
    time.sleep(2)
    shop.end_load()
    done = shop.follow()
    assert done.returncode == 0, done.stderr
    point = checked_point(shop, "one", before)
    assert point["log"] == "shop" and point["transactions"] > 0
    checked_point(shop, "two", between)
    # The end of the archive: everything, since the load has ended.
    assert checked_point(shop, "three", None)["last_s"] is not None
    listed = json.loads(shop.words("archive", "list", shop.repository, "--json").stdout)["binlogs"]
    assert [line["backup"] for line in listed[0]["lines"]] == [first, second]


def test_points_that_cannot_be_reached_are_told_before_anything_is_made(shop):
    shop.end_load()
    for at_s, why in [(time.time() + 3600, "later than what is archived"), (time.time() - 86400, "earlier than backup")]:
        text = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(at_s))
        done = shop.restore("never", "--to-time", text)
        assert done.returncode == 1 and why in done.stderr and "archive list" in done.stderr, done
    done = shop.restore("never", "--to-lsn", "0/3000000")
    assert done.returncode == 2 and "--to-time" in done.stderr, done
    assert "never" not in shop.pool.pagefold("list")


def test_a_killed_follower_goes_on_and_two_do_no_harm(shop):
    """Followers are killed and run beside each other while the server writes; the archive is the log, without a gap."""
    shop.end_load()
    argv = [pagefold(), "archive", "follow", str(shop.repository), str(shop.server.data), "--as", "shop", "--every", "1s"]
    argv += ["--key-file", str(shop.key)]
    for round_of in range(4):
        several = [subprocess.Popen(argv, stdout=subprocess.DEVNULL, **proc.as_user(USER)) for _ in range(2)]
        for number in range(30):
            shop.server.sql(f"INSERT INTO ledger (id, note) VALUES ({2_000_000 + 100 * round_of + number}, REPEAT('x', 9000))", database="lab")
        if round_of % 2:
            shop.server.sql("FLUSH BINARY LOGS")
        time.sleep(0.1 + 0.4 * round_of)
        for follower in several:
            assert follower.poll() is None, "a follower has ended by itself"
            follower.kill()
            follower.wait()
    assert shop.follow().returncode == 0
    done = shop.words("backup", "verify", shop.repository)
    assert done.returncode == 0, done.stdout + done.stderr
    checked_point(shop, "killed", None)


def test_an_archive_that_ends_before_the_newest_backup_gives_that_backup(shop):
    shop.end_load()
    assert shop.follow().returncode == 0
    insert = "INSERT INTO ledger (id, note) VALUES ({}, 'not archived yet')"
    shop.server.sql(insert.format(2_500_000), database="lab")
    shop.backup()
    point = checked_point(shop, "behind", None)
    assert point["log"] == "shop" and point["transactions"] == 0
    # The server has gone on to a file of which nothing is archived.
    shop.server.sql("FLUSH BINARY LOGS", database="lab")
    shop.server.sql(insert.format(2_500_001), database="lab")
    shop.backup()
    assert checked_point(shop, "further-behind", None)["log"] is None


def test_a_large_transaction_that_is_archived_in_part_goes_on_or_never_happened(shop):
    shop.end_load()
    assert shop.follow("large").returncode == 0
    places = [(path.name.rsplit("-", 1)[0], int(path.name.rsplit("-", 1)[1], 16), path) for path in parts(shop, "large")]
    within = [
        at for at, ((name, begin, _), (after, end, _)) in enumerate(zip(places, places[1:], strict=False))
        if name == after and end - begin == PART_BYTES
    ]
    assert within, "no transaction has several parts"
    # As if the follower had been killed after the first part of the last such transaction.
    for _, _, path in places[within[-1] + 1 :]:
        path.unlink()
    done = shop.follow("large")
    assert done.returncode == 0, done.stderr
    again = [path.name for path in parts(shop, "large")]
    assert again == [path.name for _, _, path in places]
    assert shop.words("backup", "verify", shop.repository).returncode == 0


def test_a_server_that_was_set_back_begins_another_log(shop, run):
    """A dataset that was rolled back has a shorter file of the same beginning, and then files of the same numbers."""
    shop.end_load()
    shop.server.sql("FLUSH BINARY LOGS; INSERT INTO ledger (id, note) VALUES (2600000, 'x')", database="lab")
    *_, closed, newest = sorted(shop.server.data.glob("bin.[0-9]*"))

    def folder(name: str, **files: bytes) -> Path:
        path = run.fresh(name)
        path.mkdir()
        for file, content in files.items():
            (path / file.replace("_", ".")).write_bytes(content)
        (path / "bin.index").write_text("".join(f"./{file.replace('_', '.')}\n" for file in files))
        proc.run(["chown", "-R", f"{USER}:", path])
        return path

    first, second = (path.name.replace(".", "_") for path in (closed, newest))
    before = folder("before", **{first: closed.read_bytes()})
    assert shop.follow("set-back", before).returncode == 0
    after = folder("after", **{first: closed.read_bytes()[:-200], second: newest.read_bytes()})
    done = shop.follow("set-back", after)
    assert done.returncode == 1 and "is not the file that was archived" in done.stderr, done
    assert "rolled back" in done.stderr and len(parts(shop, "set-back")) == 1


def test_a_log_that_is_another_one_or_has_a_gap_is_told(shop, run):
    shop.end_load()
    assert shop.follow().returncode == 0
    other = run.fresh("other")
    other.mkdir()
    proc.run(["chown", f"{USER}:", other])
    last = sorted(shop.server.data.glob("bin.[0-9]*"))[-1]
    # Another server's file of the same number.
    bytes_of = bytearray(last.read_bytes())
    bytes_of[4] ^= 1
    (other / last.name).write_bytes(bytes_of)
    (other / "bin.index").write_text(f"./{last.name}\n")
    proc.run(["chown", "-R", f"{USER}:", other])
    done = shop.follow(log=other)
    assert done.returncode == 1 and "is not the file that was archived" in done.stderr and "--as shop-2" in done.stderr, done
    # The server has purged what was not archived.
    for _ in range(3):
        shop.server.sql("FLUSH BINARY LOGS; INSERT INTO ledger (id, note) VALUES (3000000 + @@pseudo_thread_id, 'x')", database="lab")
    newest = sorted(path.name for path in shop.server.data.glob("bin.[0-9]*"))[-1]
    shop.server.sql(f"PURGE BINARY LOGS TO '{newest}'")
    done = shop.follow()
    assert done.returncode == 1 and "without a gap" in done.stderr and "--as shop-2" in done.stderr, done
    assert shop.follow("shop-2").returncode == 0
    # A backup from now on can be restored along the new one.
    shop.backup()
    shop.server.sql("INSERT INTO ledger (id, note) VALUES (4000000, 'after the gap')", database="lab")
    assert shop.follow("shop-2").returncode == 0
    assert checked_point(shop, "after", None)["log"] == "shop-2"


def test_prunes_keep_what_the_oldest_backup_needs(shop):
    shop.end_load()
    before = [path.name for path in parts(shop, "shop-2")]
    other = parts(shop, "shop")
    done = shop.words("backup", "prune", shop.repository, "--keep", "last=1", "--now", "--json")
    assert done.returncode == 0, done.stderr
    # Of the first log no backup is left, so it stays. Of the second one stay the part in which the backup ends, and those
    # behind it.
    assert parts(shop, "shop") == other
    after = [path.name for path in parts(shop, "shop-2")]
    line = json.loads(shop.words("archive", "list", shop.repository, "--json").stdout)["binlogs"]
    place = next(log for log in line if log["name"] == "shop-2")["lines"][0]["from"]
    end = f"shop-2-{place['file']:010}-{place['offset']:012x}"
    assert after == before[-len(after) :] and 0 < len(after) < len(before)
    assert after[0] <= end < [*after, "~"][1]
    checked_point(shop, "pruned", None)
