"""`python3 -m lab VERB`: runs a verb of the laboratory, as the Makefile does."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from . import paths

SETS = ["postgres", "tpcc", "tpcc-random", "innodb", "sqlite", "rrd"]
"""Sets of `lab ratios`. They are repeated here, so that `lab ratios` is not imported for every verb."""


SUITES = ["pjdfstest", "fsx", "postgres", "mariadb", "sqlite"]
"""Suites of `lab conformance`."""


def main() -> int:
    """Parses the command line and runs a verb; returns the exit status."""
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    demo = verbs.add_parser(
        "demo", help="a PostgreSQL on a pool, beside the same files elsewhere, crashed and recovered"
    )
    demo.add_argument("--small", action="store_true", help="a tenth of the data, in a minute")
    soak = verbs.add_parser("soak", help="rounds of kill -9 of the server under load")
    soak.add_argument("--rounds", type=int, default=200)
    soak.add_argument("--seed", type=int, help="of the moments of death (random)")
    scaling = verbs.add_parser("scaling", help="several devices beside one, here and on btrfs and zfs-fuse; a slow half of a mirror")
    scaling.add_argument("--systems", default="pagefold,btrfs,zfs", help="which, with commas between them")
    scaling.add_argument("--file-mib", type=int, default=3072, help="MiB of all files together")
    scaling.add_argument("--seconds", type=int, default=10, help="for each load with random pages")
    scaling.add_argument("--rate", type=int, default=125, help="MB/s of each device, each way")
    scaling.add_argument("--requests", type=int, default=3000, help="requests per second of each device, each way")
    scaling.add_argument("--times", type=int, default=100, help="times as long the slow half of a mirror takes for a read")
    scaling.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    hanging = verbs.add_parser("hanging", help="what a reader of a mirror waits for when one of its devices hangs")
    hanging.add_argument("--seconds", type=float, default=10, help="of each stretch")
    hanging.add_argument("--requests", type=int, default=2, help="requests per second of the throttled half")
    hanging.add_argument("--io-uring", default="auto", choices=["auto", "on", "off"], help="how the kernel's requests travel")
    hanging.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    commits = verbs.add_parser("commits", help="how long fdatasync takes, with and without a log device, beside ext4")
    commits.add_argument("--rounds", type=int, default=5, help="times that each is measured, by turns")
    commits.add_argument("--writers", default="1,6", help="numbers of writers, with commas between them")
    commits.add_argument("--seconds", type=float, default=4, help="for each")
    commits.add_argument("--requests", type=int, default=300, help="requests a second of each device, each way, in the second half")
    commits.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    device_verbs = verbs.add_parser("device-verbs", help="verbs that change devices, under a database, and killed")
    device_verbs.add_argument("--rounds", type=int, default=3, help="times each under a database")
    device_verbs.add_argument("--kills", type=int, default=50, help="kills of the server in the midst of each")
    device_verbs.add_argument("--seed", type=int, help="of the moments (random)")
    device_verbs.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    scheduler = verbs.add_parser("scheduler", help="reads beside a load, a scrub and a mirror that is filled, on throttled devices")
    scheduler.add_argument("--seconds", type=float, default=15, help="of each stretch")
    scheduler.add_argument("--threads", type=int, default=4, help="that read")
    scheduler.add_argument("--reads-per-s", type=int, default=1000, help="of all threads; 0: as many as there can be")
    scheduler.add_argument("--mib-per-s", type=int, default=125, help="of each device, each way")
    scheduler.add_argument("--requests-per-s", type=int, default=3000, help="of each device, each way")
    scheduler.add_argument("--on", action="append", dest="places", choices=["pagefold", "ext4", "btrfs"], help="all unless named")
    scheduler.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    mirrors = verbs.add_parser("mirrors", help="rounds in which a device of a mirror is destroyed under load")
    mirrors.add_argument("--rounds", type=int, default=100)
    mirrors.add_argument("--seed", type=int, help="of the moments and the rubbish (random)")
    mirrors.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    fill = verbs.add_parser("fill", help="a pool of 2 GiB overwritten with 20 GiB")
    fill.add_argument("--pool-mib", type=int, default=2048)
    fill.add_argument("--write-mib", type=int, default=20480)
    fill.add_argument("--seed", type=int, default=1)
    aged = verbs.add_parser("aged", help="bulk writes onto aged and nearly full pools, a hot file beside a cold one")
    aged.add_argument("--gib", type=int, action="append", dest="sizes", help="of pools: 1, 2 and 4 unless named")
    aged.add_argument("--fill", type=float, action="append", dest="fills", help="0.5, 0.7, 0.8, 0.9 and 0.95 unless named")
    aged.add_argument("--seeds", type=int, default=3)
    aged.add_argument("--rounds", type=int, default=30_000, help="of the hot and the cold file")
    aged.add_argument("--compression", action="append", dest="compressions", help="off and page unless named")
    aged.add_argument("--mib-per-s", type=int, help="throttles the device")
    steps = verbs.add_parser("steps", help="a writer beside who truncates, punches and destroys ten million pages")
    steps.add_argument("--pages", type=int, default=10_000_000, help="of each of three files")
    steps.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    defaults = verbs.add_parser("defaults", help="what a database takes for who sets nothing: right after a load, and a minute later")
    defaults.add_argument("--scale", type=float, default=1.0, help="1 loads 600 MB")
    defaults.add_argument("--set", action="append", dest="sets", choices=["rows", "json", "series", "pgbench", "tpcc"])
    defaults.add_argument("--later", type=int, default=60, help="seconds")
    defaults.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    ratios = verbs.add_parser("ratios", help="what files of databases take here and on other file systems, file by file")
    ratios.add_argument("--scale", type=float, default=1.0, help="1 makes about 1 GB of relations of PostgreSQL")
    ratios.add_argument("--set", action="append", dest="sets", choices=SETS)
    ratios.add_argument("--from", dest="source", type=Path, help="folder with SET/files, instead of making them")
    ratios.add_argument("--out", type=Path, help="a file for all figures, as JSON")
    ratios.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    foretold = verbs.add_parser("predictions", help="what `pagefold analyze` says of files, beside what they then take")
    foretold.add_argument("--scale", type=float, default=0.3, help="1 makes about 3 GB of files")
    foretold.add_argument("--set", action="append", dest="sets", choices=[*SETS, "documents"])
    foretold.add_argument("--compression", action="append", dest="compressions", help="page and zstd unless named")
    foretold.add_argument("--from", dest="source", type=Path, help="folder with SET/files, instead of making them")
    foretold.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    trips = verbs.add_parser("round-trips", help="pages of aged databases coded, decoded and compared, by the million")
    trips.add_argument("--pages", type=int, default=1_000_000)
    trips.add_argument("--scale", type=float, default=0.3, help="1 makes about 3 GB of files")
    trips.add_argument("--set", action="append", dest="sets", choices=["postgres", "tpcc", "tpcc-random", "innodb", "sqlite"])
    trips.add_argument("--seed", type=int, default=1)
    trips.add_argument("--seconds", type=int, help="ends then, however many were made")
    trips.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    snapshots = verbs.add_parser("snapshots", help="snapshots of databases under load, each cloned, recovered, verified")
    snapshots.add_argument("--rounds", type=int, default=500, help="of PostgreSQL; of MariaDB two fifths as many")
    snapshots.add_argument("--seed", type=int, help="of the moments (random)")
    snapshots.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    branches = verbs.add_parser("branches", help="a branch of a database, timed until it answers; and many at once")
    branches.add_argument("--scale", type=int, default=70, help="of pgbench: 350 makes 5 GB")
    branches.add_argument("--count", type=int, default=50, help="how many at once")
    branches.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    streams = verbs.add_parser("streams", help="a database sent from pool to pool, killed and gone on with; beside pg_basebackup")
    streams.add_argument("--scale", type=int, default=100, help="of pgbench: 100 makes 1.5 GB")
    streams.add_argument("--rounds", type=int, default=20, help="how often somebody is killed")
    streams.add_argument("--compression", default="zstd", help="of both pools")
    streams.add_argument("--seed", type=int, help="of the moments of death (random)")
    streams.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    pitr = verbs.add_parser("pitr", help="a database under load restored to random points in time")
    pitr.add_argument("--times", type=int, default=50, help="points")
    pitr.add_argument("--seed", type=int, help="of the moments (random)")
    pitr.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    backup_mount = verbs.add_parser("backup-mount", help="a PostgreSQL on a backup in a bucket that is 20 ms away, timed")
    backup_mount.add_argument("--gb", type=float, default=5, help="size of the database")
    backup_mount.add_argument("--rows", choices=["prices", "pgbench"], default="prices")
    backup_mount.add_argument("--latency-ms", type=int, default=20, help="by which requests come later")
    backup_mount.add_argument("--link-mb", type=int, default=125, help="MB/s that the link to the store carries")
    backup_mount.add_argument("--store", choices=["versitygw", "ceph"], default="versitygw")
    backups = verbs.add_parser("backups", help="backups, restores and prunes killed at random points; two writers at once")
    backups.add_argument("--kills", type=int, default=500)
    backups.add_argument("--writers", type=int, help="how often two write at once: a fifth as often as somebody is killed unless said")
    backups.add_argument("--store", choices=["versitygw", "ceph"], default="versitygw")
    backups.add_argument("--seed", type=int, help="of the moments of death (random)")
    backups.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    compare = verbs.add_parser("backup-compare", help="a database backed up by pg_basebackup, pgBackRest and pagefold, measured")
    compare.add_argument("--gb", type=float, default=5.0, help="of the database")
    compare.add_argument("--compression", default="auto", help="of the pool")
    compare.add_argument("--json", action="store_true", help="print JSON")
    compare.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    embedded = verbs.add_parser("embedded", help="LMDB, LevelDB, RocksDB and DuckDB while the server is killed")
    embedded.add_argument("--rounds", type=int, default=20)
    embedded.add_argument("--seed", type=int, help="of the moments of death (random)")
    embedded.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    takeover = verbs.add_parser("takeover", help="the server killed under load, and another goes on: no client notices")
    takeover.add_argument("--rounds", type=int, default=200)
    takeover.add_argument("--seed", type=int, help="of the moments of death (random)")
    takeover.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    replay = verbs.add_parser("replay", help="crash states of a recorded device, each recovered by the database")
    replay.add_argument("--database", choices=["postgres", "mariadb"], required=True)
    replay.add_argument("--states", type=int, default=100)
    replay.add_argument("--seed", type=int, help="of the moments and of what was lost (random)")
    replay.add_argument("--fsync", choices=["on", "off"], default="on", help="off: earlier transactions, and a whole database")
    replay.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    conformance = verbs.add_parser("conformance", help="public test suites on a pool, compared with ext4")
    conformance.add_argument("--suite", action="append", dest="suites", choices=SUITES)
    conformance.add_argument("--operations", type=int, default=1_000_000, help="of fsx")
    conformance.add_argument("--seed", type=int, default=1, help="of fsx")
    conformance.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    memory = verbs.add_parser("memory", help="resident memory of a server with many mounts, files and pages")
    memory.add_argument("--mounts", type=int, default=16)
    memory.add_argument("--files", type=int, default=1_000_000)
    memory.add_argument("--pages", type=int, default=10_000_000)
    memory.add_argument("--cache-mib", type=int, default=384)
    memory.add_argument("--io-uring", choices=["on", "off"], default="on", help="how requests travel")
    memory.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    boot = verbs.add_parser("boot", help="a machine boots with databases on a pool, and is switched off")
    boot.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    verbs.add_parser("clean", help="undo what killed runs have left")
    for verb in (demo, soak, fill):
        verb.add_argument("--on", default="pagefold:zstd", help="pagefold[:CODEC], dir, ext4, xfs, btrfs[:CODEC]")
        verb.add_argument("--trace", action="store_true", help="show the laboratory's own stack after a failure")
    options = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows question marks instead of failing
    if os.geteuid() != 0:
        print(
            f"lab {options.verb}: needs root, for mounts and for servers that run as their own users", file=sys.stderr
        )
        return 1
    try:
        return run(options)
    except (RuntimeError, AssertionError) as e:
        if getattr(options, "trace", False):
            raise
        print(
            f"\nlab {options.verb}: {e}\n(everything was cleaned up; --trace tells where in the laboratory)",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"lab {options.verb}: interrupted; everything was cleaned up", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Runs the verb that the options name."""
    logs = Path(os.environ.get("PAGEFOLD_LAB_LOGS", paths.ROOT / "out"))
    match options.verb:
        case "demo":
            from .demo import demo

            return demo(small=options.small, on=options.on, keep_logs=logs / "demo-logs")
        case "soak":
            from .soak import soak

            return soak(options.rounds, seed=options.seed, on=options.on, keep_logs=logs / "soak-logs")
        case "mirrors":
            from .mirrors import mirrors

            return mirrors(options.rounds, seed=options.seed, keep_logs=logs / "mirrors-logs")
        case "scaling":
            from .scaling import Rate, scaling

            rate = Rate(options.rate * 1_000_000, options.requests)
            logs = logs / "scaling-logs"
            return scaling(options.systems.split(","), options.file_mib << 20, options.seconds, rate, options.times, logs)
        case "commits":
            from .commits import commits

            writers = [int(word) for word in options.writers.split(",")]
            return commits(options.rounds, writers, options.seconds, options.requests, logs / "commits-logs")
        case "hanging":
            from .hanging import hanging

            return hanging(options.seconds, options.requests, options.io_uring, logs / "hanging-logs")
        case "device-verbs":
            from .device_verbs import device_verbs

            logs = logs / "device-verbs-logs"
            return device_verbs(options.rounds, options.kills, seed=options.seed, keep_logs=logs)
        case "scheduler":
            from .scheduler import Settings, scheduler

            settings = Settings(
                options.seconds, options.threads, options.reads_per_s, options.mib_per_s, options.requests_per_s
            )
            places = options.places or ["pagefold", "ext4", "btrfs"]
            return scheduler(settings, places, keep_logs=logs / "scheduler-logs")
        case "fill":
            from .fill import fill

            return fill(options.pool_mib << 20, options.write_mib << 20, seed=options.seed, on=options.on)
        case "aged":
            from .aged import campaign

            return campaign(
                [gib << 30 for gib in options.sizes or (1, 2, 4)],
                options.fills or [0.5, 0.7, 0.8, 0.9, 0.95],
                options.seeds,
                options.rounds,
                options.compressions or ["off", "page"],
                options.mib_per_s,
                logs / "aged-logs",
            )
        case "backups":
            from .backups import backups

            writers = max(1, options.kills // 5) if options.writers is None else options.writers
            return backups(options.kills, writers, store_name=options.store, seed=options.seed, keep_logs=logs / "backups-logs")
        case "backup-compare":
            from .backup_compare import compare

            return compare(options.gb, compression=options.compression, as_json=options.json, keep_logs=logs / "backup-compare-logs")
        case "boot":
            from .boot import boot

            return boot(keep_logs=logs / "boot-logs")
        case "steps":
            from .steps import steps

            return steps(options.pages, keep_logs=logs / "steps-logs")
        case "defaults":
            from .defaults import SHAPES, defaults

            return defaults(
                scale=options.scale, sets=options.sets or list(SHAPES), later_s=options.later, keep_logs=logs / "defaults-logs"
            )
        case "ratios":
            from .ratios import MAKERS, ratios

            return ratios(
                scale=options.scale,
                sets=options.sets or list(MAKERS),
                source=options.source,
                keep_logs=logs / "ratios-logs",
                out=options.out,
            )
        case "predictions":
            from .predictions import predictions

            return predictions(
                scale=options.scale,
                sets=options.sets or [*SETS, "documents"],
                compressions=options.compressions or ["page", "zstd"],
                source=options.source,
                keep_logs=logs / "predictions-logs",
            )
        case "round-trips":
            from .round_trips import SETS, round_trips

            return round_trips(
                options.pages,
                sets=options.sets or SETS,
                scale=options.scale,
                seed=options.seed,
                seconds=options.seconds,
                keep_logs=logs / "round-trips-logs",
            )
        case "snapshots":
            from .snapshots import snapshots

            return snapshots(options.rounds, seed=options.seed, keep_logs=logs / "snapshots-logs")
        case "branches":
            from .branches import branches

            return branches(options.scale, options.count, keep_logs=logs / "branches-logs")
        case "backup-mount":
            from .backup_mount import run as backup_mount_run

            return backup_mount_run(
                options.store, options.rows, options.gb, latency_ms=options.latency_ms, bytes_per_s=options.link_mb * 1_000_000
            )
        case "streams":
            from .streams import streams

            return streams(
                options.scale,
                options.rounds,
                seed=options.seed,
                compression=options.compression,
                keep_logs=logs / "streams-logs",
            )
        case "pitr":
            from .pitr import pitr

            return pitr(options.times, seed=options.seed, keep_logs=logs / "pitr-logs")
        case "embedded":
            from .embedded import embedded

            return embedded(options.rounds, seed=options.seed, keep_logs=logs / "embedded-logs")
        case "takeover":
            from .takeover import takeover

            return takeover(options.rounds, seed=options.seed, keep_logs=logs / "takeover-logs")
        case "replay":
            from .replay import replay

            fsync = options.fsync == "on"
            return replay(options.database, options.states, seed=options.seed, fsync=fsync, keep_logs=logs / "replay-logs")
        case "conformance":
            from .conformance import conformance
            from .suites import Options

            wanted = Options(operations=options.operations, seed=options.seed)
            return conformance(options.suites or SUITES, wanted, keep_logs=logs / "conformance-logs")
        case "memory":
            from .memory import Sizes as MemorySizes
            from .memory import memory

            sizes = MemorySizes(options.mounts, options.files, options.pages, options.cache_mib, options.io_uring)
            return memory(sizes, keep_logs=logs / "memory-logs")
        case "clean":
            from .ledger import clean

            print(f"lab: cleaned up after {clean()} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
