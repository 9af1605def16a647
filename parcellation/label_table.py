"""Names and colours of networks: the one label table that all files of a study share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parcellation.colours import network_colours
from parcellation.errors import BadData

UNLABELLED = "???"


@dataclass(frozen=True, eq=False)
class Networks:
    """Names and colours of the networks, in the order of their keys 1..K.

    names: unique printable ASCII, since Workbench drops other letters and merges
    two labels of one name without a word; colours: uint8, shape
    (network, 3). Raises BadData on a name that a label table, a TSV or a file could not give back.
    """

    names: tuple[str, ...]
    colours: np.ndarray

    def __post_init__(self):
        doubled = sorted({name for name in self.names if self.names.count(name) > 1})
        unusable = [
            n for n in self.names if not n or n != n.strip() or n == UNLABELLED or not (n.isascii() and n.isprintable())
        ]
        if doubled or unusable:
            raise BadData(f"network names: expected unique printable names in ASCII, got {doubled or unusable}")
        if np.shape(self.colours) != (len(self.names), 3):
            shape = np.shape(self.colours)
            raise BadData(f"network colours: expected shape ({len(self.names)}, 3), got {shape}")

    def __len__(self) -> int:
        return len(self.names)

    def table(self) -> dict[int, tuple[str, tuple[float, ...]]]:
        """The label table: key -> (name, red green blue alpha in 0..1), key 0 transparent."""
        rows = zip(self.names, np.asarray(self.colours, float) / 255, strict=True)
        table = {0: (UNLABELLED, (0.0, 0.0, 0.0, 0.0))}
        return table | {key: (name, (*colour.tolist(), 1.0)) for key, (name, colour) in enumerate(rows, 1)}


def named_networks(
    count: int, names: Sequence[str] | None = None, colours: Sequence[Sequence[int]] | None = None
) -> Networks:
    """Networks with the standard colours, if no others; without names they are `network-01`, `network-02`, ..."""
    width = max(2, len(str(count)))
    names = tuple(names) if names else tuple(f"network-{k:0{width}d}" for k in range(1, count + 1))
    if len(names) != count:
        raise BadData(f"network names: expected {count}, got {len(names)}: {', '.join(names)}")
    return Networks(names, network_colours(count) if colours is None else np.array(colours, np.uint8))
