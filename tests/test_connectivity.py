import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from nilearn.signal import clean
from scipy import sparse

from parcellation import connectivity
from parcellation.bold import Bold
from parcellation.cleaning import Cleaning
from parcellation.confounds import read_confounds
from parcellation.connectivity import Fingerprint, average_runs, binarized, fingerprints
from parcellation.errors import BadData
from parcellation.surfaces import Mesh, Targets, Vertices
from parcellation.timeseries import open_bold
from tests.shared_data import BRAINSPACE, needs_brainspace

MESH = Mesh("fsLR", (4842, 4842))
FRAMES = 90
PLAIN = Cleaning()


def vertices(number, side=0, mesh=MESH):
    number = np.asarray(number, np.int32)
    return Vertices(mesh, np.full(len(number), side, np.uint8), number)


@dataclasses.dataclass(frozen=True)
class Memory:
    """A run's reader that holds the series (vertex, time) in memory."""

    series: np.ndarray
    size: int = 1000

    def blocks(self, index, block):
        for start in range(0, len(index), min(block, self.size)):
            part = slice(start, min(start + self.size, len(index)))
            yield part, self.series[index[part]].copy()


def run(series, number=None, size=1000):
    number = np.arange(len(series)) if number is None else number
    part = Memory(np.asarray(series, np.float32), size)
    return Bold((Path("run.dtseries.nii"),), vertices(number), series.shape[1], 2.0, (part,), (len(series),))


def parcels(*members):
    """Targets with the given vertices of the left hemisphere."""
    target = np.repeat(np.arange(len(members)), [len(one) for one in members])
    return Targets(tuple(f"t{k}" for k in range(len(members))), vertices(np.concatenate(members)), target)


