"""Steps that are recorded and played, with a recorder that runs on any device in the place of a CUDA graph."""

import logging

import numpy as np
import pytest
import torch

from parcellation import training
from parcellation.elbo import training_loss
from parcellation.family import Family
from parcellation.recorded_step import RecordedStep, why_not_recorded
from parcellation.training import Plan, Whole, fit


def record_nothing(function):
    """What a recorder does, less the recording: warm-up runs, then a function that plays."""
    function()
    return function


def trained(ragged, monkeypatch, record=None, scheme="hybrid", subsample=None):
    """Losses and weights after some steps, recorded or not; five subjects in batches of two and one."""
    steps = []
    if record is not None:

        def recorded(family, estimator, optimisers, *rest, **options):
            parameters = [p for optimiser, _ in optimisers for p in optimiser.parameters]
            steps.append(RecordedStep(family, estimator, parameters, record))
            return steps[0]

        monkeypatch.setattr(training, "_recorded", recorded)
    torch.manual_seed(0)
    family = Family(ragged.template, ragged.batch.cards, scheme).double()
    source = Whole(ragged.template, ragged.batch)
    losses = fit(family, source, Plan(12, 2, 0.02, 0, subsample or {}))
    return losses, torch.cat([p.detach().flatten() for p in family.parameters()]), steps


@pytest.mark.parametrize("subsample", [{}, {"vertex": 5}])
@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
def test_played_steps_are_those_that_run_as_they_are(ragged, monkeypatch, scheme, subsample):
    played, weights, steps = trained(ragged, monkeypatch, record_nothing, scheme, subsample)
    monkeypatch.undo()
    plain, expected, _ = trained(ragged, monkeypatch, None, scheme, subsample)
    assert np.array_equal(played, plain)
    assert torch.equal(weights, expected)
    assert len(steps[0]._recordings) == 2  # one for each size of a batch


def test_a_recording_reads_places_that_later_batches_are_copied_to(ragged):
    family = Family(ragged.template, ragged.batch.cards).double()
    runs = []

    def once(function):
        answer = function()
        runs.append(1)
        return lambda: answer  # a recorder that is deaf to what lies in the places later

    step = RecordedStep(family, training_loss, list(family.parameters()), once)
    plan, source = Plan(12, 2, 0.02, 0, {}), Whole(ragged.template, ragged.batch)
    losses = []
    for members in ([0, 1], [2, 3], [0, 4]):
        generator = plan.generator("noise", len(losses))
        noise = lambda name, shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731, B023
        losses.append(float(step(source.batch(torch.tensor(members)), noise)))
    assert len(runs) == 1
    assert losses[1] == losses[2] != losses[0]


def test_what_cannot_be_recorded_runs_as_it_is_and_the_log_says_why(ragged, monkeypatch, caplog):
    def refuse(function):
        function()
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    with caplog.at_level(logging.WARNING):
        losses, weights, _ = trained(ragged, monkeypatch, refuse)
    monkeypatch.undo()
    plain, expected, _ = trained(ragged, monkeypatch)
    assert np.array_equal(losses, plain)
    assert torch.equal(weights, expected)
    assert caplog.text.count("not permitted when stream is capturing): they run as they are") == 1


def test_recording_pays_on_one_gpu_with_dense_gradients_only():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert why_not_recorded(gpu, 1, False, True) == ""
    assert "GPU" in why_not_recorded(cpu, 1, False, True)
    for processes, sparse, plain in ((2, False, True), (1, True, True), (1, False, False)):
        assert why_not_recorded(gpu, processes, sparse, plain)
