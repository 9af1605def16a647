"""Diagnostics of simulation-based calibration: each accepts an exact posterior, and tells the others from it.

The model is one normal: truth ~ N(0, 1), data of variance 1 about it, posterior N(x / 2, 1 / 2).
"""

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import chisquare

from parcellation.sbc import LEVEL, LEVELS, Width, coverage, histogram, judge, ranks, uniformity, width

DRAWS = 199
SETS, ELEMENTS = 200, 4
# Factor of the exact posterior's sd, and shift in units of it.
WRONG = {"overconfident": (0.7, 0.0), "underconfident": (1.4, 0.0), "biased": (1.0, 0.4)}


def ranked(factor: float = 1.0, shift: float = 0.0, seed: int = 0, shared: float = 0.0) -> np.ndarray:
    """Ranks (SETS, ELEMENTS) of one experiment; `shared` is the share of a truth's variance common to a data set."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(SETS, 1)) * shared**0.5
    away = common + (1 - shared) ** 0.5 * rng.normal(size=(SETS, ELEMENTS))  # (truth - mean) / sd
    return rng.binomial(DRAWS, ndtr((away - shift) / factor))


def rate(refused, again: int, **settings) -> float:
    """Share of so many repeated experiments that a diagnostic refuses."""
    return float(np.mean([refused(ranked(seed=seed, **settings)) for seed in range(again)]))


def not_uniform(found: np.ndarray) -> bool:
    return uniformity(found, DRAWS) < LEVEL


def not_covered(found: np.ndarray) -> bool:
    """Any interval off by three errors; the four of them are nearly one test."""
    return any(abs(share - level) > 3 * error for level in LEVELS for share, error in [coverage(found, DRAWS, level)])


def not_wide(found: np.ndarray) -> bool:
    one = width(found, DRAWS)
    return abs(one.factor - 1) > 3 * one.factor_error or abs(one.shift) > 3 * one.shift_error


def test_a_rank_counts_draws_below_and_breaks_ties_at_random():
    rng = np.random.default_rng(0)
    draws = np.array([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]])
    np.testing.assert_array_equal(ranks(np.array([1.5, 9.0]), draws, rng), [2, 3])
    tied = [int(ranks(np.array(5.0), draws[:, 1], rng)[0]) for _ in range(400)]
    assert chisquare(np.bincount(tied, minlength=4)).pvalue > 1e-3
    with pytest.raises(ValueError, match=r"expected draws of shape \(L, 3\), got \(3, 2\)"):
        ranks(np.zeros(3), draws, rng)
    with pytest.raises(ValueError, match="got NaN"):
        ranks(np.array([np.nan, 1.0]), draws, rng)


@pytest.mark.parametrize("shared", [0.0, 0.8])
def test_an_exact_posterior_is_accepted_at_the_stated_rate(shared):
    """Also where elements of a data set are correlated, which would deceive a test that counts each of them."""
    assert rate(not_uniform, 200, shared=shared) <= _most(LEVEL, 200)
    # Beyond three errors: .3 % of the normal law, .7 % of Student's with the 19 blocks that errors of a width are from.
    assert rate(not_covered, 200, shared=shared) <= _most(4 * 0.003, 200)
    assert rate(not_wide, 20, shared=shared) <= _most(2 * 0.007, 20)


def test_a_level_is_that_of_all_quantities_together():
    """Of 18 exact ones some are often refused one by one; together they are at the stated rate."""
    experiments = [[judge(ranked(seed=20 * one + seed), DRAWS) for seed in range(18)] for one in range(12)]
    alone = [any(one.verdict != "calibrated" for one in found) for found in experiments]
    together = [any(one.verdict_among(18) != "calibrated" for one in found) for found in experiments]
    assert sum(alone) >= 1
    assert np.mean(together) <= _most(LEVEL + 2 * 0.007, 12)
    assert judge(ranked(0.7), DRAWS).verdict_among(18) == "too narrow"
    assert judge(ranked(1.0, 0.4), DRAWS).verdict_among(18) == "too high"


def _most(expected: float, again: int) -> float:
    """A rate three binomial errors above the expected one."""
    return expected + 3 * (expected * (1 - expected) / again) ** 0.5


@pytest.mark.parametrize("kind", WRONG)
def test_others_are_refused(kind):
    factor, shift = WRONG[kind]
    assert rate(not_uniform, 100, factor=factor, shift=shift) >= 0.99
    assert rate(not_wide, 10, factor=factor, shift=shift) == 1


@pytest.mark.parametrize("kind", ["overconfident", "underconfident"])
def test_intervals_of_a_wrong_width_do_not_cover_as_they_say(kind):
    assert rate(not_covered, 100, factor=WRONG[kind][0]) >= 0.99
    shares = [coverage(ranked(factor=WRONG[kind][0]), DRAWS, level)[0] for level in LEVELS]
    assert all((share < level) == (kind == "overconfident") for share, level in zip(shares, LEVELS, strict=True))


def test_coverage_is_that_of_the_normal_law():
    """An sd of .7 of the right one covers as 2 Phi(.7 z) - 1; only levels of draws + 1 that divide are exact."""
    expected = {0.5: 0.3632, 0.8: 0.6303, 0.9: 0.7504, 0.95: 0.8299}
    found = np.concatenate([ranked(factor=0.7, seed=seed) for seed in range(20)])
    for level, share in expected.items():
        assert coverage(found, DRAWS, level)[0] == pytest.approx(share, abs=4 * 0.5 / found.size**0.5)
    every = np.arange(DRAWS + 1)[:, None]
    assert [coverage(every, DRAWS, level)[0] for level in LEVELS] == pytest.approx(list(LEVELS))


def test_errors_are_binomial_and_grow_where_elements_are_covered_together():
    alone = coverage(ranked()[:, :1], DRAWS, 0.9)[1]
    assert alone == pytest.approx((0.9 * 0.1 / SETS) ** 0.5, rel=0.25)
    copied = np.repeat(ranked()[:, :1], ELEMENTS, 1)
    assert coverage(copied, DRAWS, 0.9)[1] == pytest.approx(alone, rel=0.05)  # at least binomial, or as data sets vary
    assert coverage(ranked(), DRAWS, 0.9)[1] == pytest.approx(alone / ELEMENTS**0.5, rel=0.25)


@pytest.mark.parametrize("kind", ["exact", *WRONG])
def test_the_repair_is_found(kind):
    """A posterior with a factor and a shift of its own is repaired by one over the factor, and minus the shift."""
    factor, shift = WRONG.get(kind, (1.0, 0.0))
    found = width(ranked(factor=factor, shift=shift, seed=5), DRAWS)
    assert found.factor == pytest.approx(1 / factor, abs=4 * found.factor_error)
    assert found.shift == pytest.approx(-shift / factor, abs=4 * found.shift_error)
    # Errors as of SETS x ELEMENTS normal numbers.
    assert found.shift_error == pytest.approx(found.factor / (SETS * ELEMENTS) ** 0.5, rel=0.5)
    assert found.factor_error == pytest.approx(found.factor / (2 * SETS * ELEMENTS) ** 0.5, rel=0.6)


def test_a_repair_beyond_the_outermost_draws_is_found_by_those_within():
    """Three times too narrow: a tenth of the ranks are at the ends, where a truth's distance is unknown."""
    found = width(ranked(factor=1 / 3, seed=1), DRAWS)
    assert found.factor == pytest.approx(3, abs=4 * found.factor_error)


