"""The descriptions of the bugs that are planted in the engine. CI plants two of them, `make mutants` all."""

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
