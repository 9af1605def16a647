"""The benchmark of new populations: cohorts that differ in what they say, paired scores, and its own targets."""

import numpy as np
import pytest

from pipelines.benchmarks.make_synth import make
from pipelines.benchmarks.populations import compare, scores, trained_on

SMALL = dict(T=2, nx=8, ny=6, D=10)


def test_another_map_and_other_profiles_change_nothing_else():
    plain, other = make(S=3, **SMALL), make(S=3, map_seed=2, profiles=np.zeros((2, 10)), **SMALL)
    np.testing.assert_array_equal(other["mu_group"], 0)
    np.testing.assert_allclose(other["mu_ses"], plain["mu_ses"] - plain["mu_group"], atol=1e-12)
    assert np.abs(other["group_logits"] - plain["group_logits"]).max() > 1
    again = make(S=3, map_seed=2, seed=5, **SMALL)
    np.testing.assert_array_equal(again["group_logits"], other["group_logits"])
    np.testing.assert_array_equal(make(S=3, **SMALL)["X"], plain["X"])


def test_scores_are_paired_over_subjects():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (6, 50))
    good = np.where(labels[..., None] == np.arange(2), 0.9, 0.1)
    bad = np.where(labels[..., None] == np.arange(2), 0.6, 0.4)
    same = scores(good, labels, good)
    assert (same["nll_worse"], same["nll_error"], same["accuracy_worse"]) == (0, 0, 0)
    # Numbering does not matter, and the difference is one constant, known without error.
    worse = scores(bad[..., ::-1], labels, good)
    assert worse["nll_worse"] == pytest.approx(np.log(0.9 / 0.6))
    assert worse["nll_error"] == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
def test_a_population_inferred_again_is_as_good_as_training_anew(tmp_path, scheme):
    """A cohort with another map and other profiles: labels within chance of retraining, widths within a quarter."""
    settings = dict(T=2, nx=20, ny=15, D=40, noise=4.0)
    trained = trained_on(make(S=80, seed=0, **settings), 60, tmp_path / "trained", scheme)
    found = compare(make(S=50, seed=1, map_seed=1, **settings), {scheme: trained}, tmp_path / "new")
    prefix = "" if scheme == "hybrid" else "encoded_"
    again, fixed = found[prefix + "reinferred"], found[prefix + "fixed"]
    for name in ("nll", "accuracy"):
        assert again[f"{name}_worse"] < 2 * again[f"{name}_error"]
    assert again["nll"] < fixed["nll"] - 0.01
    assert 0.8 < again["mu_ratio"] < 1.25
    assert 0.8 < again["map_ratio"] < 1.25
