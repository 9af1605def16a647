"""`compare`: overlap of the networks of two results, or of a result and an atlas, beside chance."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from parcellation.anatomy import CUTS, MOST_VERTICES, region_distances
from parcellation.comparison import COLUMNS, MEAN, Parts, others, partners
from parcellation.comparison import compare as overlaps
from parcellation.errors import BadData, NothingSelected
from parcellation.maps import write_table
from parcellation.result import Result, load_result
from parcellation.surfaces import Vertices, atlas_areas
from parcellation.verbs.workspace import Selection

log = logging.getLogger(__name__)

SUBJECT_CUTS = 199  # the population's are `anatomy.CUTS`
NUMBERED = "network-"
POPULATION = "population"


def compare(path: Path, other: Path, selection: Selection, out: Path | None = None) -> str:
    """Compare; returns the lines to print, and writes every number to `out` if it is given.

    Raises NothingSelected for a subject that the results do not share, and BadData for other meshes or regions.
    """
    first = load_result(path)
    pair = _Atlas.of(first, other) if other.is_file() else _Results.of(first, load_result(other))
    subjects = pair.subjects(selection.participants)
    if selection.dry_run:
        return f"would compare {len(subjects)} subjects and the population on {len(pair.region)} vertices"
    distance, reason = _distances(pair)
    one, two = pair.maps(POPULATION)
    pairs = partners(one, two, pair.by_name)
    tables = [overlaps(POPULATION, one, two, pairs, distance, CUTS)]
    for subject in subjects:
        tables.append(overlaps(subject, *pair.maps(subject), pairs, distance, SUBJECT_CUTS))
    table = pandas.concat(tables, ignore_index=True)
    table["others_dice"] = np.nan
    if isinstance(pair, _Results) and len(subjects) > 1:
        labels = [np.stack([pair.maps(subject)[which].label for subject in subjects]) for which in (0, 1)]
        table.loc[table.participant_id != POPULATION, "others_dice"] = others(*labels, pairs).ravel()
    table = table[list(COLUMNS)]
    if out is not None:
        write_table(out, table)
    return "\n".join([*_said(table, pair, subjects), *reason, *([f"written: {out}"] if out else [])])


@dataclass(frozen=True, eq=False)
class _Results:
    """Two results on the vertices that both have parcelled."""

    first: Result
    second: Result
    region: Vertices
    rows: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, first: Result, second: Result) -> "_Results":
        place = first.region.within(second.region)  # raises BadData for another mesh
        shared = np.flatnonzero(place >= 0)
        if not len(shared):
            counts = f"{len(first.region)} and {len(second.region)} vertices"
            raise BadData(
                f"{first.path} and {second.path}: expected regions that overlap, got {counts} without a shared one; "
                "compare results of one region"
            )
        return cls(first, second, first.region[shared], (shared, place[shared]))

    def subjects(self, wanted: Sequence[str] | None) -> list[str]:
        there = [name for name in self.first.subjects if name in set(self.second.subjects)]
        left = sorted(set(self.first.subjects) ^ set(self.second.subjects))
        if left:
            log.warning("%d subjects are in one result only: %s", len(left), ", ".join(left[:5]))
        return _chosen(there, wanted, f"{self.first.path} and {self.second.path}")

    def maps(self, name: str) -> tuple[Parts, Parts]:
        found = []
        for result, rows in zip((self.first, self.second), self.rows, strict=True):
            maps = result.population if name == POPULATION else result.subject(name)
            found.append(Parts(result.networks.names, maps.probability.to_numpy()[rows]))
        return found[0], found[1]

    @property
    def by_name(self) -> bool:
        """Whether names say which networks are the same: numbers of different models do not."""
        names = [result.networks.names for result in (self.first, self.second)]
        return set(names[0]) == set(names[1]) and not any(name.startswith(NUMBERED) for name in names[0])


@dataclass(frozen=True, eq=False)
class _Atlas:
    """A result and the areas of a label file, in the whole region."""

    first: Result
    areas: Parts

    by_name = False

    @classmethod
    def of(cls, first: Result, path: Path) -> "_Atlas":
        members, origin = atlas_areas(path, first.region)
        if not members:
            raise BadData(f"{origin}: none of its areas has a vertex of the region")
        probability = np.zeros((len(first.region), len(members)))
        for k, rows in enumerate(members.values()):
            probability[rows, k] = 1
        return cls(first, Parts(tuple(members), probability))

    @property
    def region(self) -> Vertices:
        return self.first.region

    def subjects(self, wanted: Sequence[str] | None) -> list[str]:
        return _chosen(self.first.subjects, wanted, str(self.first.path))

    def maps(self, name: str) -> tuple[Parts, Parts]:
        maps = self.first.population if name == POPULATION else self.first.subject(name)
        return Parts(self.first.networks.names, maps.probability.to_numpy()), self.areas


def _chosen(there: list[str], wanted: Sequence[str] | None, where: str) -> list[str]:
    names = there if wanted is None else [f"sub-{name.removeprefix('sub-')}" for name in wanted]
    if missing := [name for name in names if name not in there]:
        known = ", ".join(there[:5]) or "none"
        raise NothingSelected(f"{where}: no subject {', '.join(missing[:5])} to compare; there are {known}")
    return names


def _distances(pair: _Results | _Atlas) -> tuple[np.ndarray | None, list[str]]:
    """Distances for random cuts, or None and why there are none."""
    results = [pair.first, pair.second] if isinstance(pair, _Results) else [pair.first]
    surfaces = next((found for one in results if (found := one.surfaces("midthickness")) is not None), None)
    if surfaces is None:
        return None, ["no chance level: the result has no surface"]
    if len(pair.region) > MOST_VERTICES:
        return None, [f"no chance level: random cuts are made of regions of at most {MOST_VERTICES} vertices"]
    return region_distances(surfaces, pair.region), []


def _said(table: pandas.DataFrame, pair: _Results | _Atlas, subjects: Sequence[str]) -> list[str]:
    how = "by name" if pair.by_name else "by the best assignment of the population maps"
    lines = [
        f"{len(subjects)} subjects on {len(pair.region)} vertices; networks matched {how}",
        f"{'population':<42}{'Dice':>8}{'weighted':>10}{'chance':>8}{'95 %':>8}{'p':>8}",
    ]
    rows = table[table.participant_id == POPULATION]
    lines += [_line(row, row.p) for row in rows.itertuples()]
    if subjects:
        lines.append(f"{'mean of the subjects':<42}{'Dice':>8}{'weighted':>10}{'chance':>8}{'95 %':>8}{'others':>8}")
        each = table[table.participant_id != POPULATION].drop(columns="participant_id")
        means = each.groupby(["network", "other"], sort=False).mean().reset_index()
        lines += [_line(row, row.others_dice) for row in means.itertuples()]
        above = each[each.network == MEAN]
        if above.p.notna().all():
            lines.append(f"  above the 95 % level of chance: {int((above.p <= 0.05).sum())} of {len(above)} subjects")
    return lines


def _line(row, last: float) -> str:
    name = row.network if row.network == row.other else f"{row.network} = {row.other}"
    numbers = (row.dice, row.weighted_dice, row.chance, row.chance_95, last)
    shown = ["–" if np.isnan(value) else f"{value:.3f}" for value in numbers]
    return f"  {name:<40}{shown[0]:>8}{shown[1]:>10}{shown[2]:>8}{shown[3]:>8}{shown[4]:>8}"
