"""Runs the pages "Your first backup", "The machine is gone" and "To a point in time" of docs/BACKUP.md as they are
written, with a PostgreSQL on the dataset, on a machine that has no pools. Not taken literally: the device is a file, the
bucket is the directory of the first page, `--key-file ...` is its key, and the moments are those of the test."""

from __future__ import annotations

import re

import pytest

from lab import proc
from lab.machine import Command, commands, outputs, run_on_machine, script_of
from lab.paths import ROOT, postgres_bin

PAGE = ROOT / "docs" / "BACKUP.md"
BIN = postgres_bin("postgres").removesuffix("/postgres")
PG_CTL = f"sudo -u postgres {BIN}/pg_ctl -s -w -D /srv/db/data -l /tmp/log"
START, STOP = f"{PG_CTL} start", f"{PG_CTL} -m immediate stop"
COUNT = "sudo -u postgres psql -qAtX -c \"SELECT count(*), sum(length(name)) FROM customer\""
DATABASE = f"""
mount -t tmpfs none /tmp
make install
truncate -s 1G /srv/disc /srv/other
pagefold create tank /srv/disc
pagefold dataset create tank/db
pagefold mount tank/db /srv/db
install -d -o postgres /srv/db/data
sudo -u postgres {BIN}/initdb --auth=trust -D /srv/db/data >/tmp/initdb
{START}
sudo -u postgres psql -qX -c "CREATE TABLE customer AS SELECT id, md5(id::text) AS name FROM generate_series(1, 20000) id"
"""
LOSS = f"""
{STOP}
pagefold unmount tank
rm -r /srv/disc /var/lib/pagefold
"""
LOOK = f"""
{START}
{COUNT}
{STOP}
"""


def page(begin: str, end: str) -> list[Command]:
    """Returns the commands of a part of the page, with names that there are on this machine."""
    meant = {
        "s3://backups/tank": "/mnt/backup/tank",
        "/dev/sdb": "/srv/other",
        "--key-file ...": "--key-file /etc/pagefold/backup.key",
    }
    found = commands(PAGE.read_text(), begin, end)
    for command in found:
        for written, here in meant.items():
            command.text = command.text.replace(written, here)
    return found


FIRST = page("## Your first backup", "### In a bucket")
GONE = page("## The machine is gone", "### Without waiting")
AT_ONCE = page("### Without waiting", "## To a point in time")
POINT = page("## To a point in time", "### MariaDB")


@pytest.fixture(scope="module")
def told(run) -> tuple[list[Command], dict[str, str]]:
    """Provides the steps, and what each printed."""

    def step(text: str) -> Command:
        return Command(0, text)

    by_hand = next(n for n, command in enumerate(GONE) if command.text.startswith("pagefold create"))
    steps = [
        step(DATABASE), *FIRST, step(COUNT),
        step(LOSS), *GONE[:by_hand], step(LOOK),
        step("pagefold unmount tank; pagefold destroy --force tank"), *GONE[by_hand:],
        step("pagefold mount tank/db /srv/db"), step(LOOK),
        step("pagefold unmount tank; pagefold destroy -r tank/db"), *AT_ONCE, step(LOOK),
        step("pagefold unmount tank; pagefold check tank"),
    ]  # fmt: skip
    return steps, outputs(run_on_machine(run, script_of(steps)), PAGE.name, steps)


@pytest.mark.long
def test_each_line_does_what_the_page_says(told):
    steps, printed = told
    said = {command.text: printed[str(n)] for n, command in enumerate(steps)}
    of = {verb: "".join(text for line, text in said.items() if f"pagefold backup {verb}" in line) for verb in ("create", "list", "check", "verify", "prune")}
    assert "tank/db@backup-" in of["create"] and "tank/db@backup-" in of["list"]
    assert ": 0 errors" in of["check"] and ": 0 errors" in of["verify"]
    assert re.search(r"forgot|nothing|0 backups", of["prune"]), of["prune"]