@pytest.fixture
def series():
    """40 vertices that share 3 signals, around 1000, as float32."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(40, 3)) @ rng.normal(size=(3, FRAMES))
    return (1000 + 5 * (shared + rng.normal(size=(40, FRAMES)))).astype(np.float32)


REGION = np.arange(3, 12)
MEMBERS = [[20, 21, 22], [25], [30, 39, 35, 33]]
# No frame is left out together with its mirror image in time: nilearn 0.14.1 does not interpolate such pairs.
KEPT = ~np.isin(np.arange(FRAMES), [0, 7, 8, 40, 86])


def naive(series, members, region=REGION):
    """The definition, literally, for targets outside the region."""
    means = [series[one].astype(float).mean(0) for one in members]
    return np.array([[np.arctanh(np.corrcoef(series[v], mean)[0, 1]) for mean in means] for v in region])


def test_it_is_fisher_z_of_pearson(series):
    result = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN)
    assert result.values.dtype == np.float32
    np.testing.assert_allclose(result.values, naive(series, MEMBERS), atol=1e-6)  # float32 holds 7 digits
    assert result.mask.all()
    assert result.target_mask.all()
    assert (result.frames_kept, result.members_left_out) == (FRAMES, 0)


def test_cleaned_and_censored_it_is_that_of_nilearn(series):
    confounds = np.random.default_rng(1).normal(size=(FRAMES, 3)).cumsum(0)
    cleaning = Cleaning(pd.DataFrame(confounds), (0.02, 0.15), True, 2.0)
    result = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), cleaning, KEPT)
    whole = clean(
        series.T.astype(float),
        detrend=True,
        standardize=None,
        confounds=confounds,
        low_pass=0.15,
        high_pass=0.02,
        t_r=2.0,
        sample_mask=np.flatnonzero(KEPT),
    )
    np.testing.assert_allclose(result.values, naive(whole.T, MEMBERS), atol=1e-5)
    assert result.frames_kept == KEPT.sum()


def test_censored_frames_count_nowhere(series):
    other = series.copy()
    other[:, ~KEPT] = np.where(np.arange(40)[:, None] % 2, np.nan, 1e6)
    first, second = (
        fingerprints(run(one), vertices(REGION), parcels(*MEMBERS), PLAIN, KEPT) for one in (series, other)
    )
    np.testing.assert_array_equal(first.values, second.values)
    assert second.mask.all()
    np.testing.assert_allclose(first.values, naive(series[:, KEPT], MEMBERS), atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_reading_in_blocks_changes_no_bit(series, size, monkeypatch):
    targets, cleaning = parcels([5, 30, 2, 11], *MEMBERS), Cleaning(detrend=True)
    whole = fingerprints(run(series), vertices(REGION), targets, cleaning)
    np.testing.assert_array_equal(
        fingerprints(run(series, size=size), vertices(REGION), targets, cleaning).values, whole.values
    )
    monkeypatch.setattr(connectivity, "REGION_BLOCK", size)
    blocks = fingerprints(run(series), vertices(REGION), targets, cleaning)
    np.testing.assert_allclose(blocks.values, whole.values, atol=1e-6)


def test_order_and_extra_vertices_of_a_file_change_nothing(series):
    """The medial wall left in or out, another order of rows: vertices are found by their number."""
    expected = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN)
    number = np.random.default_rng(2).permutation(np.arange(50))
    padded = np.vstack([series, np.zeros((10, FRAMES), np.float32)])
    result = fingerprints(run(padded[number], number), vertices(REGION), parcels(*MEMBERS), PLAIN)
    np.testing.assert_allclose(result.values, expected.values, atol=1e-6)
    region = vertices(REGION[::-1])
    backwards = fingerprints(run(series), region, parcels(*MEMBERS), PLAIN)
    np.testing.assert_allclose(backwards.values, expected.values[::-1], atol=1e-6)
    wall_in = fingerprints(run(padded), vertices(REGION), parcels([20, 45], [21, 22]), PLAIN)
    wall_out = fingerprints(run(series), vertices(REGION), parcels([20, 45], [21, 22]), PLAIN)
    np.testing.assert_array_equal(wall_in.values, wall_out.values)
    assert wall_in.members_left_out == wall_out.members_left_out == 1


# --- vertices inside a target ---


def test_a_vertex_is_left_out_of_its_own_parcel(series):
    members = [[4, 20, 21], [5, 6]]
    result = fingerprints(run(series), vertices(REGION), parcels(*members), Cleaning(detrend=True))
    clean_series = Cleaning(detrend=True).apply(series.T, np.ones(FRAMES, bool)).T
    expected = naive(clean_series, members)
    for vertex, target in [(4, 0), (5, 1), (6, 1)]:
        others = clean_series[[m for m in members[target] if m != vertex]].mean(0)
        expected[vertex - 3, target] = np.arctanh(np.corrcoef(clean_series[vertex], others)[0, 1])
    np.testing.assert_allclose(result.values, expected, atol=1e-6)


def test_a_vertex_that_is_all_of_its_target_gets_the_mean_of_the_others(series):
    series[21] = 7
    members = [[4], [6, 21], [25]]  # vertex 21 has no signal, so that 6 is alone too
    result = fingerprints(run(series), vertices(REGION), parcels(*members), PLAIN)
    with np.errstate(divide="ignore"):  # the correlation with itself
        expected = naive(series, [[4], [6], [25]])
    for vertex, target in [(4, 0), (6, 1)]:
        expected[vertex - 3, target] = np.delete(expected[:, target], vertex - 3).mean()
    np.testing.assert_allclose(result.values, expected, atol=1e-6)
    removed = result.values - result.values.mean(0)
    assert abs(removed[1, 0]) < 1e-6


def test_copies_of_a_series_stay_finite(series):
    series[25], series[5] = series[4], 2000 - series[4]
    result = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN)
    limit = np.arctanh(1 - connectivity.LIMIT)
    np.testing.assert_allclose(result.values[[1, 2], 1], [limit, -limit], rtol=1e-6)


# --- vertices without signal ---

DEAD = {
    "zero": lambda x: np.zeros_like(x),
    "constant": lambda x: np.full_like(x, 1234.5),
    "rounding": lambda x: np.float32(1e4) + np.arange(len(x)) % 2 * np.float32(1e-3),
    "nan": lambda x: np.full_like(x, np.nan),
    "one nan": lambda x: np.where(np.arange(len(x)) == 50, np.nan, x),
    "one inf": lambda x: np.where(np.arange(len(x)) == 50, np.inf, x),
    "both infs": lambda x: np.where(np.arange(len(x)) % 40 == 5, (-1.0) ** np.arange(len(x)) * np.inf, x),
    "constant where kept": lambda x: np.where(KEPT, 3, x),
}


@pytest.mark.parametrize("kind", DEAD)
def test_a_vertex_without_signal_is_masked_and_changes_no_other(series, kind):
    cleaning = Cleaning(pd.DataFrame({"a": series[39]}), detrend=True)
    intact = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), cleaning, KEPT)
    odd = series.copy()
    odd[7] = DEAD[kind](odd[7])
    result = fingerprints(run(odd), vertices(REGION), parcels(*MEMBERS), cleaning, KEPT)
    assert result.mask.tolist() == [vertex != 7 for vertex in REGION]
    assert not result.values[4].any()
    np.testing.assert_array_equal(np.delete(result.values, 4, 0), np.delete(intact.values, 4, 0))


def test_a_series_that_cleaning_explains_has_no_signal(series):
    cleaning = Cleaning(pd.DataFrame({"a": series[39]}), detrend=True)
    intact = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), cleaning)
    series[7] = 3 * series[39] + 2 * np.arange(FRAMES)
    result = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), cleaning)
    assert result.mask.tolist() == [vertex != 7 for vertex in REGION]
    np.testing.assert_array_equal(np.delete(result.values, 4, 0), np.delete(intact.values, 4, 0))
    assert fingerprints(run(series), vertices(REGION), parcels([39], [21]), cleaning).target_mask.tolist() == [
        False,
        True,
    ]


def test_a_single_zero_is_a_value_like_any_other(series):
    """A sample that happens to be 0, as 16-bit files have it, does not make a vertex one without signal."""
    intact = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN)
    series[7] -= 1000
    series[7, 13] = 0
    result = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN)
    assert result.mask.all()
    assert result.values[4].any()
    np.testing.assert_array_equal(np.delete(result.values, 4, 0), np.delete(intact.values, 4, 0))


@pytest.mark.parametrize("kind", DEAD)
def test_a_member_without_signal_is_as_if_it_were_not_in_the_target(series, kind):
    without = fingerprints(run(series), vertices(REGION), parcels([20, 22], *MEMBERS[1:]), PLAIN, KEPT)
    series[21] = DEAD[kind](series[21])
    result = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN, KEPT)
    np.testing.assert_array_equal(result.values, without.values)
    assert result.members_left_out == 1


def test_a_dead_vertex_inside_targets_leaves_the_same_whatever_it_holds(series):
    """Fills and leave-one-out included: how a vertex is dead does not matter to any other vertex."""
    results = []
    for kind in DEAD:
        odd = series.copy()
        odd[7] = DEAD[kind](odd[7])
        results.append(fingerprints(run(odd), vertices(REGION), parcels([4], [7, 8, 30], [7]), PLAIN, KEPT))
    for result in results:
        np.testing.assert_array_equal(result.values, results[0].values)
        assert result.target_mask.tolist() == [True, True, False]
        assert not result.values[:, 2].any()


def test_a_vertex_that_the_file_lacks_is_masked(series):
    number = np.delete(np.arange(40), [5, 21])
    result = fingerprints(run(series[number], number), vertices(REGION), parcels(*MEMBERS), PLAIN)
    assert result.mask.tolist() == [vertex != 5 for vertex in REGION]
    expected = naive(series, [[20, 22], *MEMBERS[1:]])
    np.testing.assert_allclose(result.values[result.mask], expected[result.mask], atol=1e-6)


# --- runs that cannot be used ---


def test_runs_that_are_excluded_say_why(series):
    region, targets, bold = vertices(REGION), parcels(*MEMBERS), run(series)
    kept = np.arange(FRAMES) < 12
    with pytest.raises(BadData, match=r"run.dtseries.nii: expected at least 20 frames to keep, got 12 of 90"):
        fingerprints(bold, region, targets, PLAIN, kept)
    with pytest.raises(BadData, match="at least 34 frames to keep, got 12"):
        fingerprints(bold, region, targets, Cleaning(None, (0.01, 0.1), False, 2.0), kept)
    fingerprints(bold, region, targets, PLAIN, kept, minimum_frames=12)
    with pytest.raises(BadData, match="at least 83 frames"):
        fingerprints(
            bold, region, targets, Cleaning(pd.DataFrame(np.eye(FRAMES)[:, :80])), KEPT & (np.arange(FRAMES) < 80)
        )
    with pytest.raises(BadData, match="censoring of 90 frames, got one of 89"):
        fingerprints(bold, region, targets, PLAIN, KEPT[1:])
    with pytest.raises(BadData, match="expected a run on the mesh fsaverage_den-642, got one on fsLR_den-5k"):
        fingerprints(bold, vertices(REGION, mesh=Mesh("fsaverage", (642, 642))), targets, PLAIN)
    with pytest.raises(BadData, match=r"none of the region's 2 .* 40 of the file, which are of the left hemi"):
        fingerprints(bold, vertices([300, 301]), targets, PLAIN)
    with pytest.raises(BadData, match="signal in the targets, got none in any of 1"):
        fingerprints(bold, region, parcels([300]), PLAIN)
    with pytest.raises(BadData, match="none of the region's 9 vertices"):
        fingerprints(bold, vertices(REGION, side=1), targets, PLAIN)


# --- smoothing ---


def test_smoothing_averages_neighbours_with_signal(series):
    rng = np.random.default_rng(3)
    weights = sparse.csr_array(np.eye(40) + (rng.random((40, 40)) < 0.2) * rng.random((40, 40)))
    series[[8, 27]] = [[0.0], [np.nan]]
    expected = weights.toarray()
    expected[:, [8, 27]] = 0
    smooth = (expected / expected.sum(1, keepdims=True)) @ np.nan_to_num(series.astype(float))
    result = fingerprints(run(series, size=6), vertices(REGION), parcels(*MEMBERS), PLAIN, smoothing=weights)
    live = REGION != 8
    assert result.mask.tolist() == live.tolist()
    np.testing.assert_allclose(result.values[live], naive(smooth, MEMBERS)[live], atol=1e-5)
    with pytest.raises(ValueError, match="weights of 40 vertices"):
        fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN, smoothing=weights[:5])


def test_smoothing_by_nothing_is_no_smoothing(series):
    plain = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN)
    same = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN, smoothing=sparse.eye_array(40))
    np.testing.assert_array_equal(same.values, plain.values)


# --- sessions ---


def fingerprint(values, frames, mask=None, target_mask=None):
    values = np.array(values, np.float32)
    mask = np.ones(len(values), bool) if mask is None else np.array(mask, bool)
    target_mask = np.ones(values.shape[1], bool) if target_mask is None else np.array(target_mask, bool)
    return Fingerprint(values * mask[:, None] * target_mask, mask, frames, target_mask)


def test_runs_count_by_their_frames():
    average = average_runs([fingerprint([[1, 2]], 100), fingerprint([[5, 4]], 300)])
    np.testing.assert_allclose(average.values, [[4, 3.5]])
    assert average.frames_kept == 400
    assert average.values.dtype == np.float32


def test_only_runs_with_signal_count():
    first = fingerprint([[1, 2], [3, 4], [5, 6]], 100, mask=[1, 0, 0])
    second = fingerprint([[5, 9], [7, 9], [8, 9]], 300, mask=[1, 1, 0], target_mask=[1, 0])
    average = average_runs([first, second])
    assert average.mask.tolist() == [True, True, False]
    assert average.target_mask.tolist() == [True, True]
    # Vertex 1 and target 1 have signal in no run together: the mean of the others, here vertex 0, stands in.
    np.testing.assert_allclose(average.values, [[4, 2], [7, 2], [0, 0]])


def test_one_run_is_its_own_average_and_shapes_must_agree(series):
    one = fingerprints(run(series), vertices(REGION), parcels(*MEMBERS), PLAIN)
    np.testing.assert_array_equal(average_runs([one]).values, one.values)
    with pytest.raises(ValueError, match="same vertices and targets"):
        average_runs([one, fingerprint([[1, 2]], 100)])


def test_the_strongest_tenth_is_one():
    rng = np.random.default_rng(4)
    values, target_mask = rng.normal(size=(5, 30)), np.arange(30) < 20
    values[3] = 1
    result = binarized(fingerprint(values, 10, mask=[1, 1, 0, 1, 1], target_mask=target_mask))
    assert result.values.sum(1).tolist() == [2, 2, 0, 2, 2]
    for vertex in (0, 1, 4):
        assert set(np.flatnonzero(result.values[vertex])) == set(np.argsort(-values[vertex, :20])[:2])
    assert np.flatnonzero(result.values[3]).tolist() == [0, 1]
    weak = binarized(fingerprint(-np.abs(values[:2]), 10, target_mask=target_mask))
    assert not weak.values[:, 20:].any()


@needs_brainspace
def test_windows_of_a_real_run_agree():
    bold = open_bold(tuple(sorted(BRAINSPACE.glob("*.mgz"))), "fsaverage", 1.4)
    number = np.tile(np.arange(642, dtype=np.int32), 2)
    spaced = Vertices(bold.vertices.mesh, np.repeat(np.array([0, 1], np.uint8), 642), number)
    targets = Targets(tuple(map(str, range(1284))), spaced, np.arange(1284))
    region = vertices(range(300, 500), mesh=bold.vertices.mesh)
    cleaning = Cleaning(read_confounds(*BRAINSPACE.glob("*confounds.txt"), 652), (0.008, 0.1), False, 1.4)
    halves = [fingerprints(bold, region, targets, cleaning, np.arange(652) // 326 == half) for half in (0, 1)]
    assert halves[0].target_mask.sum() == 1175
    assert halves[0].members_left_out == 109
    both = halves[0].mask & halves[1].mask
    rows = [half.values[both] - half.values[both].mean(0) for half in halves]
    same = np.corrcoef(*rows)[: both.sum(), both.sum() :]
    assert np.diag(same).mean() > 0.3 + same.mean()
