"""`lab round-trips`: codes millions of pages of real, aged databases by their models, decodes and compares them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import proc, ui
from .ledger import Run
from .paths import Missing, pagefold, tool
from .ratios import MAKERS

SETS = ["postgres", "tpcc", "tpcc-random", "innodb", "sqlite"]
"""Sets of `lab ratios` that have pages of databases."""
THREADS = 2


def program() -> Path:
    """Returns the campaign's program, which is built beside the one under test
    (crates/codec/examples/round_trips.rs)."""
    path = Path(pagefold()).parent / "examples" / "round_trips"
    if not path.exists():
        raise Missing(f"{path} does not exist: cargo build [--release] -p pagefold-codec --example round_trips")
    return path


def round_trips(pages: int, *, sets: list[str], scale: float, seed: int, seconds: int | None, keep_logs: Path) -> int:
    """Makes the files and runs the campaign over them; returns its exit status. Pages that did not come back are kept
    with the logs."""
    with Run("round-trips", keep_logs=keep_logs) as run:
        folders = []
        for name in sets:
            steps, root = ui.Steps(), run.fresh(name)
            with steps.step(f"{name}: making the files"):
                MAKERS[name](run, root, scale)
            folders.append(root / "files")
            proc.run([tool("rm"), "-rf", root / "data"])
        limit = [] if seconds is None else ["--seconds", str(seconds)]
        argv = [program(), "--pages", str(pages), "--threads", str(THREADS), "--seed", str(seed), "--keep", run.logs / "found"]
        return subprocess.run([*map(str, argv), *limit, *map(str, folders)], check=False).returncode
