"""Fingerprints: how strongly each vertex of a region goes with each target, from one pass over a run.

    z[v, k] = artanh(r(x_v, sum of x_m over the members m of target k other than v)),    x: cleaned series

The pass keeps the region's series and adds up the series of each target's members. Cleaning is linear, so that cleaning
the sums is the same as cleaning every member; Pearson's correlation with the sum is the one with the mean.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from parcellation.bold import Bold
from parcellation.cleaning import Cleaning, check_kept
from parcellation.errors import BadData
from parcellation.meshes import HEMISPHERES
from parcellation.parcels import as_single_vertices
from parcellation.surfaces import Targets, Vertices

log = logging.getLogger(__name__)

# A series that varies by less than this share of its largest value is constant: float32 holds no more digits than that.
FLAT = 1e-6
# |r| is at most 1 - LIMIT: a correlation of 1, which only a copy of a series has, becomes z = 8.4 and not infinity.
LIMIT = 1e-7
REGION_BLOCK = 2048  # vertices cleaned and correlated at a time


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Connectivity of a region's vertices, of one run or of several runs' average.

    values: Fisher z float32, shape (vertex, target); always finite, 0 where vertex or target has no signal.
    mask: vertices with signal, bool, shape (vertex,); target_mask: targets with signal, bool, shape (target,).
    frames_kept: frames that count, summed over runs.
    members_left_out: target members without signal, or not in the file (the most of any run).
    """

    values: np.ndarray
    mask: np.ndarray
    frames_kept: int
    target_mask: np.ndarray
    members_left_out: int = 0


@dataclass(frozen=True, eq=False)
class _Pass:
    """What one pass over a run leaves: the region's series and the targets' sums, not yet cleaned.

    series: (vertex, time) float32, rows without signal 0; live: (vertex,) bool.
    sums: (target, time) float64 over the live members; counts: (target,) live members.
    own: pairs (vertex, target) of a live region vertex that is a member of the target, shape (pair, 2).
    """

    series: np.ndarray
    live: np.ndarray
    sums: np.ndarray
    counts: np.ndarray
    own: np.ndarray


def fingerprints(
    bold: Bold,
    region: Vertices,
    targets: Targets,
    cleaning: Cleaning,
    kept: np.ndarray | None = None,
    *,
    smoothing: sparse.sparray | sparse.spmatrix | None = None,
    minimum_frames: int = 20,
) -> Fingerprint:
    """Fisher z of the correlation of each region vertex with each target's mean series, in the kept frames.

    kept: bool, shape (time,), all if None; smoothing: weights (vertex, vertex) over `bold.vertices`, applied before
    cleaning with vertices without signal left out (memory then holds all targets' members, not only their sums).

    A vertex without signal (not in the file, constant, or not finite in a kept frame) is masked, and left out of its
    target. A vertex inside a target is correlated with the mean of the target's *other* members; where there is none,
    the entry gets the mean over the region's other vertices, which removal of the region's mean turns into 0.
    Masked vertices change nothing else, to the last bit. Of series of parcels, region and targets are parcels.

    Raises BadData when the run is on another mesh, too short, or without signal in the region or in the targets.
    """
    kept = np.ones(bold.frames, bool) if kept is None else np.asarray(kept, bool)
    targets = targets if bold.parcels is None else as_single_vertices(targets)
    _check(bold, region, targets, cleaning, kept, minimum_frames)
    found = _one_pass(bold, region, targets, kept, smoothing)
    unit_targets, target_mask, cleaned_sums = _unit(found.sums, cleaning, kept)
    values = np.zeros((len(region), len(targets.names)), np.float32)
    mask, unknown = found.live.copy(), []
    for start in range(0, len(region), REGION_BLOCK):
        rows = slice(start, start + REGION_BLOCK)
        unit, ok, cleaned = _unit(found.series[rows], cleaning, kept)
        values[rows] = _fisher(unit @ unit_targets.T)
        mask[rows] &= ok
        pairs = found.own[(found.own[:, 0] >= start) & (found.own[:, 0] < start + REGION_BLOCK)]
        others, defined = _without_itself(unit, cleaned, cleaned_sums, found, pairs, start)
        values[pairs[:, 0], pairs[:, 1]] = others
        unknown.append(pairs[~defined])
    values *= mask[:, None]
    values *= target_mask
    _fill(values, mask, np.concatenate(unknown))
    _check_signal(bold, mask, target_mask)
    left_out = len(targets.target) - int(found.counts.sum())
    log.info("%s: no signal in %d region vertices, %d target members", bold.where, np.sum(~mask), left_out)
    return Fingerprint(values, mask, int(kept.sum()), target_mask, left_out)


