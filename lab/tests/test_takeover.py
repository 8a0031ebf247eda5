"""A server that is killed under load, unnoticed. The long campaign is `make takeover`."""

from __future__ import annotations

import random

import pytest

from lab.takeover import campaign


@pytest.mark.long
def test_no_client_notices_that_the_server_dies(run, request):
    if not request.config.getoption("--on").startswith("pagefold"):
        pytest.skip("Pagefold's own")
    campaign(run, 3, random.Random(3))
