"""`lab device-verbs`: the verbs that change a pool's devices, beside a database, and killed at any moment.

First PostgreSQL runs pgbench on a mounted mirror while each verb is carried out, several times; pgbench's own log has the time
of each transaction. Told are the longest and the 99th percentile of those that were under way while a verb was, beside those of
stretches in which nothing was changed.

Then the server is killed while a verb is under way, so many times for each. After the next mount the verb is done, goes on, or
was never begun; whatever files had been synced are there, and at the end the pool passes a check.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import proc
from .figures import percentile
from .ledger import Run
from .load import Load, prepare_pgbench
from .paths import pagefold, require_room
from .pool import Pool
from .postgres import Postgres

DEVICE_BYTES = 2 << 30
SCALE = 30
CLIENTS = 4
CALM_S = 6.0
"""Seconds without any change before each verb; and the least length of the stretch that counts for a verb."""
FILE_BYTES = 64 << 10


@dataclass
class Stretch:
    """A stretch of time, by the clock of pgbench's log."""

    begin: float
    end: float


@dataclass
class Times:
    """Milliseconds that transactions took."""

    all: list[float] = field(default_factory=list)

    def longest(self) -> float:
        return max(self.all)

    def percentile(self, part: float) -> float:
        return percentile(self.all, part)


class Devices(Pool):
    """A pool that begins as a mirror of two files, and gets and loses others."""

    def __init__(self, run: Run):
        super().__init__(run, DEVICE_BYTES)
        self.made = 0

    def file(self) -> Path:
        """Makes a file for a device."""
        self.made += 1
        path = self.device.with_name(f"{self.device.name}-{self.made}")
        with open(path, "wb") as file:
            file.truncate(DEVICE_BYTES)
        return path

    def create(self) -> None:
        self.mirror = [self.file(), self.file()]
        self.pagefold("create", self.pool, "mirror", *self.mirror, "-o", f"compression={self.compression}")

    def destroy(self) -> None:
        self.pagefold("destroy", "--force", self.pool)

    def devices(self) -> list[dict]:
        return self.figures("status")["devices"]

    def numbered(self, path: Path) -> str | None:
        """Returns how a device is named now: by its path, or by its number if it is missing; None if it has left."""
        for one in self.devices():
            if one["path"] == str(path):
                return one["path"]
        return None


@dataclass
class Verb:
    """A verb, in a pool that `prepare` has brought into the state for it."""

    name: str
    prepare: Callable[[Devices], list]
    """Returns the arguments of the verb."""
    after: Callable[[Devices, list], None]
    """Brings the pool back to a mirror of two, after a verb that was carried out."""


def _wait_filled(pool: Devices) -> None:
    deadline = time.monotonic() + 300
    while any(one["state"] == "FILLING" for one in pool.devices()):
        if time.monotonic() > deadline:
            raise RuntimeError("a device is not filled within five minutes")
        time.sleep(0.05)


def _attach(pool: Devices) -> list:
    pool.pagefold("detach", "-f", pool.pool, pool.mirror.pop())
    pool.mirror.append(pool.file())
    return ["attach", pool.pool, pool.mirror[0], pool.mirror[1], "--wait"]


def _detach(pool: Devices) -> list:
    return ["detach", "-f", pool.pool, pool.mirror[1]]


def _after_detach(pool: Devices, _: list) -> None:
    pool.mirror[1] = pool.file()
    pool.pagefold("attach", pool.pool, pool.mirror[0], pool.mirror[1], "--wait", timeout_s=300)


def _replace(pool: Devices) -> list:
    old, pool.mirror[1] = pool.mirror[1], pool.file()
    return ["replace", pool.pool, old, pool.mirror[1], "--wait"]


def _offline(pool: Devices) -> list:
    return ["offline", pool.pool, pool.mirror[1]]


def _after_offline(pool: Devices, _: list) -> None:
    pool.pagefold("online", pool.pool, pool.mirror[1], "--wait", timeout_s=300)


def _online(pool: Devices) -> list:
    pool.pagefold("offline", pool.pool, pool.mirror[1])
    time.sleep(2)
    return ["online", pool.pool, pool.mirror[1], "--wait"]


def _add(pool: Devices) -> list:
    return ["add", "-f", pool.pool, pool.file()]


