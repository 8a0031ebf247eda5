"""Object stores, started on this machine, and a link that has the latency and the bandwidth of a far one.

S3: Moto keeps objects in memory, Versitygw as files. Ceph is a monitor, object servers (OSDs) with BlueStore and a
gateway (RGW): a real distributed store. Azurite is Microsoft's emulator of Azure. All listen on addresses of this
machine only.
"""

from __future__ import annotations

import base64
import email.utils
import hmac
import http.server
import itertools
import json
import os
import random
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

from . import proc
from .ledger import Run
from .paths import tool, tool_program

LOOPBACK = "127.0.0.1"
KEYS = {"AWS_ACCESS_KEY_ID": "laboratory", "AWS_SECRET_ACCESS_KEY": "laboratory", "AWS_REGION": "us-east-1"}
BUCKET = "bucket"
STARTS_S = 120


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
    """A server of our own, S3 unless it says otherwise, whose objects outlive its processes."""

    repository = f"s3://{BUCKET}/tank"

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
        self.program, self.folder = tool_program("versitygw"), run.fresh("objects")
        (self.folder / BUCKET).mkdir(parents=True)

    def start(self) -> None:
        keys = [f"ROOT_ACCESS_KEY={KEYS['AWS_ACCESS_KEY_ID']}", f"ROOT_SECRET_KEY={KEYS['AWS_SECRET_ACCESS_KEY']}"]
        listen = ["--port", f"{self.host.address}:{self.port}", "--quiet"]
        self.spawn("versitygw", [tool("env"), *keys, self.program, *listen, "posix", self.folder])
        self.await_answer("versitygw")

    def kill(self, chance: random.Random) -> None:
        self.end()


class Moto(Store):
    """An S3 server that has its objects in memory: they end with it."""

    def __init__(self, run: Run, host: Host | None = None):
        super().__init__(run, host)
        self.program = tool_program("moto")

    def start(self) -> None:
        self.spawn("moto", [self.program, "-H", self.host.address, "-p", self.port])
        self.await_answer("moto")
        request(f"{self.url}/{BUCKET}", "PUT", {})


class Azurite(Store):
    """Microsoft's emulator of Azure's Blob Storage, with the account and key that every Azurite has."""

    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    repository = f"az://{BUCKET}/tank"

    def __init__(self, run: Run, host: Host | None = None):
        super().__init__(run, host)
        self.program, self.folder, self.made = tool_program("azurite"), run.fresh("azurite"), False
        self.folder.mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        endpoint = f"{self.url}/{self.ACCOUNT}"
        # The names of Azure's own command line.
        return {"AZURE_STORAGE_ACCOUNT": self.ACCOUNT, "AZURE_STORAGE_KEY": self.KEY, "AZURE_STORAGE_ENDPOINT": endpoint}

    def start(self) -> None:
        listen = ["--blobHost", self.host.address, "--blobPort", self.port]
        self.spawn("azurite", [self.program, *listen, "--location", self.folder, "--silent", "--skipApiVersionCheck"])
        self.await_answer("azurite")
        if not self.made:
            self.make_container()
            self.made = True

    def make_container(self) -> None:
        # Shared Key: learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        to_sign = "PUT" + "\n" * 12 + f"{named}/{self.ACCOUNT}/{self.ACCOUNT}/{BUCKET}\nrestype:container"
        signature = hmac.digest(base64.b64decode(self.KEY), to_sign.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {self.ACCOUNT}:{base64.b64encode(signature).decode()}"
        request(f"{self.url}/{self.ACCOUNT}/{BUCKET}?restype=container", "PUT", headers, body=None)

    def kill(self, chance: random.Random) -> None:
        self.end()


class Gcs(Moto):
    """Google Cloud Storage as far as its XML requests are those of S3: Moto behind a door that translates the rest."""

    repository = f"gs://{BUCKET}/tank"
    keeps_conditions = True

    def __init__(self, run: Run, host: Host | None = None):
        super().__init__(run, host)
        self.door = Door(self.url, keeps_conditions=self.keeps_conditions)

    @property
    def environment(self) -> dict[str, str]:
        # An account that needs no token.
        account = {"client_email": "", "private_key": "", "private_key_id": "", "disable_oauth": True}
        return {"GOOGLE_BASE_URL": self.door.url, "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account)}

    def end(self) -> None:
        super().end()
        self.door.close()


class CarelessGcs(Gcs):
    """The same, but conditions are ignored."""

    keeps_conditions = False


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
"""Stores of the campaigns, which talk to them by themselves."""


def request(url: str, method: str, headers: dict[str, str], body: bytes | None = b"") -> bytes:
    """Makes a request as it is."""
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=30) as answer:
        return answer.read()


class Door:
    """A proxy by which an S3 server serves the requests that are made to Google's: `x-goog-if-generation-match: 0` is
    `if-none-match: *` there (cloud.google.com/storage/docs/xml-api/reference-headers)."""

    CONDITION = "x-goog-if-generation-match"
    SIGNED = f"AWS4-HMAC-SHA256 Credential={KEYS['AWS_ACCESS_KEY_ID']}/20260101/us-east-1/s3/aws4_request, Signature=unverified"
    DROPPED = ("host", "authorization", "connection", "transfer-encoding", "content-length", "date", "server", CONDITION)

    def __init__(self, upstream: str, *, keeps_conditions: bool):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_) -> None:
                pass

            def ask(self) -> tuple[int, dict[str, str], bytes]:
                length = self.headers.get("content-length")
                headers = {name: value for name, value in self.headers.items() if name.lower() not in Door.DROPPED}
                headers["Authorization"] = Door.SIGNED
                if keeps_conditions and self.headers.get(Door.CONDITION) == "0":
                    headers["if-none-match"] = "*"
                body = self.rfile.read(int(length)) if length else None
                try:
                    answer = urllib.request.urlopen(urllib.request.Request(upstream + self.path, body, headers, method=self.command))
                except urllib.error.HTTPError as error:
                    answer = error
                with answer:
                    return answer.status, dict(answer.headers.items()), answer.read()

            def pass_on(self) -> None:
                status, headers, body = self.ask()
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in Door.DROPPED:
                        self.send_header(name, value)
                if self.command == "PUT":
                    self.send_header("x-goog-generation", "1")
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_DELETE = pass_on

        self.server = http.server.ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


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
        process = proc.spawn([*self.prefix, tool_program("toxiproxy"), "-host", self.address, "-port", str(api_port)], log=log)
        self.run.process(process.pid, "toxiproxy")
        await_http(f"{api}/version", process, log)

        def post(path: str, content: dict) -> None:
            request = urllib.request.Request(f"{api}/{path}", json.dumps(content).encode(), {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=10).close()

        post("proxies", {"name": "store", "listen": f"{self.address}:{port}", "upstream": f"{self.address}:{store.port}", "enabled": True})
        latency = {"name": "late", "type": "latency", "stream": "upstream", "attributes": {"latency": self.latency_ms}}
        post("proxies/store/toxics", latency)
        return f"http://{self.address}:{port}"
