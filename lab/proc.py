"""Runs processes to their end, starts servers, and ends exactly those that were started."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class CommandFailed(RuntimeError):
    """A command exited non-zero; the message holds the command line and its output."""

    def __init__(self, argv: Sequence[str], status: int, output: str):
        tail = output.strip()[-4000:]
        super().__init__(f"`{' '.join(map(str, argv))}` exited with {status}:\n{tail}")
        self.argv, self.status, self.output = list(argv), status, output


def as_user(user: str | None) -> dict:
    """Returns arguments for subprocess that drop to `user`; none if no user is named or this process is not root."""
    if user is None or os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(user)
    groups = os.getgrouplist(user, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


def run(
    argv: Sequence[str | os.PathLike],
    *,
    user: str | None = None,
    input: str | None = None,
    timeout_s: float = 600,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> str:
    """Runs a command to its end and returns its standard output; raises CommandFailed with both outputs."""
    argv = [os.fspath(a) for a in argv]
    try:
        done = subprocess.run(
            argv,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            cwd="/",
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
            **as_user(user),
        )
    except subprocess.TimeoutExpired as e:
        raise CommandFailed(argv, -1, f"no end after {timeout_s:.0f} s; so far: {e.stdout!r} {e.stderr!r}") from e
    if check and done.returncode != 0:
        raise CommandFailed(argv, done.returncode, done.stdout + done.stderr)
    return done.stdout


def spawn(argv: Sequence[str | os.PathLike], *, log: Path, user: str | None = None, **more) -> subprocess.Popen:
    """Starts a process in its own session, its outputs appended to `log` and its cwd at / (unless
    given in `more`)."""
    with open(log, "ab") as sink:
        more.setdefault("stdin", subprocess.DEVNULL)
        more.setdefault("stdout", sink)
        more.setdefault("stderr", sink)
        more.setdefault("cwd", "/")
        return subprocess.Popen(
            [os.fspath(a) for a in argv],
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
            **as_user(user),
            **more,
        )


def tail(path: Path, lines: int = 30) -> str:
    """Returns the last lines of a log, for error messages."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as e:
        return f"({path}: {e.strerror})"


def start_time(pid: int) -> int | None:
    """Returns the start of a process in clock ticks since boot; together with the pid it names a process for good. It
    is None if the process is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def descendants(pid: int) -> list[int]:
    """Returns all living descendants of `pid`, parents first."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        for child in children.get(queue.pop(0), []):
            found.append(child)
            queue.append(child)
    return found


def kill_tree(pid: int, started: int | None, *, timeout_s: float = 30) -> None:
    """SIGKILLs a process and all its descendants, and waits until they are gone. `started` guards against a pid that
    another process was given meanwhile."""
    if started is None or start_time(pid) != started:
        return
    victims = {p: start_time(p) for p in [pid, *descendants(pid)]}
    for victim, began in victims.items():
        if began is not None and start_time(victim) == began:
            _signal(victim, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while alive := [p for p, began in victims.items() if began is not None and _is_there(p, began)]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {alive} are still there {timeout_s:.0f} s after SIGKILL")
        time.sleep(0.01)


def _is_there(pid: int, started: int) -> bool:
    """Returns true if a process has not ended yet. If its first thread is a zombie, others may still hold files and
    sockets. Threads of a file system's server that wait for requests of clients which nobody answers any more hold none
    (crates/fuse/src/own_files.rs): they end with these clients, or when the pool is mounted again."""
    if start_time(pid) == started:
        return True
    try:
        threads = [task for task in os.listdir(f"/proc/{pid}/task") if task != str(pid)]
        return _zombie_since(pid) == started and not all(_waits_for_clients(pid, task) for task in threads)
    except OSError:
        return False


def _waits_for_clients(pid: int, task: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/task/{task}/status").read_text()
    except OSError:
        return True  # It has ended.
    return status.startswith("Name:\tpf-drop\n") and "State:\tD" in status


def _zombie_since(pid: int) -> int | None:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) if fields[0] == "Z" else None


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
