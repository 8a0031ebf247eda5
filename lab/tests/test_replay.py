"""A slice of `make crash-states`: real databases recover states that a crash may have left on a recorded device."""

from __future__ import annotations

import pytest

from lab.paths import ROOT
from lab.replay import replay


@pytest.mark.long
@pytest.mark.parametrize("database, fsync", [("postgres", True), ("mariadb", True), ("postgres", False)])
def test_crash_states_are_recovered(database, fsync):
    logs = ROOT / "out" / "test-logs" / f"test_replay-{database}{'' if fsync else '-unsafe'}"
    assert replay(database, 6, seed=None, fsync=fsync, keep_logs=logs) == 0
