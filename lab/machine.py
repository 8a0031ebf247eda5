"""A machine for documents whose commands are run as they are written: it has no pools, and nothing in /srv.

It is this one, in namespaces of its own: the folders that such commands change (/etc, /srv, /usr/local, /sbin, /var/lib,
...) are mounted over those of the machine and are gone afterwards, with every process. Not taken literally are `make
build`, whose program is the one under test, `sudo`, for which root needs no password here, and `ssh backup`, which is
this machine.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from .paths import LAB_DIR, ROOT, pagefold

OVERLAID = ["/etc", "/mnt", "/srv", "/var/lib", "/var/log", "/usr/local", "/usr/sbin", "/usr/lib/systemd", "/usr/share"]
"""Folders of the machine that are changed. A folder of the run is mounted over each."""

MACHINE = r"""
set -euo pipefail
scratch=$1 program=$2 root=$3 lab=$4
# The namespace has copies of all mounts. Those of other tests would stay in use when they are unmounted there.
awk -v lab="$lab/" '$3 ~ /^fuse/ || index($2, lab) == 1 { print $2 }' /proc/self/mounts | tac | xargs -r -d '\n' umount -l
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
[ "$*" = build ] || exec "$PROJECT/dist/install.sh" "$PROGRAM"
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
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PROJECT=$root PROGRAM=$program
cd "$root"
test ! -e /srv/tank
""".replace("@OVERLAID@", " ".join(OVERLAID))


@dataclass
class Command:
    """A command of a document, of one line or several, and its place."""

    line: int
    text: str


def commands(text: str, begin: str, end: str) -> list[Command]:
    """Returns the commands of the part of a document between two lines that begin so, without blocks that show no
    commands."""
    part = re.search(rf"^{begin}.*?\n(.*?)^{end}", text, re.MULTILINE | re.DOTALL)
    assert part, f"the document has no part {begin}"
    first = text.count("\n", 0, part.start(1)) + 1
    found: list[Command] = []
    goes_on = False
    for number, line in enumerate(part[1].splitlines(), first):
        if not line.startswith("    ") or not line.strip():
            continue
        if goes_on:
            found[-1].text += f"\n{line[4:]}"
        else:
            found.append(Command(number, line[4:]))
        goes_on = re.sub(r"\s#\s.*", "", line).rstrip().endswith(("&&", "|", "\\"))
    return found


def run_on_machine(run, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script on a machine that has nothing yet."""
    scratch = run.fresh("machine")
    (scratch / "over").mkdir(parents=True)
    (scratch / "home").mkdir()
    # Servers that run as the database's user must reach their data below these folders.
    for folder in (scratch, scratch / "home"):
        folder.chmod(0o755)
    words = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]
    return subprocess.run(
        [*words, "bash", "-c", MACHINE + script, "bash", str(scratch), pagefold(), str(ROOT), str(LAB_DIR)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
    )


def outputs(done: subprocess.CompletedProcess[str], document: str, steps: list[Command]) -> dict[str, str]:
    """Returns what was printed behind each mark of the script, `@@` and a name or the number of a step. Raises if the
    script failed, with the step at which it did."""
    parts = re.split(r"^@@(\w+)$", done.stdout, flags=re.MULTILINE)
    if done.returncode != 0:
        last = parts[-2] if len(parts) > 1 else "the machine"
        where = f"{document}:{steps[int(last)].line}: {steps[int(last)].text}" if last.isdigit() else last
        raise AssertionError(f"{where}\nexited with {done.returncode} and said:\n{parts[-1]}")
    return dict(zip(parts[1::2], parts[2::2]))


def script_of(steps: list[Command]) -> str:
    """Returns a script that runs these commands, each behind a mark with its number."""
    return "".join(f"printf '\\n@@{n}\\n'\n{step.text}\n" for n, step in enumerate(steps))