def _after_add(pool: Devices, told: list) -> None:
    pool.pagefold("remove", pool.pool, told[-1], "--wait", timeout_s=300)


def _remove(pool: Devices) -> list:
    new = pool.file()
    pool.pagefold("add", "-f", pool.pool, new)
    # New writes lie there, since it has most room.
    time.sleep(4)
    return ["remove", pool.pool, new, "--wait"]


def _nothing(pool: Devices, _: list) -> None:
    _wait_filled(pool)


VERBS = [
    Verb("add", _add, _after_add),
    Verb("attach", _attach, _nothing),
    Verb("detach", _detach, _after_detach),
    Verb("replace", _replace, _nothing),
    Verb("remove", _remove, _nothing),
    Verb("offline", _offline, _after_offline),
    Verb("online", _online, _nothing),
]


def device_verbs(rounds: int, kills: int, *, seed: int | None, keep_logs: Path) -> int:
    """Runs both parts; returns an exit status."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"device-verbs: {rounds} times each under pgbench, then {kills} kills each; seed {seed}", flush=True)
    require_room(24 << 30)
    with Run("device-verbs", keep_logs=keep_logs) as run:
        if rounds:
            with Devices(run) as pool:
                _measure(run, pool, rounds)
        failed = 0
        if kills:
            with Devices(run) as pool:
                failed = _kill(pool, kills, random.Random(seed))
    return 1 if failed else 0


def _measure(run: Run, pool: Devices, rounds: int) -> None:
    server = Postgres(run, pool.folder("pg", "postgres"), settings={"full_page_writes": "off"})
    prepare_pgbench(server, "bench", SCALE)
    prefix = run.fresh("transactions")
    options = ["-n", "-c", str(CLIENTS), "-j", "2", "-T", "86400", "--log", f"--log-prefix={prefix}"]
    load = Load(run, server.client("pgbench", *options, database="bench"), run.logs / "pgbench.log")
    calm: list[Stretch] = []
    during: dict[str, list[Stretch]] = {verb.name: [] for verb in VERBS}
    took: dict[str, list[float]] = {verb.name: [] for verb in VERBS}
    try:
        time.sleep(5)
        for _ in range(rounds):
            for verb in VERBS:
                arguments = verb.prepare(pool)
                begin = time.time()
                time.sleep(CALM_S)
                calm.append(Stretch(begin, time.time()))
                begin = time.time()
                pool.pagefold(*arguments, timeout_s=600)
                took[verb.name].append(time.time() - begin)
                time.sleep(max(1.0, CALM_S - (time.time() - begin)))
                during[verb.name].append(Stretch(begin, time.time()))
                load.require_running()
                verb.after(pool, arguments)
    finally:
        load.stop()
    transactions = _transactions(prefix)
    normal = _times(transactions, calm)
    print(f"{'':<10} {'took':>8} {'transactions':>13} {'p50':>8} {'p99':>8} {'longest':>9}")
    _print("nothing", None, normal)
    for verb in VERBS:
        _print(verb.name, max(took[verb.name]), _times(transactions, during[verb.name]))
    server.stop()


def _transactions(prefix: Path) -> list[tuple[float, float]]:
    """Returns the end of each transaction, in seconds since 1970, and the milliseconds that it took."""
    found = []
    for path in prefix.parent.glob(f"{prefix.name}*"):
        for line in path.read_text().splitlines():
            words = line.split()
            # The last line may be cut off.
            if len(words) >= 6 and words[2].isdigit():
                found.append((int(words[4]) + int(words[5]) / 1e6, int(words[2]) / 1e3))
    return found


def _times(transactions: list[tuple[float, float]], stretches: list[Stretch]) -> Times:
    """Returns the times of the transactions that were under way in these stretches."""
    times = Times()
    for end, ms in transactions:
        if any(end >= one.begin and end - ms / 1e3 <= one.end for one in stretches):
            times.all.append(ms)
    return times


def _print(name: str, took: float | None, times: Times) -> None:
    told = f"{took:.2f} s" if took is not None else ""
    p50, p99 = times.percentile(0.5), times.percentile(0.99)
    print(f"{name:<10} {told:>8} {len(times.all):>13} {p50:>6.1f}ms {p99:>6.1f}ms {times.longest():>7.1f}ms", flush=True)


class Files(threading.Thread):
    """Writes and syncs files until the server dies or it is told to stop; each is acknowledged before the next."""

    def __init__(self, directory: Path, number: int):
        super().__init__()
        self.directory, self.number, self.done = directory, number, []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            content = os.urandom(FILE_BYTES)
            try:
                with open(self.directory / f"{self.number}-{len(self.done)}", "wb") as file:
                    file.write(content)
                    os.fsync(file.fileno())
            except OSError:
                return
            self.done.append(content)

    def verify(self) -> None:
        """Raises unless all that was acknowledged is there; then it is deleted."""
        for at, content in enumerate(self.done):
            path = self.directory / f"{self.number}-{at}"
            if path.read_bytes() != content:
                raise RuntimeError(f"{path.name} is another one than was acknowledged")
            path.unlink()


def _kill(pool: Devices, kills: int, moments: random.Random) -> int:
    """Kills the server while each verb is under way. Returns the number of verbs after which something was wrong."""
    filler = os.urandom(150 << 20)
    with open(pool.mountpoint / "filler", "wb") as file:
        file.write(filler)
        os.fsync(file.fileno())
    failed = 0
    for verb in VERBS:
        counts = {"done": 0, "gone on": 0, "not begun": 0}
        try:
            for number in range(kills):
                counts[_kill_once(pool, verb, number, moments)] += 1
            if (pool.mountpoint / "filler").read_bytes() != filler:
                raise RuntimeError("a file that was not changed is another one")
            pool.unmount()
            pool.check()
            pool.mount()
        except Exception as error:  # whatever failed belongs to the report
            failed += 1
            print(f"{verb.name:<10} FAILED after {sum(counts.values())} kills: {error}", flush=True)
            if failed:
                break
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(f"{verb.name:<10} {told}", flush=True)
    return failed


def _kill_once(pool: Devices, verb: Verb, number: int, moments: random.Random) -> str:
    arguments = verb.prepare(pool)
    before = {(one["path"], one["state"]) for one in pool.devices()}
    files = Files(pool.mountpoint, number)
    files.start()
    client = subprocess.Popen(
        [pagefold(), *map(str, arguments)],
        env=os.environ | pool.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # Most verbs are carried out within some milliseconds, and then something is filled or moved.
    time.sleep(moments.choice([0.02, 0.1, 1.0]) * moments.random())
    pool.crash()
    said = client.wait(60)
    files.ended.set()
    files.join(60)
    pool.recover()
    files.verify()
    after = {(one["path"], one["state"]) for one in pool.devices()}
    goes_on = any(one["state"] == "FILLING" or one["removing"] for one in pool.devices())
    deadline = time.monotonic() + 300
    while any(one["state"] == "FILLING" or one["removing"] for one in pool.devices()):
        if time.monotonic() > deadline:
            raise RuntimeError("what was begun does not come to an end")
        time.sleep(0.05)
    if said == 0 or goes_on:
        what = "gone on" if goes_on else "done"
    elif not _is_done(pool, verb, arguments):
        # It was not begun: then nothing has changed, and it can be carried out now.
        if after != before:
            raise RuntimeError(f"the verb was not carried out, and devices are {sorted(after)} and were {sorted(before)}")
        pool.pagefold(*arguments, timeout_s=600)
        what = "not begun"
    else:
        what = "done"
    if not _is_done(pool, verb, arguments):
        raise RuntimeError(f"{' '.join(map(str, arguments))}: devices are {sorted(after)}")
    verb.after(pool, arguments)
    _wait_filled(pool)
    states = {one["path"]: one["state"] for one in pool.devices()}
    if states != {str(path): "ONLINE" for path in pool.mirror}:
        raise RuntimeError(f"devices are {states}")
    return what


def _is_done(pool: Devices, verb: Verb, arguments: list) -> bool:
    """Returns true if the devices are as the verb leaves them."""
    states = {one["path"]: one["state"] for one in pool.devices()}
    match verb.name:
        case "add":
            return str(arguments[-1]) in states
        case "attach" | "replace":
            return states == {str(path): "ONLINE" for path in pool.mirror}
        case "detach" | "remove":
            return str(arguments[2]) not in states
        case "offline":
            return states.get(str(arguments[2])) != "ONLINE"
        case _:
            return states.get(str(arguments[2])) == "ONLINE"
