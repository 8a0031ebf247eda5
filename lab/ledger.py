"""Writes down everything that must be undone, before it is done.

A run of the laboratory starts servers, mounts, loop devices and folders. Each is recorded in the run's ledger, a file of
JSON lines, and undone in reverse order when the run ends, however it ends: normally, by an exception, by a signal. If
that does not happen (SIGKILL, a crash of the machine), `lab clean` undoes it from the ledgers of runs whose owner is
gone.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from . import proc
from .paths import LAB_DIR, tool


def handle(number: int, handler: Callable) -> None:
    """Handles a signal, if this thread may: a worker of pytest-xdist may run its tests in another thread than the main
    one (with -v, which asks it something first). What it leaves when it is ended is undone by `lab clean`."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


class Run:
    """One run: a folder of its own below LAB_DIR and the ledger in it. Use as a context manager."""

    def __init__(self, name: str, *, keep_logs: Path | None = None):
        LAB_DIR.mkdir(parents=True, exist_ok=True)
        LAB_DIR.chmod(0o755)
        self.dir = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=LAB_DIR))
        self.dir.chmod(0o755)
        self.logs = self.dir / "log"
        self.logs.mkdir()
        self.keep_logs = keep_logs
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._open: dict[int, dict] = {}
        self._file = open(self.dir / "ledger.jsonl", "a", buffering=1)
        self._write({"owner": os.getpid(), "started": proc.start_time(os.getpid())})
        self._owner = os.getpid()
        # A process that a shell without job control started in the background has SIGINT ignored, and would not end by
        # it.
        handle(signal.SIGINT, signal.default_int_handler)
        atexit.register(self.close)

    def __enter__(self) -> Run:
        for number in (signal.SIGTERM, signal.SIGHUP):
            handle(number, lambda n, _: sys.exit(128 + n))
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def fresh(self, name: str) -> Path:
        """Returns a path in the run's folder that was not given out before."""
        return self.dir / f"{name}-{next(self._names)}"

    def _write(self, entry: dict) -> None:
        self._file.write(json.dumps(entry) + "\n")

    def record(self, **entry) -> int:
        """Writes down something to undo; returns the number for `done`."""
        number = next(self._numbers)
        self._open[number] = entry
        self._write({"n": number, **entry})
        return number

    def done(self, number: int | None) -> None:
        """Notes that an entry has been undone by its owner."""
        if number is not None and self._open.pop(number, None) is not None:
            self._write({"done": number})

    def process(self, pid: int, name: str) -> int:
        """Records a process, to be killed with its descendants."""
        return self.record(kind="process", pid=pid, started=proc.start_time(pid), name=name)

    def mount(self, path: Path) -> int:
        """Records a mount, to be unmounted."""
        return self.record(kind="mount", path=str(path))

    def loop(self, device: str, backing: Path) -> int:
        """Records a loop device, to be detached while it still belongs to that file."""
        return self.record(kind="loop", device=device, backing=str(backing))

    def command(self, *argv: str) -> int:
        """Records a command that undoes something; its failure is ignored."""
        return self.record(kind="command", argv=list(argv))

    def close(self) -> None:
        """Undoes what is left, newest first, and removes the folder."""
        if self._file.closed or os.getpid() != self._owner:
            return
        for number in reversed(list(self._open)):
            undo(self._open[number])
            self.done(number)
        self._file.close()
        if self.keep_logs is not None:
            shutil.rmtree(self.keep_logs, ignore_errors=True)
            shutil.copytree(self.logs, self.keep_logs)
        remove_folder(self.dir)


def is_mounted(path: str | os.PathLike) -> bool:
    """Returns true if something is mounted exactly there, also if its server is gone (then stat fails, mountinfo does
    not)."""
    wanted = os.fspath(path)
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        return any(_unescape(line.split(" ")[4]) == wanted for line in table)


def _unescape(field: str) -> str:
    for code in ("040", "011", "012", "134"):
        field = field.replace("\\" + code, chr(int(code, 8)))
    return field


def unmount(path: str | os.PathLike, *, lazy: bool = False) -> None:
    """Unmounts what is mounted there, if anything; tries again while the device is busy for a moment."""
    for attempt in range(50):
        if not is_mounted(path):
            return
        argv = [tool("umount"), *(["-l"] if lazy else []), os.fspath(path)]
        result = subprocess.run(argv, capture_output=True, text=True)
        if result.returncode != 0:
            if attempt == 49 or not any(word in result.stderr for word in ("busy", "EBUSY")):
                raise RuntimeError(f"umount {path}: {result.stderr.strip()}")
            time.sleep(0.1)
    raise RuntimeError(f"umount {path}: still mounted")


def undo(entry: dict) -> None:
    """Undoes one entry of a ledger. Problems are reported and do not stop the rest."""
    try:
        match entry["kind"]:
            case "process":
                proc.kill_tree(entry["pid"], entry["started"])
            case "mount":
                unmount(entry["path"], lazy=True)
            case "loop":
                _detach(entry["device"], entry["backing"])
            case "command":
                subprocess.run(entry["argv"], capture_output=True, timeout=60)
            case other:
                raise RuntimeError(f"unknown entry {other}")
    except Exception as e:  # whatever failed, the remaining entries still have to be undone
        print(f"lab: could not undo {entry}: {e}", file=sys.stderr)


def _detach(device: str, backing: str) -> None:
    listed = proc.run([tool("losetup"), "-n", "-O", "BACK-FILE", "-l", device], check=False).strip()
    if listed.removesuffix(" (deleted)") == backing:
        proc.run([tool("losetup"), "-d", device])


def remove_folder(folder: Path) -> None:
    """Removes a run's folder, but nothing outside of LAB_DIR and nothing on a mount that is still there."""
    if folder.parent != LAB_DIR:
        raise RuntimeError(f"{folder} is not below {LAB_DIR}")
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        inside = [_unescape(line.split(" ")[4]) for line in table]
    if still := [p for p in inside if p.startswith(f"{folder}/")]:
        print(f"lab: {folder} stays: {', '.join(still)} is still mounted", file=sys.stderr)
        return
    shutil.rmtree(folder, ignore_errors=True)


def clean() -> int:
    """Undoes what is left of runs whose owner is gone. Returns the number of runs."""
    count = 0
    for folder in sorted(LAB_DIR.iterdir()) if LAB_DIR.exists() else []:
        ledger = folder / "ledger.jsonl"
        if not ledger.exists():
            continue
        entries, owner = _read(ledger)
        if owner is not None and owner["started"] is not None and proc.start_time(owner["owner"]) == owner["started"]:
            print(f"lab: {folder.name} is still running (pid {owner['owner']}): left alone")
            continue
        for number in sorted(entries, reverse=True):
            undo(entries[number])
        remove_folder(folder)
        count += 1
    return count


def _read(ledger: Path) -> tuple[dict[int, dict], dict | None]:
    entries: dict[int, dict] = {}
    owner = None
    for line in ledger.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # the last line of a run that was killed while it wrote
            continue
        if "owner" in entry:
            owner = entry
        elif "done" in entry:
            entries.pop(entry["done"], None)
        else:
            entries[entry["n"]] = entry
    return entries, owner
