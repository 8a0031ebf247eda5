"""Runs the pages "Your first backup" and "The machine is gone" of docs/BACKUP.md as they are written, with a PostgreSQL on
the dataset, on a machine that has no pools. Not taken literally: the device is a file, the bucket is the directory of
the first page, and `--key-file ...` is its key."""

from __future__ import annotations

import re

import pytest

from lab.machine import Command, commands, outputs, run_on_machine, script_of
from lab.paths import ROOT, postgres_bin

PAGE = ROOT / "docs" / "BACKUP.md"
BIN = postgres_bin("postgres").removesuffix("/postgres")
START = f"sudo -u postgres {BIN}/pg_ctl -s -w -D @DATA@ -l /tmp/log start"
STOP = f"sudo -u postgres {BIN}/pg_ctl -s -w -D @DATA@ -m immediate stop"
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
{START.replace("@DATA@", "/srv/db/data")}
sudo -u postgres psql -qX -c "CREATE TABLE customer AS SELECT id, md5(id::text) AS name FROM generate_series(1, 20000) id"
"""
LOSS = f"""
{STOP.replace("@DATA@", "/srv/db/data")}
pagefold unmount tank
rm -r /srv/disc /var/lib/pagefold
"""
LOOK = f"""
{START.replace("@DATA@", "/srv/db/data")}
{COUNT}
{STOP.replace("@DATA@", "/srv/db/data")}
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


def test_the_pages_have_their_lines():
    assert [len(part) > 0 for part in (FIRST, GONE, AT_ONCE)] == [True] * 3 and len(FIRST) >= 6 and len(GONE) >= 5
