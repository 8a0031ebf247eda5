"""`lab mirrors`: databases on a mirror one of whose devices is destroyed under them, again and again.

Rounds alternate between PostgreSQL under pgbench with full_page_writes=off and MariaDB under sysbench with the doublewrite
buffer off. In each round one device of the mirror gets rubbish all over its backing file, the file is cut to nothing, and
its loop device is detached, while the other device fails one read of a hundred. In every third round the file system's
server is killed after that, too, and mounted again without the device. Then a new device replaces it, under load. Unless the
server was killed no client may see an error; every acknowledged row must be there, a scrub must find nothing, and each
device alone must pass a check.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

from . import proc
from .ledger import Run, is_mounted
from .paths import ROOT, require_room, tool
from .pool import Pool
from .soak import KEEP_ROUNDS, MariaSide, PostgresSide, Side

DEVICE_BYTES = 1536 << 20
RUBBISH_PIECES = 400
"""Number of pieces of rubbish, of up to 256 KiB each."""
FAILING_PERMILLE = 10
KILL_EVERY = 3


class BadDisc:
    """A loop device over a file that a server passes on, which can be told to fail reads or to take long."""

    def __init__(self, run: Run, size_bytes: int = DEVICE_BYTES):
        self.run = run
        self.backing, self.folder = run.fresh("backing"), run.fresh("passed")
        with open(self.backing, "wb") as file:
            file.truncate(size_bytes)
        self.folder.mkdir()
        argv = [server_program(), "pass", self.folder, self.backing]
        self._server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._entries = [run.process(self._server.pid, "bench_server"), run.mount(self.folder)]
        deadline = time.monotonic() + 20
        while not is_mounted(self.folder):
            if time.monotonic() > deadline or self._server.poll() is not None:
                raise RuntimeError("the server of a device does not start")
            time.sleep(0.01)
        passed = self.folder / "data"
        self.device = proc.run([tool("losetup"), "--find", "--show", "--direct-io=on", passed]).strip()
        self._loop = run.loop(self.device, passed)

    def tell(self, what: str, number: int) -> None:
        """Changes what it does wrong: `fail` so many reads of a thousand, `delay` each by so many microseconds."""
        self._server.stdin.write(f"{what} {number}\n".encode())
        self._server.stdin.flush()

    def rubbish(self, moments: random.Random) -> None:
        """Overwrites pieces of the backing file, all over."""
        with open(self.backing, "r+b") as file:
            for _ in range(RUBBISH_PIECES):
                piece = moments.randbytes(moments.randrange(4096, 256 << 10))
                file.seek(moments.randrange(DEVICE_BYTES - len(piece)))
                file.write(piece)

    def cut(self) -> None:
        """Cuts the backing file to nothing."""
        os.truncate(self.backing, 0)

    def detach(self) -> None:
        """Detaches the loop device; who has it open keeps it until then."""
        if self._loop is not None:
            proc.run([tool("losetup"), "-d", self.device], check=False)
            self.run.done(self._loop)
            self._loop = None

    def remove(self) -> None:
        """Ends everything, and deletes the file."""
        self.detach()
        deadline = time.monotonic() + 30
        while is_mounted(self.folder):
            proc.run([tool("umount"), self.folder], check=False)
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.folder} is still in use")
            time.sleep(0.05)
        self._server.stdin.close()
        self._server.wait(30)
        for entry in self._entries:
            self.run.done(entry)
        self.backing.unlink()


def server_program() -> Path:
    """Returns the program that passes a file on, built if need be."""
    manifest = ["--manifest-path", ROOT / "Cargo.toml"]
    proc.run(
        ["cargo", "build", "--release", "--locked", "--quiet", *manifest, "-p", "pagefold-fuse", "--example", "bench_server"],
        timeout_s=1800,
    )
    return ROOT / "target" / "release" / "examples" / "bench_server"


class Mirror(Pool):
    """A pool of one mirror of two devices."""

    def __init__(self, run: Run, discs: list[BadDisc]):
        super().__init__(run, DEVICE_BYTES)
        self.discs = discs

    def create(self) -> None:
        self.pagefold("create", self.pool, "mirror", *(disc.device for disc in self.discs), "-o", "compression=zstd")

    def destroy(self) -> None:
        self.pagefold("destroy", "--force", self.pool)

    def states(self) -> list[str]:
        """Returns the states of all devices."""
        return [one["state"] for one in self.figures("status")["devices"]]

    def scrub(self) -> dict:
        """Reads and verifies everything on both devices; returns what `status` tells of it."""
        # After a device was filled one is under way.
        self.pagefold("scrub", self.pool, "--status", "--wait", timeout_s=600)
        self.pagefold("scrub", self.pool, "--wait", timeout_s=600)
        return self.figures("status")["scrub"]


def mirrors(rounds: int, *, seed: int | None, keep_logs: Path) -> int:
    """Runs the rounds; returns an exit status. The first round that fails ends the campaign: its state is the evidence."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    moments = random.Random(seed)
    print(f"mirrors: {rounds} rounds, seed {seed} (repeat with SEED={seed}); logs in {keep_logs}", flush=True)
    require_room(8 << 30)
    server_program()
    began, passed = time.monotonic(), 0
    with Run("mirrors", keep_logs=keep_logs) as run:
        discs = [BadDisc(run), BadDisc(run)]
        with Mirror(run, discs) as pool:
            sides: list[Side] = [PostgresSide(run, pool), MariaSide(run, pool)][: max(1, min(rounds, 2))]
            for side in sides:
                side.prepare()
                side.server.stop()
            print(f"mirrors: prepared in {time.monotonic() - began:.0f} s", flush=True)
            for number in range(rounds):
                side = sides[number % len(sides)]
                try:
                    line = _round(run, side, pool, moments, kill=number % KILL_EVERY == KILL_EVERY - 1)
                except Exception as e:  # whatever failed, the round and the seed belong to the report
                    print(f"mirrors: round {number + 1} of {rounds} ({side.name}, seed {seed}) FAILED: {e}", flush=True)
                    side.server.kill()
                    break
                passed += 1
                print(f"mirrors: round {number + 1:>3} of {rounds}  {side.name:<10}  {line}", flush=True)
        for disc in discs:
            disc.remove()
    print(f"mirrors: seed {seed}, {time.monotonic() - began:.0f} s")
    print(f"{passed} passed, {rounds - passed} failed", flush=True)
    return 0 if passed == rounds else 1


