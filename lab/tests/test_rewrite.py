"""`pagefold rewrite`: gives another recordsize to files that are written meanwhile. Snapshots stay as they are, and an
interrupted rewrite leaves nothing behind.

LAB_REWRITE_BYTES sets the size of the large file (200 MiB; 2 GiB for a long run).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import threading
import time

import pytest

from lab import load, verify
from lab.paths import pagefold
from lab.pool import Pool
from lab.postgres import USER, Postgres
from lab.snapshots import Mounted

LARGE_BYTES = int(os.environ.get("LAB_REWRITE_BYTES", 200 << 20))
SNAPSHOTS = 20
BLOCK = 8192
SLACK_BYTES = 48 << 20
"""Bytes that tree nodes, tables and the log may take beside records."""
ATTRIBUTE = "user.pagefold.recordsize"


@pytest.fixture(scope="module")
def pool(run, request):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("recordsizes are Pagefold's own")
    # Nothing that is written here compresses.
    with Pool(run, 4 * LARGE_BYTES + (2 << 30), compression="lz4") as pool:
        yield pool
        pool.unmount()
        pool.check()


def rewrite(pool: Pool, *arguments) -> list[dict]:
    return json.loads(pool.pagefold("rewrite", "--json", *arguments, timeout_s=600))["rewritten"]


def digest(path) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def recordsize(path) -> int:
    return int(os.getxattr(path, ATTRIBUTE))


def write_file(path, size: int, seed: int) -> None:
    """Writes a file of random bytes. Its first write has BLOCK bytes, so that the recordsize is BLOCK."""
    random_bytes = random.Random(seed)
    with open(path, "wb", buffering=0) as f:
        f.write(random_bytes.randbytes(BLOCK))
        for _ in range(BLOCK, size, 1 << 20):
            f.write(random_bytes.randbytes(min(1 << 20, size - f.tell())))
        os.fsync(f.fileno())


class Writer(threading.Thread):
    """Writes blocks at random places, and remembers their contents and its waits."""

    def __init__(self, path, blocks: int):
        super().__init__()
        self.path, self.blocks, self.stop = path, blocks, threading.Event()
        self.written: dict[int, bytes] = {}
        self.longest_s, self.failure = 0.0, None

    def run(self) -> None:
        dice = random.Random(7)
        fd = os.open(self.path, os.O_RDWR)
        try:
            while not self.stop.is_set():
                at, data = dice.randrange(self.blocks), dice.randbytes(BLOCK)
                begun = time.monotonic()
                assert os.pwrite(fd, data, at * BLOCK) == BLOCK
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
                self.written[at] = data
                seen = os.pread(fd, BLOCK, at * BLOCK)
                assert seen == data, f"block {at} reads as it was before"
                time.sleep(0.001)
        except (OSError, AssertionError) as failure:
            self.failure = failure
        finally:
            os.close(fd)

    def finish(self) -> None:
        self.stop.set()
        self.join()
        assert self.failure is None, self.failure

    def check(self) -> None:
        with open(self.path, "rb", buffering=0) as f:
            for at, data in self.written.items():
                assert os.pread(f.fileno(), BLOCK, at * BLOCK) == data, f"block {at} is not what was written last"


def test_large_file_under_random_writes_with_snapshots(pool):
    path = pool.mountpoint / "large"
    write_file(path, LARGE_BYTES, 1)
    dice = random.Random(2)
    expected = {}
    with open(path, "r+b", buffering=0) as f:
        for n in range(SNAPSHOTS):
            for _ in range(20):
                os.pwrite(f.fileno(), dice.randbytes(BLOCK), dice.randrange(LARGE_BYTES // BLOCK) * BLOCK)
            pool.pagefold("snapshot", f"{pool.pool}@s{n}")
            if n in (0, SNAPSHOTS // 2, SNAPSHOTS - 1):
                expected[n] = digest(path)
    assert recordsize(path) == BLOCK
    alone = Writer(path, LARGE_BYTES // BLOCK)
    alone.start()
    time.sleep(1)
    alone.finish()
    before = pool.used_bytes()
    writer = Writer(path, LARGE_BYTES // BLOCK)
    writer.start()
    begun = time.monotonic()
    try:
        done = rewrite(pool, "--recordsize", "64K", path)
    finally:
        took_s = time.monotonic() - begun
        writer.finish()
    assert [file["rewritten"] for file in done] == [True]
    assert recordsize(path) == os.stat(path).st_blksize == 65536 and os.stat(path).st_size == LARGE_BYTES
    writer.check()
    for n, wanted in expected.items():
        snapshot = pool.mountpoint / ".pagefold" / "snapshot" / f"s{n}" / "large"
        assert digest(snapshot) == wanted, f"snapshot s{n} has other contents"
        assert os.stat(snapshot).st_blksize == BLOCK
    grown = wait_for_space(pool, before + LARGE_BYTES + SLACK_BYTES) - before
    print(
        f"\n{LARGE_BYTES >> 20} MiB in {took_s:.1f} s beside {len(writer.written)} blocks; grown by {grown >> 20} MiB; "
        f"longest wait of a write {writer.longest_s * 1000:.0f} ms, alone {alone.longest_s * 1000:.0f} ms"
    )
    with pytest.raises(Exception, match="lies in a snapshot|read-only|takes no changes"):
        rewrite(pool, "--recordsize", "16K", pool.mountpoint / ".pagefold" / "snapshot" / "s0" / "large")


def wait_for_space(pool: Pool, at_most: int, timeout_s: float = 20) -> int:
    """Waits until at most `at_most` bytes are in use: an abandoned copy is freed in the background."""
    deadline = time.monotonic() + timeout_s
    while (used := pool.used_bytes()) > at_most:
        assert time.monotonic() < deadline, f"{used} bytes are used, of {at_most} at most"
        time.sleep(0.5)
    return used


def interrupt_at_work(pool: Pool, path, how) -> None:
    """Begins a slow rewrite, and calls `how` while a part is copied."""
    arguments = [pagefold(), "rewrite", "--recordsize", "4K", "--rate", "4M", path]
    slow = subprocess.Popen(arguments, env={**os.environ, **pool.environment}, stderr=subprocess.PIPE)
    try:
        time.sleep(1)
        assert slow.poll() is None, slow.communicate()
        how(slow)
        slow.wait(20)
    finally:
        if slow.poll() is None:
            slow.kill()
            slow.wait()
        slow.stderr.close()
    assert slow.returncode != 0


def test_interrupted_killed_unmounted(pool):
    path = pool.mountpoint / "interrupted"
    write_file(path, 64 << 20, 3)
    wanted, before = digest(path), pool.used_bytes()

    def second(slow) -> None:
        with pytest.raises(Exception, match="just being rewritten"):
            rewrite(pool, "--recordsize", "16K", path)
        slow.send_signal(signal.SIGINT)

    interrupt_at_work(pool, path, second)
    wait_for_space(pool, before + (2 << 20))
    assert (recordsize(path), digest(path)) == (BLOCK, wanted)

    def unmount(_slow) -> None:
        pool.unmount()

    interrupt_at_work(pool, path, unmount)
    pool.check()
    pool.mount()
    wait_for_space(pool, before + (2 << 20))
    assert (recordsize(path), digest(path)) == (BLOCK, wanted)

    def crash(_slow) -> None:
        pool.pagefold("sync", pool.pool)
        pool.crash()

    interrupt_at_work(pool, path, crash)
    pool.recover()
    wait_for_space(pool, before + (2 << 20))
    assert (recordsize(path), digest(path)) == (BLOCK, wanted)
    # And it can be done after all that.
    assert rewrite(pool, "--recordsize", "4K", path)[0]["copied_bytes"] >= 64 << 20
    assert (recordsize(path), digest(path)) == (4096, wanted)


def test_what_is_named(pool):
    folder = pool.mountpoint / "folder"
    (folder / "below").mkdir(parents=True)
    write_file(folder / "one", 1 << 20, 4)
    write_file(folder / "below" / "two", 100_000, 5)
    os.link(folder / "one", folder / "same")
    (folder / "empty").touch()
    os.symlink("one", folder / "link")
    with pytest.raises(Exception, match="is a directory"):
        rewrite(pool, "--recordsize", "16K", folder)
    done = rewrite(pool, "-r", "--recordsize", "16K", folder)
    assert sorted(file["rewritten"] for file in done) == [False, True, True]
    assert recordsize(folder / "same") == recordsize(folder / "below" / "two") == 16384
    assert recordsize(folder / "empty") == 16384
    assert not any(file["rewritten"] for file in rewrite(pool, "-r", "--recordsize", "16K", folder))
    for wrong in ("3K", "2M", "512"):
        with pytest.raises(Exception, match="power of two from 4K to 1M"):
            rewrite(pool, "--recordsize", wrong, folder / "one")


def test_mappings_and_direct_io(pool):
    path = pool.mountpoint / "mapped"
    size = 8 << 20
    write_file(path, size, 6)
    expected = bytearray(path.read_bytes())
    dice = random.Random(8)
    buffer = mmap.mmap(-1, BLOCK)
    with open(path, "r+b", buffering=0) as f, mmap.mmap(f.fileno(), size) as mapped:
        direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        try:
            for record in (4096, 65536, 1 << 20, BLOCK):
                work = threading.Thread(target=rewrite, args=(pool, "--recordsize", str(record), path))
                work.start()
                rounds = 0
                while work.is_alive() or rounds < 20:
                    rounds += 1
                    # Each way of writing has a half of its own, since a shared mapping and O_DIRECT writes of the same
                    # page are not ordered.
                    at = dice.randrange(size // 2 // BLOCK) * BLOCK
                    mapped[at : at + BLOCK] = expected[at : at + BLOCK] = dice.randbytes(BLOCK)
                    if rounds % 8 == 0:
                        mapped.flush()
                    at = size // 2 + dice.randrange(size // 2 // BLOCK) * BLOCK
                    buffer[:] = expected[at : at + BLOCK] = dice.randbytes(BLOCK)
                    assert os.pwrite(direct, buffer, at) == BLOCK
                    buffer[:] = bytes(BLOCK)
                    assert os.preadv(direct, [buffer], at) == BLOCK
                    assert buffer[:] == expected[at : at + BLOCK]
                work.join()
                assert recordsize(path) == record
                mapped.flush()
                assert mapped[:] == expected
        finally:
            os.close(direct)
    copy = pool.mountpoint / "copy"
    shutil.copy(path, copy)
    assert path.read_bytes() == copy.read_bytes() == bytes(expected)


def test_quota_and_a_mount_that_is_read_only(pool):
    place = Mounted(pool, "small")
    pool.pagefold("dataset", "create", "-o", "quota=24M", place.name)
    place.mount()
    try:
        path = place.mountpoint / "file"
        write_file(path, 16 << 20, 9)
        wanted = digest(path)
        with pytest.raises(Exception, match="quota"):
            rewrite(pool, "--recordsize", "16K", path)
        assert (recordsize(path), digest(path)) == (BLOCK, wanted)
        # The copy is freed again, so there is as much room as before.
        deadline = time.monotonic() + 20
        while True:
            try:
                write_file(place.mountpoint / "more", 5 << 20, 10)
                break
            except OSError:
                assert time.monotonic() < deadline, "the copy was not freed"
                time.sleep(0.5)
        os.unlink(place.mountpoint / "more")
        pool.pagefold("mount", "-o", "remount,ro", place.mountpoint)
        with pytest.raises(Exception, match="read-only"):
            rewrite(pool, "--recordsize", "16K", path)
    finally:
        place.unmount()


@pytest.mark.long
def test_postgres_on_files_being_rewritten(pool, run):
    server = Postgres(run, pool.folder("pg", USER), settings={"full_page_writes": "off", "checkpoint_timeout": "30s"})
    load.prepare_pgbench(server, "lab", 2)
    try:
        server.sql("CHECKPOINT")
        argv = server.client("pgbench", "-n", "-c", "2", "-T", "8", database="lab")
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as bench:
            try:
                for size in ("16K", "4K", "32K"):
                    rewrite(pool, "-r", "--recordsize", size, server.data / "base")
            finally:
                told = bench.communicate()[1]
        assert bench.returncode == 0, told
        assert all(recordsize(path) == 32768 for path in server.relation_files("lab", "pgbench_accounts"))
        verify.pgbench_balances(server, "lab")
        verify.postgres_healthy(server, "lab")
        pool.crash()
        server.kill()
        pool.recover()
        server.start()
        verify.pgbench_balances(server, "lab")
        verify.postgres_healthy(server, "lab")
    finally:
        server.kill()
