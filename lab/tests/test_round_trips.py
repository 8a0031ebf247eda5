"""A slice of the campaign over pages of real databases: `make round-trips`."""

from __future__ import annotations

import pytest

from lab.paths import ROOT
from lab.round_trips import round_trips


@pytest.mark.long
@pytest.mark.parametrize("name", ["postgres", "innodb", "sqlite"])
def test_pages_of_aged_databases_come_back(name, capfd):
    logs = ROOT / "out" / "test-logs" / "round-trips"
    assert round_trips(20_000, sets=[name], scale=0.02, seed=1, seconds=None, keep_logs=logs) == 0
    assert "; 0 mismatches" in capfd.readouterr().out
