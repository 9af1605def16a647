"""Overlaps with known answers, and a null that chance itself does not beat."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from parcellation.anatomy import random_cuts, region_distances
from parcellation.comparison import MEAN, Parts, compare, dice_table, member, others, partners, weighted_dice
from tests.made import REGION, SURFACES, frontal

DISTANCE = region_distances(SURFACES, REGION)


def parts(probability, names=None):
    return Parts(names or tuple(f"n{k}" for k in range(probability.shape[1])), probability)


def hard(label, K=2):
    return parts(member(np.asarray(label), K).astype(float))


def test_dice_by_hand():
    table = dice_table(member(np.array([0, 0, 1, 1, 1]), 3), member(np.array([0, 1, 1, 1, -1]), 2))
    np.testing.assert_allclose(table, [[2 / 3, 2 / 5], [0, 4 / 6], [0, 0]])


@given(arrays(float, (6, 2), elements=st.floats(0, 1)), arrays(float, (6, 2), elements=st.floats(0, 1)))
def test_the_weighted_coefficient_is_symmetric_and_within_bounds(p, q):
    found = weighted_dice(p, q)
    np.testing.assert_allclose(found, weighted_dice(q, p))
    assert ((found >= 0) & (found <= 1 + 1e-12)).all()
    assert weighted_dice(p, p)[p.sum(0) > 1e-6] == pytest.approx(1)


@given(st.lists(st.integers(0, 2), min_size=8, max_size=8), st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_the_weighted_coefficient_of_certain_maps_is_dice(one, other):
    a, b = hard(one, 3), hard(other, 3)
    table = dice_table(member(a.label, 3), member(b.label, 3))
    np.testing.assert_allclose(weighted_dice(a.probability, b.probability), np.diag(table), atol=1e-6)


def test_a_map_agrees_with_itself_beyond_chance():
    one = parts(frontal(3))
    table = compare("x", one, one, [(0, 0), (1, 1), (2, 2)], DISTANCE, 199).set_index("network")
    assert table.dice.tolist() == [1, 1, 1, 1]
    assert table.weighted_dice.tolist() == pytest.approx([1, 1, 1, 1])
    assert table.p[MEAN] == pytest.approx(1 / 200)
    assert (table.chance < table.chance_95).all()
    assert table.chance_95[MEAN] < 1


def test_random_maps_pass_the_null_as_often_as_it_says():
    sizes = [60, len(REGION) - 60]
    maps = random_cuts(DISTANCE, sizes, 61, np.random.default_rng(5))
    second = hard(maps[0])
    passed = 0
    for cut in maps[1:]:
        first = hard(cut)
        table = compare("x", first, second, partners(first, second, False), DISTANCE, 99)
        passed += table.p.iloc[-1] <= 0.05
    assert passed <= 8  # binomial(60, .05) exceeds 8 once in 400


def test_partners_by_name_and_by_overlap():
    one = parts(frontal(3), ("a", "b", "c"))
    turned = parts(one.probability[:, [2, 0, 1]], ("a", "b", "c"))
    assert partners(one, turned, by_name=True) == [(0, 0), (1, 1), (2, 2)]
    assert partners(one, turned, by_name=False) == [(0, 1), (1, 2), (2, 0)]
    assert partners(one, parts(frontal(2), ("c", "d")), by_name=True) == [(2, 0)]


def test_without_distances_there_is_no_null():
    one = parts(frontal(2))
    table = compare("x", one, one, [(0, 0), (1, 1)], None, 99)
    assert table[["chance", "chance_95", "p"]].isna().all(axis=None)


def test_other_subjects_maps():
    first = np.array([[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]])
    second = first[:, ::-1]
    found = others(first, second, [(0, 1), (1, 0)])
    a = [set(np.flatnonzero(row == 0)) for row in first]
    b = [set(np.flatnonzero(row == 1)) for row in second]
    expected = [np.mean([2 * len(a[i] & b[j]) / (len(a[i]) + len(b[j])) for j in range(3) if j != i]) for i in range(3)]
    np.testing.assert_allclose(found[:, 0], expected)
    np.testing.assert_allclose(found[:, 2], found[:, :2].mean(1))
    assert np.isnan(others(first[:1], second[:1], [(0, 0)])).all()
