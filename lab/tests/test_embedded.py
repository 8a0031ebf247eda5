"""Databases that are libraries: LMDB, LevelDB, RocksDB, DuckDB. The long campaign is `make embedded`."""

from __future__ import annotations

import random

import pytest

from lab.embedded import campaign
from lab.paths import Missing, tool_program


@pytest.mark.long
def test_embedded_databases_lose_nothing_and_notice_nothing(run, request):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("Pagefold's own")
    try:
        tool_program("embedded")
    except Missing as missing:
        pytest.skip(str(missing))
    campaign(run, 2, random.Random(5))