def test_the_database_is_there_each_time(told):
    steps, printed = told
    counts = [printed[str(n)].strip().splitlines()[-1] for n, step in enumerate(steps) if COUNT in step.text]
    assert len(counts) == 4 and set(counts) == {"20000|640000"}, counts


@pytest.mark.long
def test_a_point_in_time_is_restored(run):
    psql = "sudo -u postgres psql -qAtX"
    settings = [command.text for command in POINT if re.match(r"\w+ = ", command.text)]
    install = [command for command in POINT if command.text.startswith(("install", "chgrp"))]
    restore = {way: next(command for command in POINT if f"--to-{way}" in command.text) for way in ("time", "lsn", "latest")}
    listing = next(command for command in POINT if command.text.startswith("pagefold archive list"))
    assert len(settings) == 3 and len(install) == 3
    # A moment between two changes, with a third behind it.
    change = f"{psql} -c \"INSERT INTO customer SELECT id, 'of @' FROM generate_series(1, 10) id\""
    moments = f"""
cat >> /srv/db/data/postgresql.conf <<'END'
{chr(10).join(settings)}
END
{PG_CTL} restart
pagefold backup create tank/db --to /mnt/backup/tank --key-file /etc/pagefold/backup.key
{change.replace("@", "one")}
sleep 1; then=$({psql} -c 'SELECT now()'); lsn=$({psql} -c 'SELECT pg_current_wal_lsn()'); sleep 1
{change.replace("@", "two")}
{psql} -c "SELECT pg_switch_wal()" >/dev/null
for try in $(seq 100); do
    [ -z "$({psql} -c 'SELECT 1 FROM pg_stat_archiver WHERE last_archived_time IS NULL')" ] && break
    sleep 0.1
done
"""
    timed = re.sub(r"--to-time '[^']*'", '--to-time "$then"', restore["time"].text)
    exact = re.sub(r"--to-lsn \S+", "--to-lsn $lsn", restore["lsn"].text)
    assert timed != restore["time"].text and exact != restore["lsn"].text
    asked = "SELECT count(*) FROM customer WHERE name LIKE 'of %'"
    ask = f"{psql} -h 127.0.0.1 -p $(grep -om 1 'port [0-9]*' /tmp/told | cut -d ' ' -f 2) -c \"{asked}\""
    away = f"sudo -u postgres {BIN}/pg_ctl -D /srv/then/data -s -m fast stop; pagefold unmount /srv/then; pagefold destroy -r tank/then"
    tell = " | tee /tmp/told"
    start = " --start --mountpoint /srv/then"
    texts = [
        DATABASE, *(command.text for command in FIRST[:3]), *(command.text for command in install), moments, listing.text,
        timed + tell, ask, away, exact + start + tell, ask, away, restore["latest"].text + start + tell, ask, away,
        STOP, "pagefold unmount tank",
    ]  # fmt: skip
    steps = [Command(POINT[0].line, text) for text in texts]
    printed = outputs(run_on_machine(run, script_of(steps)), PAGE.name, steps)
    counts = [printed[str(n)].strip() for n, step in enumerate(steps) if step.text == ask]
    assert counts == ["10", "10", "20"]


def test_a_machine_holds_no_mounts_of_others(run):
    """A mount that others unmount while it runs would stay in use otherwise."""
    place = run.fresh("others")
    place.mkdir()
    entry = run.mount(place)
    proc.run(["mount", "-t", "tmpfs", "none", place])
    seen = run_on_machine(run, f"grep -c ' {place} ' /proc/self/mounts || true")
    proc.run(["umount", place])
    run.done(entry)
    assert seen.stdout.strip() == "0", seen.stdout


def test_the_pages_have_their_lines():
    assert len(FIRST) >= 6 and len(GONE) >= 5 and len(AT_ONCE) == 1 and len(POINT) >= 10
