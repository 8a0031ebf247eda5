# Pagefold. `make` lists what there is. Everything runs on Debian 12; what is missing is installed by scripts/setup.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON := $(shell if [ -x /usr/bin/python3 ]; then echo /usr/bin/python3; else echo python3; fi)
# Mounts and database servers that run as their own users need root.
AS_ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E env "PATH=$$PATH")
LAB = $(AS_ROOT) $(PYTHON) -B -m lab

PREFIX ?= /usr/local
DESTDIR ?=
ROUNDS ?= 200
SEED ?=
SEEDS ?= 1000
KIND ?=
IMAGES ?=
OPS ?= 1000000
N ?= 100000
# Of round-trips.
TRIPS = $(if $(filter command line,$(origin N)),$(N),1000000)
# Of crash-states, for each database.
STATES = $(if $(filter command line,$(origin N)),$(N),300)
# Of cuts: of pools of either kind.
HALF = $$(( $(if $(filter command line,$(origin N)),$(N),1000000) / 2 ))
# Of the simulator, which copies whole devices: a fifth less time.
HUGE_PAGES = _RJEM_MALLOC_CONF=thp:always
ONLY ?=
SCALE ?= 1
GB ?= 5
STORE ?= versitygw
TB ?= 10
SECONDS ?= 60
TARGET ?=
SUITE ?=
BENCH ?=

# The program that is tried. Who names another one has built it.
ifeq ($(origin PAGEFOLD),undefined)
PAGEFOLD := target/release/pagefold
BUILD := scripts/build --quiet
else
BUILD := :
endif

.PHONY: help setup build demo test long-tests lint sim cuts mutants flips streams streams-db backup-stores backup-kills backup-compare backup-damage backup-memory backup-mount branches posix fuzz soak mirrors device-verbs scaling hanging scheduler takeover embedded snapshots pitr coherence crash-states aged boot fill memory commits steps conformance predictions defaults round-trips ratios bench man dist install uninstall clean

help: ## List the targets
	@echo "Pagefold: a compressed, copy-on-write file system for databases"
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  make soak ROUNDS=200 [SEED=n]    make install [PREFIX=/usr/local] [DESTDIR=]"

setup: ## Install the Debian packages that all targets need (each target installs its own)
	@scripts/setup all

build: ## Build the pagefold program: target/release/pagefold
	@scripts/setup build
	@scripts/build

demo: ## PostgreSQL on a pool, compared, crashed, recovered: under ten minutes
	@scripts/setup build demo
	@$(BUILD)
	@$(LAB) demo

test: ## The tests, with the real database servers, of the long ones a quarter: under twenty minutes on two cores
	@scripts/setup build test
	@scripts/test

long-tests: ## All database tests that take 20 seconds or more
	@scripts/setup build test
	@$(BUILD)
	@$(AS_ROOT) env PAGEFOLD="$(abspath $(PAGEFOLD))" PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m pytest -p no:cacheprovider -q --tb=short -n 3 --dist loadfile -m long lab/tests

lint: ## rustfmt, clippy, words, links of the documentation, dependencies that nobody uses, licences
	@scripts/setup build
	@$(PYTHON) -B scripts/words
	@$(PYTHON) -B scripts/house --circles engine server fs fuse cli
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
	@scripts/cargo-machete
	@scripts/cargo-deny

sim: ## Crashes, faults and flipped bits on simulated devices: SEEDS=1000 histories from SEED=1 on [IMAGES=16] [KIND=damage]
	@scripts/setup build
	$(HUGE_PAGES) cargo run --profile sim --locked --quiet -p pagefold-sim -- --seeds $(SEEDS) $(if $(SEED),--seed $(SEED)) $(if $(IMAGES),--images $(IMAGES)) $(KIND:%=--%)

cuts: ## A million power cuts, half of them on pools that are full or aged: N=1000000 [SEED=1]
	@scripts/setup build
	$(HUGE_PAGES) cargo run --profile sim --locked --quiet -p pagefold-sim -- --seeds 100000000 $(if $(SEED),--seed $(SEED)) --images 16 --cuts $(HALF)
	$(HUGE_PAGES) cargo run --profile sim --locked --quiet --target-dir target/small -p pagefold-sim --features small-chunks -- --seeds 100000000 $(if $(SEED),--seed $(SEED)) --images 16 --theme full --theme aged --cuts $(HALF)

mutants: ## Bugs planted in the engine, each of which the simulator must find: [ONLY=name]
	@scripts/setup build
	@$(PYTHON) -B scripts/mutants $(if $(ONLY),--only $(ONLY))

flips: ## N=100000 bits flipped in images of pools: told, or harmless
	@scripts/setup build
	cargo run --profile sim --locked --quiet -p pagefold-sim --bin pagefold-flips -- --flips $(N) $(if $(SEED),--seed $(SEED))

streams: ## N=100000 damaged streams of 'send', each to be rejected whole
	@scripts/setup build
	PAGEFOLD_MUTATIONS=$(N) cargo test --locked --quiet -p pagefold-engine --test send -- damaged_streams

