"""Reads text that every Debian machine has: its package lists and the documentation of installed packages."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ..paths import tool

DOC = Path("/usr/share/doc")
MAX_BYTES = 400_000
"""Longest text in bytes; longer files are cut."""

CREATE = """
CREATE TABLE documents (id bigint PRIMARY KEY, source text NOT NULL, name text NOT NULL, section text, body text NOT NULL);
"""


def packages() -> Iterator[tuple[str, str, str, str]]:
    """Yields (source, name, section, body) of every package that apt knows."""
    argv = [tool("apt-cache"), "dumpavail"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, errors="replace", encoding="utf-8") as apt:
        stanza: list[str] = []
        for line in apt.stdout:
            if line.strip():
                stanza.append(line)
                continue
            if stanza:
                yield _package(stanza)
            stanza = []
        if stanza:
            yield _package(stanza)


def _package(stanza: list[str]) -> tuple[str, str, str, str]:
    fields = dict(s.rstrip("\n").split(": ", 1) for s in stanza if not s.startswith(" ") and ": " in s)
    return "package", fields.get("Package", "?"), fields.get("Section", ""), "".join(stanza)


def documentation() -> Iterator[tuple[str, str, str, str]]:
    """Yields (source, name, section, body) of every readable text below /usr/share/doc."""
    for path in sorted(DOC.rglob("*")):
        if (
            path.is_symlink()
            or not path.is_file()
            or path.suffix in {".png", ".jpg", ".gif", ".pdf", ".ico", ".woff2", ".zip"}
        ):
            continue
        try:
            with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as f:
                data = f.read(MAX_BYTES)
        except (OSError, EOFError):
            continue
        if data and b"\0" not in data:
            yield "documentation", str(path.relative_to(DOC)), path.parts[4], data.decode("utf-8", "replace")


def copy_lines(limit_bytes: int) -> Iterator[bytes]:
    """Yields lines for COPY documents FROM STDIN, until the bodies amount to `limit_bytes`; packages take at most half
    of it."""
    number, total = 0, 0
    for share, texts in ((limit_bytes // 2, packages()), (limit_bytes, documentation())):
        for fields in texts:
            number += 1
            total += len(fields[3])
            yield ("\t".join([str(number), *map(_escape, fields)]) + "\n").encode()
            if total >= share:
                break


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
