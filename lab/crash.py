"""Crashes the file system's server once under load, and goes on until the database answers again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import load, proc, verify
from .ledger import Run
from .load import Acknowledged, Load
from .paths import ROOT
from .server import Server
from .storage import Place


def crash_under_load(
    where: Place, server: Server, start_load: Callable[[], tuple[Load, Acknowledged]], delay_s: float
) -> dict:
    """Starts the load on the running `server`, kills the file system's server `delay_s` after the first
    acknowledgements, ends the orphaned database processes, mounts again and lets the database recover.

    Returns the number of acknowledged rows, the next unused row number, and the seconds that mount and recovery
    took."""
    generator, client = start_load()
    try:
        client.wait_for(20)
        time.sleep(delay_s)
        generator.require_running()
        server.expect_no_disk()
        where.crash()
    finally:
        generator.stop()
        client.stop()
    server.kill()
    began = time.monotonic()
    where.recover()
    mounted = time.monotonic()
    server.start()
    return {
        "acknowledged": client.count,
        "next": client.next + 1,
        "mount_s": mounted - began,
        "recovery_s": time.monotonic() - mounted,
    }


def crash_beside_client(
    where: Place, server: Server, database: str, record: Path, start_load: Callable[[], Load], delay_s: float
) -> dict:
    """Runs `crash_under_load` beside a client whose rows continue those that are there."""
    first = 1 + int(server.sql("SELECT coalesce(max(id), 0) FROM acknowledged", database=database))

    def start() -> tuple[Load, Acknowledged]:
        client = load.acknowledged(server, database, record, first)
        return start_load(), client

    return crash_under_load(where, server, start, delay_s)


def crash_loses_nothing(
    where: Place, server: Server, database: str, record: Path, start_load: Callable[[], Load], delay_s: float
) -> None:
    """Runs `crash_beside_client`, and verifies that every acknowledged row is there and the server's log tells of no
    damage."""
    figures = crash_beside_client(where, server, database, record, start_load, delay_s)
    assert verify.acknowledged_rows(server, database, record) >= figures["acknowledged"] >= 20
    verify.no_torn_pages(server.log)


def crash_beside_writer(run: Run, where: Place, arguments: list[str], record: Path, at_least: int, delay_s: float) -> list[int]:
    """Runs a Python writer, crashes the file system's server `delay_s` after the writer has printed `at_least` numbers,
    and mounts again. The writer's numbers are appended to `record`, outside of the place. Returns all numbers."""
    before = len(_numbers(record))
    with open(record, "ab") as sink:
        argv = [sys.executable, *arguments]
        writer = subprocess.Popen(argv, cwd=ROOT, stdout=sink, stderr=subprocess.DEVNULL)
    entry = run.process(writer.pid, "writer")
    deadline = time.monotonic() + 60
    while len(_numbers(record)) < before + at_least:
        assert writer.poll() is None, "the writer ended before the crash"
        assert time.monotonic() < deadline, "the writer does not get on"
        time.sleep(0.01)
    time.sleep(delay_s)
    where.crash()
    proc.kill_tree(writer.pid, proc.start_time(writer.pid))
    writer.wait(30)
    run.done(entry)
    where.recover()
    return _numbers(record)


def _numbers(record: Path) -> list[int]:
    return [int(word) for word in record.read_text().split()] if record.exists() else []