backup-stores: ## Backups in buckets: S3 (moto, versitygw), Azure (Azurite), Google's dialect
	@scripts/setup build test
	@$(BUILD)
	LAB_ALL_STORES=1 PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m pytest -p no:cacheprovider -q lab/tests/test_backup_stores.py

backup-kills: ## N=500 kills of backups, restores, prunes, servers and stores; two writers at once: STORE=versitygw|ceph
	@scripts/setup build $(if $(filter ceph,$(STORE)),ceph,test)
	@$(BUILD)
	@$(LAB) backups --store $(STORE) $(if $(filter command line,$(origin N)),--kills $(N)) $(if $(SEED),--seed $(SEED))

backup-damage: ## N=10000 damaged, cut, swapped and replayed objects of backups, each told or harmless
	@scripts/setup build
	PAGEFOLD_DAMAGES=$(if $(filter command line,$(origin N)),$(N),10000) cargo test --locked --quiet -p pagefold-backup --test backup -- damaged --nocapture

backup-memory: ## Resident memory with the manifest of a backup of TB=10
	@scripts/setup build
	cargo run --release --locked --quiet -p pagefold-backup --features fuzzing --example large -- --tb $(TB)

backup-compare: ## A database of GB=5 backed up by pg_basebackup, pgBackRest and pagefold: seconds, processor seconds, bytes
	@scripts/setup build backup
	@$(BUILD)
	@$(LAB) backup-compare --gb $(GB)

posix: ## The same system calls on a pool and on ext4, compared: OPS=1000000
	@scripts/setup build test
	cargo build --profile sim --locked --quiet -p pagefold-posix
	@$(AS_ROOT) target/sim/pagefold-posix --ops $(OPS) $(if $(SEED),--seed $(SEED))

coherence: ## The same blocks by every way (buffered, direct, asynchronous, mapped), 8 threads, over both transports: SECONDS=60 each
	@scripts/setup build test
	cargo build --profile sim --locked --quiet -p pagefold-posix
	@$(AS_ROOT) target/sim/pagefold-posix coherence --seconds $(SECONDS) --transport dev $(if $(SEED),--seed $(SEED))
	@$(AS_ROOT) target/sim/pagefold-posix coherence --seconds $(SECONDS) --transport io_uring $(if $(SEED),--seed $(SEED))

fuzz: ## Hostile bytes for every decoder: SECONDS=60 of processor time for each, or for TARGET=name
	@scripts/setup build
	cargo run --profile sim --locked --quiet -p pagefold-fuzz -- --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED))

soak: ## kill -9 the server under load, recover, verify, ROUNDS times
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) soak --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

mirrors: ## Destroy a device of a mirror under load, replace it, verify, ROUNDS=100 times
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) mirrors --rounds $(if $(filter command line,$(origin ROUNDS)),$(ROUNDS),100) $(if $(SEED),--seed $(SEED))

device-verbs: ## add, attach, detach, replace, remove, offline, online: ROUNDS=3 times each under pgbench, and KILLS=50 times each killed
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) device-verbs --rounds $(if $(filter command line,$(origin ROUNDS)),$(ROUNDS),3) --kills $(if $(KILLS),$(KILLS),50) $(if $(SEED),--seed $(SEED))

commits: ## How long fdatasync takes, with and without a log device, beside ext4: [ROUNDS=5]
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) commits $(if $(filter command line,$(origin ROUNDS)),--rounds $(ROUNDS))

scaling: ## Four throttled devices and a mirror beside one device, here and on btrfs and zfs-fuse; a slow half: [RATE=125] MB/s of each
	@scripts/setup build test bench
	@$(BUILD)
	@$(LAB) scaling $(if $(RATE),--rate $(RATE))

hanging: ## What a reader of a mirror waits for when one of its devices hangs
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) hanging

scheduler: ## p99 of reads beside a load, a scrub and a mirror that is filled, on devices of RATE=125 MiB/s; ext4 and btrfs beside it
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) scheduler $(if $(RATE),--mib-per-s $(RATE)) $(if $(filter command line,$(origin SECONDS)),--seconds $(SECONDS))

takeover: ## kill -9 the server under load while another goes on: no client notices, ROUNDS times
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) takeover --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED))

embedded: ## kill -9 the server under LMDB, LevelDB, RocksDB and DuckDB, ROUNDS=20 times
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) embedded --rounds $(if $(filter command line,$(origin ROUNDS)),$(ROUNDS),20) $(if $(SEED),--seed $(SEED))

snapshots: ## Snapshots of databases under load, each cloned, recovered, verified: ROUNDS=500
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) snapshots $(if $(filter command line,$(origin ROUNDS)),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))

pitr: ## A database under load restored to N=50 random points in time: the rows up to them and none later
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) pitr $(if $(filter command line,$(origin N)),--times $(N)) $(if $(SEED),--seed $(SEED))

branches: ## A branch of a database, timed until it answers, and many at once: SCALE=70 N=50
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) branches $(if $(filter command line,$(origin SCALE)),--scale $(SCALE)) $(if $(filter command line,$(origin N)),--count $(N))

