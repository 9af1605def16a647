"""The benchmark of gaps: its unusual subjects are as it says, and the others are left alone."""

import numpy as np
import pytest

from pipelines.benchmarks import synthetic
from pipelines.benchmarks.gap import KIND, unusual
from pipelines.benchmarks.make_synth import make


def test_unusual_subjects_are_twice_as_far_or_three_times_as_noisy():
    settings = dict(S=50, nx=30, ny=20, D=20, noise=1.0, sd_sub=0.5)
    before, after = make(**settings), make(**settings)
    unusual(after)
    half = synthetic.UNSEEN // 2
    far = [*range(KIND), *range(50 - 2 * half, 50 - half)]
    noisy = [*range(KIND, 2 * KIND), *range(50 - half, 50)]
    for s in range(50):
        X, z = after["X"][s], after["z"][s]
        own = np.stack([[x[z == k].mean(0) for k in (0, 1)] for x in X])
        residual = np.concatenate([x - profiles[z] for x, profiles in zip(X, own, strict=True)]).std()
        assert residual == pytest.approx(3.0 if s in noisy else 1.0, rel=0.05)
        if s in far:
            moved = after["mu_group"] + 2 * (before["mu_sub"][s] - before["mu_group"])
            expected = moved + before["mu_ses"][s] - before["mu_sub"][s]
            assert np.abs(own - expected).max() < 0.5
        elif s not in noisy:
            assert np.array_equal(X, before["X"][s])
