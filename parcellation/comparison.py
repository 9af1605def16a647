"""Overlap of the networks of two maps of one region, beside that of random cuts of it.

Both maps give every vertex a probability of each part: a result its networks', an atlas 1 for a vertex's area. The Dice
coefficient is that of the label maps. The weighted one needs no threshold, and is the Dice coefficient where
probabilities are 0 or 1 (the similarity of Czekanowski, between fuzzy sets):

    2 sum_v min(p_v, q_v) / (sum_v p_v + sum_v q_v)

Random geodesic cuts are those of `anatomy`: into parts of the first map's sizes, each cut in its own best assignment to
the second map's parts, so that chance has every advantage that the maps themselves had.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas

from parcellation.anatomy import SIGNIFICANT, best_match, random_cuts

MEAN = "mean"
COLUMNS = {
    "participant_id": "Subject, or `population`",
    "network": "Network of the first map; `mean` over the networks that have a partner",
    "other": "The network or area that it is compared with",
    "dice": "Dice coefficient of the label maps",
    "weighted_dice": "The same of the probabilities",
    "chance": "Mean Dice coefficient of random geodesic cuts into parts of the first map's sizes",
    "chance_95": "Its 95 % level",
    "p": "Share of random cuts that agree as well or better, the map itself counted as one of them",
    "others_dice": "Mean Dice coefficient with the maps of the other subjects of the second result",
}


@dataclass(frozen=True, eq=False)
class Parts:
    """A map of a region: names of its parts, and their probabilities, shape (vertex, part), 0 outside all of them."""

    names: tuple[str, ...]
    probability: np.ndarray

    @property
    def label(self) -> np.ndarray:
        """Most probable part of each vertex, shape (vertex,); -1 for none."""
        label = self.probability.argmax(1)
        label[self.probability.max(1) <= 0] = -1
        return label


def member(label: np.ndarray, parts: int) -> np.ndarray:
    """Whether each vertex is in each part, float32, shape (..., vertex, part)."""
    return (label[..., None] == np.arange(parts)).astype(np.float32)


def dice_table(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Dice coefficients of memberships (..., vertex, K) and (vertex, L), shape (..., K, L); 0 for two empty parts."""
    common = np.swapaxes(first, -1, -2) @ second
    total = first.sum(-2)[..., None] + second.sum(0)
    return np.divide(2 * common, total, out=np.zeros_like(common), where=total > 0)


def weighted_dice(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The weighted coefficient of each pair of columns, both of shape (vertex, pair); 0 for two empty ones."""
    total = first.sum(0) + second.sum(0)
    return np.divide(2 * np.minimum(first, second).sum(0), total, out=np.zeros(len(total)), where=total > 0)


def partners(first: Parts, second: Parts, by_name: bool) -> list[tuple[int, int]]:
    """Pairs of parts to compare: of one name, or of the assignment with the largest sum of Dice coefficients."""
    if by_name:
        return [(k, second.names.index(name)) for k, name in enumerate(first.names) if name in second.names]
    table = dice_table(member(first.label, len(first.names)), member(second.label, len(second.names)))
    rows, columns, _ = best_match(table)
    return [(int(k), int(other)) for k, other in zip(rows, columns, strict=True)]


def compare(
    who: str, first: Parts, second: Parts, pairs: Sequence[tuple[int, int]], distance: np.ndarray | None, cuts: int
) -> pandas.DataFrame:
    """Overlaps of two maps: a row for each pair of parts, then their mean; columns of `COLUMNS` without others_dice.

    distance: see `anatomy.region_distances`, None for no null, which is then NaN. Cuts are seeded.
    """
    own, other = np.array(pairs).T
    label, L = second.label, len(second.names)
    there = member(label, L)
    dice = dice_table(member(first.label, len(first.names)), there)[own, other]
    rows = {
        "participant_id": who,
        "network": [first.names[k] for k in own] + [MEAN],
        "other": [second.names[k] for k in other] + [MEAN],
        "dice": [*dice, dice.mean()],
    }
    soft = weighted_dice(first.probability[:, own], second.probability[:, other])
    rows["weighted_dice"] = [*soft, soft.mean()]
    null = np.full((1, len(rows["dice"])), np.nan)
    if distance is not None:
        null = _null(first.label, len(first.names), there, other, distance, cuts)
    rows["chance"] = null.mean(0)
    rows["chance_95"] = np.quantile(null, 1 - SIGNIFICANT, axis=0, method="higher")
    better = (null >= np.array(rows["dice"]) - 1e-9).sum(0)
    rows["p"] = (1 + better) / (1 + cuts) if distance is not None else np.nan
    return pandas.DataFrame(rows)


def _null(label: np.ndarray, K: int, there: np.ndarray, partner: np.ndarray, distance, cuts: int) -> np.ndarray:
    """Dice coefficients of random cuts with each partner, and their mean, shape (cut, pair + 1)."""
    sizes = np.bincount(label, minlength=K)
    random = random_cuts(distance, sizes, cuts, np.random.default_rng(0))
    null = np.zeros((cuts, len(partner) + 1))
    for row, cut in zip(null, random, strict=True):
        table = dice_table(member(cut, K), there)[:, partner]
        parts, columns, _ = best_match(table)
        row[columns] = table[parts, columns]
        row[-1] = row[:-1].mean()
    return null


def others(first: np.ndarray, second: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Mean Dice coefficient of each first map with the second maps of all other subjects, shape (subject, pair + 1).

    first, second: labels of the same subjects in the same order, shape (subject, vertex); NaN for one subject alone.
    """
    n, found = len(first), []
    for own, other in pairs:
        a, b = (first == own).astype(np.float64), (second == other).astype(np.float64)
        total = a.sum(1)[:, None] + b.sum(1)
        table = np.divide(2 * a @ b.T, total, out=np.zeros((n, n)), where=total > 0)
        found.append((table.sum(1) - np.diag(table)) / (n - 1) if n > 1 else np.full(n, np.nan))
    found.append(np.mean(found, axis=0))
    return np.stack(found, 1)
