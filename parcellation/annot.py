"""FreeSurfer's `.annot` files: which entry of a colour table each vertex of a hemisphere has.

All numbers are big-endian int32. n; n pairs (vertex, colour as R + 256 G + 65536 B); 1 where a table follows. The table
in the old form: entries; length and name of its source; of each entry length and name, R, G, B, T. In the new form: -2;
largest index + 1; length and name of its source; entries; of each entry its index, length and name, R, G, B, T. So an
entry's key is its index, which may have gaps, and not its place. Source: FreeSurfer's matlab/read_annotation.m.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parcellation.errors import BadData

ABSENT = -1  # key of a vertex without a colour, or with one that is not in the table


@dataclass
class _Words:
    """Bytes that are read from the start to the end."""

    path: Path
    raw: bytes
    place: int = 0

    def take(self, count: int) -> bytes:
        """The next bytes; raises BadData when there are fewer."""
        if not 0 <= count <= len(self.raw) - self.place:
            where = f"ends, or is damaged, at byte {self.place} of {len(self.raw)}"
            raise BadData(f"{self.path}: cannot be read as a label file: {where}; copy it again")
        self.place += count
        return self.raw[self.place - count : self.place]

    def integers(self, count: int) -> np.ndarray:
        """The next int32 numbers, as int64."""
        return np.frombuffer(self.take(4 * count), ">i4").astype(np.int64)

    def integer(self) -> int:
        """The next int32 number."""
        return int(self.integers(1)[0])

    def text(self) -> str:
        """The next text, which its length comes before, up to the first zero byte."""
        return self.take(self.integer()).split(b"\0")[0].decode("utf-8", "replace")


def read_annot(path: Path) -> tuple[np.ndarray, dict[int, str]]:
    """Keys of a hemisphere's vertices, int64, shape (vertex,), ABSENT for none, and the name of each key.

    Of equal colours the first entry counts. Raises BadData for a file without a table, and one that is damaged.
    """
    words = _Words(path, Path(path).read_bytes())
    count = words.integer()
    pairs = words.integers(2 * count).reshape(count, 2)
    if count < 1 or len(np.unique(pairs[:, 0])) < count or pairs[:, 0].min() != 0 or pairs[:, 0].max() != count - 1:
        raise BadData(f"{path}: expected the colour of every vertex once, as an .annot has; copy it again")
    colours = np.empty(count, np.int64)
    colours[pairs[:, 0]] = pairs[:, 1]
    if not words.integer():
        raise BadData(f"{path}: has no table of its labels; make it anew with one")
    names, of_colour = _table(words)
    known = np.array(sorted(of_colour), np.int64)
    place = np.minimum(np.searchsorted(known, colours), len(known) - 1)
    keys = np.array([of_colour[colour] for colour in known.tolist()])[place]
    return np.where((known[place] == colours) & (colours != 0), keys, ABSENT), names


def _table(words: _Words) -> tuple[dict[int, str], dict[int, int]]:
    """The name of each key, and the key of each colour."""
    form = words.integer()
    if form <= 0 and form != -2:
        raise BadData(f"{words.path}: expected a table of labels of form 1 or 2, got {-form}")
    if form == -2:
        words.integer()
    words.text()
    entries = form if form > 0 else words.integer()
    names: dict[int, str] = {}
    of_colour: dict[int, int] = {}
    for place in range(entries):
        key = place if form > 0 else words.integer()
        name = words.text()
        red, green, blue, _ = words.integers(4).tolist()
        if key < 0 or key in names:
            raise BadData(f"{words.path}: expected an index of its own for each label, got {key} for {name!r}")
        names[key] = name
        of_colour.setdefault(red + (green << 8) + (blue << 16), key)
    if not names:
        raise BadData(f"{words.path}: its table has no labels")
    return names, of_colour
