"""`lab predictions`: what `pagefold analyze` says of files, beside what they then take on a pool."""

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
"""How far a prediction may be off, all metadata counted."""


@dataclass
class Comparison:
    """A folder's bytes: as they are, predicted, and taken on a pool that has nothing else, models and all metadata counted."""

    logical: int
    predicted: int
    taken: int
    report: dict
    """All that `pagefold analyze --json` said."""

    @property
    def difference(self) -> float:
        """Of the prediction from what was taken, as a share of that."""
        return (self.predicted - self.taken) / self.taken

    @property
    def holds(self) -> bool:
        """Whether that is within what is promised."""
        return abs(self.difference) <= WITHIN


def predict(folder: Path, compression: str) -> dict:
    """What `pagefold analyze` says of a folder."""
    return json.loads(proc.run([pagefold(), "analyze", "--json", "--compression", compression, folder]))


def compare(run: Run, folder: Path, compression: str, pool_bytes: int) -> Comparison:
    """Predicts, copies the folder to a new pool, folds, and measures."""
    report = predict(folder, compression)
    logical = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    with Pool(run, pool_bytes, compression=compression) as pool:
        proc.run(["cp", "-a", folder, pool.mountpoint])
        # Pages that were stored before their relation's model was learned are coded by it when they are folded.
        pool.settle()
        taken = pool.used_bytes() - pool.empty_bytes
    total = report["total"]
    return Comparison(logical, total["stored"]["bytes"] + total["metadata"]["bytes"], taken, report)


def documents(run: Run, root: Path, _scale: float) -> None:
    """Text as the machine's packages bring it, in files of all sizes."""
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
"""The files of `lab ratios`, and documents."""


def predictions(*, scale: float, sets: list[str], compressions: list[str], source: Path | None, keep_logs: Path) -> int:
    """Makes the sets (or takes those of `source`), compares each; returns an exit status."""
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