def _check(bold: Bold, region: Vertices, targets: Targets, cleaning: Cleaning, kept: np.ndarray, minimum: int) -> None:
    for mesh in (region.mesh, targets.members.mesh):
        if mesh != bold.vertices.mesh:
            got = bold.vertices.mesh
            raise BadData(f"{bold.where}: expected a run on the mesh {mesh.name}, got one on {got.name}")
    if (_positions(region, bold.vertices) < 0).all():
        sides = " and the ".join(HEMISPHERES[one] for one in np.unique(bold.vertices.hemisphere))
        what = f"none of the region's {len(region)} vertices is among the {len(bold.vertices)} of the file"
        raise BadData(f"{bold.where}: {what}, which are of the {sides} hemisphere")
    if len(kept) != bold.frames:
        raise BadData(f"{bold.where}: expected a censoring of {bold.frames} frames, got one of {len(kept)}")
    check_kept(bold, cleaning, kept, minimum)


def _check_signal(bold: Bold, mask: np.ndarray, target_mask: np.ndarray) -> None:
    for what, live in (("vertices of the region", mask), ("targets", target_mask)):
        if not live.any():
            raise BadData(f"{bold.where}: expected signal in the {what}, got none in any of {len(live)}")


def _one_pass(bold: Bold, region: Vertices, targets: Targets, kept: np.ndarray, smoothing) -> _Pass:
    """Read every vertex of the region and of the targets once."""
    region_row, member_row = _positions(region, bold.vertices), _positions(targets.members, bold.vertices)
    needed = np.union1d(region_row, member_row)
    needed = needed[needed >= 0]
    series, live = np.zeros((len(region), bold.frames), np.float32), np.zeros(len(region), bool)
    sums, counts = np.zeros((len(targets.names), bold.frames)), np.zeros(len(targets.names), np.int64)
    # One member after the other in the file's order: no bit of a sum depends on how the file was cut in blocks.
    order = np.argsort(member_row, kind="stable")
    for part, block, alive in _blocks(bold, needed, kept, smoothing):
        at, of = _within(region_row, needed[part])
        series[at], live[at] = block[of], alive[of]
        at, of = _within(member_row[order], needed[part])
        for target, row in zip(targets.target[order[at]], of, strict=True):
            if alive[row]:
                sums[target] += block[row]
                counts[target] += 1
    place = _positions(targets.members, region)
    own = np.column_stack([place, targets.target])[place >= 0]
    return _Pass(series, live, sums, counts, own[live[own[:, 0]]])


def _positions(wanted: Vertices, within: Vertices) -> np.ndarray:
    """Position of each wanted vertex in another list, -1 where it is not in there."""
    wanted_key, key = (part.hemisphere.astype(np.int64) << 32 | part.number for part in (wanted, within))
    order = np.argsort(key)
    at, of = _within(wanted_key, key[order])
    position = np.full(len(wanted), -1, np.int64)
    position[at] = order[of]
    return position


