"""`lab boot`: boots a machine with databases on a pool and switches it off, to verify the order in which systemd starts
and stops things.

The machine is this one: a container of systemd-nspawn whose root is an overlay over ours, with the program and its units installed by
`dist/install.sh`. Its pool is a file that is bound into it. In each round it boots, a unit that comes last in the boot writes rows into
PostgreSQL and MariaDB, leaves a load that goes on, and has the machine switched off. Then this must hold:

1. the pool was mounted before any database was started, and was closed after the last had stopped, by the journal;
2. PostgreSQL was stopped cleanly (pg_controldata says so), and the pool is closed cleanly;
3. rows of all rounds are there.

A last round boots without the pool's device: no database is started on an empty directory, and the boot goes on.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import proc, ui
from .ledger import Run
from .paths import ROOT, pagefold, tool

NAME = "pagefold-boot"
POOL_MIB = 768
BOOT_S = 240
CLUSTER = "postgresql@15-boot.service"
MARIADB = "mariadb.service"

PREPARE = f"""
set -eu
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
pagefold create tank /pool/tank.pf --size {POOL_MIB}M -o mountpoint=/srv/tank -o cache=64M -o takeover=on
mkdir -p /srv/tank /var/log/journal
pagefold mount tank
pg_createcluster 15 boot -d /srv/tank/pg --start-conf=auto >/dev/null
printf '[mysqld]\\ndatadir=/srv/tank/my\\nskip-networking\\n' > /etc/mysql/mariadb.conf.d/99-boot.cnf
install -d -o mysql -g mysql -m 700 /srv/tank/my
mariadb-install-db --user=mysql --datadir=/srv/tank/my >/dev/null
pagefold unmount tank
systemctl enable mariadb.service pagefold-boot.service
systemctl mask systemd-networkd-wait-online.service collectd.service apt-daily.timer apt-daily-upgrade.timer
"""

LOAD = """#!/bin/sh
# Comes last in the boot: rows into both databases, and a load that nobody ends.
set -eu
exec >/pool/load.log 2>&1
if ! mountpoint -q /srv/tank; then
    echo no pool
    systemctl is-active postgresql@15-boot.service mariadb.service || true
    systemctl --no-block poweroff
    exit 0
fi
sql() { su postgres -c "psql -p $(pg_lsclusters -h | awk '$2 == "boot" {print $3}') -XAtqc \\"$1\\""; }
sql "create table if not exists rows (n int)"
sql "insert into rows select count(*) from rows"
mariadb -e "create database if not exists boot; create table if not exists boot.rows (n int) engine=innodb"
mariadb -e "insert into boot.rows select count(*) from boot.rows"
echo "rows $(sql 'select count(*) from rows') $(mariadb -Ne 'select count(*) from boot.rows')"
(while :; do sql "create temporary table t as select generate_series(1, 10000)" || exit; done) &
(while :; do mariadb -e "create or replace table boot.load as select seq from seq_1_to_10000" || exit; done) &
sleep 2
systemctl --no-block poweroff
wait
"""

LOAD_UNIT = f"""[Unit]
Description=Load of the laboratory
After={CLUSTER} {MARIADB} multi-user.target
# As programs of users do, it knows nothing of pools.
[Service]
Type=exec
ExecStart=/usr/local/sbin/pagefold-boot-load
[Install]
WantedBy=multi-user.target
"""


@dataclass
class Round:
    """One way in which the pool is mounted."""

    name: str
    prepare: str
    unit: str


ROUNDS = [
    Round(
        "pagefold@tank.service",
        "pagefold systemd install && systemctl enable pagefold@tank.service",
        "pagefold@tank.service",
    ),
    Round(
        "/etc/fstab",
        "systemctl disable pagefold@tank.service && pagefold systemd remove && "
        "echo 'tank /srv/tank pagefold defaults 0 0' > /etc/fstab",
        "srv-tank.mount",
    ),
    Round(
        "/etc/fstab with nofail",
        "echo 'tank /srv/tank pagefold defaults,nofail 0 0' > /etc/fstab",
        "srv-tank.mount",
    ),
]


class Machine:
    """The container."""

    def __init__(self, run: Run):
        self.run = run
        self.root = run.fresh("machine")
        self.pool = run.fresh("disc")
        lower, upper = run.fresh("lower"), run.fresh("upper")
        for path in (self.root, self.pool, lower, upper):
            path.mkdir()
        self._mount(lower, "--bind", "/", lower)
        self._mount(upper, "-t", "tmpfs", "-o", "size=2G", "boot", upper)
        # systemd-nspawn does not remove this folder if the machine's root is on a disc.
        run.command("rmdir", f"/run/systemd/nspawn/propagate/{NAME}")
        for name in ("changes", "work"):
            (upper / name).mkdir()
        layers = f"lowerdir={lower},upperdir={upper}/changes,workdir={upper}/work"
        self._mount(self.root, "-t", "overlay", "-o", layers, "boot", self.root)
        # Things of the machine below that would be in the way are removed.
        for path in ("etc/fstab", "var/lib/pagefold", "var/log/journal", "etc/machine-id"):
            shutil.rmtree(self.root / path, ignore_errors=True) if (self.root / path).is_dir() else (
                self.root / path
            ).unlink(missing_ok=True)
        (self.root / "etc/machine-id").write_text("00000000000000000000000000000b07\n")
        for cluster in (self.root / "etc/postgresql").glob("*/*"):
            shutil.rmtree(cluster)
        proc.run([ROOT / "dist/install.sh", pagefold()], env={"DESTDIR": str(self.root)})
        load = self.root / "usr/local/sbin/pagefold-boot-load"
        load.parent.mkdir(parents=True, exist_ok=True)
        load.write_text(LOAD)
        load.chmod(0o755)
        (self.root / "etc/systemd/system/pagefold-boot.service").write_text(LOAD_UNIT)

    def _mount(self, path: Path, *argv) -> None:
        self.run.mount(path)
        proc.run([tool("mount"), *argv])

    def _nspawn(self, log: str, *argv: str) -> str:
        """Runs the container to its end, with its console in a log."""
        command = [
            *(tool("systemd-nspawn", profile="boot"), "--register=no", "--keep-unit", "--quiet", f"--directory={self.root}"),
            *(f"--machine={NAME}", f"--bind={self.pool}:/pool", "--bind=/dev/fuse", *argv),
        ]
        path = self.run.logs / log
        with path.open("w") as out:
            started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            number = self.run.process(started.pid, "systemd-nspawn")
            try:
                status = started.wait(BOOT_S)
            except subprocess.TimeoutExpired as e:
                raise RuntimeError(f"the machine did not end within {BOOT_S} s: see {path}") from e
            self.run.done(number)
        said = path.read_text(errors="replace")
        if status != 0:
            raise RuntimeError(f"systemd-nspawn exited with {status}:\n{said[-4000:]}")
        return said

    def shell(self, name: str, script: str) -> str:
        """Runs a script in the machine while it is switched off."""
        return self._nspawn(f"{name}.log", "--as-pid2", "--pipe", "/bin/sh", "-ec", script)

    def boot(self, name: str) -> None:
        """Boots the machine, and returns when it is off. Keeps its journal and the log of the pool's server."""
        self._nspawn(f"{name}.log", "--boot", "--", "systemd.unit=multi-user.target")
        journal = [f"--directory={self.root}/var/log/journal", "--boot=0", "--output=short-monotonic", "--quiet"]
        (self.run.logs / f"{name}-journal.log").write_text(proc.run(["journalctl", *journal]))
        log = self.root / "var/log/pagefold/tank.log"
        if log.exists():
            shutil.copy(log, self.run.logs / f"{name}-server.log")

    def journal(self, unit: str) -> list[tuple[float, str]]:
        """Returns systemd's messages about a unit in the last boot, each with the seconds since the boot began."""
        told = proc.run(
            [
                *("journalctl", f"--directory={self.root}/var/log/journal", "--boot=0", "--output=short-monotonic"),
                *("--no-hostname", "--quiet", f"--unit={unit}", "_PID=1"),
            ]
        )
        lines = [line.partition("] ") for line in told.splitlines() if line.startswith("[")]
        return [(float(time.strip("[ ")), text) for time, _, text in lines]


