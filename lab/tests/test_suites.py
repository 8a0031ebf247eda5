"""The output of suites is understood: an outcome that is not seen would compare nothing."""

from __future__ import annotations

import pytest

from lab import suites
from lab.conformance import KNOWN, differences
from lab.suites import FAILED, PASSED, SKIPPED

PJDFSTEST = """
chmod::errors::enoent                                                   ok
link::link_count_max                                                 skipped
\tCannot get value for LINK_MAX: filesystem limit is unknown
open::interact_2gb                                                      FAILED
\tassertion failed: ok

Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total
"""

PG_REGRESS = """(using postmaster on /tmp/x, default port)
============== running regression test queries        ==============
test tablespace                   ... ok          243 ms
parallel group (3 tests):  char boolean collate.icu.utf8
     collate.icu.utf8             ... ok         4385 ms
     boolean                      ... ok          180 ms
     char                         ... FAILED       61 ms
test stats                        ... failed (ignored)      61 ms

=======================
 2 of 5 tests failed, 1 of these failures ignored.
=======================
"""

MTR = """
TEST                                  WORKER RESULT   TIME (ms) or COMMENT
--------------------------------------------------------------------------
innodb_zip.create_options '16k,innodb'   w1 [ skipped ]  Test requires 'have_innodb_16k'
innodb_zip.create_options '8k,innodb'    w2 [ pass ]    512
innodb_zip.bug36169 'innodb'             [ pass ]     87
innodb_zip.wl6470_1                      [ fail ]
        Test ended at 2026-11-22 08:00:00
innodb_zip.cmp_drop_table                [ disabled ]  MDEV-1
--------------------------------------------------------------------------
Completed: Failed 1/3 tests, 66.67% were successful.
"""


SQLITE = """
io-5.5...
! io-5.5 expected: [8192]
! io-5.5 got:      [16384]
Time: io.test 28 ms
walsetlk-1.0... Ok
Time: walsetlk.test 8 ms
SQLite 2022-12-28 14:03:47 df5c253c0b3dd24916e4ec7cf77d3db5294cc9fd45ae7b9c5e82ad8197f3alt1
1 errors out of 255018 tests on vm Linux 64-bit little-endian
!Failures on these tests: io-5.5
All memory allocations freed - no leaks
"""


def test_pjdfstest_is_understood():
    assert suites.parse_pjdfstest(PJDFSTEST) == {
        "chmod::errors::enoent": PASSED,
        "link::link_count_max": SKIPPED,
        "open::interact_2gb": FAILED,
    }


def test_pg_regress_is_understood():
    outcome = suites.parse_pg_regress(PG_REGRESS)
    assert outcome == {
        "tablespace": PASSED,
        "collate.icu.utf8": PASSED,
        "boolean": PASSED,
        "char": FAILED,
        "stats": FAILED,
    }
    ended = "test boolean    ... ok    18 ms\n\n=====\n All 1 tests passed. \n=====\n"
    assert suites.parse_pg_regress(ended) == {"boolean": PASSED}


def test_mtr_is_understood():
    assert suites.parse_mtr(MTR) == {
        "innodb_zip.create_options '16k,innodb'": SKIPPED,
        "innodb_zip.create_options '8k,innodb'": PASSED,
        "innodb_zip.bug36169 'innodb'": PASSED,
        "innodb_zip.wl6470_1": FAILED,
        "innodb_zip.cmp_drop_table": SKIPPED,
    }


def test_sqlite_is_understood():
    outcome = suites.parse_sqlite(SQLITE)
    assert outcome == {"io.test": PASSED, "walsetlk.test": PASSED, "255018 tests": PASSED, "io-5.5": FAILED}
    # Fewer tests than elsewhere are a difference.
    fewer = suites.parse_sqlite(SQLITE.replace("255018", "255017"))
    assert len(differences("sqlite", outcome, fewer)[1]) == 2


def test_fsx_passes_at_its_end_only():
    assert suites.parse_fsx("All operations completed A-OK!\n", "all") == {"all": PASSED}
    assert suites.parse_fsx("miscompare: offset= 0x1000\n", "all") == {"all": FAILED}


@pytest.mark.parametrize(
    "parse", [suites.parse_pjdfstest, suites.parse_pg_regress, suites.parse_mtr, suites.parse_sqlite]
)
def test_a_suite_that_did_not_come_to_its_end_is_an_error(parse):
    with pytest.raises(RuntimeError, match="did not come to its end"):
        parse("chmod::errors::enoent       ok\ntest boolean   ... ok\ninnodb_zip.bug36169 'innodb'  [ pass ]  87\n")


def test_what_differs_must_be_known():
    there = {"link::link_count_max": PASSED, "chmod::a": PASSED, "chmod::b": SKIPPED, "chmod::c": PASSED}
    here = {"link::link_count_max": SKIPPED, "chmod::a": PASSED, "chmod::b": PASSED}
    explained, unexplained = differences("pjdfstest", there, here)
    assert len(explained) == 1 and "pathconf" in explained[0]
    assert [line.split(": ", 1)[0] for line in unexplained] == ["pjdfstest chmod::b", "pjdfstest chmod::c"]
    # A known difference is known only with that outcome.
    worse = {**here, "link::link_count_max": FAILED}
    assert len(differences("pjdfstest", there, worse)[1]) == 3
    assert all(suite in suites.ALL for suite, _ in KNOWN)
