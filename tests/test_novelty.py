"""Scores of known answers, p-values that are uniform, a cohort test that keeps its level."""

import math

import numpy as np
import pytest

from parcellation.novelty import (
    Population,
    Reference,
    cohort_shift,
    conformal_p,
    digest_bytes,
    flag_level,
    session_mean,
    summary,
)

RNG = np.random.default_rng


def population(vertices=50, targets=8, variance=0.5):
    g = RNG(0)
    profiles = g.normal(size=(2, targets)).astype(np.float32)
    share = 1 / (1 + np.exp(-np.linspace(-3, 3, vertices)))
    return Population(profiles, np.log(np.stack([share, 1 - share], 1)).astype(np.float32), variance)


def drawn(one: Population, seed: int, profiles=None):
    g, (V, _), D = RNG(seed), one.log_map.shape, one.profiles.shape[1]
    labels = (g.random(V) > np.exp(one.log_map[:, 0])).astype(int)
    m = one.profiles if profiles is None else profiles
    return (m[labels] + math.sqrt(one.variance) * g.normal(size=(V, D))).astype(np.float32)


def test_density_is_that_of_the_mixture():
    one = population()
    x, mask = drawn(one, 1), np.ones(50, bool)
    mask[7] = False
    normal = -0.5 * ((x[:, None] - one.profiles) ** 2).sum(-1) / 0.5 - 4 * math.log(2 * math.pi * 0.5)
    expected = np.log((np.exp(one.log_map) * np.exp(normal)).sum(1))[mask].mean() / 8
    assert one.score(x * mask[:, None], mask)[0] == pytest.approx(expected, rel=1e-5)


def test_density_of_its_own_data_is_their_negative_entropy():
    """Less at most the entropy of a label, about the number of targets: D/2 log(2 pi e v) nats a vertex."""
    one = population(variance=1e-4)
    found = np.mean([one.score(drawn(one, seed), np.ones(50, bool))[0] for seed in range(40)])
    clear = -0.5 * math.log(2 * math.pi * math.e * 1e-4)
    share = np.exp(one.log_map)
    label = (share * one.log_map).sum(1).mean() / 8
    assert found == pytest.approx(clear + label, abs=4 * math.sqrt(0.5 / (40 * 400)))


def test_agreement_is_one_for_the_populations_contrasts_and_none_without_them():
    one, seen = population(vertices=2000), np.ones(2000, bool)
    agreement = [one.score(drawn(one, seed), seen)[1] for seed in range(20)]
    assert np.mean(agreement) == pytest.approx(1, abs=0.03)
    half = one.profiles.mean(0) + 0.5 * (one.profiles - one.profiles.mean(0))
    assert np.mean([one.score(drawn(one, s, half), seen)[1] for s in range(20)]) == pytest.approx(0.5, abs=0.03)
    noise = [one.score(RNG(s).normal(size=(2000, 8)).astype(np.float32), seen)[1] for s in range(20)]
    assert np.mean(noise) == pytest.approx(0, abs=0.03)


def test_a_session_without_a_vertex_has_no_score():
    assert np.isnan(population().score(np.zeros((50, 8), np.float32), np.zeros(50, bool))).all()


def test_a_summary_is_mean_and_root_mean_square_over_sessions():
    x, mask = RNG(0).normal(size=(2, 30, 4)).astype(np.float32), np.ones((2, 30), bool)
    mask[1, 10:] = False
    found = summary(list(zip(x, mask, strict=True)))
    np.testing.assert_allclose(found[:4], (x[0].mean(0) + x[1, :10].mean(0)) / 2, rtol=1e-5)
    square = ((x[0] ** 2).mean(0) + (x[1, :10] ** 2).mean(0)) / 2
    np.testing.assert_allclose(found[4:], np.sqrt(square), rtol=1e-5)


def test_p_is_uniform_for_exchangeable_subjects_whatever_their_distribution():
    g = RNG(1)
    p = []
    for _ in range(2000):
        points = g.standard_t(2, size=(20, 2)) * [1, 50] + g.exponential(size=(20, 1))
        p.append(conformal_p(points[:-1], points[-1]))
    counts = np.bincount(np.rint(20 * np.array(p)).astype(int), minlength=21)[1:]
    # Each of the values 1/20 ... 1 has 100 of 2000; three sd of a binomial, corrected for looking at twenty.
    assert counts.sum() == 2000
    assert abs(counts - 100).max() < 4 * math.sqrt(95)