def _when(machine: Machine, unit: str, *words: str) -> float:
    """Returns the time of systemd's first message about a unit that begins with one of these words."""
    lines = machine.journal(unit)
    for time, text in lines:
        if any(f": {word}" in text for word in words):
            return time
    raise AssertionError(f"systemd never said {' or '.join(words)} of {unit}; it said {lines}")


def _verify_order(machine: Machine, pool: str) -> None:
    mounted = _when(machine, pool, "Started", "Mounted")
    leaving = _when(machine, pool, "Stopping", "Unmounting")
    for database in (CLUSTER, MARIADB):
        started = _when(machine, database, "Starting")
        stopped = _when(machine, database, "Stopped")
        assert mounted <= started, f"{database} was started at {started}, before {pool} was mounted at {mounted}"
        assert stopped <= leaving, f"{database} was stopped at {stopped}, after {pool} began to go at {leaving}"


AFTER = """
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
pagefold list -H
pagefold mount -o ro tank /srv/tank
/usr/lib/postgresql/15/bin/pg_controldata /srv/tank/pg | grep 'cluster state'
pagefold unmount tank
pagefold check tank
tail -n 40 /var/log/postgresql/postgresql-15-boot.log | grep 'is shut down' | tail -n 1
"""


def boot(*, keep_logs: Path) -> int:
    """Runs all rounds; returns the exit status."""
    tool("systemd-nspawn", profile="boot")
    shown = ui.Steps()
    with Run("boot", keep_logs=keep_logs) as run:
        with shown.step("a machine with PostgreSQL and MariaDB on a pool"):
            machine = Machine(run)
            machine.shell("prepare", PREPARE)
        for number, how in enumerate(ROUNDS, 1):
            with shown.step(f"boots and is switched off: {how.name}"):
                machine.shell(f"prepare-{number}", f"PATH=/usr/local/bin:$PATH; {how.prepare}")
                machine.boot(f"boot-{number}")
                said = (machine.pool / "load.log").read_text()
                assert f"rows {number} {number}\n" in said, f"rows are missing: {said}"
                _verify_order(machine, how.unit)
                state = machine.shell(f"after-{number}", AFTER)
                assert "EXPORTED" in state, f"the pool was not closed: {state}"
                assert "shut down\n" in state, f"PostgreSQL was not stopped: {state}"
                assert "0 errors" in state, state
        with shown.step("boots without the pool's device"):
            machine.shell(
                "prepare-last",
                "PATH=/usr/local/bin:$PATH; : > /etc/fstab; systemctl enable pagefold@tank.service; pagefold systemd install",
            )
            (machine.pool / "tank.pf").rename(machine.pool / "gone.pf")
            machine.boot("boot-last")
            said = (machine.pool / "load.log").read_text()
            assert "no pool" in said and "\nactive" not in said, f"a database runs without its pool: {said}"
    print("\nDatabases were started after their pool and stopped before it, in every round.")
    return 0
