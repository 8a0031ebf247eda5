"""Reads recordings of `mount -o record=FILE`, and makes images that a crash at any of their moments may have left.

crates/engine/src/device/recorded.rs describes the form of a recording. A write is durable once a flush that began after
the write's end has ended, or at its own end if it was asked to be durable. Of every other write that has begun, a crash
may keep any sectors.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = b"PFREC\0\0\x01"
HEAD = struct.Struct("<BBHIQQQQ")
WRITE, WRITTEN, FLUSH, FLUSHED, DISCARD = range(1, 6)
SECTOR_BYTES, BLOCK_BYTES = 512, 4096

KINDS = ("prefix", "flushed", "sectors", "blocks", "torn")
"""Kinds of states, by what is kept of writes that were not flushed: all, nothing, any sectors, any blocks, or all but a
part of the last."""


@dataclass(frozen=True)
class Event:
    """One event; `at` is the position of a write's bytes in the recording."""

    kind: int
    durable: bool
    device: int
    call: int
    time_ns: int
    offset: int
    length: int
    at: int


@dataclass
class Open:
    """Writes that have begun and are not durable at some moment, in order, and flushes that have begun, with the writes
    that they cover."""

    writes: dict[int, Event] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    flushes: dict[int, list[int]] = field(default_factory=dict)

    def step(self, event: Event) -> list[Event]:
        """Applies an event; returns the writes that it makes durable, in the order in which they began."""
        match event.kind:
            case 1:  # WRITE
                self.writes[event.call] = event
            case 2:  # WRITTEN
                self.ended.add(event.call)
                if event.durable:
                    return self._settle([event.call])
            case 3:  # FLUSH
                covered = [call for call in self.writes if call in self.ended and self.writes[call].device == event.device]
                self.flushes[event.call] = covered
            case 4:  # FLUSHED
                return self._settle(self.flushes.pop(event.call))
            case 5:  # DISCARD
                self.writes[event.call] = event
                self.ended.add(event.call)
            case other:
                raise ValueError(f"an event of kind {other}")
        return []

    def _settle(self, calls: Iterable[int]) -> list[Event]:
        done = [self.writes.pop(call) for call in calls if call in self.writes]
        self.ended.difference_update(event.call for event in done)
        return done


class Recording:
    """A recording. If it breaks off within an event, since its writer was killed, it ends before that event."""

    def __init__(self, path: Path):
        self._file = open(path, "rb")
        self._bytes = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._bytes[:8] != MAGIC:
            raise ValueError(f"{path} is no recording")
        (count,) = struct.unpack_from("<Q", self._bytes, 8)
        self.sizes = struct.unpack_from(f"<{count}Q", self._bytes, 16)
        self.events = list(self._read(16 + 8 * count))

    def _read(self, at: int) -> Iterator[Event]:
        while at + HEAD.size <= len(self._bytes):
            kind, durable, device, _, call, time_ns, offset, length = HEAD.unpack_from(self._bytes, at)
            at += HEAD.size
            event = Event(kind, bool(durable), device, call, time_ns, offset, length, at)
            if kind == WRITE:
                at += length
                if at > len(self._bytes):
                    return
            yield event

    def data(self, event: Event) -> bytes:
        """Returns the bytes of a write, or zeros for a discard."""
        return self._bytes[event.at : event.at + event.length] if event.kind == WRITE else bytes(event.length)

    def close(self) -> None:
        """Closes the file."""
        self._bytes.close()
        self._file.close()


class States:
    """Makes images of crash states of a recording of a pool on one device. `base` is the device before the recording;
    it is changed."""

    def __init__(self, recording: Recording, base: Path):
        if len(recording.sizes) != 1:
            raise ValueError("recordings of one device only")
        self.recording, self.base = recording, base
        self._position = 0
        self._open = Open()

    def advance(self, position: int) -> None:
        """Goes on to the moment after `position` events; never back."""
        if position < self._position:
            raise ValueError("moments are made in their order")
        with open(self.base, "r+b", buffering=0) as image:
            for event in self.recording.events[self._position : position]:
                for write in self._open.step(event):
                    _store(image, write.offset, self.recording.data(write))
        self._position = position

    @property
    def unflushed(self) -> int:
        """Returns the number of writes that are not durable at this moment."""
        return len(self._open.writes)

    def make(self, target: Path, kind: str, draw: random.Random) -> None:
        """Makes a state at this moment, as a new file at `target`."""
        copy_sparse(self.base, target)
        writes = list(self._open.writes.values())
        # A write may be kept or lost as a whole; of the others, any pieces may be kept.
        share = draw.choice((0.1, 0.5, 0.9))
        with open(target, "r+b", buffering=0) as image:
            for number, write in enumerate(writes):
                data = self.recording.data(write)
                last = number == len(writes) - 1
                for start, end in kept(kind, len(data), share, last, draw):
                    _store(image, write.offset + start, data[start:end])


def kept(kind: str, length: int, share: float, last: bool, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Yields the pieces of an unflushed write of `length` bytes that a crash has kept, as beginning and end."""
    match kind:
        case "prefix":
            yield 0, length
        case "flushed":
            return
        case "torn" if not last:
            yield 0, length
        case "torn":
            cut = draw.randrange(length // SECTOR_BYTES + 1) * SECTOR_BYTES
            yield (0, cut) if draw.random() < 0.7 else (cut, length)
        case "sectors" | "blocks":
            unit = SECTOR_BYTES if kind == "sectors" else BLOCK_BYTES
            if draw.random() < 0.3:
                if draw.random() < 0.5:
                    yield 0, length
                return
            for start in range(0, length, unit):
                if draw.random() < share:
                    yield start, min(start + unit, length)
        case other:
            raise ValueError(f"there is no kind of state '{other}'")


def _store(image, offset: int, data: bytes) -> None:
    while data:
        done = os.pwrite(image.fileno(), data, offset)
        offset, data = offset + done, data[done:]


def copy_sparse(source: Path, target: Path) -> None:
    """Makes a copy with the same holes, as a new file."""
    target.unlink(missing_ok=True)
    with open(source, "rb", buffering=0) as reading, open(target, "xb", buffering=0) as writing:
        size = os.fstat(reading.fileno()).st_size
        writing.truncate(size)
        at = 0
        while at < size:
            try:
                start = os.lseek(reading.fileno(), at, os.SEEK_DATA)
            except OSError:  # nothing but a hole up to the end
                return
            at = os.lseek(reading.fileno(), start, os.SEEK_HOLE)
            while start < at:
                piece = os.pread(reading.fileno(), min(at - start, 4 << 20), start)
                _store(writing, start, piece)
                start += len(piece)
