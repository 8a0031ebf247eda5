"""Crash states are legal ones: they have everything that was flushed, and of the rest as much as the kind of state
says."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from lab.recording import DISCARD, FLUSH, FLUSHED, HEAD, KINDS, MAGIC, WRITE, WRITTEN, Recording, States

SIZE = 64 << 10


def recording(path: Path, *events: tuple[int, int, int, bytes]) -> Recording:
    """Writes a recording of events, each (kind, call, offset, data), and reads it."""
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<QQ", 1, SIZE))
        for number, (kind, call, offset, data) in enumerate(events):
            durable = kind in (WRITE, WRITTEN) and call >= 100
            f.write(HEAD.pack(kind, durable, 0, 0, call, 1000 + number, offset, len(data)))
            f.write(data if kind == WRITE else b"")
    return Recording(path)


def states(tmp_path: Path, *events) -> States:
    base = tmp_path / "base"
    base.write_bytes(b"." * SIZE)
    return States(recording(tmp_path / "recording", *events), base)


def made(states: States, tmp_path: Path, kind: str, seed: int = 1) -> bytes:
    states.make(tmp_path / "image", kind, random.Random(seed))
    return (tmp_path / "image").read_bytes()


A, B, C = b"a" * 4096, b"b" * 8192, b"c" * 4096


def test_what_was_flushed_is_in_every_state(tmp_path):
    s = states(tmp_path, (WRITE, 1, 0, A), (WRITTEN, 1, 0, A), (FLUSH, 2, 0, b""), (FLUSHED, 2, 0, b""), (WRITE, 3, 8192, B))
    s.advance(5)
    assert s.unflushed == 1
    for kind in KINDS:
        for seed in range(5):
            image = made(s, tmp_path, kind, seed)
            assert image[:8192] == A + b"." * 4096 and image[16384:] == b"." * (SIZE - 16384)
            assert set(image[8192:16384]) <= set(b".b")


def test_a_flush_covers_only_what_had_ended_when_it_began(tmp_path):
    s = states(tmp_path, (WRITE, 1, 0, A), (FLUSH, 2, 0, b""), (WRITTEN, 1, 0, A), (FLUSHED, 2, 0, b""))
    s.advance(4)
    assert made(s, tmp_path, "flushed") == b"." * SIZE
    assert made(s, tmp_path, "prefix")[:4096] == A


def test_a_flush_that_has_not_ended_covers_nothing(tmp_path):
    s = states(tmp_path, (WRITE, 1, 0, A), (WRITTEN, 1, 0, A), (FLUSH, 2, 0, b""), (FLUSHED, 2, 0, b""))
    s.advance(3)
    assert made(s, tmp_path, "flushed") == b"." * SIZE
    s.advance(4)
    assert made(s, tmp_path, "flushed")[:4096] == A


def test_a_durable_write_is_durable_at_its_end_and_covers_nothing_else(tmp_path):
    s = states(tmp_path, (WRITE, 1, 0, A), (WRITTEN, 1, 0, A), (WRITE, 100, 8192, C), (WRITTEN, 100, 8192, C))
    s.advance(3)
    assert made(s, tmp_path, "flushed") == b"." * SIZE
    s.advance(4)
    assert made(s, tmp_path, "flushed") == b"." * 8192 + C + b"." * (SIZE - 12288)


def test_torn_keeps_all_but_a_part_of_the_last_write(tmp_path):
    s = states(tmp_path, (WRITE, 1, 0, A), (WRITE, 2, 8192, B))
    s.advance(2)
    cuts = set()
    for seed in range(40):
        image = made(s, tmp_path, "torn", seed)
        assert image[:4096] == A
        cuts.add(image[8192:16384].count(b"b"))
    assert all(cut % 512 == 0 for cut in cuts) and len(cuts) > 5


@pytest.mark.parametrize("kind, unit", [("sectors", 512), ("blocks", 4096)])
def test_any_pieces_of_what_was_not_flushed(tmp_path, kind, unit):
    s = states(tmp_path, (WRITE, 1, 0, A), (WRITE, 2, 8192, B), (WRITE, 3, 0, C))
    s.advance(3)
    seen = set()
    for seed in range(60):
        image = made(s, tmp_path, kind, seed)
        pieces = [image[at : at + unit] for at in range(0, SIZE, unit)]
        assert all(len(set(piece)) == 1 for piece in pieces), "a piece is torn"
        seen.add(image)
    assert len(seen) > (20 if unit == 512 else 4)


def test_what_was_discarded_may_be_gone_or_not(tmp_path):
    s = states(tmp_path, (DISCARD, 1, 4096, C))
    s.advance(1)
    assert made(s, tmp_path, "prefix")[4096:8192] == bytes(4096)
    assert made(s, tmp_path, "flushed") == b"." * SIZE


def test_a_recording_that_ends_within_an_event_ends_before_it(tmp_path):
    whole = recording(tmp_path / "recording", (WRITE, 1, 0, A), (WRITTEN, 1, 0, A), (WRITE, 2, 0, B))
    data = (tmp_path / "recording").read_bytes()
    assert len(whole.events) == 3
    for length in (len(data) - 1, len(data) - len(B) - 1):
        (tmp_path / "cut").write_bytes(data[:length])
        assert Recording(tmp_path / "cut").events == whole.events[:2]
