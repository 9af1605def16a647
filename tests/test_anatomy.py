"""Agreement with areas and its null: exact sizes, chance levels that are kept, areas that are found."""

import numpy as np
import pytest

from parcellation.anatomy import agreement, areas_of, best_match, dice, random_cuts, region_distances
from parcellation.meshes import Mesh, Surface
from parcellation.surfaces import Vertices

SHEET = Mesh("fsaverage", (300, 300))
NX, NY = 20, 15


def sheet(offset=0.0):
    """A flat triangulated sheet of 20 x 15 mm."""
    x, y = np.meshgrid(np.arange(NX, dtype=float), np.arange(NY, dtype=float), indexing="ij")
    number = np.arange(NX * NY).reshape(NX, NY)
    a, b, c, d = number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]
    triangles = np.concatenate([np.stack(t, -1).reshape(-1, 3) for t in ((a, b, c), (a, c, d))])
    return Surface(np.stack([x + offset, y, 0 * x], -1).reshape(-1, 3), triangles)


SURFACES = (sheet(10.0), Surface(sheet(10.0).coordinates * [-1, 1, 1], sheet().triangles))
COLUMN = np.repeat(np.arange(NX), NY)


def region(left=range(300), right=()):
    return Vertices.of(SHEET, list(left), list(right))


def two_areas(share=0.5):
    back = np.flatnonzero(share * NX > COLUMN)
    return areas_of(("back", "front"), (back, np.setdiff1d(np.arange(300), back)), 300, "a sheet")


@pytest.fixture(scope="module")
def distance():
    return region_distances(SURFACES, region())


def test_distances_are_lengths_of_paths_in_the_sheet(distance):
    assert distance[0, 14] == pytest.approx(14)
    straight = np.hypot(19, 14)
    assert straight <= distance[0, 299] <= 1.04 * straight
    np.testing.assert_allclose(distance, distance.T)


def test_a_way_that_leaves_the_region_does_not_count():
    hole = np.flatnonzero(~np.isin(COLUMN, (9, 10)) | (np.tile(np.arange(NY), NX) > 12))
    around = region_distances(SURFACES, region(hole))
    assert around[0, -NY] > 1.4 * 19  # by the open rows


@pytest.mark.parametrize("sizes", [(150, 150), (1, 299), (0, 300), (50, 100, 150), (7, 0, 90, 103, 100)], ids=str)
def test_sizes_are_exact(distance, sizes):
    for cut in random_cuts(distance, sizes, 20, np.random.default_rng(1)):
        assert np.bincount(cut, minlength=len(sizes)).tolist() == list(sizes)


def test_other_sizes_are_refused(distance):
    with pytest.raises(ValueError, match=r"add up to 300 vertices, got \[10, 20\]"):
        random_cuts(distance, (10, 20), 1, np.random.default_rng(1))


def test_parts_are_whole(distance):
    """Vertices of a part are near one another: their neighbours are of the same part but for the border."""
    cuts = random_cuts(distance, (150, 150), 50, np.random.default_rng(2))
    near = distance < 1.01
    borders = [np.mean(cut[:, None] != cut[None], where=near) for cut in cuts]
    assert np.mean(borders) < 0.12  # at random half of the pairs differ


def test_cuts_have_every_direction(distance):
    cuts = random_cuts(distance, (150, 150), 400, np.random.default_rng(3))
    centre = np.stack([(COLUMN * (cut == 0)).sum() / 150 for cut in cuts])
    assert abs(centre.mean() - COLUMN.mean()) < 3 * centre.std() / 20
    assert np.quantile(centre, 0.1) < 7 < 12 < np.quantile(centre, 0.9)


def test_dice_of_known_overlaps():
    areas = areas_of(("a", "b"), (np.arange(4), np.arange(4, 8)), 10, "")
    labels = np.array([0, 0, 1, 1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(dice(labels, areas, 3), [[2 * 2 / 8, 0], [2 * 2 / 10, 2 * 4 / 10], [0, 0]])
    rows, columns, mean = best_match(dice(labels, areas, 3))
    assert (rows.tolist(), columns.tolist()) == ([0, 1], [0, 1])
    assert mean == pytest.approx((0.5 + 0.8) / 2)


def test_areas_that_only_touch_the_region_are_none():
    areas = areas_of(("a", "b", "tip"), (np.arange(60), np.arange(50, 96), np.arange(96, 100)), 100, "")
    assert areas.names == ("a", "b")
    assert np.bincount(areas.area + 1).tolist() == [4, 60, 36]
    assert areas_of(("a", "tip"), (np.arange(60), np.arange(60, 63)), 100, "") is None


def test_the_areas_themselves_agree(distance):
    found = agreement(two_areas().area, two_areas(), distance, 2)
    assert found.mean == 1
    assert found.significant
    assert found.p < 0.05
    assert [(m.network, m.area, m.dice) for m in found.matches] == [(0, "back", 1.0), (1, "front", 1.0)]
    assert found.null_mean < found.null_level < 1


def test_networks_across_the_areas_do_not_agree(distance):
    across = (np.tile(np.arange(NY), NX) > 7).astype(int)
    found = agreement(across, two_areas(), distance, 2, cuts=199)
    assert not found.significant
    assert found.mean < found.null_level


def test_p_counts_the_map_itself(distance):
    found = agreement(two_areas().area, two_areas(), distance, 2, cuts=99)
    assert found.p >= 1 / 100
    assert (found.p * 100) == pytest.approx(round(found.p * 100))


@pytest.mark.parametrize("sizes", [(150, 150), (120, 60, 120)], ids=str)
def test_random_cuts_are_significant_in_one_of_twenty(distance, sizes):
    """The null keeps its level: about 5 % of maps that are cuts themselves pass, and the level is theirs."""
    maps, areas, K = random_cuts(distance, sizes, 300, np.random.default_rng(4)), two_areas(), len(sizes)
    null = np.array([best_match(one)[2] for one in dice(maps, areas, K)])
    one = agreement(maps[0], areas, distance, K, cuts=999, seed=1)
    share = np.mean(null > one.null_level)
    # Three binomial sd of 300 maps; ties, which are many for equal sizes, only make it less.
    assert 0.005 < share < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)


def test_parts_without_a_path_are_joined_by_the_shortest_way():
    apart = np.flatnonzero(abs(COLUMN - 10) > 2)
    found = region_distances(SURFACES, region(apart))
    assert np.isfinite(found).all()
    assert found[7 * NY, 8 * NY] == pytest.approx(6, rel=1e-5)  # columns 7 and 13
    cuts = random_cuts(found, (100, len(apart) - 100), 20, np.random.default_rng(5))
    assert (cuts == 0).sum(1).tolist() == [100] * 20


def test_both_hemispheres_are_cut_alike():
    found = region_distances(SURFACES, region(range(300), range(300)))
    assert found[0, 300] == pytest.approx(0, abs=1e-4)
    np.testing.assert_allclose(found[:300, :300], found[300:, 300:], rtol=1e-5)
    for cut in random_cuts(found, (200, 400), 20, np.random.default_rng(6)):
        assert np.mean(cut[:300] == cut[300:]) > 0.9


def test_a_region_too_large_is_refused():
    with pytest.raises(ValueError, match="at most 6000 vertices"):
        region_distances(SURFACES, region(range(6001)))
