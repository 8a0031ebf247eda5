"""Log devices, as people use them: made with a pool or added to it, lost while the pool runs, while it is unmounted and in a
crash; and the server is killed meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from lab import proc
from lab.ledger import Run
from lab.pool import Pool
from lab.tests.devices import MIB, Writer, beside, states, status, stored
from lab.tests.test_spares import Failing, wait

LOG_MIB = 140


class Logged(Pool):
    """A pool of one device with a log device."""

    def __init__(self, run: Run, *, mirrored: bool = False, **options: str):
        super().__init__(run, 256 * MIB, **options)
        self.log = [beside(self, f"{self.device.name}-log{half}", LOG_MIB) for half in ("ab" if mirrored else "a")]

    def create(self) -> None:
        with open(self.device, "wb") as file:
            file.truncate(self.size_bytes)
        words = ["mirror", *self.log] if len(self.log) > 1 else self.log
        self.pagefold("create", self.pool, self.device, "log", *words, "-o", "compression=zstd")


def logs(pool: Pool) -> dict[str, str]:
    """Returns the state of each device of the log device, by name; missing ones by number."""
    return {
        Path(one["path"]).name or str(one["number"]): one["state"] for one in status(pool)["devices"] if one["log"]
    }


def wait_until_gone(pool: Pool) -> None:
    """Waits until the log device has left the pool."""
    told = wait(pool, "the log device does not leave", lambda told: not any(one["log"] for one in told["devices"]))
    assert told["state"] == "ONLINE" and told["log_device"] is None, told


@pytest.mark.parametrize("mirrored", [False, True])
def test_what_was_synced_is_there_after_the_server_was_killed(run, mirrored):
    with Logged(run, mirrored=mirrored) as pool:
        told = status(pool)
        assert set(logs(pool).values()) == {"ONLINE"} and len(logs(pool)) == 1 + mirrored
        used = told["log_device"]["used_bytes"]
        assert told["log_device"]["size_bytes"] <= LOG_MIB * MIB and used <= 8 * MIB, told
        # No data lies on it.
        assert told["size_bytes"] <= 256 * MIB
        for _ in range(2):
            with Writer(pool.mountpoint) as writer:
                time.sleep(1)
            assert status(pool)["log_device"]["size_bytes"] > 0
            pool.crash()
            pool.recover()
            writer.verify()
            assert set(logs(pool).values()) == {"ONLINE"}
        rows = pool.pagefold("status", pool.pool).splitlines()
        at = next(at for at, row in enumerate(rows) if row.strip() == "logs")
        shown = rows[at + 1 :]
        if mirrored:
            assert shown[0].strip() == "mirror-1"
            shown = shown[1:]
        assert all(str(log) in row and "ONLINE" in row for log, row in zip(pool.log, shown)), rows
        assert any(row.strip().startswith("log device:") for row in rows), rows
        names = [row.split()[0] for row in pool.pagefold("iostat", "-v", pool.pool).splitlines()]
        assert names[names.index("logs") :] == ["logs", *(["mirror-1"] if mirrored else []), *map(str, pool.log)]
        pool.unmount()
        pool.check()


@pytest.mark.parametrize("words", [[], ["-a"]])
def test_what_only_the_log_device_has_comes_from_there(run, words):
    with Logged(run) as pool:
        pool.pagefold("set", f"mountpoint={pool.mountpoint}", pool.pool)
        before = stored(pool, "before", 4)
        pool.pagefold("sync", pool.pool)
        copy = pool.device.with_name("copy")
        shutil.copyfile(pool.device, copy)
        content = {}
        for number in range(5):
            content[f"file{number}"] = os.urandom(64 << 10)
            with open(pool.mountpoint / f"file{number}", "wb") as file:
                file.write(content[f"file{number}"])
                os.fsync(file.fileno())
        pool.crash()
        pool.detach()
        # The device of the data has lost all that was written to it meanwhile.
        shutil.copyfile(copy, pool.device)
        assert status(pool)["state"] == "CRASHED" and "when it is mounted" in pool.pagefold("status", pool.pool)
        for refused in (["get", "all", pool.pool], ["mount", "-o", "ro", pool.pool, pool.mountpoint]):
            with pytest.raises(proc.CommandFailed, match="its log device has what belongs on the others"):
                pool.pagefold(*refused)
        # Where it is to be mounted is known only when the log was replayed.
        entry = run.mount(pool.mountpoint)
        pool.pagefold("mount", "-o", "takeover=off", *words, pool.pool)
        assert (pool.mountpoint / "before").read_bytes() == before
        for name, written in content.items():
            assert (pool.mountpoint / name).read_bytes() == written
        assert len(logs(pool)) == 1
        pool.pagefold("unmount", pool.mountpoint)
        run.done(entry)
        pool.mount()
        for name, written in content.items():
            assert (pool.mountpoint / name).read_bytes() == written
        pool.unmount()
        pool.check()


def test_a_check_and_a_rescue_read_what_only_the_log_device_has(run):
    with Logged(run) as pool:
        before = stored(pool, "before", 4)
        pool.pagefold("sync", pool.pool)
        copy = pool.device.with_name("copy")
        shutil.copyfile(pool.device, copy)
        content = {f"file{number}": os.urandom(64 << 10) for number in range(5)}
        for name, written in content.items():
            with open(pool.mountpoint / name, "wb") as file:
                file.write(written)
                os.fsync(file.fileno())
        pool.crash()
        pool.detach()
        # The device of the data has lost all that was written to it meanwhile.
        shutil.copyfile(copy, pool.device)
        devices = [pool.device, pool.log[0]]
        images = [hashlib.sha256(device.read_bytes()).digest() for device in devices]

        def rescued() -> tuple[str, dict[str, bytes]]:
            """Mounts the pool for a rescue, and returns what its status says, and the files that it shows."""
            entry = run.mount(pool.mountpoint)
            pool.pagefold("mount", "-o", "rescue", pool.pool, pool.mountpoint)
            told = pool.pagefold("status", pool.pool)
            files = {path.name: path.read_bytes() for path in pool.mountpoint.iterdir() if path.is_file()}
            pool.pagefold("unmount", pool.mountpoint)
            run.done(entry)
            return told, files

        assert json.loads(pool.pagefold("check", "--json", pool.pool))["messages"] == []
        told, files = rescued()
        assert "has met no damage" in told and files == {"before": before, **content}, told
        assert [hashlib.sha256(device.read_bytes()).digest() for device in devices] == images
        # Without the log device both say that something may be missing, and show the rest.
        away = pool.log[0].with_name("away")
        pool.log[0].rename(away)
        with pytest.raises(proc.CommandFailed, match="the log device is not here.*acknowledged(?s:.*)is damaged: 1 error"):
            pool.pagefold("check", pool.pool)
        told, files = rescued()
        assert "the log device is not here" in told and files == {"before": before}, told
        away.rename(pool.log[0])
        assert [hashlib.sha256(device.read_bytes()).digest() for device in devices] == images
        pool.mount()
        assert all((pool.mountpoint / name).read_bytes() == written for name, written in content.items())
        pool.unmount()
        pool.check()


def test_a_log_device_that_fails_leaves_and_the_pool_goes_on(run):
    with Pool(run, 256 * MIB) as pool:
        failing = Failing(run)
        try:
            pool.pagefold("add", pool.pool, "log", failing.device)
            assert logs(pool) == {"failing": "ONLINE"}
            with Writer(pool.mountpoint) as writer:
                for number in range(60):
                    stored(pool, f"filling{number % 8}", 2)
                    if logs(pool) != {"failing": "ONLINE"}:
                        break
                wait_until_gone(pool)
                time.sleep(0.5)
            writer.verify()
            events = pool.pagefold("events", pool.pool)
            assert "the log device has failed or is missing" in events and "the log device has left the pool" in events
            pool.crash()
            pool.recover()
            writer.verify()
            assert logs(pool) == {}
            failing.mend()
            pool.pagefold("add", "-f", pool.pool, "log", failing.device)
            assert logs(pool) == {"failing": "ONLINE"}
            with Writer(pool.mountpoint) as writer:
                time.sleep(0.5)
            pool.crash()
            pool.recover()
            writer.verify()
            pool.unmount()
            pool.check()
        finally:
            pool.unmount()
            failing.remove()


def test_a_mirror_of_log_devices_goes_on_with_one_of_them(run):
    with Logged(run) as pool:
        failing = Failing(run)
        try:
            pool.pagefold("attach", pool.pool, pool.log[0], failing.device, "--wait")
            with Writer(pool.mountpoint) as writer:
                for number in range(60):
                    stored(pool, f"filling{number % 8}", 2)
                    if logs(pool).get("failing") != "ONLINE":
                        break
            told = status(pool)
            assert told["state"] == "DEGRADED" and logs(pool) == {pool.log[0].name: "ONLINE", "failing": "FAULTED"}
            pool.crash()
            pool.recover()
            writer.verify()
            pool.pagefold("detach", pool.pool, failing.device)
            assert status(pool)["state"] == "ONLINE" and logs(pool) == {pool.log[0].name: "ONLINE"}
        finally:
            pool.unmount()
            failing.remove()


def test_a_pool_that_was_closed_does_not_need_its_log_device(run):
    with Logged(run) as pool:
        content = stored(pool, "file", 4)
        log, away = pool.log[0], pool.log[0].with_suffix(".away")
        pool.unmount()
        elsewhere = run.fresh("elsewhere")
        elsewhere.mkdir()
        away = elsewhere / "away"
        log.rename(away)
        (found,) = json.loads(pool.pagefold("import", "--json", "-d", pool.device))["pools"]
        assert found["state"] == "DEGRADED" and found["lacks_log_device"] and "log device" in found["problem"], found
        assert status(pool)["state"] == "EXPORTED" and logs(pool) == {}
        pool.mount()
        assert (pool.mountpoint / "file").read_bytes() == content
        wait_until_gone(pool)
        assert "the log device has failed or is missing" in pool.pagefold("events", pool.pool)
        with Writer(pool.mountpoint) as writer:
            time.sleep(0.3)
        # It is there again, with what it had: the pool goes on without it, after a crash and after an unmount.
        away.rename(log)
        (found,) = json.loads(pool.pagefold("import", "--json", "-d", log))["pools"]
        assert found["state"] == "OLD" and found["is_log_device"] and "no data lies on it" in found["problem"], found
        pool.crash()
        pool.recover()
        assert logs(pool) == {}
        writer.verify()
        pool.unmount()
        pool.mount()
        assert logs(pool) == {}
        with pytest.raises(proc.CommandFailed, match="holds pool"):
            pool.pagefold("add", pool.pool, "log", log)
        pool.pagefold("add", "-f", pool.pool, "log", log)
        assert list(logs(pool).values()) == ["ONLINE"]
        writer.verify()
        pool.unmount()
        pool.check()


def test_a_pool_that_crashed_is_not_mounted_without_its_log_device_unless_loss_is_accepted(run):
    with Logged(run) as pool:
        content = stored(pool, "file", 4)
        elsewhere = run.fresh("elsewhere")
        elsewhere.mkdir()
        pool.crash()
        pool.detach()
        away = elsewhere / "away"
        pool.log[0].rename(away)
        for words in (["mount", pool.pool, pool.mountpoint], ["status", pool.pool]):
            with pytest.raises(proc.CommandFailed, match="log device .* is not here, and may have commits .*--accept-loss"):
                pool.pagefold(*words)
        (found,) = json.loads(pool.pagefold("import", "--json", "-d", pool.device))["pools"]
        assert found["state"] == "INCOMPLETE" and found["lacks_log_device"], found
        assert "--accept-loss" in found["action"]
        with pytest.raises(proc.CommandFailed, match="its log device was not found, and may have commits"):
            pool.pagefold("import", "-d", pool.device, pool.pool)
        # With it nothing is lost.
        away.rename(pool.log[0])
        pool.mount()
        assert (pool.mountpoint / "file").read_bytes() == content and len(logs(pool)) == 1
        pool.crash()
        pool.detach()
        pool.log[0].rename(away)
        told = pool.pagefold("import", "--accept-loss", "-d", pool.device, pool.pool)
        assert "its log device is given up" in told
        pool.mount()
        assert logs(pool) == {}
        assert (pool.mountpoint / "file").read_bytes() == content
        pool.unmount()
        pool.check()


@pytest.mark.parametrize("options", ["takeover=off", "takeover=on"])
def test_a_log_device_is_added_and_removed_under_writes(run, options):
    with Pool(run, 256 * MIB, options=options) as pool:
        before = status(pool)
        log = beside(pool, "logdevice", LOG_MIB)
        told = pool.pagefold("add", "-n", pool.pool, "log", log)
        assert "would be the log device" in told and "nothing was changed" in told and logs(pool) == {}
        with Writer(pool.mountpoint) as writer:
            for _ in range(2):
                pool.pagefold("add", pool.pool, "log", log)
                assert logs(pool) == {"logdevice": "ONLINE"}
                now = status(pool)
                assert now["capacity_bytes"] == before["capacity_bytes"] and now["size_bytes"] == before["size_bytes"]
                if options == "takeover=on":
                    os.kill(pool.server_pid(), 9)
                time.sleep(0.5)
                told = pool.pagefold("remove", "-n", pool.pool, log)
                assert "is the log device" in told and "nothing was changed" in told
                assert logs(pool) == {"logdevice": "ONLINE"}
                pool.pagefold("remove", pool.pool, log)
                assert logs(pool) == {}
                if options == "takeover=on":
                    os.kill(pool.server_pid(), 9)
                time.sleep(0.2)
        writer.verify()
        # It holds no pool, and nobody has it open.
        pool.pagefold("create", "other", log)
        pool.pagefold("destroy", "-f", "other")
        log.unlink()
        pool.unmount()
        pool.mount()
        writer.verify()
        pool.unmount()
        pool.check()


def test_devices_of_the_log_device_are_changed_as_those_of_mirrors_are(run):
    with Logged(run) as pool:
        first, second, third = pool.log[0], beside(pool, "second", LOG_MIB), beside(pool, "third", LOG_MIB)
        with Writer(pool.mountpoint) as writer:
            pool.pagefold("attach", pool.pool, first, second, "--wait")
            assert logs(pool) == {first.name: "ONLINE", "second": "ONLINE"}
            assert "without losing commits" in pool.pagefold("attach", "-n", pool.pool, first, third)
            pool.pagefold("offline", pool.pool, first)
            assert logs(pool)[first.name] == "OFFLINE" and status(pool)["state"] == "DEGRADED"
            pool.pagefold("online", pool.pool, first, "--wait")
            pool.pagefold("replace", pool.pool, first, third, "--wait")
            assert logs(pool) == {"second": "ONLINE", "third": "ONLINE"}
            with pytest.raises(proc.CommandFailed, match="is one device of mirror-1"):
                pool.pagefold("remove", pool.pool, second)
            pool.pagefold("detach", pool.pool, second)
            assert logs(pool) == {"third": "ONLINE"}
        pool.crash()
        pool.recover()
        writer.verify()
        for verb in ("offline", "detach"):
            with pytest.raises(proc.CommandFailed, match="only device of the log device"):
                pool.pagefold(verb, pool.pool, third)
        assert logs(pool) == {"third": "ONLINE"}
        with pytest.raises(proc.CommandFailed, match="is the log device"):
            pool.pagefold("split", "-n", pool.pool, "half")


def test_what_makes_no_sense_is_refused_and_changes_nothing(run):
    with Logged(run) as pool:
        new, small = pool.device.with_name("new"), beside(pool, "small", 1)
        before = states(pool)
        for words, match in [
            (["log", new], "(?s)has a log device already: .*attach"),
            (["log", "mirror", new, small], "has a log device already"),
            (["log"], "no device follows the word log"),
            (["log", new, small], "log mirror"),
        ]:
            with pytest.raises(proc.CommandFailed, match=match):
                pool.pagefold("add", pool.pool, *words, "--size", "160M")
        pool.pagefold("remove", pool.pool, pool.log[0])
        for words, match in [(["log", small], "too small"), (["log", pool.device], "is a device of the pool already")]:
            for dry in ([], ["-n"]):
                with pytest.raises(proc.CommandFailed, match=match):
                    pool.pagefold("add", *dry, pool.pool, *words)
        assert not new.exists() and logs(pool) == {} and set(states(pool)) < set(before)
        # The last device that holds data stays.
        pool.pagefold("add", pool.pool, "log", new, "--size", "160M")
        with pytest.raises(proc.CommandFailed, match="no other device"):
            pool.pagefold("remove", pool.pool, pool.device)
        with pytest.raises(proc.CommandFailed, match="holds pool"):
            pool.pagefold("create", "other", beside(pool, "free"), "log", new)
