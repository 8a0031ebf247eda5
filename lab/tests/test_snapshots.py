"""Snapshots of real databases under load: every clone recovers and is whole. The long campaign is `make snapshots`."""

from __future__ import annotations

import random

import pytest

from lab.snapshots import campaign


@pytest.mark.parametrize(("product", "rounds"), [("postgresql", 4), ("mariadb", 2)])
def test_every_clone_of_a_running_database_recovers(run, request, product, rounds):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("snapshots are Pagefold's own")
    campaign(run, product, rounds, random.Random(rounds))
