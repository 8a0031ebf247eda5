"""Old and full pools: as much as is available is accepted, and nothing wedges a pool. `lab aged` has larger ones."""

from __future__ import annotations

import pytest

from lab.aged import MIB, SMALL_BYTES, bulk, hot_and_cold, pool_of


@pytest.mark.parametrize("fill", [0.7, 0.95])
def test_a_bulk_write_onto_an_aged_pool_gets_all_that_is_available(run, fill):
    with pool_of(run, 512 * MIB, "off", None) as pool:
        bulk(pool, fill, 1, 3, 1024)


@pytest.mark.long
def test_a_hot_file_beside_a_cold_one_wedges_nothing(run):
    with pool_of(run, SMALL_BYTES, "zstd", None) as pool:
        hot_and_cold(pool, 600, 1)
