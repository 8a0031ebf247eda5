"""Fixtures: a run that cleans up, and the place under test (a pool in a file unless --on says otherwise)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from lab.ledger import Run, handle
from lab.paths import ROOT, require_room
from lab.pool import Pool
from lab.server import Server
from lab.storage import Place, place

LONG_TESTS_PART = 4
"""With a seed, one in so many long tests runs."""

POOL_BYTES = 3 << 30
BACKED_UP_BYTES = 1 << 30
NOISE_BYTES = 24 << 20
"""Bytes of a file of noise: more than one pack of a backup."""


def pytest_addoption(parser) -> None:
    parser.addoption("--on", default=os.environ.get("LAB_ON", "pagefold:zstd"), help="pagefold[:CODEC], dir, ext4, ...")
    parser.addoption("--long", default="all", metavar="all|SEED", help="long tests: all, or those that this seed chooses")


def pytest_configure(config) -> None:
    # Workers, and what tests start, would ignore it if this process does: as it does if a shell without job control has
    # started it in the background.
    handle(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "long: a test or file that takes 20 seconds or more; a seed chooses one in four")


def pytest_collection_modifyitems(config, items) -> None:
    """Leaves out the long tests that the seed does not choose. Seeds that follow each other choose all of them."""
    if config.getoption("--long") == "all":
        return
    seed = int(config.getoption("--long"))

    def unit(item) -> str:
        """A test by itself, or all of a file that is marked as a whole: its tests go on from each other."""
        module = item.getparent(pytest.Module)
        return module.nodeid if module.get_closest_marker("long") else item.nodeid

    units = {unit(item): None for item in items if item.get_closest_marker("long")}
    chosen = {one for number, one in enumerate(units) if (number + seed) % LONG_TESTS_PART == 0}
    left_out = [item for item in items if unit(item) in units and unit(item) not in chosen]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def run(request):
    """Provides a run of the laboratory; its logs are kept in out/test-logs."""
    require_room(2 << 30)
    name = request.module.__name__.rpartition(".")[2]
    with Run(name, keep_logs=ROOT / "out" / "test-logs" / name) as run:
        yield run


@pytest.fixture(scope="module")
def where(run, request) -> Place:
    """Provides the place under test, mounted. It is unmounted and checked offline at the end."""
    with place(run, request.config.getoption("--on"), POOL_BYTES) as where:
        yield where
        where.unmount()
        where.check()


def expect_recordsize(where: Place, path, wanted: int) -> None:
    """Verifies that the recordsize of a file was found to be `wanted`, if the place has recordsizes."""
    if where.is_pagefold:
        assert where.recordsize(path) == wanted, f"{path} has recordsize {where.recordsize(path)}, not {wanted}"


def survives_remount(server: Server, where: Place, ask: Callable[[], str]) -> None:
    """Stops the server, unmounts, checks the place offline, mounts and starts the server. `ask` must return the same as
    before."""
    expected = ask()
    server.stop()
    where.unmount()
    where.check()
    where.mount()
    server.start()
    assert ask() == expected


@pytest.fixture(scope="module")
def pages(run, where):
    """Provides a pool of its own with compression=page."""
    if not where.is_pagefold:
        pytest.skip("there are no models elsewhere")
    with Pool(run, POOL_BYTES, compression="page") as pages:
        yield pages
        pages.unmount()
        pages.check()


@pytest.fixture(scope="module")
def noisy(run, request):
    """Provides a mounted pool with contents to be backed up."""
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("backups are Pagefold's own")
    with Pool(run, BACKED_UP_BYTES) as pool:
        (pool.mountpoint / "noise").write_bytes(random.Random(1).randbytes(NOISE_BYTES))
        (pool.mountpoint / "text").write_text("a row of a table\n" * 50_000)
        yield pool
        pool.unmount()
        pool.check()


def change(pool: Pool, number: int) -> None:
    """Changes 10 KB of the noise, elsewhere for each number."""
    with open(pool.mountpoint / "noise", "r+b") as f:
        f.seek(number * 100_000)
        f.write(f"change {number}".encode() * 1000)


def counter(pool: Pool, name: str) -> dict:
    """Returns one of the counters of `pagefold iostat`."""
    return next(c for c in pool.counters() if c["name"] == name)


def wait_for_models(pool: Pool, count: int, timeout_s: float = 60) -> None:
    """Waits until the background has learned `count` models."""
    deadline = time.monotonic() + timeout_s
    while pool.figures("status")["models"] < count:
        assert time.monotonic() < deadline, f"{pool.figures('status')['models']} models in {timeout_s:.0f} s, not {count}"
        time.sleep(0.2)
