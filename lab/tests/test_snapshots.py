"""Snapshots of real databases under load: every clone recovers and is whole. The long campaign is `make snapshots`."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from lab import load, proc
from lab.pool import Pool
from lab.postgres import USER, Postgres
from lab.snapshots import Mounted, campaign, destroy_exactly


@pytest.fixture(autouse=True)
def _only_here(request):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("snapshots are Pagefold's own")


@pytest.mark.long
@pytest.mark.parametrize(("product", "rounds"), [("postgresql", 4), ("mariadb", 2)])
def test_every_clone_of_a_running_database_recovers(run, product, rounds):
    campaign(run, product, rounds, random.Random(rounds))


SNAPSHOTS = 8


def digest(folder: Path) -> str:
    """Returns a digest of all files below a folder."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(f"{path.relative_to(folder)}\n".encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()


@pytest.mark.long
def test_coding_again_unshares_nothing(run):
    """Codes the stored records of a database and its snapshots again, twice. They must become smaller and no more than
    before, every snapshot must stay as it was, and the bytes that it keeps must still be told exactly."""
    with Pool(run, 3 << 30, compression="lz4") as pool:
        dataset = Mounted(pool, "db")
        pool.pagefold("dataset", "create", dataset.name)
        dataset.mount()
        server = Postgres(run, dataset.folder("data", USER), settings={"autovacuum": "off"}, name="snapshots-db")
        load.prepare_pgbench(server, "lab", 1)
        for n in range(SNAPSHOTS):
            proc.run(server.client("pgbench", "-n", "-c", "2", "-t", "60", database="lab"))
            server.sql("CHECKPOINT", database="lab")
            pool.pagefold("snapshot", f"{dataset.name}@s{n}")
        oid = server.sql("SELECT oid FROM pg_database WHERE datname = 'lab'", database="lab").strip()
        server.stop()

        def contents() -> list[str]:
            hidden = dataset.mountpoint / ".pagefold" / "snapshot"
            roots = [*(hidden / f"s{n}" for n in range(SNAPSHOTS)), dataset.mountpoint]
            return [digest(root / "data" / "base" / oid) for root in roots]

        def records() -> int:
            dataset.unmount()
            pool.unmount()
            found = json.loads(pool.pagefold("check", "--json", pool.pool, timeout_s=600))
            assert found["errors"] == 0, found
            pool.mount()
            dataset.mount()
            return found["records"]

        expected, most = contents(), records()
        used = pool.used_bytes()
        assert len(set(expected[:SNAPSHOTS])) == SNAPSHOTS, "the load has changed nothing between two snapshots"
        for compression, share in (("zstd-9", 0.95), ("page-1", 0.97)):
            pool.pagefold("set", f"compression={compression}", pool.pool)
            pool.compression = compression
            folded = json.loads(pool.pagefold("fold", "--json", pool.pool, timeout_s=600))["folded"]
            now = pool.used_bytes()
            assert now < share * used, f"{compression}: {now} bytes of {used} are left; {folded}"
            models = pool.figures("status")["models"]
            found = records()
            # There may be a few pages of the segment table more.
            assert found <= most + models + 8, f"{compression}: {found} records, {most} before"
            assert contents() == expected, f"a snapshot is no longer what it was, with {compression}"
            used = now
        # The background codes files again whose models came late, but for a codec without models: a database rests then.
        pool.pagefold("set", "compression=zstd-9", pool.pool)
        assert contents() == expected, "a snapshot is no longer what it was"
        dataset.unmount()
        order = list(range(SNAPSHOTS))
        random.Random(5).shuffle(order)
        for at in range(0, SNAPSHOTS, 4):
            destroy_exactly(pool, f"{dataset.name}@" + ",".join(f"s{n}" for n in order[at : at + 4]))
        pool.unmount()
        pool.check()
