"""Bugs planted in the engine are found by the simulator; `make mutants` plants them all."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def mutants(*arguments: str) -> str:
    command = [sys.executable, "-B", ROOT / "scripts/mutants", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_descriptions_of_planted_bugs_fit_the_sources():
    assert "planted bugs fit the sources" in mutants("--check")


def test_a_forgotten_flush_and_a_batch_checksum_not_compared_are_found():
    found = mutants("--only", "01-flush-forgotten", "--only", "03-batch-checksum")
    assert "2 of 2 planted bugs found" in found
