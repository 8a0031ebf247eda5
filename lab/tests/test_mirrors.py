"""Mirrors, as people use them: devices fail, vanish, come back and are replaced while files are written; and the page
docs/MIRRORS.md, whose commands are run as they are written."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from lab import proc
from lab.load import pgbench_load, prepare_pgbench
from lab.machine import commands, outputs, run_on_machine, script_of
from lab.paths import ROOT, pagefold
from lab.pool import Pool
from lab.postgres import Postgres
from lab.tests.devices import MIB, WRITTEN_MAX, Writer, attach, beside, known, one_device, states, status, stored
from lab.verify import pgbench_balances

PAGE = ROOT / "docs" / "MIRRORS.md"


@pytest.fixture()
def pool(run):
    """Provides a mounted pool of one device."""
    with one_device(run) as pool:
        yield pool


def test_a_device_is_attached_and_either_one_is_enough(pool):
    content = os.urandom(8 * MIB)
    (pool.mountpoint / "before").write_bytes(content)
    new = attach(pool, "second")
    told = status(pool)
    assert told["state"] == "ONLINE" and {one["state"] for one in told["devices"]} == {"ONLINE"}
    assert len({one["group"] for one in told["devices"]}) == 1
    (pool.mountpoint / "after").write_bytes(content)
    pool.unmount()
    first = Path(pool.device)
    for missing in (first, new):
        away = missing.with_suffix(".away")
        missing.rename(away)
        pool.mount()
        told = status(pool)
        assert told["state"] == "DEGRADED", told
        assert sorted(one["state"] for one in told["devices"]) == ["MISSING", "ONLINE"]
        for name in ("before", "after"):
            assert (pool.mountpoint / name).read_bytes() == content
        (pool.mountpoint / f"without {missing.name}").write_bytes(content)
        away.rename(missing)
        # It comes back while the pool is used.
        pool.pagefold("online", pool.pool, missing, "--wait")
        assert status(pool)["state"] == "ONLINE"
        pool.unmount()
    pool.mount()
    assert (pool.mountpoint / f"without {first.name}").read_bytes() == content


def test_a_device_is_taken_offline_and_comes_back_under_writes(pool):
    new = attach(pool, "second")
    with Writer(pool.mountpoint) as writer:
        for _ in range(3):
            pool.pagefold("offline", pool.pool, new)
            assert states(pool)["second"] == "OFFLINE"
            pool.pagefold("online", pool.pool, new, "--wait")
            assert states(pool)["second"] == "ONLINE"
    with pytest.raises(proc.CommandFailed, match="in use already"):
        pool.pagefold("online", pool.pool, new)
    pool.pagefold("offline", pool.pool, new)
    with pytest.raises(proc.CommandFailed, match="only device"):
        pool.pagefold("offline", pool.pool, pool.device)
    with pytest.raises(proc.CommandFailed, match="only device"):
        pool.pagefold("detach", pool.pool, pool.device)
    pool.pagefold("online", pool.pool, new, "--wait")
    writer.verify()


def test_a_device_is_replaced_under_writes_and_the_pool_is_on_the_new_one(pool):
    new = beside(pool, "new")
    with Writer(pool.mountpoint) as writer:
        pool.pagefold("replace", pool.pool, pool.device, new, "--wait")
    assert states(pool) == {"new": "ONLINE"}
    writer.verify()
    pool.unmount()
    os.truncate(pool.device, 0)
    pool.mount()
    writer.verify()
    pool.pagefold("attach", "--force", pool.pool, new, beside(pool, "third"), "--wait")
    pool.pagefold("scrub", pool.pool, "--status", "--wait")
    pool.pagefold("detach", pool.pool, new)
    assert states(pool) == {"third": "ONLINE"}


def test_a_device_is_not_detached_while_a_scrub_may_find_that_it_is_needed(pool):
    (pool.mountpoint / "file").write_bytes(os.urandom(96 * MIB))
    new = attach(pool, "second")
    pool.pagefold("scrub", pool.pool, "--status", "--wait")
    pool.unmount()
    pool.mount()
    pool.pagefold("scrub", pool.pool, "--rate", "1M")
    for words in ([], ["-n"]):
        with pytest.raises(proc.CommandFailed, match="(?s)a scrub is under way, .*may need what .*use -f"):
            pool.pagefold("detach", *words, pool.pool, pool.device)
    pool.pagefold("detach", "-f", pool.pool, pool.device)
    assert states(pool) == {"second": "ONLINE"}
    pool.pagefold("scrub", pool.pool, "--stop")
    assert new.name == "second"


def test_rubbish_on_one_device_is_mended_from_the_other(pool):
    content = os.urandom(32 * MIB)
    (pool.mountpoint / "file").write_bytes(content)
    new = attach(pool, "second")
    # A scrub follows the filling, and would go on after the mount.
    while (now := json.loads(pool.pagefold("scrub", "--json", "--status", pool.pool))["scrub"])["state"] == "running":
        time.sleep(0.1)
    assert now["damaged"] == 0
    pool.unmount()
    with open(new, "r+b") as file:
        for at in range(3 * MIB, 120 * MIB, 64 << 10):
            file.seek(at)
            file.write(os.urandom(32 << 10))
    pool.mount()
    assert (pool.mountpoint / "file").read_bytes() == content
    scrub = json.loads(pool.pagefold("scrub", "--json", "--wait", pool.pool))["scrub"]
    assert scrub["damaged"] > 0 and scrub["repaired"] == scrub["damaged"] + scrub["unreadable"], scrub
    wrong = next(one for one in status(pool)["devices"] if one["path"] == str(new))
    assert wrong["checksum_errors"] > 0 and wrong["repaired"] == wrong["checksum_errors"]
    pool.pagefold("clear", pool.pool)
    again = json.loads(pool.pagefold("scrub", "--json", "--wait", pool.pool))["scrub"]
    assert again["damaged"] == again["unreadable"] == 0


def test_a_half_is_taken_away_under_pgbench_and_postgresql_starts_on_it(run):
    with Pool(run, 512 * MIB) as pool:
        second = beside(pool, "second", 512)
        pool.pagefold("attach", pool.pool, pool.device, second, "--wait")
        data = pool.mountpoint / "data"
        data.mkdir(mode=0o700)
        proc.run(["chown", "postgres:", data])
        server = Postgres(run, data, settings={"max_wal_size": "64MB"})
        prepare_pgbench(server, "bench", 1)
        half = f"{pool.pool}-half"
        pgbench = pgbench_load(server, "bench")
        try:
            with Writer(pool.mountpoint) as writer:
                time.sleep(1)
                told = pool.pagefold("split", "-n", pool.pool, half)
                assert str(second) in told and "would have no mirror" in told and len(states(pool)) == 2
                acknowledged = list(writer.done)
                told = pool.pagefold("split", pool.pool, half)
                assert f"import -d {second} {half}" in told
                assert states(pool) == {Path(pool.device).name: "ONLINE"}
                time.sleep(1)
            pgbench.require_running()
        finally:
            pgbench.stop()
        writer.verify()
        assert pgbench_balances(server, "bench") > 0
        server.kill()
        with pytest.raises(proc.CommandFailed, match="has no mirror"):
            pool.pagefold("split", pool.pool, "other")
        mounted = run.fresh("half")
        mounted.mkdir()
        pool.pagefold("import", "-d", second, half)
        pool.pagefold("check", half)
        entry = run.mount(mounted)
        pool.pagefold("mount", "-o", "takeover=off", half, mounted)
        for number, content in enumerate(acknowledged[-100:], max(0, len(acknowledged) - 100)):
            found = (mounted / f"w{number % WRITTEN_MAX}").read_bytes()
            # A few may have been written again before the instant of the split.
            assert found == content or len(acknowledged) > WRITTEN_MAX // 2, number
        (mounted / "data" / "postmaster.pid").unlink(missing_ok=True)
        copy = Postgres(run, mounted / "data", settings={"max_wal_size": "64MB"}, name="copy")
        copy.start()
        try:
            assert pgbench_balances(copy, "bench") > 0
            copy.amcheck("bench")
        finally:
            copy.kill()
        pool.pagefold("unmount", mounted)
        run.done(entry)
        pool.pagefold("check", half)
        pool.pagefold("destroy", "--force", half)
        pool.unmount()
        pool.check()


def test_a_server_that_is_killed_while_a_pool_is_split_leaves_one_pool_or_two(pool):
    content = stored(pool, "large", 20)
    happened = set()
    for round, delay_s in enumerate((0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.5)):
        leaves = beside(pool, f"new{round}")
        pool.pagefold("attach", "-f", pool.pool, pool.device, leaves, "--wait")
        half = f"{pool.pool}-{round}"

        def split() -> None:
            try:
                pool.pagefold("split", pool.pool, half, leaves)
            except proc.CommandFailed:
                pass

        splitting = threading.Thread(target=split)
        splitting.start()
        time.sleep(delay_s)
        pool.crash()
        splitting.join()
        pool.recover()
        has_it = leaves.name in states(pool)
        happened.add(not has_it)
        if has_it:
            pool.pagefold("detach", "-f", pool.pool, leaves)
        else:
            pool.pagefold("import", "-d", leaves, half)
            pool.pagefold("check", half)
            pool.pagefold("destroy", "--force", half)
        assert (pool.mountpoint / "large").read_bytes() == content
    assert True in happened, "the last one had time enough"


def test_devices_without_a_mirror_are_not_added_to_mirrors_by_mistake(pool):
    attach(pool, "second")
    alone = beside(pool, "alone")
    with pytest.raises(proc.CommandFailed, match="would have none"):
        pool.pagefold("add", pool.pool, alone)
    with pytest.raises(proc.CommandFailed, match="is a device of the pool already"):
        pool.pagefold("add", pool.pool, "mirror", alone, pool.device)
    with pytest.raises(proc.CommandFailed, match="given twice"):
        pool.pagefold("add", pool.pool, "mirror", alone, alone)
    with pytest.raises(proc.CommandFailed, match="is too small"):
        pool.pagefold("add", "-f", pool.pool, beside(pool, "small", 20))
    assert len(status(pool)["devices"]) == 2
    pool.pagefold("add", "-f", pool.pool, alone)
    assert len(status(pool)["devices"]) == 3


def test_plans_change_nothing_and_tell_what_would_happen(pool):
    content = os.urandom(24 * MIB)
    (pool.mountpoint / "file").write_bytes(content)
    pool.pagefold("sync", pool.mountpoint)
    first, second, third = Path(pool.device), beside(pool, "second"), beside(pool, "third")

    def plan(*words: object) -> str:
        before = status(pool)["devices"]
        told = pool.pagefold(words[0], "-n", pool.pool, *words[1:])
        assert "nothing was changed" in told and status(pool)["devices"] == before
        return told

    def refused(why: str, *words: object) -> None:
        """Both the plan and the verb are refused for the same reason."""
        for dry in (["-n"], []):
            with pytest.raises(proc.CommandFailed, match=why):
                pool.pagefold(words[0], *dry, pool.pool, *words[1:])

    refused("are needed", "attach", first, beside(pool, "small", 160))
    refused("is the only device that has what it has", "detach", first)
    refused("is the only device that has what it has", "offline", first)
    refused("is in use already", "online", first)
    refused("is no device of pool", "replace", second, third)
    refused("is a device of the pool already", "replace", first, first)
    none_yet = first.with_name("none yet")
    assert str(none_yet) in plan("attach", first, none_yet, "--size", "256M") and not none_yet.exists()
    alone = f"{first} would have no mirror"
    told = plan("attach", first, second)
    assert f"{second} would be a mirror of {first}, and get " in told and "could lose 1 of 2 devices" in told
    # It has filled none yet: no speed is made up.
    assert ("no speed is known yet" in told or "would take at least" in told) and "1/3 of the time" in told, told
    told = plan("replace", first, second)
    assert f"{first} would stay until then" in told and f"{second} would have no mirror" in told
    pool.pagefold("attach", pool.pool, first, second, "--wait")
    told = plan("attach", second, third)
    assert "would take about" in told and "as the last filling" in told and "1/3 of the time" in told, told
    assert status(pool)["fill"]["work_bytes_per_s"] > 0
    assert alone in plan("detach", second)
    assert alone in plan("offline", second)
    assert "could lose 2 of 3 devices" in plan("attach", second, third)
    assert "could lose 1 of 2 devices" in plan("replace", second, third)
    pool.pagefold("offline", pool.pool, second)
    refused("is not in use now", "offline", second)
    refused("is the only device that has what it has", "detach", first)
    (pool.mountpoint / "more").write_bytes(content[: 8 * MIB])
    pool.pagefold("sync", pool.mountpoint)
    told = plan("online", second)
    assert f"{second} would get what it has missed: " in told and "could lose 1 of 2 devices" in told
    pool.pagefold("online", pool.pool, second, "--wait")
    assert (pool.mountpoint / "file").read_bytes() == content


def test_a_device_that_is_being_filled_is_no_wonder_to_who_looks(pool):
    """It has no superblock yet, as a device has whose pool was never quite made."""
    (pool.mountpoint / "file").write_bytes(os.urandom(96 * MIB))
    pool.pagefold("sync", pool.mountpoint)
    argv = [pagefold(), "status", pool.pool]
    # On a fast machine it may be whole before the server dies.
    for number in range(10):
        new = beside(pool, f"new{number}")
        pool.pagefold("attach", pool.pool, pool.device, new)
        pool.crash()
        told = subprocess.run(argv, env={**os.environ, **pool.environment}, capture_output=True, text=True, check=False)
        assert told.returncode == 0 and "warning" not in told.stderr, told
        pool.recover()
        if "FILLING" in told.stdout:
            break
        pool.pagefold("detach", "-f", pool.pool, new)
    else:
        pytest.fail("it was whole each time")
    deadline = time.monotonic() + 60
    while set(states(pool).values()) != {"ONLINE"}:
        assert time.monotonic() < deadline, states(pool)
        time.sleep(0.1)


def test_mistakes_are_told(pool):
    small = beside(pool, "small", 160)
    with pytest.raises(proc.CommandFailed, match="are needed"):
        pool.pagefold("attach", pool.pool, pool.device, small)
    with pytest.raises(proc.CommandFailed, match="is no device of pool"):
        pool.pagefold("detach", pool.pool, small)
    with pytest.raises(proc.CommandFailed, match="is a device of the pool already"):
        pool.pagefold("attach", pool.pool, pool.device, pool.device)
    with pytest.raises(proc.CommandFailed, match="--size"):
        pool.pagefold("attach", pool.pool, pool.device, small.with_name("none"))
    with pytest.raises(proc.CommandFailed, match="at least two devices"):
        pool.pagefold("create", "other", "mirror", small)
    with pytest.raises(proc.CommandFailed, match="no other devices"):
        pool.pagefold("create", "other", small, "mirror", small, small)


def test_the_page_is_right(run):
    meant = {f"/dev/sd{letter}": f"/srv/{letter}" for letter in "bcdefg"}
    steps = commands(PAGE.read_text(), "## Making one", "## When the machine comes back")
    for step in steps:
        for written, here in meant.items():
            step.text = step.text.replace(written, here)
    made = next(n for n, step in enumerate(steps) if "create" in step.text)
    before = "mount -t tmpfs none /srv; make install; truncate -s 200M /srv/b /srv/c /srv/d /srv/e /srv/f /srv/g"
    mount = "mkdir /srv/tank; pagefold mount tank /srv/tank; cp -r /etc /srv/tank/etc"
    after = "diff -r --no-dereference /etc /srv/tank/etc; pagefold unmount tank; pagefold check tank"
    command = type(steps[0])
    steps = [command(0, before), *steps[: made + 1], command(0, mount), *steps[made + 1 :], command(0, after)]
    printed = outputs(run_on_machine(run, script_of(steps)), PAGE.name, steps)
    told = [printed[str(n)] for n, step in enumerate(steps) if step.text.startswith("pagefold status")]
    assert len(told) == 2 and all("ONLINE" in text and "mirror-0" in text for text in told), told
    assert "/srv/d" in told[1] and "/srv/c" not in told[1]
    assert "no errors" in printed[str(len(steps) - 1)] or ": 0 errors" in printed[str(len(steps) - 1)]


def test_a_device_that_was_away_gets_only_what_it_missed_after_the_pool_was_mounted_again(pool):
    new = attach(pool, "second")
    (pool.mountpoint / "before").write_bytes(os.urandom(120 * MIB))
    pool.pagefold("sync", pool.pool)
    for kill in (False, True):
        pool.pagefold("offline", pool.pool, new)
        content = os.urandom(4 * MIB)
        with open(pool.mountpoint / f"missed {kill}", "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        if kill:
            pool.crash()
            pool.recover()
        else:
            pool.unmount()
            pool.mount()
        assert status(pool)["state"] == "DEGRADED"
        pool.pagefold("online", pool.pool, new, "--wait")
        told = status(pool)
        assert told["state"] == "ONLINE"
        assert told["fill"]["done_bytes"] < 40 * MIB, told["fill"]
    pool.unmount()
    Path(pool.device).rename(Path(pool.device).with_suffix(".away"))
    pool.mount()
    for kill in (False, True):
        assert len((pool.mountpoint / f"missed {kill}").read_bytes()) == 4 * MIB
    assert len((pool.mountpoint / "before").read_bytes()) == 120 * MIB
    pool.unmount()
    Path(pool.device).with_suffix(".away").rename(pool.device)
    pool.mount()
    pool.pagefold("scrub", pool.pool, "--wait")


def test_a_device_is_known_before_the_server_has_it(pool, run):
    """The server, or the command, may end at any instant: then the next mount finds the device. Here what this machine
    knows cannot be written, and so the pool does not get the device."""
    new = beside(pool, "new")
    state = pool.environment["PAGEFOLD_STATE_DIR"]
    run.mount(Path(state))
    proc.run(["mount", "--bind", state, state])
    proc.run(["mount", "-o", "remount,bind,ro", state])
    for verb in (["attach", pool.pool, pool.device], ["add", "-f", pool.pool], ["add", pool.pool, "spare"]):
        with pytest.raises(proc.CommandFailed, match="[Rr]ead-only"):
            pool.pagefold(*verb, new)
        assert states(pool) == {Path(pool.device).name: "ONLINE"} and status(pool)["spares"] == []
    proc.run(["umount", state])
    pool.pagefold("attach", pool.pool, pool.device, new, "--wait")
    assert "new" in known(pool)
    # One that the pool does not take is not remembered.
    small = beside(pool, "small", 140)
    with pytest.raises(proc.CommandFailed):
        pool.pagefold("attach", pool.pool, pool.device, small)
    assert "small" not in known(pool) and "new" in known(pool)


def test_a_device_that_was_being_given_can_be_given_again(pool):
    """A verb whose server was killed has left its label on the device: nobody misses that."""
    new = beside(pool, "new")
    other = beside(pool, "other")
    for number in range(12):
        # At some moment between the device's label and the end of the filling.
        attaching = subprocess.Popen(
            [pagefold(), "attach", pool.pool, str(pool.device), str(new)],
            env=os.environ | pool.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.004 * number)
        pool.crash()
        attaching.wait(60)
        pool.recover()
        if "new" in states(pool):
            # The scrub of its filling goes on after the crash, and the server has forgotten which device was filled.
            pool.pagefold("detach", "-f", pool.pool, new)
    pool.pagefold("attach", pool.pool, pool.device, new, "--wait")
    # A copy of a device that is whole is somebody's, and is not overwritten without a word; nor is one that is missed.
    pool.unmount()
    other.write_bytes(new.read_bytes())
    pool.mount()
    pool.pagefold("detach", "-f", pool.pool, new)
    with pytest.raises(proc.CommandFailed, match="holds pool"):
        pool.pagefold("attach", pool.pool, pool.device, other)
