"""What only a GPU can show: `make gpu-check` runs these."""

import logging

import pytest
import torch

from parcellation.elbo import training_loss
from parcellation.recorded_step import RecordedStep
from pipelines.benchmarks import gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_cpu_and_gpu_agree(tmp_path):
    assert gpu.agree(*gpu.SCALES["thousand"].agree, tmp_path / "agree", "cuda")["dice"] > 0.99


def test_a_step_is_recorded_and_played(caplog):
    source = gpu.Drawn(gpu.Size(12, 200, 2), torch.device("cuda"))
    with caplog.at_level(logging.INFO):
        family, *_ = gpu._started(source, 12)
        losses = gpu.fit(family, source, gpu.Plan(12, 4, 0.02, 0, {}))
    assert "are recorded, and played" in caplog.text
    assert losses[-1] < losses[0]


def test_a_played_step_has_the_loss_of_one_that_runs_as_it_is():
    source = gpu.Drawn(gpu.Size(12, 200, 2), torch.device("cuda"))
    family, *_ = gpu._started(source, 12)
    step = RecordedStep(family, training_loss, list(family.parameters()))
    for number in range(4):
        batch = source.batch(torch.arange(number, number + 4))
        noise = gpu.Plan(4, 4, 0.02, 0, {}).generator("noise", number)
        known = {}

        def draw(name, shape, noise=noise, known=known):
            known[name] = torch.randn(shape, generator=noise).cuda()
            return known[name]

        played = step(batch, draw).item()
        plain = step.run(batch, lambda name, shape, known=known: known[name]).item()
        assert played == pytest.approx(plain, rel=1e-5)
