"""A database sent from one pool into another, with kills on the way. The long campaign is `make streams-db`."""

from __future__ import annotations

import random

import pytest

from lab.streams import campaign


@pytest.mark.long
def test_a_database_arrives_through_kills(run, request):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("streams are Pagefold's own")
    told: list[str] = []
    campaign(run, 3, 6, random.Random(6), tell=told.append)
    assert sum("went on" in line for line in told) >= 3, told
