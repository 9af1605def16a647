"""The map counted anew: a fixed point of what halves of the sessions tell."""

import numpy as np
import pytest
import torch

from parcellation.model_file import LabelPower, TrainedModel
from parcellation.plates import Observed
from parcellation.posterior import tempered_labels
from parcellation.refitted_map import _Known, half_labels, mean_map, refit_map, without
from tests.tempered import cohort, started


def test_a_map_without_a_subject_is_that_of_the_others():
    labels = torch.rand(6, 50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = labels / labels.sum(-1, keepdim=True)

    def counted(some: torch.Tensor) -> torch.Tensor:
        counts = some.sum(0) + 0.5
        return counts / counts.sum(-1, keepdim=True)

    assert torch.allclose(without(counted(labels), labels[2], 6), counted(labels[[0, 1, 3, 4, 5]]))
    # A map that has been estimated otherwise may have less of a network than the subject has: half a count stays.
    assert without(torch.tensor([[0.01, 0.99]]), torch.tensor([[1.0, 0.0]]), 2)[0, 0] > 0.1


@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
def test_refitted_map_counts_the_labels_of_halves_with_half_a_count_more(scheme):
    drawn = cohort(copies=4)
    model, source = started(drawn, scheme)
    model = TrainedModel(model.family, {}, {}, {}, label_power=LabelPower(0.25, 0.0, True))
    refit_map(model, source, passes=12)
    maps = mean_map(model, 400)
    counts = half_labels(model, source.batch(torch.arange(16)).seen, maps.log()).sum(0)[0] + 0.5
    # A fixed point, up to draws: 32 of them placed it, and 400 look at it.
    np.testing.assert_allclose(maps, counts / counts.sum(-1, keepdim=True), atol=0.04)


def test_halves_are_every_other_session_and_one_without_data_does_not_count():
    drawn = cohort(sessions=3)
    model, source = started(drawn)
    observed, even_map = source.batch(torch.arange(2)).seen, torch.full((150, 2), 0.5).log()
    even, odd = (tempered_labels(model, observed.select(1, torch.tensor(part)), even_map) for part in ([0, 2], [1]))
    assert torch.allclose(half_labels(model, observed, even_map), (even + odd) / 2)
    mask = observed.mask.clone()
    mask[0, 1] = False
    gap = Observed(observed.x * mask[..., None], mask, observed.covariates)
    assert torch.allclose(half_labels(model, gap, even_map)[0], even[0])
    assert torch.allclose(half_labels(model, gap, even_map)[1], (even + odd)[1] / 2)


def test_profiles_that_are_kept_are_those_of_each_half():
    model, source = started(cohort(sessions=3))
    known, centre, log_map = _Known(source, model), model.family.centre(model.blank()), torch.full((150, 2), 0.5).log()
    for members in ([3, 0], [1], [0, 3]):
        chunk = source.batch(torch.tensor(members))
        expected = half_labels(model, chunk.seen, log_map)
        assert torch.equal(half_labels(model, chunk.seen, log_map, centre, known.of(chunk, centre)), expected)


def test_the_mean_map_is_the_same_at_every_call_and_adds_up_to_one():
    model, _ = started(cohort())
    first = mean_map(model)
    assert torch.equal(mean_map(model), first)
    assert torch.allclose(first.sum(-1), torch.ones(150, dtype=torch.float64), rtol=1e-6)
    assert torch.allclose(mean_map(model, 4000), mean_map(model, 2000), atol=0.03)
