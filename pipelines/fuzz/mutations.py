"""Damage of files as disks, transfers and hostile hands do it: bits, numbers, lengths and blocks, mostly in headers."""

import re
import struct
from collections.abc import Callable, Sequence

import numpy as np

NEAR = 1500  # bytes at the start of a file that decide most
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
# Numbers at which something ends: of signed and unsigned integers, of what fits into memory, and of counting.
EDGES = (
    0,
    1,
    -1,
    2,
    7,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    65536,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**40,
    2**63 - 1,
)
WORDS = (b"nan", b"inf", b"-1", b"1e400", b"", b"0x10", b"\xff\xfe", b"None", b"&lt;", b"99999999999999999999", b"\0")

Change = Callable[[bytearray, int, np.random.Generator], None]


def mutated(content: bytes, others: Sequence[bytes], generator: np.random.Generator) -> bytes:
    """The content after one change, or after more, ever less often; others: contents of which a piece may be put in."""
    raw = bytearray(content)
    for _ in range(int(generator.geometric(0.6))):
        if not raw:
            break
        place = _place(len(raw), generator)
        kind = int(generator.integers(len(CHANGES) + 1))
        if kind < len(CHANGES):
            CHANGES[kind](raw, place, generator)
        else:
            _splice(raw, place, others[int(generator.integers(len(others)))], generator)
    return bytes(raw)


def _place(length: int, generator: np.random.Generator) -> int:
    chance = generator.random()
    if chance < 0.6:
        return int(generator.integers(min(length, NEAR)))
    return length - 1 - int(generator.integers(min(length, 200))) if chance < 0.7 else int(generator.integers(length))


def _size(generator: np.random.Generator) -> int:
    """A length of a block, small more often than large."""
    return int(2 ** generator.uniform(0, 12))


def _flip(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    raw[place] ^= 1 << int(generator.integers(8))


def _byte(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    raw[place] = int(generator.choice([0, 1, 0x7F, 0x80, 0xFF, int(generator.integers(256))]))


def _integer(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    """An edge, in 2, 4 or 8 bytes, at a place where such a number may lie, in either byte order."""
    size, code = ((2, "h"), (4, "i"), (8, "q"))[int(generator.integers(3))]
    value = EDGES[int(generator.integers(len(EDGES)))] % 2 ** (8 * size)
    place -= place % size
    if place + size <= len(raw):
        raw[place : place + size] = struct.pack("<>"[int(generator.integers(2))] + code.upper(), value)


def _real(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    """A real number that is none, or too large, in 4 or 8 bytes."""
    size, code = ((4, "f"), (8, "d"))[int(generator.integers(2))]
    value = float(generator.choice([np.nan, np.inf, -np.inf, 0.0, -1.0, 3e38, 1e-40]))
    place -= place % 4
    if place + size <= len(raw):
        raw[place : place + size] = struct.pack("<>"[int(generator.integers(2))] + code, value)


def _text_number(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    """The next number that is written as text, replaced by an edge or by a word."""
    found = NUMBER.search(raw, place, place + 4096)
    if found:
        edge = b"%d" % EDGES[int(generator.integers(len(EDGES)))]
        raw[found.start() : found.end()] = (
            edge if generator.random() < 0.7 else WORDS[int(generator.integers(len(WORDS)))]
        )


def _cut_off(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    del raw[place:]


def _cut_out(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    del raw[place : place + _size(generator)]


def _double(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    raw[place:place] = raw[place : place + _size(generator)]


def _blank(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    size = min(_size(generator), len(raw) - place)
    raw[place : place + size] = bytes([int(generator.choice([0, 32, 255]))]) * size


def _noise(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    size = min(_size(generator), len(raw) - place)
    raw[place : place + size] = generator.bytes(size)


def _tag(raw: bytearray, place: int, generator: np.random.Generator) -> None:
    """The next element of an XML text, or line of a table, taken out."""
    start = raw.find(b"<", place, place + 8192)
    stop = raw.find(b">", start, start + 8192) if start >= 0 else raw.find(b"\n", place, place + 8192)
    if stop >= 0:
        del raw[max(start, place) : stop + 1]


def _splice(raw: bytearray, place: int, other: bytes, generator: np.random.Generator) -> None:
    if other:
        start = int(generator.integers(len(other)))
        piece = other[start : start + _size(generator)]
        raw[place : place + len(piece) * int(generator.integers(2))] = piece


CHANGES: tuple[Change, ...] = (
    _flip, _byte, _integer, _integer, _real, _text_number, _text_number, _cut_off, _cut_out, _double, _blank, _noise,
    _tag,
)  # fmt: skip
