"""Mounting as people do it: without root, through mount(8)'s helper, twice by mistake, after a crash."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess

import pytest

from lab import proc
from lab.ledger import is_mounted
from lab.paths import pagefold
from lab.pool import Pool
from lab.postgres import USER

SIZE = 256 << 20


@pytest.fixture(autouse=True)
def only_on_pagefold(request):
    """Skips the tests on other file systems, since they are about Pagefold's own program."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("not a pool")


def refused(pool: Pool, *arguments) -> str:
    """Runs the program, which must fail with status 1; returns its output."""
    with pytest.raises(proc.CommandFailed) as failure:
        pool.pagefold(*arguments)
    assert failure.value.status == 1, failure.value
    return failure.value.output


def test_pool_in_use_is_left_alone(run):
    with Pool(run, SIZE) as pool:
        (pool.mountpoint / "file").write_text("here")
        elsewhere = run.fresh("elsewhere")
        elsewhere.mkdir()
        # A second mount at the first place is refused; one at another place shows the same file system.
        assert pool.pool in refused(pool, "mount", pool.pool, pool.mountpoint)
        entry = run.mount(elsewhere)
        pool.pagefold("mount", pool.pool, elsewhere)
        assert (elsewhere / "file").read_text() == "here"
        pool.pagefold("unmount", elsewhere)
        run.done(entry)
        refused(pool, "check", pool.pool)
        refused(pool, "destroy", pool.pool)  # asks for the name, and nobody answers
        refused(pool, "create", "other", pool.device)
        assert not is_mounted(elsewhere)
        assert (pool.mountpoint / "file").read_text() == "here"


def test_mount_point_must_be_an_empty_directory(run):
    pool = Pool(run, SIZE)
    pool.create()
    try:
        missing = run.fresh("missing")
        assert str(missing) in refused(pool, "mount", pool.pool, missing / "below")
        assert not missing.exists()
        missing.mkdir()
        (missing / "something").write_text("in the way")
        assert str(missing) in refused(pool, "mount", pool.pool, missing)
        assert not is_mounted(missing)
    finally:
        pool.destroy()


def test_export_forgets_and_import_finds_again(run):
    with Pool(run, SIZE) as pool:
        (pool.mountpoint / "file").write_text("still here")
        pool.export()
        assert not is_mounted(pool.mountpoint)
        refused(pool, "mount", pool.pool, pool.mountpoint)
        pool.pagefold("import", "-d", pool.device.parent, pool.pool)
        pool.mount()
        assert (pool.mountpoint / "file").read_text() == "still here"


def test_mount_helper_serves_mount_8(run):
    with Pool(run, SIZE) as pool:
        (pool.mountpoint / "file").write_text("through the helper")
        pool.unmount()
        helper = run.fresh("helper")
        helper.mkdir()
        (helper / "mount.pagefold").symlink_to(pagefold())
        proc.run([helper / "mount.pagefold", pool.pool, pool.mountpoint, "-o", "rw,nofail"], env=pool.environment)
        run.process(pool.server_pid(), "pagefold")
        assert (pool.mountpoint / "file").read_text() == "through the helper"
        with open("/proc/self/mountinfo") as table:
            kind = next(line.split(" - ")[1] for line in table if f" {pool.mountpoint} " in line)
        assert kind.startswith("fuse.pagefold")
        pool.unmount()


def test_read_only_mount_refuses_writes(run):
    with Pool(run, SIZE) as pool:
        (pool.mountpoint / "file").write_text("read me")
        pool.unmount()
        pool.pagefold("mount", "-o", "ro", pool.pool, pool.mountpoint)
        run.process(pool.server_pid(), "pagefold")
        assert (pool.mountpoint / "file").read_text() == "read me"
        with pytest.raises(OSError, match="Read-only"):
            (pool.mountpoint / "other").write_text("no")
        pool.unmount()


@pytest.fixture
def fuse_for_everybody(run):
    """Makes /dev/fuse open to all, as on Debian: where only root may open it (containers), a node that is open to all
    is mounted over it."""
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        yield
        return
    node = run.fresh("fuse")
    os.mknod(node, 0o666 | stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
    node.chmod(0o666)
    entry = run.mount("/dev/fuse")
    proc.run(["mount", "--bind", node, "/dev/fuse"])
    yield
    # Pools of tests beside this one may have been mounted meanwhile: their servers keep the node open.
    proc.run(["umount", "--lazy", "/dev/fuse"])
    run.done(entry)


def test_user_without_root_mounts_a_pool_of_their_own(run, fuse_for_everybody):
    """Does everything as the user postgres, through fusermount3: create, mount, write, unmount, check."""
    home = run.fresh("home")
    home.mkdir()
    os.chown(home, pwd.getpwnam(USER).pw_uid, -1)
    device, folder = home / "own.pf", home / "mnt"
    env = {"HOME": str(home), "PAGEFOLD_STATE_DIR": str(home / "state"), "PAGEFOLD_RUNTIME_DIR": str(home / "run")}
    env["PAGEFOLD_LOG_DIR"] = str(home / "log")

    def own(*arguments) -> str:
        return proc.run(arguments, user=USER, env=env, timeout_s=60)

    own("mkdir", folder)
    own(pagefold(), "create", "own", "--size", "256M", device)
    entry = run.mount(folder)
    own(pagefold(), "mount", "own", folder)
    own("sh", "-c", f"echo mine > {folder}/file")
    assert own("cat", folder / "file") == "mine\n"
    # Without allow_other nobody else looks in, not even root.
    assert subprocess.run(["ls", folder], capture_output=True).returncode != 0
    own(pagefold(), "unmount", "own")
    assert not is_mounted(folder)
    run.done(entry)
    own(pagefold(), "check", "own")