def test_words_say_what_is_wrong():
    words = {kind: judge(ranked(*settings), DRAWS).verdict for kind, settings in WRONG.items()}
    assert words == {"overconfident": "too narrow", "underconfident": "too wide", "biased": "too high"}
    assert judge(ranked(), DRAWS).verdict == "calibrated"
    assert judge(ranked(shift=-0.4), DRAWS).verdict == "too low"


def test_light_tails_are_seen_by_the_width_where_bins_do_not():
    """Half of the ranks in the outermost bins lie at their very ends: the bins are as full as before."""
    found = ranked(seed=2)
    found[found < 10], found[found >= DRAWS - 9] = 0, DRAWS
    one = judge(found, DRAWS)
    assert one.uniform
    assert one.verdict == "too narrow"


def test_ranks_that_are_all_alike_are_refused():
    assert uniformity(np.full((SETS, 1), DRAWS), DRAWS) == 0
    assert "too low" in judge(np.full((SETS, 1), DRAWS), DRAWS).verdict


def test_a_histogram_is_of_shares_in_order():
    found = np.array([[0, 1, 2, 3], [196, 197, 198, 199]])
    shares, errors = histogram(found, DRAWS, bins=4)
    np.testing.assert_allclose(shares, [0.5, 0, 0, 0.5])
    assert (errors > 0).all()


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(ValueError, match="a multiple of 10 bins, got 200 draws"):
        histogram(ranked(), 200)
    with pytest.raises(ValueError, match="at least 30 data sets"):
        uniformity(ranked()[:29], DRAWS)


def test_figures_are_plain_numbers_by_name():
    found = judge(ranked(), DRAWS)
    figures = found.figures()
    assert (figures["data_sets"], figures["elements"], figures["uniform"]) == (SETS, ELEMENTS, 1.0)
    assert {"p", "shares", "coverage", *vars(Width(0, 0, 0, 0))} <= figures.keys()
