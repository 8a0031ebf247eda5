"""Tells where the laboratory finds things and where it may write."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""

LAB_DIR = Path(os.environ.get("PAGEFOLD_LAB_DIR", "/var/tmp/pagefold-lab"))
"""Everything the laboratory writes is below this folder: pools, logs, ledgers. It must be on a real disc: pools are
opened for direct I/O, which tmpfs refuses on older kernels."""


def require_room(wanted_bytes: int) -> None:
    """Raises if the disc has no room, before anything is done: pools are sparse files, and a write that the disc below
    cannot take is an I/O error to them."""
    LAB_DIR.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(LAB_DIR).free
    if free < wanted_bytes:
        raise Missing(
            f"{LAB_DIR} has {free >> 20} MiB free, {wanted_bytes >> 20} MiB are needed: make room, or name a folder on "
            "another disc with PAGEFOLD_LAB_DIR"
        )


class Missing(RuntimeError):
    """Something that the laboratory needs is missing, a program or room; the message says how to get it."""


def tool(name: str, *, profile: str = "test") -> str:
    """Returns the absolute path of a program, which is looked for in the system folders too (sbin is not on everybody's
    PATH)."""
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    found = shutil.which(name, path=path)
    if found is None:
        raise Missing(f"{name} is not installed: run `scripts/setup {profile}`")
    return found


def tool_program(name: str) -> str:
    """Returns the path of a program that Debian does not have; `scripts/tool-program` installs it if need be."""
    told = subprocess.run([ROOT / "scripts/tool-program", name], capture_output=True, text=True)
    if told.returncode != 0:
        raise Missing(told.stderr.strip())
    return told.stdout.strip()


def postgres_bin(name: str) -> str:
    """Returns the path of a program of the newest PostgreSQL server ($PG_BINDIR overrides)."""
    override = os.environ.get("PG_BINDIR")
    folders = [Path(override)] if override else sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version)
    for folder in reversed(folders):
        if (folder / name).exists():
            return str(folder / name)
    raise Missing(f"PostgreSQL's {name} is not installed: run `scripts/setup test`")


def _version(folder: Path) -> int:
    return int(folder.parent.name) if folder.parent.name.isdigit() else 0


def pagefold() -> str:
    """Returns the program under test: $PAGEFOLD, or the release build of this repository."""
    path = Path(os.environ.get("PAGEFOLD", ROOT / "target" / "release" / "pagefold")).absolute()
    if not path.exists():
        raise Missing(f"{path} does not exist: run `make build`, or set PAGEFOLD to the program")
    return str(path)
