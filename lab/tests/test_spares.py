"""Spares, as people use them: a device of a mirror fails while files are written, a spare steps in, and goes back; and the
server is killed meanwhile."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from lab import proc
from lab.ledger import Run, unmount
from lab.paths import tool
from lab.pool import Pool
from lab.tests.devices import MIB, Writer, beside, states, status

ROOM_MIB = 48
"""Room for the device that is to fail: what is beyond that cannot be written to it."""


class Failing:
    """A file on a file system that has less room than the file is long."""

    def __init__(self, run: Run, mib: int = 256):
        self.run, self.folder = run, run.fresh("small")
        self.folder.mkdir()
        proc.run([tool("mount"), "-t", "tmpfs", "-o", f"size={ROOM_MIB}M", "none", self.folder])
        self._entry = run.mount(self.folder)
        self.device = self.folder / "failing"
        with open(self.device, "wb") as file:
            file.truncate(mib * MIB)

    def mend(self) -> None:
        """Gives it room for all of the file."""
        proc.run([tool("mount"), "-o", "remount,size=1G", self.folder])

    def remove(self) -> None:
        unmount(self.folder, lazy=True)
        self.run.done(self._entry)


class Mirrored(Pool):
    """A pool of a mirror of two, of which one is to fail, with spares."""

    def __init__(self, run: Run, spares: int, **options: str):
        super().__init__(run, 256 * MIB, **options)
        self.failing = Failing(run)
        self.spares = [beside(self, f"spare{number}") for number in range(spares)]

    def create(self) -> None:
        with open(self.device, "wb") as file:
            file.truncate(self.size_bytes)
        devices = ["mirror", self.device, self.failing.device, "spare", *self.spares]
        self.pagefold("create", self.pool, *devices, "-o", "compression=zstd")

    def __exit__(self, *reason: object) -> None:
        try:
            super().__exit__(*reason)
        finally:
            self.failing.remove()

    def fail(self) -> None:
        """Writes until the device that is to fail does."""
        for number in range(40):
            with open(self.mountpoint / f"filling{number}", "wb") as file:
                file.write(os.urandom(2 * MIB))
                os.fsync(file.fileno())
            if states(self)["failing"] == "FAULTED":
                return
        raise AssertionError(f"the device does not fail: {status(self)['devices']}")


def spares(pool: Pool) -> dict[str, str]:
    """Returns the state of each spare, by name."""
    return {Path(one["path"]).name: one["state"] for one in status(pool)["spares"]}


def wait(pool: Pool, what: str, is_so) -> dict:
    """Waits until what `status` says is so."""
    deadline = time.monotonic() + 90
    while not is_so(told := status(pool)):
        assert time.monotonic() < deadline, f"{what}: {json.dumps(told)[:4000]}"
        time.sleep(0.1)
    return told


def stood_in(told: dict) -> bool:
    """True if a spare stands in, and is whole."""
    number = next((one["device"] for one in told["spares"] if one["state"] == "INUSE"), None)
    return any(one["number"] == number and one["state"] == "ONLINE" for one in told["devices"])


def test_a_spare_steps_in_under_writes_and_goes_back(run):
    with Mirrored(run, 1) as pool:
        assert spares(pool) == {"spare0": "AVAIL"}
        with Writer(pool.mountpoint) as writer:
            pool.fail()
            told = wait(pool, "no spare has stepped in", stood_in)
        assert told["state"] == "DEGRADED"
        failed = next(one["number"] for one in told["devices"] if one["state"] == "FAULTED")
        assert told["spares"][0]["stands_for"] == failed
        text = pool.pagefold("status", pool.pool)
        assert "spares" in text and f"INUSE, for {pool.failing.device}" in text and "stands in for" in text
        events = pool.pagefold("events", pool.pool)
        assert "a spare stands in for a device" in events and "the device is whole" in events
        with pytest.raises(proc.CommandFailed, match="stands in for"):
            pool.pagefold("remove", pool.pool, pool.spares[0])
        with pytest.raises(proc.CommandFailed, match="something is wrong"):
            pool.pagefold("status", "-x", pool.pool)
        pool.failing.mend()
        with Writer(pool.mountpoint / "") as second:
            pool.pagefold("online", pool.pool, pool.failing.device)
            told = wait(pool, "the spare does not go back", lambda told: told["spares"][0]["state"] == "AVAIL")
        assert told["state"] == "ONLINE" and len(told["devices"]) == 2
        second.verify()
        pool.pagefold("remove", pool.pool, pool.spares[0])
        assert spares(pool) == {}
        pool.unmount()
        pool.check()


@pytest.mark.long
@pytest.mark.parametrize("options", ["takeover=off", "takeover=on"])
def test_a_server_that_is_killed_while_a_spare_steps_in_goes_on(run, options):
    with Mirrored(run, 2, options=options) as pool:
        content = os.urandom(4 * MIB)
        with open(pool.mountpoint / "file", "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        pool.fail()
        for delay_s in [0.5, 2, 4, 5, 5.5]:
            time.sleep(delay_s)
            if options == "takeover=off":
                pool.crash()
                pool.recover()
            else:
                os.kill(pool.server_pid(), 9)
                deadline = time.monotonic() + 60
                while True:
                    try:
                        status(pool)
                        break
                    except proc.CommandFailed:
                        assert time.monotonic() < deadline
                        time.sleep(0.1)
        told = wait(pool, "no spare has stepped in", stood_in)
        assert sorted(one["state"] for one in told["spares"]) == ["AVAIL", "INUSE"]
        assert (pool.mountpoint / "file").read_bytes() == content
        # The one for good, the other one still a spare.
        pool.pagefold("detach", pool.pool, pool.failing.device)
        told = status(pool)
        assert told["state"] == "ONLINE" and [one["state"] for one in told["spares"]] == ["AVAIL"]
        pool.unmount()
        pool.mount()
        assert status(pool)["state"] == "ONLINE" and len(spares(pool)) == 1
        assert (pool.mountpoint / "file").read_bytes() == content
        pool.unmount()
        pool.check()


@pytest.mark.long
def test_a_spare_steps_in_for_a_device_that_reads_wrong_and_for_one_that_is_missing(run):
    with Pool(run, 256 * MIB) as pool:
        second = beside(pool, "second")
        pool.pagefold("attach", pool.pool, pool.device, second, "--wait")
        # A scrub follows.
        pool.pagefold("scrub", "--status", "--wait", pool.pool)
        pool.pagefold("add", pool.pool, "spare", beside(pool, "spare"))
        (pool.mountpoint / "file").write_bytes(os.urandom(32 * MIB))
        pool.unmount()
        with open(second, "r+b") as file:
            for at in range(3 * MIB, 60 * MIB, 64 << 10):
                file.seek(at)
                file.write(os.urandom(32 << 10))
        pool.mount()
        pool.pagefold("scrub", pool.pool, "--wait")
        told = wait(pool, "no spare has stepped in", stood_in)
        assert told["state"] == "ONLINE"
        assert "pagefold clear" in pool.pagefold("status", pool.pool)
        pool.pagefold("clear", pool.pool, second)
        wait(pool, "the spare does not go back", lambda told: told["spares"][0]["state"] == "AVAIL")
        pool.pagefold("set", "sparewait=30s", pool.pool)
        pool.unmount()
        second.unlink()
        pool.mount()
        assert status(pool)["state"] == "DEGRADED"
        told = wait(pool, "no spare has stepped in", stood_in)
        assert [one["state"] for one in told["devices"]].count("MISSING") == 1
        pool.pagefold("detach", pool.pool, "1")
        assert status(pool)["state"] == "ONLINE" and spares(pool) == {}
        pool.unmount()
        pool.check()


def test_other_pools_refuse_a_spare_and_import_finds_it(run):
    with Pool(run, 256 * MIB) as pool:
        spare = beside(pool, "spare")
        pool.pagefold("add", pool.pool, "spare", spare)
        with pytest.raises(proc.CommandFailed, match="is a spare of the pool already"):
            pool.pagefold("attach", pool.pool, pool.device, spare)
        with pytest.raises(proc.CommandFailed, match="is no device of pool|no other device"):
            pool.pagefold("remove", pool.pool, pool.device)
        with pytest.raises(proc.CommandFailed, match="can step in"):
            pool.pagefold("online", pool.pool, spare)
        pool.unmount()
        with pytest.raises(proc.CommandFailed, match=f"is a spare of pool {pool.pool}"):
            pool.pagefold("create", "other", spare)
        pool.pagefold("export", pool.pool)
        folder = Path(pool.device).parent
        with pytest.raises(proc.CommandFailed, match="is a spare of a pool"):
            pool.pagefold("import", "-d", spare)
        found = json.loads(pool.pagefold("import", "--json", "-d", pool.device, "-d", spare))
        assert str(spare) in json.dumps(found)
        pool.pagefold("import", "-d", folder, pool.pool)
        pool.mount()
        assert spares(pool) == {"spare": "AVAIL"}
        pool.unmount()
        # It is away for a while.
        spare.rename(spare.with_suffix(".away"))
        pool.mount()
        assert spares(pool) == {"spare": "UNAVAIL"} and status(pool)["state"] == "ONLINE"
        spare.with_suffix(".away").rename(spare)
        pool.pagefold("online", pool.pool, spare)
        assert spares(pool) == {"spare": "AVAIL"}
        # Another pool takes it.
        pool.unmount()
        pool.pagefold("create", "-f", "other", spare)
        pool.mount()
        assert spares(pool) == {"spare": "UNAVAIL"}
        pool.pagefold("remove", pool.pool, spare)
        assert spares(pool) == {}
        pool.pagefold("destroy", "-f", "other")
