"""A mirror goes on without one of its devices, and the machine crashes: what was left out is not the pool."""

from __future__ import annotations

import os

import pytest

from lab.pool import Pool
from lab.proc import CommandFailed

SIZE_BYTES = 200 << 20


class Mirror(Pool):
    """A pool of one mirror of two files."""

    def create(self) -> None:
        self.second = self.run.fresh("second")
        for path in (self.device, self.second):
            with open(path, "wb") as file:
                file.truncate(self.size_bytes)
        self.pagefold("create", self.pool, "mirror", self.device, self.second)


def write_durably(pool: Pool, text: str) -> None:
    with open(pool.mountpoint / "file", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def leave_a_half_and_crash(pool: Pool) -> None:
    """Leaves the second device out, writes more, and kills the server."""
    write_durably(pool, "two")
    pool.pagefold("offline", pool.pool, pool.second)
    write_durably(pool, "three")
    pool.crash()


def test_after_a_crash_the_half_that_was_left_out_is_not_taken_for_the_pool(run):
    with Mirror(run, SIZE_BYTES) as pool:
        leave_a_half_and_crash(pool)
        away = pool.device.with_suffix(".away")
        pool.device.rename(away)
        with pytest.raises(CommandFailed, match="does not exist|went on with other devices"):
            pool.mount()
        told = pool.pagefold("import", "-d", pool.second)
        assert "older copy" in told or "OLD" in told
        with pytest.raises(CommandFailed, match="does not exist|went on with other devices"):
            pool.pagefold("mount", "-o", "ro", pool.pool, pool.mountpoint)
        # The device that has everything comes back.
        away.rename(pool.device)
        pool.mount()
        assert (pool.mountpoint / "file").read_text() == "three"
        assert [one["state"] for one in pool.figures("status")["devices"]] == ["ONLINE", "OFFLINE"]


def test_whoever_says_so_goes_on_with_the_half_that_was_left_out(run):
    with Mirror(run, SIZE_BYTES) as pool:
        leave_a_half_and_crash(pool)
        pool.device.unlink()
        with pytest.raises(CommandFailed, match="older copy"):
            pool.pagefold("import", "-d", pool.second, pool.pool)
        pool.pagefold("import", "--accept-older", "-d", pool.second, pool.pool)
        pool.mount()
        assert (pool.mountpoint / "file").read_text() == "two"
        write_durably(pool, "four")
        pool.crash()
        pool.mount()
        assert (pool.mountpoint / "file").read_text() == "four"