def _within(wanted: np.ndarray, increasing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(at, of) with wanted[at] == increasing[of], for every wanted value that is there."""
    of = np.searchsorted(increasing, wanted)
    at = np.flatnonzero(of < len(increasing))
    at = at[increasing[of[at]] == wanted[at]]
    return at, of[at]


def _blocks(
    bold: Bold, needed: np.ndarray, kept: np.ndarray, smoothing
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield (slice into needed, series (vertex, time) float32, live (vertex,)); rows without signal are 0."""
    if smoothing is not None:
        yield slice(0, len(needed)), *_smoothed(bold, needed, kept, smoothing)
        return
    for part, block in bold.rows(needed):
        alive = _has_signal(block if kept.all() else block[:, kept])
        block[~alive] = 0
        yield part, block, alive


def _has_signal(series: np.ndarray) -> np.ndarray:
    """Rows of series (vertex, time) that are finite and not constant."""
    low, high = series.min(1), series.max(1)  # NaN if any value is NaN
    with np.errstate(invalid="ignore", over="ignore"):
        varies = high - low > FLAT * np.maximum(np.abs(low), np.abs(high))
    return varies & np.isfinite(low) & np.isfinite(high)


def _smoothed(bold: Bold, needed: np.ndarray, kept: np.ndarray, smoothing) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean series of each needed vertex's neighbours with signal; a vertex without signal stays without."""
    if smoothing.shape != 2 * (len(bold.vertices),):
        raise ValueError(f"{bold.where}: expected weights of {len(bold.vertices)} vertices, got {smoothing.shape}")
    weights = sparse.csr_array(smoothing)[needed]
    source = np.union1d(needed, weights.indices)
    weights = sparse.csc_array(weights[:, source])
    total, weight = np.zeros((len(needed), bold.frames), np.float32), np.zeros(len(needed))
    live = np.zeros(len(source), bool)
    for part, block, alive in _blocks(bold, source, kept, None):
        share = sparse.csr_array(weights[:, part])
        touched = np.flatnonzero(np.diff(share.indptr))
        total[touched] += share[touched] @ block
        weight[touched] += share[touched] @ alive
        live[part] = alive
    live = live[np.searchsorted(source, needed)] & (weight > 0)
    total /= np.where(weight > 0, weight, 1)[:, None].astype(np.float32)
    total[~live] = 0
    return total, live


def _unit(series: np.ndarray, cleaning: Cleaning, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clean series (vertex, time): (centred to unit length, 0 where nothing is left; what has signal left; cleaned)."""
    peak = np.abs(series[:, kept]).max(1)
    cleaned = np.ascontiguousarray(cleaning.apply(series.T, kept).T)
    unit, size = _centred(cleaned)
    has_signal = size > FLAT * peak
    unit *= has_signal[:, None]
    return unit, has_signal, cleaned


def _centred(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows with their mean removed and scaled to length 1, and their standard deviations."""
    centred = series - series.mean(1, keepdims=True)
    length = np.sqrt(np.sum(centred**2, axis=1))
    centred /= np.where(length > 0, length, 1)[:, None]
    return centred, length / np.sqrt(series.shape[1])


def _fisher(correlation: np.ndarray) -> np.ndarray:
    return np.arctanh(np.clip(correlation, LIMIT - 1, 1 - LIMIT))


def _without_itself(
    unit: np.ndarray, cleaned: np.ndarray, cleaned_sums: np.ndarray, found: _Pass, pairs: np.ndarray, start: int
) -> tuple[np.ndarray, np.ndarray]:
    """(Fisher z of each pair's vertex with the other members of its target, whether there are others with signal)."""
    vertex, target = pairs[:, 0] - start, pairs[:, 1]
    others, size = _centred(cleaned_sums[target] - cleaned[vertex])
    defined = (found.counts[target] > 1) & (size > FLAT * np.abs(cleaned[vertex]).max(1, initial=0))
    return _fisher(np.sum(unit[vertex] * others, axis=1)) * defined, defined


def _fill(values: np.ndarray, mask: np.ndarray, unknown: np.ndarray) -> None:
    """Set unknown entries, pairs (vertex, target), to the target's mean over the other live vertices, 0 without any."""
    for target in np.unique(unknown[:, 1]):
        vertex = unknown[unknown[:, 1] == target, 0]
        others = mask.copy()
        others[vertex] = False
        mean = values[others, target].mean(dtype=np.float64) if others.any() else 0.0
        values[vertex[mask[vertex]], target] = mean


def average_runs(runs: list[Fingerprint]) -> Fingerprint:
    """Average of a session's runs, weighted by their kept frames; an entry counts the runs in which it has signal.

    A vertex or target has signal if it has in any run. Should a vertex and a target have signal in no run together,
    the entry gets the target's mean over the other vertices.
    """
    shapes = {run.values.shape for run in runs}
    if len(shapes) != 1:
        raise ValueError(f"expected runs with the same vertices and targets, got shapes {sorted(shapes)}")
    total, weight = np.zeros(shapes.pop()), 0.0
    for run in runs:
        share = run.frames_kept * (run.mask[:, None] & run.target_mask)
        total += share * run.values
        weight = weight + share
    values = (total / np.where(weight > 0, weight, 1)).astype(np.float32)
    mask = np.any([run.mask for run in runs], axis=0)
    target_mask = np.any([run.target_mask for run in runs], axis=0)
    _fill(values, mask, np.argwhere((weight == 0) & mask[:, None] & target_mask))
    frames, left_out = sum(run.frames_kept for run in runs), max(run.members_left_out for run in runs)
    return Fingerprint(values, mask, frames, target_mask, left_out)


def binarized(fingerprint: Fingerprint, share: float = 0.1) -> Fingerprint:
    """1 for the strongest tenth of each vertex's targets with signal, else 0; of averages, not of runs to be averaged.

    The form of Yeo et al. 2011, but with the same number of ones for every vertex; of equal values the first are taken.
    """
    count = max(1, round(share * int(fingerprint.target_mask.sum())))
    ranked = np.where(fingerprint.target_mask, fingerprint.values, -np.inf)
    strongest = np.argsort(-ranked, axis=1, kind="stable")[:, :count]
    values = np.zeros_like(fingerprint.values)
    np.put_along_axis(values, strongest, 1, axis=1)
    return replace(fingerprint, values=values * fingerprint.mask[:, None])
