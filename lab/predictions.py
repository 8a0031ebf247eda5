"""`lab predictions`: compares the estimates of `pagefold analyze` for files with the space that these then take on a
pool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import proc, ui
from .ledger import Run
from .paths import pagefold, require_room, tool
from .pool import Pool
from .ratios import MAKERS

WITHIN = 0.05
"""Largest error of a prediction, as a share, all metadata counted."""


@dataclass
class Comparison:
    """Bytes of a folder: its files' own, predicted ones, and those taken on a pool that has nothing else, models and
    all metadata counted."""

    logical: int
    predicted: int
    taken: int
    report: dict
    """Output of `pagefold analyze --json`."""

    @property
    def difference(self) -> float:
        """Difference between the prediction and the bytes taken, as a share of the latter."""
        return (self.predicted - self.taken) / self.taken

    @property
    def holds(self) -> bool:
        """True if the difference is within the promised bound."""
        return abs(self.difference) <= WITHIN


def predict(folder: Path, compression: str) -> dict:
    """Returns the output of `pagefold analyze` for a folder."""
    return json.loads(proc.run([pagefold(), "analyze", "--json", "--compression", compression, folder]))


def compare(run: Run, folder: Path, compression: str, pool_bytes: int) -> Comparison:
    """Predicts, copies the folder to a new pool, folds, and measures."""
    report = predict(folder, compression)
    logical = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with Pool(run, pool_bytes, compression=compression) as pool:
        proc.run(["cp", "-a", folder, pool.mountpoint])
        # Pages that were stored before their relation's model was learned are coded by it when they are folded, so fold
        # comes before the measurement.
        pool.settle()
        taken = pool.used_bytes() - pool.empty_bytes
    total = report["total"]
    return Comparison(logical, total["stored"]["bytes"] + total["metadata"]["bytes"], taken, report)


def documents(run: Run, root: Path, _scale: float) -> None:
    """Makes files of all sizes of text from the machine's packages."""
    folder = root / "files"
    folder.mkdir(parents=True)
    room = 40 << 20
    for at, path in enumerate(sorted(Path("/usr/share").rglob("*.txt")) + sorted(Path("/usr/include").rglob("*.h"))):
        if path.is_file() and not path.is_symlink() and path.stat().st_size > 4096 and room > 0:
            room -= path.stat().st_size
            shutil.copyfile(path, folder / str(at))
    if len(list(folder.iterdir())) < 50:
        raise RuntimeError("this machine has no documents")


SETS: dict[str, Callable[[Run, Path, float], None]] = {**MAKERS, "documents": documents}
"""Makers of the sets: those of `lab ratios`, and documents."""


def predictions(*, scale: float, sets: list[str], compressions: list[str], source: Path | None, keep_logs: Path) -> int:
    """Makes the sets (or takes those of `source`) and compares each; returns an exit status."""
    rows, missed = [], 0
    with Run("predictions", keep_logs=keep_logs) as run:
        for name in sets:
            steps = ui.Steps()
            root = source / name if source is not None else run.fresh(name)
            if source is None:
                with steps.step(f"{name}: making the files"):
                    SETS[name](run, root, scale)
            size = sum(path.stat().st_size for path in (root / "files").iterdir())
            require_room(2 * size)
            for compression in compressions:
                with steps.step(f"{name}: {compression}, predicted and stored"):
                    found = compare(run, root / "files", compression, max(3 * size, 1 << 30))
                missed += not found.holds
                sizes = [ui.size(bytes_) for bytes_ in (found.logical, found.predicted, found.taken)]
                verdict = "" if found.holds else "MISSED"
                rows.append([name, compression, *sizes, f"{found.difference:+.1%}", verdict])
            if source is None:
                proc.run([tool("rm"), "-rf", root])
    head = ["files", "compression", "logical", "predicted", "taken", "difference", f"within {WITHIN:.0%}"]
    print(f"\n{ui.table(head, rows)}\n")
    return 1 if missed else 0