def test_far_away_in_any_direction_is_the_smallest_p():
    others = RNG(2).multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], size=99)
    for away in ([50, 50], [-50, -50], [3, -3], [-3, 3]):
        assert conformal_p(others, np.array(away)) == pytest.approx(0.01)
    assert conformal_p(others, np.zeros(2)) > 0.9


def test_the_rate_is_one_in_a_hundred_or_what_so_few_allow_or_none():
    assert flag_level(500) == flag_level(99) == 0.01
    assert flag_level(49) == pytest.approx(0.02)
    assert flag_level(9) == pytest.approx(0.1)
    assert flag_level(8) is None


def reference_of(subjects=60, targets=30, seed=0, sessions=2):
    g = RNG(seed)
    scores, summaries = g.normal(size=(subjects, sessions, 2)), g.normal(size=(subjects, 2 * targets))
    units = np.stack([digest_bytes(f"{number:064x}") for number in range(subjects)])
    return Reference(population(targets=targets), scores, summaries, units)


def names(targets=30):
    return [f"T{number}" for number in range(targets)]


def test_sessions_that_are_there_count():
    scores = np.array([[[1.0, 2], [3, 4]], [[5, 6], [np.nan, np.nan]]])
    assert session_mean(scores).tolist() == [[2, 3], [5, 6]]


def test_one_session_is_compared_with_one_of_each():
    reference = reference_of(sessions=2)
    reference.scores[:, 1] += 1000  # second sessions are others
    assert reference.p(np.zeros((1, 2))) > 0.5
    assert reference.p(np.array([[0.0, 0], [np.nan, np.nan]])) > 0.5
    assert reference.p(np.zeros((2, 2))) == pytest.approx(1 / 61)


def test_a_subject_is_found_by_its_first_session():
    reference = reference_of()
    assert reference.position(f"{7:064x}") == 7
    assert reference.position(f"{700:064x}") is None


def test_cohorts_of_the_same_people_are_called_others_at_the_stated_rate(monkeypatch):
    """False alarms at the level .05, which takes fewer cohorts to tell; quantities are correlated and skewed."""
    monkeypatch.setattr("parcellation.novelty.PERMUTATIONS", 99)
    g, alarms = RNG(3), []
    for _ in range(300):
        common = g.exponential(size=(32, 1))
        values = common + 0.3 * g.exponential(size=(32, 20))
        new, old = values[:12], values[12:]
        reference = Reference(population(targets=10), g.normal(size=(20, 1, 2)), old, np.zeros((20, 32), np.uint8))
        alarms.append(cohort_shift(reference, g.normal(size=(12, 1, 2)), new, names(10)).p <= 0.05)
    assert 0.05 - 3 * math.sqrt(0.0475 / 300) < np.mean(alarms) < 0.05 + 3 * math.sqrt(0.0475 / 300)


def test_quantities_that_differ_are_named_the_largest_first():
    reference, g = reference_of(), RNG(4)
    summaries = g.normal(size=(20, 60))
    summaries[:, 4] += 3
    summaries[:, 30 + 9] += 5
    shift = cohort_shift(reference, g.normal(size=(20, 2, 2)), summaries, names())
    assert shift.found
    assert shift.p == pytest.approx(1 / 2000)
    assert shift.beyond == ("spread of T9", "mean of T4")
    assert (shift.quantities, shift.subjects) == (62, 20)


def test_quantities_that_never_vary_are_not_tested():
    reference = reference_of()
    reference.summaries[:, 3] = 0
    summaries = RNG(5).normal(size=(20, 60))
    summaries[:, 3] = 0
    assert cohort_shift(reference, RNG(6).normal(size=(20, 2, 2)), summaries, names()).quantities == 61


def test_two_subjects_beside_three_cannot_be_called_another_cohort():
    shift = cohort_shift(reference_of(3), np.full((2, 2, 2), 1e3), np.full((2, 60), 1e3), names())
    assert shift.smallest == pytest.approx(1 / 10)
    assert shift.p >= 0.05
    assert not shift.found
    assert cohort_shift(reference_of(3), np.full((3, 2, 2), 1e3), np.full((3, 60), 1e3), names()).smallest == 0.1


def test_arrays_restore_it():
    one = reference_of()
    again = Reference.from_arrays(one.to_arrays())
    assert len(again) == 60
    for name, value in one.to_arrays().items():
        np.testing.assert_array_equal(again.to_arrays()[name], value)
