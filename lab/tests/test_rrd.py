"""Round-robin databases on the pool: rrdtool writes them through a shared mmap, collectd keeps many of them."""

from __future__ import annotations

import hashlib
import random
import signal
import time

from lab import proc
from lab.paths import tool

START = 1_700_000_000
STEP = 10
SAMPLES = 3000


def fetch(path) -> str:
    """Returns all averages of the whole time."""
    options = ["AVERAGE", "--start", str(START), "--end", str(START + SAMPLES * STEP), "--resolution", str(STEP)]
    return proc.run([tool("rrdtool"), "fetch", path, *options])


def create(path) -> None:
    """Makes a database of two sources and three archives, as collectd does."""
    sources = [f"DS:{name}:GAUGE:30:U:U" for name in ("rx", "tx")]
    archives = ["RRA:AVERAGE:0.5:1:4000", "RRA:AVERAGE:0.5:7:1200", "RRA:MAX:0.5:7:1200"]
    times = ["--start", str(START - STEP), "--step", str(STEP)]
    proc.run([tool("rrdtool"), "create", path, *times, *sources, *archives])


def samples(seed: int) -> list[str]:
    """Returns updates for the whole time."""
    values = random.Random(seed)
    return [f"{START + i * STEP}:{values.randrange(10**6)}:{values.random()}" for i in range(SAMPLES)]


def test_rrdtool_updates_equal_elsewhere_and_after_remount(where, run):
    here, outside = where.mountpoint / "a.rrd", run.dir / "a.rrd"
    for path in (here, outside):
        create(path)
        updates = samples(1)
        for at in range(0, len(updates), 60):
            proc.run([tool("rrdtool"), "update", path, *updates[at : at + 60]])
    expected = fetch(outside)
    assert expected.count("nan") < SAMPLES // 10, "the reference itself is empty"
    assert fetch(here) == expected
    where.unmount()
    where.check()
    where.mount()
    assert fetch(here) == expected


def test_rrd_survives_a_crash_of_the_server(where):
    paths = [where.mountpoint / f"crash{i}.rrd" for i in range(5)]
    updates = samples(2)
    for path in paths:
        create(path)
        proc.run([tool("rrdtool"), "update", path, *updates[:500]])
        proc.run(["sync", path])
    before = [fetch(path) for path in paths]
    where.crash()
    where.recover()
    assert [fetch(path) for path in paths] == before
    for path in paths:
        proc.run([tool("rrdtool"), "update", path, *updates[500:600]])


CONFIG = """
Interval 1
BaseDir "{base}"
PIDFile "{base}/pid"
Hostname "lab"
LoadPlugin logfile
LoadPlugin load
LoadPlugin memory
LoadPlugin cpu
LoadPlugin interface
LoadPlugin rrdtool
<Plugin logfile>
  File "{log}"
</Plugin>
<Plugin rrdtool>
  DataDir "{data}"
  CacheTimeout 2
  CacheFlush 4
  CreateFilesAsync false
  StepSize 1
  HeartBeat 10
  RRARows 1200
</Plugin>
"""


def test_collectd_keeps_its_databases_on_the_pool(where, run):
    data = where.mountpoint / "collectd"
    data.mkdir()
    base = run.dir / "collectd"
    base.mkdir()
    config = base / "collectd.conf"
    log = run.logs / "collectd.log"
    config.write_text(CONFIG.format(base=base, data=data, log=log))
    daemon = proc.spawn([tool("collectd"), "-f", "-C", config], log=log)
    entry = run.process(daemon.pid, "collectd")
    time.sleep(8)
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(30) == 0, proc.tail(log)
    run.done(entry)
    paths = sorted(data.rglob("*.rrd"))
    assert len(paths) >= 10, f"collectd made {len(paths)} databases only:\n{proc.tail(log)}"
    now = time.time()
    for path in paths:
        last = int(proc.run([tool("rrdtool"), "last", path]))
        assert now - last < 30, f"{path.name} was last updated {now - last:.0f} s ago"
    sums = {path: hashlib.sha256(path.read_bytes()).digest() for path in paths}
    where.unmount()
    where.mount()
    assert {path: hashlib.sha256(path.read_bytes()).digest() for path in paths} == sums