backup-mount: ## A PostgreSQL on a backup in a bucket that is 20 ms away, timed: GB=5 ROWS=prices|pgbench STORE=versitygw|ceph
	@scripts/setup build $(if $(filter ceph,$(STORE)),ceph,backup)
	@$(BUILD)
	@$(LAB) backup-mount --store $(STORE) $(if $(ROWS),--rows $(ROWS)) $(if $(filter command line,$(origin GB)),--gb $(GB))

streams-db: ## A database sent from pool to pool, killed and gone on with; CPU beside pg_basebackup: SCALE=100 ROUNDS=20
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) streams $(if $(filter command line,$(origin ROUNDS)),--rounds $(ROUNDS)) $(if $(filter command line,$(origin SCALE)),--scale $(SCALE)) $(if $(SEED),--seed $(SEED))

crash-states: ## N=300 states that a crash may have left on a recorded device, recovered by PostgreSQL and MariaDB
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) replay --database postgres --states $(STATES) $(if $(SEED),--seed $(SEED))
	@$(LAB) replay --database mariadb --states $(STATES) $(if $(SEED),--seed $(SEED))
	@$(LAB) replay --database postgres --fsync off --states $$(( ($(STATES) + 9) / 10 )) $(if $(SEED),--seed $(SEED))
	@$(LAB) replay --database mariadb --fsync off --states $$(( ($(STATES) + 9) / 10 )) $(if $(SEED),--seed $(SEED))

aged: ## Bulk writes onto pools that are 50 to 95 % full and aged; a hot file beside a cold one: [RATE=30] MiB/s of the device
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) aged $(if $(RATE),--mib-per-s $(RATE))

boot: ## A machine boots with PostgreSQL and MariaDB on a pool and is switched off: the order of it, in a container
	@scripts/setup build boot
	@$(BUILD)
	@$(LAB) boot

fill: ## A pool of 2 GiB overwritten with 20 GiB of changing pages
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) fill

steps: ## A writer beside who truncates, punches and destroys ten million pages: PAGES=10000000
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) steps $(if $(PAGES),--pages $(PAGES))

memory: ## Resident memory with 16 mounts, a million files, ten million pages: [SCALE=0.1] of files and pages
	@scripts/setup build test
	@$(BUILD)
	@$(LAB) memory --files $$(awk 'BEGIN { printf "%d", 1000000 * $(SCALE) }') --pages $$(awk 'BEGIN { printf "%d", 10000000 * $(SCALE) }')

conformance: ## Public test suites on a pool, compared with ext4: [SUITE=pjdfstest|fsx|postgres|mariadb|sqlite] OPS=1000000 of fsx
	@scripts/setup build test
	@$(BUILD)
	@scripts/suites $(or $(SUITE),pjdfstest fsx postgres mariadb sqlite)
	@$(LAB) conformance $(SUITE:%=--suite %) --operations $(OPS) $(if $(SEED),--seed $(SEED))

predictions: ## What `pagefold analyze` says of files, beside what they then take: [SCALE=0.3]
	@scripts/setup build test demo
	@$(BUILD)
	@$(LAB) predictions $(if $(filter command line,$(origin SCALE)),--scale $(SCALE))

defaults: ## What a database takes for who sets nothing, beside analyze and btrfs: [SCALE=0.3]
	@scripts/setup build test demo
	@$(BUILD)
	@$(LAB) defaults $(if $(filter command line,$(origin SCALE)),--scale $(SCALE))

round-trips: ## N=1000000 pages of real, aged databases coded by their models, decoded and compared: [SCALE=0.3]
	@scripts/setup build test demo
	@$(BUILD)
	cargo build --release --locked --quiet -p pagefold-codec --example round_trips
	@$(LAB) round-trips --pages $(TRIPS) $(if $(filter command line,$(origin SCALE)),--scale $(SCALE)) $(if $(SEED),--seed $(SEED))

ratios: ## What database files take, file by file, here and on btrfs and zfs-fuse: [SCALE=1]
	@scripts/setup build test demo
	@$(BUILD)
	@$(LAB) ratios --scale $(SCALE)

bench: ## Benchmarks against null, ext4, XFS, btrfs, zfs-fuse
	@scripts/setup build bench
	@scripts/build --quiet -p pagefold-bench
	@$(AS_ROOT) target/release/pagefold-bench $(BENCH)

man: build ## Man pages and shell completions: out/man, out/completions
	@mkdir -p out/man out/completions
	$(PAGEFOLD) man out/man
	@for shell in bash zsh fish; do $(PAGEFOLD) completion $$shell > out/completions/pagefold.$$shell; done

dist: build ## The static program, without symbols, and what installs it: out/pagefold-VERSION-ARCHITECTURE.tar.gz
	dist/pack.sh $(PAGEFOLD)

install: ## Install what build has made: program, mount helpers, unit, man pages, completions
	@test -x $(PAGEFOLD) || { echo "run 'make build' first (not as root, if cargo is yours)"; exit 1; }
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install.sh $(PAGEFOLD)

uninstall: ## Remove what install has put there
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" dist/install.sh --uninstall

clean: ## Undo what killed runs of the laboratory have left
	@$(LAB) clean
