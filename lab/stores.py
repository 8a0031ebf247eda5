"""Object stores that speak S3, started on this machine, and a link that has the latency and the bandwidth of a far one.

Versitygw keeps objects as files. Ceph is a monitor, object servers (OSDs) with BlueStore and a gateway (RGW): a real
distributed store. All listen on addresses of this machine only.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import ROOT, Missing, tool

LOOPBACK = "127.0.0.1"
KEYS = {"AWS_ACCESS_KEY_ID": "laboratory", "AWS_SECRET_ACCESS_KEY": "laboratory", "AWS_REGION": "us-east-1"}
BUCKET = "bucket"
STARTS_S = 120


def go_program(name: str) -> str:
    """Returns the path of a program that is written in Go, which is built if need be."""
    told = subprocess.run([ROOT / "scripts/go-program", name], capture_output=True, text=True)
    if told.returncode != 0:
        raise Missing(told.stderr.strip())
    return told.stdout.strip()


def await_http(url: str, process: subprocess.Popen, log: Path) -> None:
    """Waits until something answers, be it with an error."""
    deadline = time.monotonic() + STARTS_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer; the log ends:\n{proc.tail(log)}")


class Store:
    """An S3 server of our own, whose objects outlive its processes."""

    def __init__(self, run: Run, host: Host | None = None):
        self.run, self.host = run, host or Host(run)
        self.port = self.host.free_port()
        self.url = f"http://{self.host.address}:{self.port}"
        self.servers: dict[str, tuple[subprocess.Popen, int]] = {}
        """Process and ledger entry of each server, by its name."""

    @property
    def environment(self) -> dict[str, str]:
        return {**KEYS, "AWS_ENDPOINT_URL": self.url}

    def spawn(self, name: str, argv: list) -> subprocess.Popen:
        process = proc.spawn([*self.host.prefix, *map(str, argv)], log=self.run.logs / f"{name}.log")
        self.servers[name] = process, self.run.process(process.pid, name)
        return process

    def kill_server(self, name: str) -> None:
        """SIGKILLs one of its servers."""
        process, entry = self.servers.pop(name)
        process.kill()
        process.wait(30)
        self.run.done(entry)

    def await_answer(self, name: str) -> None:
        await_http(self.url, self.servers[name][0], self.run.logs / f"{name}.log")

    def start(self) -> None:
        """Starts it and waits until it answers."""
        raise NotImplementedError

    def kill(self, chance: random.Random) -> None:
        """SIGKILLs it, or a part of it. `start` starts what is missing."""
        raise NotImplementedError

    def end(self) -> None:
        """Ends all of it."""
        for name in list(self.servers):
            self.kill_server(name)


class Versitygw(Store):
    """An S3 server whose objects are files."""

    def __init__(self, run: Run, host: Host | None = None):
        super().__init__(run, host)
        self.program, self.folder = go_program("versitygw"), run.fresh("objects")
        (self.folder / BUCKET).mkdir(parents=True)

    def start(self) -> None:
        keys = [f"ROOT_ACCESS_KEY={KEYS['AWS_ACCESS_KEY_ID']}", f"ROOT_SECRET_KEY={KEYS['AWS_SECRET_ACCESS_KEY']}"]
        listen = ["--port", f"{self.host.address}:{self.port}", "--quiet"]
        self.spawn("versitygw", [tool("env"), *keys, self.program, *listen, "posix", self.folder])
        self.await_answer("versitygw")

    def kill(self, chance: random.Random) -> None:
        self.end()


class Ceph(Store):
    """A monitor, three object servers with BlueStore and a gateway, without keys between them."""

    OSDS = 3
    OSD_BYTES = 10 << 30
    MEMORY_BYTES = 900 << 20

    def __init__(self, run: Run, host: Host | None = None):
        super().__init__(run, host)
        self.folder = run.fresh("ceph")
        self.folder.mkdir()
        self.cluster = str(uuid.uuid4())
        self.config = self.folder / "ceph.conf"
        self.made = False

    def tool(self, name: str) -> str:
        return tool(name, profile="ceph")

    def admin(self, *words: str, timeout_s: float = 120) -> str:
        program, *rest = words
        return proc.run([*self.host.prefix, self.tool(program), "-c", str(self.config), *rest], timeout_s=timeout_s)

    def configure(self) -> None:
        address, folder = self.host.address, self.folder
        self.monitors = f"[v2:{address}:{self.host.free_port()},v1:{address}:{self.host.free_port()}]"
        settings = {
            "fsid": self.cluster,
            "mon host": self.monitors,
            "public addr": address,
            "cluster addr": address,
            "auth cluster required": "none",
            "auth service required": "none",
            "auth client required": "none",
            # Without keys there is nothing to encrypt by.
            **{f"ms {who} mode": "crc" for who in ("mon client", "cluster", "service", "client")},
            "run dir": folder,
            "admin socket": f"{folder}/$name.asok",
            "log file": f"{folder}/$name.log",
            "pid file": f"{folder}/$name.pid",
            "mon data": f"{folder}/mon",
            "mon data avail crit": 1,
            "mon allow pool size one": "true",
            "mon max pg per osd": 1000,
            "osd data": f"{folder}/osd.$id",
            "osd objectstore": "bluestore",
            "osd memory target": self.MEMORY_BYTES,
            "osd pool default size": 1,
            "osd pool default min size": 1,
            "osd pool default pg num": 8,
            "osd pool default pg autoscale mode": "off",
            "osd crush chooseleaf type": 0,
            # RGW's indices need classes of objects that the package loads by name only.
            "osd class load list": "*",
            "bluestore block size": self.OSD_BYTES,
            "rgw data": f"{folder}/rgw",
            "rgw frontends": f"beast endpoint={address}:{self.port} tcp_nodelay=1",
            "rgw crypt require ssl": "false",
            "rgw thread pool size": 32,
        }
        self.config.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))

    def make(self) -> None:
        """Makes the data of all servers."""
        self.configure()
        map_file = self.folder / "monmap"
        proc.run([self.tool("monmaptool"), "--create", "--fsid", self.cluster, "--addv", "a", self.monitors, str(map_file)])
        proc.run([self.tool("ceph-mon"), "-c", str(self.config), "--mkfs", "-i", "a", "--monmap", str(map_file)])
        self.monitor()
        for number in range(self.OSDS):
            name = str(uuid.uuid4())
            (self.folder / f"osd.{number}").mkdir()
            self.admin("ceph", "osd", "new", name)
            self.admin("ceph-osd", "-i", str(number), "--mkfs", "--osd-uuid", name)
        (self.folder / "rgw").mkdir()

    def monitor(self) -> None:
        self.spawn("mon.a", [self.tool("ceph-mon"), "-c", self.config, "-f", "-i", "a"])

    def start(self) -> None:
        first, self.made = not self.made, True
        if first:
            self.make()
        elif "mon.a" not in self.servers:
            self.monitor()
        for number in range(self.OSDS):
            if f"osd.{number}" not in self.servers:
                self.spawn(f"osd.{number}", [self.tool("ceph-osd"), "-c", self.config, "-f", "-i", str(number)])
        if "rgw" not in self.servers:
            self.spawn("rgw", [self.tool("radosgw"), "-c", self.config, "-f", "-n", "client.rgw.a"])
        self.await_answer("rgw")
        if first:
            keys = ["--access-key", KEYS["AWS_ACCESS_KEY_ID"], "--secret-key", KEYS["AWS_SECRET_ACCESS_KEY"]]
            self.admin("radosgw-admin", "user", "create", "--uid", "laboratory", "--display-name", "laboratory", *keys)
            s3(self, "PUT", "")

    def kill(self, chance: random.Random) -> None:
        for name in chance.sample(sorted(self.servers), chance.randint(1, 2)):
            self.kill_server(name)


STORES = {"versitygw": Versitygw, "ceph": Ceph}


def signed() -> list[str]:
    """Returns the options by which curl signs its requests."""
    keys = f"{KEYS['AWS_ACCESS_KEY_ID']}:{KEYS['AWS_SECRET_ACCESS_KEY']}"
    # Ceph takes no signature without this header, which curl 7.88 does not send by itself.
    return ["--aws-sigv4", f"aws:amz:{KEYS['AWS_REGION']}:s3", "--user", keys, "-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]


def s3(store: Store, method: str, key: str, *words: str) -> bytes:
    """Makes a request."""
    argv = [tool("curl", profile="backup"), "-sS", "--fail-with-body", *signed(), "-X", method, *words, f"{store.url}/{BUCKET}/{key}"]
    done = subprocess.run(argv, capture_output=True)
    if done.returncode != 0:
        raise proc.CommandFailed(argv, done.returncode, (done.stdout + done.stderr).decode(errors="replace"))
    return done.stdout


class Host:
    """Where servers of a store run: this machine, as everybody sees it."""

    prefix: list[str] = []

    def __init__(self, run: Run):
        self.run, self.address = run, LOOPBACK

    def free_port(self) -> int:
        """Returns a port on which nobody listens."""
        with socket.create_server((self.address, 0)) as free:
            return free.getsockname()[1]


class FarHost(Host):
    """A network of its own on this machine. What leaves it does so at a given rate, all connections together (a veth
    with a token bucket); answers through its proxies come later by a given latency (toxiproxy)."""

    BURST_BYTES = 1 << 20

    def __init__(self, run: Run, *, bytes_per_s: int, latency_ms: int):
        self.run, self.latency_ms = run, latency_ms
        self.name, self.ports = f"pf{os.getpid()}", itertools.count(8500)
        ip, tc = tool("ip", profile="backup"), tool("tc", profile="backup")
        subnet = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"
        self.address = f"{subnet}.2"
        # `ip netns exec` would take copies of all mounts along.
        self.prefix = [tool("nsenter"), f"--net=/run/netns/{self.name}"]
        run.command(ip, "netns", "delete", self.name)
        proc.run([ip, "netns", "add", self.name])
        here, there = f"{self.name}h", f"{self.name}t"
        # The pair of interfaces goes with the network in which one of them is.
        proc.run([ip, "link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name])
        proc.run([ip, "addr", "add", f"{subnet}.1/24", "dev", here])
        proc.run([ip, "link", "set", here, "up"])
        for words in (["addr", "add", f"{self.address}/24", "dev", there], ["link", "set", there, "up"], ["link", "set", "lo", "up"]):
            proc.run([*self.prefix, ip, *words])
        bucket = ["tbf", "rate", f"{bytes_per_s * 8}bit", "burst", str(self.BURST_BYTES), "latency", "50ms"]
        proc.run([*self.prefix, tc, "qdisc", "add", "dev", there, "root", *bucket])

    def free_port(self) -> int:
        return next(self.ports)

    def delayed(self, store: Store) -> str:
        """Starts a proxy before a store; returns its URL."""
        port, api_port = self.free_port(), self.free_port()
        api = f"http://{self.address}:{api_port}"
        log = self.run.logs / "toxiproxy.log"
        process = proc.spawn([*self.prefix, go_program("toxiproxy"), "-host", self.address, "-port", str(api_port)], log=log)
        self.run.process(process.pid, "toxiproxy")
        await_http(f"{api}/version", process, log)

        def post(path: str, content: dict) -> None:
            request = urllib.request.Request(f"{api}/{path}", json.dumps(content).encode(), {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=10).close()

        post("proxies", {"name": "store", "listen": f"{self.address}:{port}", "upstream": f"{self.address}:{store.port}", "enabled": True})
        latency = {"name": "late", "type": "latency", "stream": "upstream", "attributes": {"latency": self.latency_ms}}
        post("proxies/store/toxics", latency)
        return f"http://{self.address}:{port}"
