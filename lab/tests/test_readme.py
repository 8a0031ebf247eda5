"""Runs the tour of README.md literally: its lines, in order, on a machine that has no /srv/tank and no pools.

The machine is this one, in namespaces of its own: the folders that the tour changes (/srv, /usr/local, /sbin, /var/lib,
...) are mounted over those of the machine and are gone afterwards, with every process. Not taken literally are `make
build`, whose program is the one under test, `sudo`, for which root needs no password here, and `ssh backup`, which is
this machine, with a pool of its own.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.paths import ROOT, pagefold

README = ROOT / "README.md"
OVERLAID = ["/srv", "/var/lib", "/var/log", "/usr/local", "/usr/sbin", "/usr/lib/systemd", "/usr/share"]
"""Folders of the machine that the tour changes. A folder of the run is mounted over each."""

MACHINE = r"""
set -euo pipefail
scratch=$1 program=$2 root=$3
mount -t tmpfs none "$scratch/over"
n=0
for dir in @OVERLAID@; do
    n=$((n + 1))
    mkdir -p "$scratch/over/$n/upper" "$scratch/over/$n/work"
    chmod 755 "$scratch/over/$n/upper"
    mount -t overlay overlay -o "lowerdir=$dir,upperdir=$scratch/over/$n/upper,workdir=$scratch/over/$n/work" "$dir"
done
mount -t tmpfs -o mode=755 none /run
install -d -o postgres /run/postgresql
export HOME=$scratch/home LC_ALL=C.UTF-8
unset PAGEFOLD_STATE_DIR PAGEFOLD_RUNTIME_DIR PAGEFOLD_LOG_DIR
cat > /usr/local/bin/make <<'SCRIPT'
#!/bin/sh
[ "$*" = build ] || [ "$*" = install ] || { echo "make $*: not in this test" >&2; exit 2; }
[ "$*" = build ] || exec "$TOUR_ROOT/dist/install.sh" "$TOUR_PROGRAM"
SCRIPT
cat > /usr/local/bin/sudo <<'SCRIPT'
#!/bin/sh
if [ "$1" = -u ]; then user=$2; shift 2; exec runuser -u "$user" -- "$@"; fi
exec "$@"
SCRIPT
cat > /usr/local/bin/ssh <<'SCRIPT'
#!/bin/sh
[ "$1" = backup ] && shift && exec "$@"
SCRIPT
chmod 755 /usr/local/bin/make /usr/local/bin/sudo /usr/local/bin/ssh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TOUR_ROOT=$root TOUR_PROGRAM=$program
cd "$root"
test ! -e /srv/tank
"$program" create vault --size 1G "$HOME/vault.pf"
""".replace("@OVERLAID@", " ".join(OVERLAID))

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


@dataclass
class Command:
    """A command of the tour, of one line or several, and its place in the document."""

    line: int
    text: str


def tour(text: str) -> list[Command]:
    """Returns the commands of the tour, without blocks that show no commands."""
    section = re.search(r"^## A tour\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert section, "README.md has no tour"
    first = text.count("\n", 0, section.start(1)) + 1
    found: list[Command] = []
    goes_on = False
    for number, line in enumerate(section[1].splitlines(), first):
        if not line.startswith("    ") or not line.strip():
            continue
        if goes_on:
            found[-1].text += f"\n{line[4:]}"
        else:
            found.append(Command(number, line[4:]))
        goes_on = re.sub(r"\s#\s.*", "", line).rstrip().endswith(("&&", "|", "\\"))
    return found


COMMANDS = tour(README.read_text())


def machine(run, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script on a machine that has nothing yet."""
    scratch = run.fresh("readme")
    (scratch / "over").mkdir(parents=True)
    (scratch / "home").mkdir()
    # Servers that run as the database's user must reach their data below these folders.
    for folder in (scratch, scratch / "home"):
        folder.chmod(0o755)
    words = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    return subprocess.run(
        [*words, "bash", "-c", script, "bash", str(scratch), pagefold(), str(ROOT)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
    )


@pytest.fixture(scope="module")
def told(run) -> dict[str, str]:
    """Provides the output of each command of the tour, and the state that was found afterwards."""
    steps = "".join(f"printf '\\n@@{n}\\n'\n{command.text}\n" for n, command in enumerate(COMMANDS))
    done = machine(run, f"{MACHINE}\n{steps}\n{AFTERWARDS}")
    parts = re.split(r"^@@(\w+)$", done.stdout, flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2]))
    if done.returncode != 0:
        last = parts[-2] if len(parts) > 1 else "the machine"
        where = f"README.md:{COMMANDS[int(last)].line}: {COMMANDS[int(last)].text}" if last.isdigit() else last
        pytest.fail(f"{where}\nexited with {done.returncode} and said:\n{parts[-1]}")
    return told


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
    script = f"""{MACHINE}
make install
mount --bind /dev/null /dev/fuse
set +e
{lines}
printf '\\n@@below\\n'
find /srv -mindepth 1
"""
    done = machine(run, script)
    said, _, below = done.stdout.partition("\n@@below\n")
    assert "pagefold: " in said and done.returncode == 0, done.stdout
    assert below.strip() == "", f"left behind: {below}\n{said}"


def test_the_tour_is_there():
    assert len(COMMANDS) > 15 and COMMANDS[0].text.startswith("make build && sudo make install")
    assert Path("/usr/lib/postgresql/15/bin/initdb").exists()