def _round(run: Run, side: Side, pool: Mirror, moments: random.Random, *, kill: bool) -> str:
    began = time.monotonic()
    side.server.start()
    side.firsts.append(side.next)
    if len(side.firsts) > KEEP_ROUNDS:
        side.forget_before(side.firsts[-KEEP_ROUNDS])
    moments.shuffle(pool.discs)
    victim, other = pool.discs
    generator, client = side.start_load()
    try:
        client.wait_for(20)
        other.tell("fail", FAILING_PERMILLE)
        harms = [lambda: victim.rubbish(moments), victim.cut, victim.detach]
        for harm in harms:
            time.sleep(moments.uniform(0.1, 2.0))
            harm()
        time.sleep(moments.uniform(0.1, 2.0))
        if kill:
            generator.require_running()
            side.server.expect_no_disk()
            pool.crash()
    finally:
        if kill:
            generator.stop()
            client.stop()
    before = client.count
    if kill:
        side.server.kill()
        pool.recover()
        side.server.start()
        side.next = client.next + 1
        generator, client = side.start_load()
    new = BadDisc(run)
    try:
        # The victim may have left the mirror long ago, and its device with it.
        gone = [one for one in pool.figures("status")["devices"] if one["path"] != other.device]
        asked = time.monotonic()
        pool.pagefold("replace", pool.pool, gone[0]["path"] or str(gone[0]["number"]), new.device, "--wait", timeout_s=600)
        replaced_s = time.monotonic() - asked
        client.wait_for(client.count + 20)
        generator.require_running()
    finally:
        generator.stop()
        client.stop()
    other.tell("fail", 0)
    side.next = client.next + 1
    loaded = time.monotonic()
    told = side.verify()
    side.server.stop()
    verified = time.monotonic()
    victim.remove()
    pool.discs[:] = [other, new]
    if (states := pool.states()) != ["ONLINE", "ONLINE"]:
        raise RuntimeError(f"the devices are {states}")
    scrub = pool.scrub()
    if wrong := {name: scrub[name] for name in ("damaged", "unreadable") if scrub.get(name)}:
        raise RuntimeError(f"the scrub found {wrong}")
    scrubbed = time.monotonic()
    pool.unmount()
    for disc in pool.discs:
        pool.pagefold("check", disc.device, timeout_s=600)
    pool.mount()
    times = f"{loaded - began:.1f} s under load, {verified - loaded:.1f} s verified, {scrubbed - verified:.1f} s scrubbed"
    killed = f"killed after {before} rows, " if kill else ""
    return f"{killed}{client.count} acknowledged, replaced in {replaced_s:.1f} s, {told}; {times}, {time.monotonic() - began:.1f} s"
