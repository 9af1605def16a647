"""Which of two networks lies in front of the other, where the population's map decides it.

Three things must hold, or it is undecided and networks keep their numbers.

- The line between the networks' centres runs along the cortex's anterior-posterior axis rather than up or down: within
  45 degrees of it in the sagittal plane. A ventral network is not an anterior one.
- The centres are as far apart, along this axis, as one standard deviation of the region's vertices. Two halves of a
  strip cut across are 1.73 apart, networks that interleave 0.
- Both hold with one and the same network in front in 95 % of the posterior draws of the map.
"""

from dataclasses import dataclass

import numpy as np

DECIDED = 0.95
APART = 1.0


@dataclass(frozen=True)
class Orientation:
    """The network in front (0 or 1), None where that is undecided; share of draws that say so.

    separation: how far in front its centre lies, in mm, mean over draws; negative values do not occur.
    """

    anterior: int | None
    share: float
    separation: float

    def names(self, region: str) -> tuple[str, str] | None:
        """Names of the two networks such as `Broca-anterior`, None where their order is undecided."""
        if self.anterior is None:
            return None
        ends = ("anterior", "posterior") if self.anterior == 0 else ("posterior", "anterior")
        return tuple(f"{region[:1].upper()}{region[1:]}-{end}" for end in ends)

    def to_json(self) -> dict:
        """Plain values."""
        return {"anterior": self.anterior, "share": round(self.share, 4), "separation_mm": round(self.separation, 2)}


def orientation(maps: np.ndarray, coordinates: np.ndarray, areas: np.ndarray) -> Orientation:
    """Decide which network lies in front.

    maps: network probabilities in each draw, shape (draw, vertex, 2); coordinates: of the vertices in mm, x to the
    right, y to the front, z up, shape (vertex, 3); areas: mm2 of each vertex, shape (vertex,). A draw in which a
    network has no vertex decides nothing. Raises ValueError for other than two networks.
    """
    if maps.shape[-1] != 2:
        raise ValueError(f"expected maps of two networks, got {maps.shape[-1]}")
    share = areas / areas.sum()
    y, z = coordinates[:, 1], coordinates[:, 2]
    spread = np.sqrt(share @ (y - share @ y) ** 2)
    first = maps.argmax(-1) == 0  # (draw, vertex)
    weight = np.stack([first, ~first], 1) * areas  # (draw, network, vertex)
    total = weight.sum(-1)
    valid = (total > 0).all(-1)
    centre = np.divide(weight @ np.stack([y, z], 1), total[..., None], where=valid[:, None, None],
                       out=np.zeros((*total.shape, 2)))  # fmt: skip
    ahead, above = (centre[:, 0] - centre[:, 1]).T
    clear = valid & (np.abs(ahead) >= APART * spread) & (np.abs(ahead) > np.abs(above))
    votes = [float(np.mean(clear & (ahead > 0))), float(np.mean(clear & (ahead < 0)))]
    front = int(np.argmax(votes))
    decided = votes[front] >= DECIDED
    return Orientation(front if decided else None, votes[front], abs(float(ahead.mean())))
