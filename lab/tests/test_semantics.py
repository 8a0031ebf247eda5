"""The examples of docs/SEMANTICS.md, run on a mount: each must print what the document says."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass

import pytest

from lab.paths import ROOT, pagefold
from lab.pool import Pool

DOCUMENT = ROOT / "docs" / "SEMANTICS.md"
POOL_BYTES = 1 << 30


@dataclass
class Step:
    """One command of an example and the lines that it prints."""

    command: str
    output: list[str]


def examples(text: str) -> list[tuple[int, list[Step]]]:
    """Returns the console blocks of a document: line number, and the commands with their outputs."""
    found = []
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        steps: list[Step] = []
        for line in block[1].splitlines():
            if line.startswith("$ "):
                steps.append(Step(line[2:], []))
            else:
                steps[-1].output.append(line)
        found.append((text.count("\n", 0, block.start()) + 1, steps))
    return found


EXAMPLES = examples(DOCUMENT.read_text())


@pytest.fixture(scope="module")
def pool(run):
    """Provides a pool of its own, which is checked at the end."""
    with Pool(run, POOL_BYTES) as pool:
        yield pool
        pool.unmount()
        pool.check()


def shell(pool: Pool, command: str) -> list[str]:
    """Runs a command by bash in the mount, and returns the lines that it prints."""
    path = f"{os.path.dirname(pagefold())}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=pool.mountpoint,
        env={**os.environ, **pool.environment, "PATH": path, "POOL": pool.pool, "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    # On a busy machine, a command may print that it waits.
    return [line for line in done.stdout.splitlines() if not line.startswith("pagefold: waiting")]


@pytest.mark.parametrize(
    ("line", "steps"), EXAMPLES, ids=lambda value: f"line{value}" if isinstance(value, int) else ""
)
def test_example(pool, line, steps):
    for step in steps:
        if step.command == "crash":
            pool.crash()
            pool.recover()
        else:
            assert shell(pool, step.command) == step.output, f"{DOCUMENT.name}:{line}: {step.command}"


def test_the_document_has_examples():
    steps = [step for _, block in EXAMPLES for step in block]
    assert len(EXAMPLES) > 10 and sum(step.command == "crash" for step in steps) >= 4
    assert all(any(step.output for step in block) for _, block in EXAMPLES), "an example shows nothing"
