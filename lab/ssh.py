"""Stand-ins for the way to another host: a script in place of ssh, which can break, and a real sshd on a port of this
machine."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import pagefold, tool

RELAY = """\
import os, signal, subprocess, sys, threading
budgets = sys.argv[1]
words = sys.argv[2:]
while words and words[0].startswith("-"):
    words = words[2:] if words[0] in ("-l", "-p") else words[1:]
# The next budget in bytes of requests; the last one holds for all that follow.
with open(budgets) as f:
    lines = f.read().split()
with open(budgets, "w") as f:
    f.write("\\n".join(lines[1:] or lines))
left = int(lines[0])
child = subprocess.Popen(["/bin/sh", "-c", " ".join(words[1:])], stdin=subprocess.PIPE)
if left >= 0:
    def pump():
        global left
        while left > 0:
            more = os.read(0, min(left, 65536))
            if not more:
                child.stdin.close()
                return
            try:
                child.stdin.write(more)
                child.stdin.flush()
            except BrokenPipeError:
                break
            left -= len(more)
        # The host dies here: nothing is finished, nothing is said.
        child.send_signal(signal.SIGKILL)
    threading.Thread(target=pump, daemon=True).start()
else:
    def pump():
        while more := os.read(0, 65536):
            child.stdin.write(more)
            child.stdin.flush()
        child.stdin.close()
    threading.Thread(target=pump, daemon=True).start()
status = child.wait()
sys.stdout.flush()
os._exit(255 if status < 0 else status)
"""
"""A script that runs the command on this machine, as ssh would on another, and kills it after a number of bytes of
requests."""


class Relay:
    """A program that takes the place of ssh."""

    def __init__(self, run: Run):
        self.script, self.budgets = run.fresh("relay"), run.fresh("budgets")
        self.script.write_text(RELAY)
        self.command = f"{shlex.quote(sys.executable)} {self.script} {self.budgets}"
        self.breaks()

    def breaks(self, *budgets: int) -> None:
        """Has the hosts of the next connections die, each after it has received that many bytes; later ones do not
        break."""
        self.budgets.write_text("\n".join(map(str, [*budgets, -1])))

    def environment(self) -> dict[str, str]:
        return {"PAGEFOLD_BACKUP_SSH": self.command, "PAGEFOLD_BACKUP_REMOTE_COMMAND": pagefold()}
        """Returns the variables that a client needs."""


class Sshd:
    """An ssh server of this run alone, with keys of its own, for the user that runs this."""

    def __init__(self, run: Run, *, forced: str | None):
        self.run, self.dir = run, run.fresh("sshd")
        self.dir.mkdir(mode=0o700)
        for name in ("host", "client"):
            proc.run([tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", self.dir / name])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        public = (self.dir / "client.pub").read_text()
        options = f'command="{forced}",restrict ' if forced else "restrict "
        (self.dir / "authorized").write_text(options + public)
        (self.dir / "known").write_text(f"[127.0.0.1]:{self.port} " + (self.dir / "host.pub").read_text())
        config = [
            f"ListenAddress 127.0.0.1:{self.port}", f"HostKey {self.dir}/host", f"AuthorizedKeysFile {self.dir}/authorized",
            f"PidFile {self.dir}/pid", "StrictModes no", "UsePAM no", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password", "PrintMotd no",
        ]
        (self.dir / "sshd_config").write_text("\n".join(config) + "\n")
        client = [
            f"IdentityFile {self.dir}/client", "IdentitiesOnly yes", f"UserKnownHostsFile {self.dir}/known", "BatchMode yes",
        ]
        (self.dir / "ssh_config").write_text("\n".join(client) + "\n")

    def __enter__(self) -> Sshd:
        # Debian's unit makes this folder; here nothing else does.
        self.made = not Path("/run/sshd").exists()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = self.run.logs / "sshd"
        self.server = proc.spawn([tool("sshd"), "-D", "-e", "-f", self.dir / "sshd_config"], log=log)
        self.entry = self.run.process(self.server.pid, "sshd")
        deadline = time.monotonic() + 10
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd does not answer: {proc.tail(log)}")
            time.sleep(0.05)

    def __exit__(self, *_) -> None:
        proc.kill_tree(self.server.pid, proc.start_time(self.server.pid))
        self.server.wait()
        self.run.done(self.entry)
        if self.made:
            Path("/run/sshd").rmdir()

    def environment(self, *, program: str | os.PathLike | None = None) -> dict[str, str]:
        """Variables that a client needs."""
        known = {"PAGEFOLD_BACKUP_SSH": f"{tool('ssh')} -F {self.dir}/ssh_config"}
        return known | ({"PAGEFOLD_BACKUP_REMOTE_COMMAND": os.fspath(program)} if program else {})
