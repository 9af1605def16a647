"""The GPU's benchmark runs whole on any machine, at a size that measures nothing."""

import json

import numpy as np
import pytest
import torch

from parcellation.verbs import train
from pipelines.benchmarks import gpu

CPU = torch.device("cpu")


def test_all_of_it_runs_on_the_cpu(tmp_path, monkeypatch, capsys):
    arguments = ["gpu", "--full", "--device", "cpu", "--size", "tiny", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    gpu.main()
    figures = json.loads((tmp_path / "gpu.json").read_text())
    assert figures["agree.dice"] == 1  # the same device twice gives the same model
    assert figures["cortex.predicted_s"] > 0
    assert figures["cortex.steps"] == 6
    for scheme in gpu.SCHEMES:
        assert figures[f"broca.{scheme}.train_s"] > 0
        assert figures[f"broca.{scheme}.accuracy"] > 0.5
    assert "written" in capsys.readouterr().out


def test_each_device_trains_from_the_first_step_on(tmp_path, monkeypatch):
    plain, done = train.fit, []

    def watched(*arguments):
        def progress(step, loss):
            done.append(step)
            arguments[5](step, loss)

        return plain(*arguments[:5], progress, *arguments[6:])

    monkeypatch.setattr(train, "fit", watched)
    settings, steps = gpu.SCALES["tiny"].agree
    gpu.agree(settings, steps, tmp_path / "agree", "cpu")
    assert done == 2 * list(range(1, steps + 1))


def test_without_a_device_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu", "--out", str(tmp_path)])
    gpu.main()
    assert "no CUDA device" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_drawn_subject_is_the_same_in_every_batch_and_has_unit_features():
    source = gpu.Drawn(gpu.Size(20, 400, 3), CPU)
    batch = source.batch(torch.tensor([4, 7]))
    assert torch.equal(batch.seen.x[1], source.batch(torch.tensor([7])).seen.x[0])
    assert torch.equal(batch.seen.x[0], source.first(5).batch(torch.tensor([4])).seen.x[0])
    assert not torch.equal(batch.seen.x[0], batch.seen.x[1])
    assert batch.seen.x.square().mean() == pytest.approx(1, abs=0.05)


def test_steps_end_with_the_time_that_they_have():
    source = gpu.Drawn(gpu.Size(12, 30, 2), CPU)
    family, *_ = gpu._started(source, 12)
    plan = gpu.Plan(50, 4, 0.02, 0, {})
    assert len(gpu._timed_steps(family, source, plan, 0.0)) == 1
    assert np.all(np.array(gpu._timed_steps(family, source, gpu.Plan(3, 4, 0.02, 0, {}), 1e9)) > 0)
