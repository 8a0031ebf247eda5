"""One device by two names: a file, and a loop device that shows it. The kernel locks each of them by itself."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from lab import proc
from lab.paths import pagefold, tool
from lab.pool import Pool
from lab.proc import CommandFailed

SIZE_BYTES = 200 << 20


@contextlib.contextmanager
def loop_on(run, file: Path):
    """A loop device that shows a file which is there."""
    device = proc.run([tool("losetup"), "--find", "--show", file]).strip()
    entry = run.loop(device, file)
    try:
        yield device
    finally:
        proc.run([tool("losetup"), "-d", device])
        run.done(entry)


def elsewhere(run, *arguments) -> str:
    """Runs the program as on another machine, which does not know the pools of this one."""
    kinds = {"STATE": "state", "RUNTIME": "run", "LOG": "log"}
    environment = {f"PAGEFOLD_{kind}_DIR": str(run.dir / "elsewhere" / name) for kind, name in kinds.items()}
    return proc.run([pagefold(), *arguments], env=environment)


def refused(run, path, pool: Pool) -> None:
    """Another machine cannot mount the pool from `path`."""
    at = run.fresh("elsewhere-mount")
    at.mkdir()
    with pytest.raises(CommandFailed, match="in use"):
        elsewhere(run, "import", "-d", path, pool.pool)
        elsewhere(run, "mount", pool.pool, at)


def test_a_pool_is_not_opened_twice_by_its_file_and_by_a_loop_device(run):
    with Pool(run, SIZE_BYTES) as pool:
        (pool.mountpoint / "file").write_text("precious")
        with loop_on(run, pool.device) as loop:
            refused(run, loop, pool)
            # It is no second device either, not even by force.
            with pytest.raises(CommandFailed, match="in use"):
                pool.pagefold("attach", "-f", pool.pool, pool.device, loop)
            assert (pool.mountpoint / "file").read_text() == "precious"
            pool.export()
            pool.pagefold("import", "-d", loop, pool.pool)
            pool.mount()
            refused(run, pool.device, pool)
            with loop_on(run, pool.device) as second:
                refused(run, second, pool)
            pool.unmount()
        pool.pagefold("import", "-d", pool.device, pool.pool)
        pool.mount()
        assert (pool.mountpoint / "file").read_text() == "precious"


def test_a_mirror_is_not_made_of_two_names_of_one_file(run):
    file = run.fresh("file")
    with open(file, "wb") as made:
        made.truncate(SIZE_BYTES)
    with loop_on(run, file) as first, loop_on(run, file) as second:
        for names in ((first, second), (file, first), (first, file)):
            with pytest.raises(CommandFailed, match="in use|same device"):
                elsewhere(run, "create", "twice", "mirror", *names)
    elsewhere(run, "create", "twice", file)
    elsewhere(run, "destroy", "--force", "twice")
