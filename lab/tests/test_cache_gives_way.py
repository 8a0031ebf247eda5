"""Caches whose size nobody has set take what memory there is, and give way to programs that want it."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import time

from lab.pool import Pool
from lab.throttle import memory_group, within

MIB = 1 << 20
LIMIT_BYTES = 640 * MIB
DATA_BYTES = 400 * MIB
READ_BYTES = 64 << 10
TAKEN_BYTES = 400 * MIB

TAKE = f"""
import sys, time
taken = []
for _ in range({TAKEN_BYTES} >> 24):
    taken.append(bytes([1]) * (1 << 24))
    time.sleep(0.05)
print("taken", flush=True)
sys.stdin.read()
"""
"""A program that takes memory, as fast as a database that fills its own cache, and has it until its input ends."""


def memory(pool: Pool) -> dict:
    return pool.figures("status")["memory"]


def until(what, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)


def read_all(path) -> None:
    """Reads a file in random order, past the page cache."""
    buffer = mmap.mmap(-1, READ_BYTES)
    places = list(range(0, DATA_BYTES, READ_BYTES))
    random.Random(1).shuffle(places)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for place in places:
            assert os.preadv(fd, [buffer], place) == READ_BYTES
    finally:
        os.close(fd)


def test_caches_give_way_to_a_program_that_wants_memory(run):
    with Pool(run, 1 << 30) as pool, memory_group(LIMIT_BYTES) as group:
        file = pool.mountpoint / "file"
        with open(file, "wb") as made:
            for _ in range(DATA_BYTES // MIB):
                made.write(os.urandom(MIB))
            os.fsync(made.fileno())
        # With the machine's memory the budget is larger than the group's.
        until(lambda: memory(pool)["budget_bytes"] > LIMIT_BYTES)
        pool.unmount()
        # A server is in the group of whoever mounts. If it came later, the memory that it has would count elsewhere.
        with within(group):
            pool.mount()
        server = pool.server_pid()
        until(lambda: 200 * MIB < memory(pool)["budget_bytes"] <= LIMIT_BYTES / 2)
        read_all(file)
        read_all(file)
        full = memory(pool)
        assert full["records_bytes"] + full["pages_bytes"] > 180 * MIB, full
        with within(group):
            taker = subprocess.Popen(
                [sys.executable, "-c", TAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        try:
            assert taker.stdout.readline() == "taken\n", "the kernel ended the program that wanted memory"
            until(lambda: memory(pool)["budget_bytes"] < 150 * MIB)
            assert pool.server_pid() == server, "the kernel ended the server"
            read_all(file)
            assert taker.poll() is None
        finally:
            taker.communicate(input="")
        assert taker.returncode == 0
        until(lambda: memory(pool)["budget_bytes"] > 200 * MIB)
        assert pool.server_pid() == server


def test_a_size_that_is_set_holds(run):
    with Pool(run, 256 * MIB) as pool:
        pool.pagefold("set", "cache=64M", pool.pool)
        time.sleep(0.5)
        assert memory(pool)["budget_bytes"] == 64 * MIB
        pool.pagefold("set", "cache=auto", pool.pool)
        until(lambda: memory(pool)["budget_bytes"] > 64 * MIB)
        assert pool.pagefold("get", "-H", "cache", pool.pool).split("\t")[2:] == ["auto", "local\n"]
