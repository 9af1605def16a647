"""The benchmark of smooth maps: its sheet, its cohort, and differences that are paired."""

import numpy as np
import pytest

from pipelines.benchmarks import space


def test_a_vertex_of_the_sheet_has_the_neighbours_beside_it():
    near = space.neighbours()
    assert near.nnz == 2 * len(space.pairs()) == 2 * (39 * 30 + 40 * 29)
    assert set(near[[31], :].nonzero()[1]) == {1, 30, 32, 61}


def test_smooth_labels_agree_with_their_neighbours_more_often_and_keep_the_map(monkeypatch):
    from pipelines.benchmarks.make_synth import make

    before = make(S=60, T=1, D=2)
    after = space.smooth_labels(before, 0)
    first, second = space.pairs().T
    same = [(one["z"][:, first] == one["z"][:, second]).mean() for one in (before, after)]
    assert same[1] > same[0] + 0.05
    p = np.exp(before["group_logits"])
    expected = p[:, 0] / p.sum(1)
    assert abs((after["z"] == 0).mean() - expected.mean()) < 0.03
    assert after["X"].shape == before["X"].shape


def test_what_a_setting_gains_is_paired_over_subjects():
    labels = np.zeros((4, 5), int)
    base = np.full((4, 5, 2), 0.5)
    base[..., 0] += np.arange(4)[:, None] * 0.1
    base[..., 1] = 1 - base[..., 0]
    better = base + np.array([0.1, -0.1])
    row = space.scores(better, labels, space.by_subject(better, labels), space.by_subject(base, labels))
    gains = np.log(better[:, 0, 0] / base[:, 0, 0])
    assert row["nll_better"] == pytest.approx(gains.mean())
    assert row["nll_better_se"] == pytest.approx(gains.std(ddof=1) / 2)
