"""Prints what a person watches: one line per step with its time, a spinner while it runs, tables, sizes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
WIDTH = 66


def size(count: float) -> str:
    """Returns bytes in binary units with three digits: 1.21 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000 or unit == "GiB":
            return (
                f"{count:.0f} {unit}"
                if unit == "B"
                else f"{count:.3g} {unit}"
                if abs(count) < 100
                else f"{count:.0f} {unit}"
            )
        count /= 1024
    raise AssertionError("unreachable: the loop returns at GiB")


class Step:
    """A running step, and the words that it adds to its line."""

    def __init__(self) -> None:
        self.share: float | None = None
        self.words = ""

    def progress(self, share: float) -> None:
        """Sets the share of the step that is done, 0 to 1."""
        self.share = min(1.0, share)

    def note(self, words: str) -> None:
        """Sets a result, which is shown below the step's line."""
        self.words = words


class Steps:
    """Prints steps; animated on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.animated = sys.stdout.isatty()
        self.began = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Runs a step: its line is completed with the time taken, or with FAILED if the body raises."""
        step, began, over = Step(), time.monotonic(), threading.Event()
        spinner = threading.Thread(target=self._spin, args=(title, step, began, over), daemon=True)
        if self.animated:
            spinner.start()
        mark = "✗"
        try:
            yield step
            mark = "✓"
        finally:
            over.set()
            if self.animated:
                spinner.join()
                sys.stdout.write("\r\x1b[K")
            taken = time.monotonic() - began
            print(f"  {mark} {title:<{WIDTH}} {taken:6.1f} s" + ("" if mark == "✓" else "  FAILED"), flush=True)
            if step.words:
                print(f"      {step.words}", flush=True)

    def _spin(self, title: str, step: Step, began: float, over: threading.Event) -> None:
        number = 0
        while not over.wait(0.1):
            share = "" if step.share is None else f" {step.share:4.0%}"
            taken = time.monotonic() - began
            sys.stdout.write(f"\r\x1b[K  {FRAMES[number % len(FRAMES)]} {title:<{WIDTH}} {taken:6.1f} s{share}")
            sys.stdout.flush()
            number += 1


def table(head: Sequence[str], rows: Sequence[Sequence[str] | None], *, indent: str = "  ") -> str:
    """Returns a table as text, with the first column aligned left and the others right; a row None is a rule."""
    cells = [head, *(r for r in rows if r is not None)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return indent + "  ".join([first, *rest])

    rule = indent + "─" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([line(head), rule, *(rule if row is None else line(row) for row in rows)])
