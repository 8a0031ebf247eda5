"""Backups to another host: the same repository by path and by ssh, hosts that die, programs that are no host, a real
sshd."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import time

import pytest

from lab import proc
from lab.files import contents_once, files_of
from lab.paths import Missing, pagefold, tool
from lab.pool import Pool
from lab.ssh import Relay, Sshd

from .conftest import change

@pytest.fixture
def relay(run):
    return Relay(run)


class Client:
    """The program, with the variables for a way to a host."""

    def __init__(self, pool: Pool, environment: dict[str, str]):
        self.pool, self.environment = pool, {**pool.environment, **environment}

    def backup(self, *words, ok: bool = True) -> str:
        """Runs `pagefold backup`; returns its output, or its message if it is to fail."""
        argv = [pagefold(), "backup", *map(str, words)]
        done = subprocess.run(argv, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=120)
        assert (done.returncode == 0) == ok, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout if ok else done.stderr

    def restored(self, repository, backup: str, path: str) -> dict[str, bytes]:
        """Restores a backup into a dataset of that name and returns its files; the dataset is destroyed again."""
        name = f"{self.pool.pool}/{path}"
        self.backup("restore", repository, backup, name)
        return contents_once(self.pool, name)


def test_one_repository_by_path_and_by_ssh(noisy, relay, run):
    client = Client(noisy, relay.environment())
    path = run.fresh("repository") / "it's $(a) dir"
    url = f"ssh://joe@host:22{path}"
    assert "there is no directory" in client.backup("list", url, ok=False)
    client.backup("init", url, "--unencrypted")
    assert "already" in client.backup("init", path, "--unencrypted", ok=False)
    client.backup("create", noisy.pool, "--to", url)
    change(noisy, 1)
    client.backup("create", noisy.pool, "--to", path)
    change(noisy, 2)
    created = json.loads(client.backup("create", "--json", noisy.pool, "--to", url))["created"]
    assert created["since"] == 2 and created["backup"]["added_bytes"] < 1 << 20, created
    for place in (url, path):
        assert [one["number"] for one in json.loads(client.backup("list", "--json", place))["backups"]] == [1, 2, 3]
        for words in (["check"], ["verify"], ["verify", "--packs"]):
            assert ": 0 errors" in client.backup(*words, place)
    assert client.restored(url, "3", "back") == files_of(noisy)
    assert json.loads(client.backup("show", "--json", url, "2"))["number"] == 2
    client.backup("forget", url, 1)
    pruned = json.loads(client.backup("prune", "--json", url, "--keep", "last=1", "--now"))
    assert len(pruned["forgotten"]) == 1, pruned
    assert ": 0 errors" in client.backup("verify", path)
    assert client.restored(path, noisy.pool, "back") == files_of(noisy)


@pytest.mark.long
def test_a_host_that_dies_costs_an_attempt(noisy, relay, run):
    """At whatever point the host dies, the run goes on over another connection, and all that was acknowledged is
    there."""
    client = Client(noisy, relay.environment())
    path = run.fresh("repository")
    url = f"ssh://host{path}"
    client.backup("init", url, "--unencrypted")
    chance = random.Random(3)
    # The host dies around each of the first requests, then within packs, of which the first one has 16 MiB.
    points = [150, 200, 260, 320, 400, 600, *(chance.randrange(1000, 40 << 20) for _ in range(4))]
    for number, point in enumerate(points):
        change(noisy, number)
        relay.breaks(point, chance.randrange(100, 500), chance.randrange(100, 1 << 20))
        client.backup("create", noisy.pool, "--to", url)
    relay.breaks()
    assert len(json.loads(client.backup("list", "--json", url))["backups"]) == len(points)
    assert ": 0 errors" in client.backup("verify", url)
    # Requests of a restore are short: some tens of bytes each.
    for point in (180, 300, 500, chance.randrange(500, 3000)):
        relay.breaks(point, chance.randrange(100, 1000))
        assert client.restored(url, noisy.pool, "back") == files_of(noisy)


def test_after_a_backup_was_forgotten_the_next_one_is_of_now(noisy, relay, run):
    client = Client(noisy, relay.environment())
    path = run.fresh("repository")
    client.backup("init", path, "--unencrypted")
    client.backup("create", noisy.pool, "--to", path)
    client.backup("forget", path, 1)
    change(noisy, 30)
    client.backup("create", noisy.pool, "--to", path)
    assert client.restored(path, noisy.pool, "back") == files_of(noisy)


def test_a_client_that_is_killed_goes_on_in_the_next_run(noisy, relay, run):
    client = Client(noisy, relay.environment())
    path = run.fresh("repository")
    url = f"ssh://host{path}"
    client.backup("init", url, "--unencrypted")
    argv = [pagefold(), "backup", "create", noisy.pool, "--to", url, "--rate", "16M"]
    chance = random.Random(5)
    for _ in range(4):
        running = subprocess.Popen(argv, env={**os.environ, **client.environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.05, 1.2))
        running.kill()
        running.wait()
    client.backup("create", noisy.pool, "--to", url)
    assert ": 0 errors" in client.backup("verify", url)
    assert client.restored(url, noisy.pool, "back") == files_of(noisy)
    # The programs on the host have noticed that and are gone.
    deadline = time.monotonic() + 10
    while str(path) in proc.run(["ps", "-e", "-o", "args="]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "backup serve" not in proc.run(["ps", "--ppid", str(os.getpid()), "-o", "args="])


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sh -c 'echo refused >&2; exit 255'", ["refused", "ssh has no connection to host", "ssh host true"]),
        ("sh -c 'exit 127'", ["cannot be run on host", "--remote-command"]),
        ("sh -c 'exit 2'", ["not understood on host", "this version"]),
        ("sh -c 'echo Welcome to host; cat >/dev/null'", ['"Welcome to host"', "must print nothing"]),
        ("sh -c 'exit 0'", ["could not be made"]),
        ("/nowhere/ssh", ["cannot be run on host"]),
        ("sh -c 'head -c 4000 /dev/urandom'", ["does not answer as pagefold"]),
    ],
)
def test_hosts_that_do_not_serve_are_told(noisy, command, told):
    client = Client(noisy, {"PAGEFOLD_BACKUP_SSH": command})
    begun = time.monotonic()
    said = client.backup("list", "ssh://host/srv", ok=False)
    assert all(words in said for words in told), said
    assert time.monotonic() - begun < 10


def test_urls_that_are_none(noisy):
    client = Client(noisy, {"PAGEFOLD_BACKUP_SSH": "false"})
    for url in ("ssh://-oProxyCommand=touch%20x/srv", "ssh://host", "ssh://host;id/srv", "ssh://host/a/../b"):
        assert "ssh://[USER@]HOST" in client.backup("list", url, ok=False)


def synced(trace: str) -> list[tuple[str, str]]:
    """Returns the calls that change names or flush, in order, each with its path (the new one of two)."""
    calls, begun = [], {}
    for line in trace.splitlines():
        pid, _, line = line.partition(" ")
        if line.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>").rstrip()
        line = re.sub(r"^ *<\.\.\. \w+ resumed>", lambda _: begun.pop(pid), line)
        found = re.search(r"(fsync|fdatasync)\(\d+<([^>]*)>\) += 0", line)
        if found:
            calls.append(("fsync", found[2]))
        found = re.search(r"(mkdir|mkdirat|link|linkat|rename|renameat|renameat2)\((.*)\) += 0", line)
        if found:
            calls.append((re.sub("at2?$", "", found[1]), re.findall(r'"([^"]*)"', found[2])[-1]))
    return calls


@pytest.mark.parametrize("by_ssh", [False, True])
def test_what_is_acknowledged_is_flushed(noisy, relay, run, by_ssh):
    """Objects are flushed before they get their name, and after that every folder in which a name was made, from the
    root of the repository on."""
    trace = run.fresh("trace")
    calls = "/^(fsync|fdatasync|mkdir|link|rename)"
    traced = [tool("strace"), "-f", "-y", "-s", "4096", "-o", str(trace), "-e", f"trace={calls}", str(pagefold())]
    path = run.fresh("new") / "repository"
    if by_ssh:
        client = Client(noisy, {**relay.environment(), "PAGEFOLD_BACKUP_REMOTE_COMMAND": shlex.join(traced)})
        client.backup("init", f"ssh://host{path}", "--unencrypted")
    else:
        proc.run([*traced, "backup", "init", path, "--unencrypted"], env=noisy.environment)
    calls = synced(trace.read_text())
    names = [(at, kind, name) for at, (kind, name) in enumerate(calls) if kind != "fsync" and name.startswith(str(path.parent))]
    assert {name for _, kind, name in names if kind == "mkdir"} >= {str(path.parent), str(path), f"{path}/log"}, calls
    assert sum(kind == "link" and name == f"{path}/repository" for _, kind, name in names) == 1, calls
    for at, kind, name in names:
        assert ("fsync", os.path.dirname(name)) in calls[at:], f"{kind} of {name} is not flushed: {calls}"
        if kind != "mkdir":
            # The staged file has the name and a number.
            assert any(call == "fsync" and re.fullmatch(re.escape(name) + r"#\d+", staged) for call, staged in calls[:at]), calls


@pytest.mark.long
def test_a_real_sshd_with_a_key_that_may_only_back_up(noisy, run):
    try:
        tool("sshd")
    except Missing as missing:
        pytest.skip(str(missing))
    top = run.fresh("srv")
    top.mkdir()
    with Sshd(run, forced=f"{pagefold()} backup serve --restrict {top} --append-only") as sshd:
        client = Client(noisy, sshd.environment())
        url = f"ssh://127.0.0.1:{sshd.port}{top}/tank"
        client.backup("init", url, "--unencrypted")
        client.backup("create", noisy.pool, "--to", url)
        assert client.restored(url, noisy.pool, "back") == files_of(noisy)
        elsewhere = client.backup("init", f"ssh://127.0.0.1:{sshd.port}{run.dir}/elsewhere", "--unencrypted", ok=False)
        assert f"only directories below {top}" in elsewhere, elsewhere
        client.backup("forget", url, 1)
        assert "nothing may be deleted" in client.backup("prune", url, "--now", ok=False)
        # A client whose key is not authorised does not get in.
        (sshd.dir / "authorized").write_text("")
        assert "ssh has no connection" in client.backup("list", url, ok=False)
    with Sshd(run, forced=None) as sshd:
        client = Client(noisy, sshd.environment(program=pagefold()))
        url = f"ssh://127.0.0.1:{sshd.port}{top}/tank"
        change(noisy, 7)
        client.backup("create", noisy.pool, "--to", url)
        assert client.restored(url, noisy.pool, "back") == files_of(noisy)
        client.backup("prune", url, "--now")
        assert ": 0 errors" in client.backup("check", top / "tank")
        wrong = Client(noisy, sshd.environment(program="/opt/none/pagefold"))
        assert "--remote-command" in wrong.backup("list", url, ok=False)
