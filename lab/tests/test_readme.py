"""Runs the tour of README.md literally: its lines, in order, on a machine that has no /srv/tank and no pools. `ssh
backup` is the same machine, with a pool of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.machine import commands, outputs, run_on_machine, script_of
from lab.paths import ROOT

README = ROOT / "README.md"
VAULT = '"$program" create vault --size 1G "$HOME/vault.pf"\n'

AFTERWARDS = r"""
printf '\n@@vault\n'; pagefold list -H -t all vault
printf '\n@@branch\n'; pagefold branch list -H tank
pagefold branch stop tank/feature-x
pagefold unmount -a
printf '\n@@below\n'
for dir in /srv/tank /srv/test; do stat -c '%a %n' $dir; done
find /srv -type f
pagefold check tank | tail -n 1
"""


COMMANDS = commands(README.read_text(), "## A tour", "## ")


@pytest.fixture(scope="module")
def told(run) -> dict[str, str]:
    """Provides the output of each command of the tour, and the state that was found afterwards."""
    return outputs(run_on_machine(run, VAULT + script_of(COMMANDS) + AFTERWARDS), README.name, COMMANDS)


def of(told: dict[str, str], begin: str) -> str:
    """Returns the output of the first command that begins with `begin`."""
    number = next(n for n, command in enumerate(COMMANDS) if command.text.startswith(begin))
    return told[str(number)]


def test_every_line_does_what_is_said(told):
    assert "made the directory /srv/tank" in of(told, "pagefold mount tank")
    assert "Success" in of(told, "sudo -u postgres")
    assert "/srv/tank/pg/base" in of(told, "pagefold du -s")
    assert re.search(r"^tank ", of(told, "pagefold df"), re.MULTILINE)
    assert "ONLINE" in of(told, "pagefold status tank")
    assert ": 0 errors" in of(told, "pagefold check tank")
    assert "PG_VERSION" in of(told, "ls /srv/tank/.pagefold/snapshot")
    freed = of(told, "pagefold destroy -n")
    assert "would destroy tank@before-migration" in freed and "would free" in freed
    listed = of(told, "pagefold list -t all")
    assert all(name in listed for name in ("tank@before-migration", "tank/test", "/srv/test"))
    assert "postgresql://localhost:" in of(told, "pagefold branch create")


def test_what_it_leaves(told):
    assert re.search(r"^vault/tank@before-migration\t", told["vault"], re.MULTILINE)
    assert re.search(r"^tank/feature-x\t.*running", told["branch"], re.MULTILINE)
    # Nothing was written below the mount points, and only root could have.
    modes, _, check = told["below"].strip().partition("\npool")
    assert modes.splitlines() == ["0 /srv/tank", "0 /srv/test"]
    assert "0 errors" in check


def test_where_mounting_fails_nothing_is_written_elsewhere(run):
    """Runs the lines as if they were pasted into a terminal, where a failure does not keep the next line from
    running."""
    begin = next(n for n, command in enumerate(COMMANDS) if command.text.startswith("pagefold create"))
    end = next(n for n, command in enumerate(COMMANDS) if command.text.startswith("pagefold unmount"))
    lines = "\n".join(command.text for command in COMMANDS[begin:end])
    script = f"""{VAULT}
make install
mount --bind /dev/null /dev/fuse
set +e
{lines}
printf '\\n@@below\\n'
find /srv -mindepth 1
"""
    done = run_on_machine(run, script)
    said, _, below = done.stdout.partition("\n@@below\n")
    assert "pagefold: " in said and done.returncode == 0, done.stdout
    assert below.strip() == "", f"left behind: {below}\n{said}"


def test_the_tour_is_there():
    assert len(COMMANDS) > 15 and COMMANDS[0].text.startswith("make build && sudo make install")
    assert Path("/usr/lib/postgresql/15/bin/initdb").exists()
