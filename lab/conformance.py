"""`lab conformance`: runs public test suites on a pool and on ext4, in the same run. Every difference must be known,
and have a reason."""

from __future__ import annotations

from pathlib import Path

from . import suites
from .ledger import Run
from .paths import require_room
from .storage import place
from .suites import FAILED, PASSED, SKIPPED, Options, Outcome
from .ui import Steps, table

PLACE_BYTES = 4 << 30

KNOWN = {
    ("pjdfstest", "link::link_count_max"): (
        (PASSED, SKIPPED),
        "glibc's pathconf knows how many links ext4 allows; of file systems that it does not know it says 127, for unknown",
    ),
}
"""Known differences by suite and test: the outcomes on ext4 and here, and the reason why that is right."""


def differences(suite: str, there: Outcome, here: Outcome) -> tuple[list[str], list[str]]:
    """Returns the differences from ext4: those with a reason, and those without. A test that is absent on one side
    counts as another outcome."""
    explained, unexplained = [], []
    for test in sorted(there.keys() | here.keys()):
        both = there.get(test, "absent"), here.get(test, "absent")
        if both[0] == both[1]:
            continue
        known, why = KNOWN.get((suite, test), (None, ""))
        line = f"{suite} {test}: {both[0]} on ext4, {both[1]} here"
        if known == both:
            explained.append(f"{line}: {why}")
        else:
            unexplained.append(line)
    return explained, unexplained


def counts(outcome: Outcome) -> list[str]:
    """Returns the counts of a row of the table."""
    return [str(sum(became == word for became in outcome.values())) for word in (PASSED, SKIPPED, FAILED)]


def conformance(chosen: list[str], options: Options, *, keep_logs: Path) -> int:
    """Runs suites on ext4 and on pools, and prints the outcomes of their tests; returns an exit status."""
    require_room(2 * PLACE_BYTES)
    rows: list[list[str] | None] = []
    explained: list[str] = []
    unexplained: list[str] = []
    steps = Steps()
    print(f"conformance: logs in {keep_logs}", flush=True)
    with Run("conformance", keep_logs=keep_logs) as run:
        for name in chosen:
            suite = suites.ALL[name]
            outcomes: dict[str, Outcome] = {}
            for spec in ["ext4", *(f"pagefold:{compression}" for compression in suite.compressions)]:
                with steps.step(f"{name} on {spec}") as step, place(run, spec, PLACE_BYTES) as where:
                    outcomes[spec] = suite.run(run, where, options)
                    step.note("{} passed, {} skipped, {} failed".format(*counts(outcomes[spec])))
                    where.unmount()
                    where.check()
            there = outcomes["ext4"]
            rows += [[f"{name} on {spec}", *counts(outcome)] for spec, outcome in outcomes.items()]
            for spec, here in outcomes.items():
                known, new = differences(name, there, here)
                explained += [f"{spec}: {line}" for line in known]
                unexplained += [f"{spec}: {line}" for line in new]
            # A test that fails everywhere shows a fault of the laboratory, not of a file system, and compares nothing.
            unexplained += [f"{name} {test}: failed on ext4 too" for test, became in there.items() if became == FAILED]
    print("\n" + table(["suite", PASSED, SKIPPED, FAILED], rows) + "\n")
    for line in explained:
        print(f"  known: {line}")
    for line in unexplained:
        print(f"  UNEXPLAINED: {line}")
    print(f"conformance: {len(unexplained)} unexplained, {len(explained)} known differences")
    return 1 if unexplained else 0
