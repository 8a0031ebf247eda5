"""The order in which systemd would start and stop databases and their pools, by its own view of the units; nothing is started.

`make boot` boots a machine and switches it off; here systemd only reads units, as `systemd --test` and `systemd-analyze verify` do.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from lab import proc
from lab.ledger import Run
from lab.paths import ROOT, pagefold

SYSTEMD = Path("/lib/systemd/systemd")
GENERATORS = Path("/lib/systemd/system-generators")
SYSTEM_UNITS = Path("/lib/systemd/system")
CLUSTER = "postgresql@15-main.service"
MARIADB = "mariadb.service"


@pytest.fixture(autouse=True)
def needs_systemd():
    """Skips the tests without systemd, which Debian 12 has, if not always as the first process."""
    for path in (SYSTEMD, GENERATORS / "systemd-fstab-generator", SYSTEM_UNITS / "postgresql@.service"):
        if not path.exists():
            pytest.skip(f"{path} is not there")


class Units:
    """A directory of units beside those of the machine."""

    def __init__(self, run: Run):
        self.root = run.fresh("root")
        self.units = run.fresh("units")
        self.units.mkdir()
        proc.run([ROOT / "dist/install.sh", pagefold()], env={"DESTDIR": str(self.root)})
        unit = self.root / "lib/systemd/system/pagefold@.service"
        # The program is not yet where it will be installed, so another one takes its place in the units.
        for file in [unit, *unit.parent.glob("pagefold-backup.*"), *unit.parent.glob("pagefold-replicate@.*")]:
            (self.units / file.name).write_text(file.read_text().replace("/usr/local/bin/pagefold", "/bin/true"))
        self.wanted("multi-user.target", CLUSTER, SYSTEM_UNITS / "postgresql@.service")
        self.wanted("multi-user.target", MARIADB, SYSTEM_UNITS / MARIADB)

    def wanted(self, by: str, name: str, file: Path) -> None:
        """Makes unit `by` start unit `name`, which is in `file`."""
        folder = self.units / f"{by}.wants"
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(file)

    @property
    def env(self) -> dict[str, str]:
        """Environment in which systemd looks for units here first."""
        return {"SYSTEMD_UNIT_PATH": f"{self.units}:{SYSTEM_UNITS}", "HOME": "/tmp"}

    def seen(self) -> dict[str, dict[str, set[str]]]:
        """Returns systemd's view of each unit at boot: Requires, After and so on. systemd does such a test only for
        users, not for root."""
        command = [shutil.which("setpriv") or "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        dump = proc.run([*command, SYSTEMD, "--test", "--system", "--unit=multi-user.target"], env=self.env)
        found: dict[str, dict[str, set[str]]] = {}
        about: dict[str, set[str]] = {}
        for line in dump.splitlines():
            if unit := re.match(r"\t?-> Unit (\S+):$", line):
                about = found.setdefault(unit[1], {})
            elif said := re.match(r"\t\t?(\w+): (\S+) \(", line):
                about.setdefault(said[1], set()).add(said[2])
        assert CLUSTER in found and "local-fs.target" in found, dump[:2000]
        return found

    def verify(self, *units: str) -> None:
        """Verifies that nothing is wrong with these units: no unknown setting, no circle of ordering."""
        said = proc.run(["systemd-analyze", "--man=no", "verify", *units], env=self.env)
        assert said.strip() == "", said


def after(seen: dict[str, dict[str, set[str]]], unit: str) -> set[str]:
    """Returns all units that are started before a unit and stopped after it, directly or not."""
    found: set[str] = set()
    waiting = [unit]
    while waiting:
        for before in seen.get(waiting.pop(), {}).get("After", set()) - found:
            found.add(before)
            waiting.append(before)
    return found


@pytest.fixture
def units(run) -> Units:
    """Provides a fresh directory of units."""
    return Units(run)


def test_the_timer_of_backups_is_sound_and_is_not_on_by_itself(units):
    units.verify("pagefold-backup.timer", "pagefold-backup.service", "pagefold-replicate@tank-db.service")
    assert not list(units.root.rglob("*.wants"))


def test_every_service_comes_after_a_pool_that_a_service_mounts(units):
    units.wanted("local-fs.target", "pagefold@tank.service", units.units / "pagefold@.service")
    units.verify("pagefold@tank.service", CLUSTER, MARIADB)
    seen = units.seen()
    for service in (CLUSTER, MARIADB, "postgresql.service", "systemd-logind.service"):
        assert "pagefold@tank.service" in after(seen, service), service
    # At shutdown, the pool is closed when file systems are unmounted, not before.
    assert {"umount.target", "shutdown.target"} <= seen["pagefold@tank.service"]["Conflicts"]
    assert "umount.target" in seen["pagefold@tank.service"]["Before"]


def test_without_the_unit_no_database_would_wait(units):
    """Shows that the test would notice: without the unit, no database waits for the pool."""
    assert "pagefold@tank.service" not in after(units.seen(), CLUSTER)


def test_databases_wait_for_a_pool_of_fstab_that_may_fail(units, run):
    fstab, state = run.fresh("fstab"), run.fresh("state")
    fstab.write_text("tank /var/lib/mysql pagefold defaults,nofail 0 0\n")
    state.mkdir()
    pool = run.fresh("tank.pf")
    env = {"SYSTEMD_FSTAB": str(fstab), "PAGEFOLD_STATE_DIR": str(state)}
    proc.run([pagefold(), "create", "tank", pool, "--size", "160M"], env=env)
    ours = run.fresh("generators") / "pagefold-generator"
    ours.parent.mkdir()
    ours.symlink_to(pagefold())
    late = run.fresh("late")
    late.mkdir()
    for generator in (GENERATORS / "systemd-fstab-generator", ours):
        proc.run([generator, units.units, late, late], env=env)
    for path in units.units.rglob("*"):
        os.chmod(path, 0o755 if path.is_dir() else 0o644, follow_symlinks=True)
    seen = units.seen()
    mount = seen["var-lib-mysql.mount"]
    # With nofail, only the database waits for the mount.
    assert "var-lib-mysql.mount" not in seen["local-fs.target"].get("After", set())
    assert "var-lib-mysql.mount" in seen[MARIADB]["Requires"] & seen[MARIADB]["After"]
    assert str(pool) in mount["RequiresMountsFor"]
    assert "modprobe@fuse.service" in mount["After"]
    units.verify("var-lib-mysql.mount", MARIADB)
