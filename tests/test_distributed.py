"""Several processes train as one does with the same batches, stop together, and go on to the same bits."""

import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from parcellation.distributed import ALONE, Team, team_of
from parcellation.errors import UsageError
from parcellation.plates import gaussian_noise
from parcellation.training import Whole, fit
from tests.conftest import full
from tests.slurm import wait_for
from tests.studies import ROOT
from tests.test_training import family_of, plan, state

# One of two processes: trains each case to its end, then again with a stop after step 6, then from that checkpoint on.
WORKER = """
import json, sys
from pathlib import Path
import numpy as np, torch
from parcellation.distributed import team_of
from parcellation.errors import Stopped
from parcellation.training import Whole, fit
from tests.test_distributed import cases
from tests.test_training import family_of, state

out = Path(sys.argv[1])
with team_of(torch.device("cpu")) as team:
    for name, (template, batch, scheme, how) in cases().items():
        for part in ("whole", "stopped", "resumed"):
            family, asked = family_of(template, batch, scheme, seed=team.rank), []
            team.follow(family)
            checkpoint = None if part == "whole" else out / f"{name}.safetensors"
            # The second process alone is told to stop.
            stop = lambda: (asked.append(1), part == "stopped" and team.rank == 1 and len(asked) == 6)[1]
            try:
                losses = fit(family, Whole(template, batch), how, checkpoint, stop=stop, team=team).tolist()
            except Stopped as end:
                losses = str(end)
            np.savez(out / f"{part}.{name}.{team.rank}.npz", losses=json.dumps(losses), **state(family))
"""


def cases():
    """Template, batch, scheme and plan: all kinds of sites, ragged data, steps that do not divide evenly."""
    from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
    from tests.conftest import draw_cohort, generator

    effects = GaussianRandomEffects(3, sd_population=1.3, sd_group=0.7, sd_sample=0.4)
    drawn = draw_cohort((7, 2, 8), masked=0.3, seed=3)
    how = plan(9, batch=3, subsample={"vertex": 4}, every=4)
    return {
        "hybrid": (drawn.template, drawn.batch, "hybrid", how),
        "free": (drawn.template, drawn.batch, "free", how),
        "effects": (effects, full(effects, effects.simulate(5, 4, generator(0))), "hybrid", plan(9, batch=4, every=4)),
    }


def torchrun(*arguments: str, processes: int = 2, **options) -> subprocess.Popen:
    """Processes of one machine, as torchrun starts them, with a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--rdzv-backend=c10d"]
    launch += [f"--rdzv-endpoint=127.0.0.1:{port}", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, *launch],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process: subprocess.Popen) -> str:
    text, _ = process.communicate(timeout=120)
    return text


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two processes has: whole, stopped and resumed, by part, case and rank."""
    out = tmp_path_factory.mktemp("two")
    (out / "worker.py").write_text(WORKER)
    process = torchrun(str(out / "worker.py"), str(out))
    text = finish(process)
    assert process.returncode == 0, text
    return {path.stem: dict(np.load(path)) for path in out.glob("*.npz")}


def losses(found: dict) -> list | str:
    return json.loads(str(found["losses"]))


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("case", ["hybrid", "free", "effects"])
def test_two_processes_train_as_one_does(two, case):
    template, batch, scheme, how = cases()[case]
    one = family_of(template, batch, scheme, seed=0)
    expected = fit(one, Whole(template, batch), how)
    # Sums in another order: float64 keeps 1e-16 of a loss of hundreds, and Adam divides small gradients by small ones.
    np.testing.assert_allclose(losses(two[f"whole.{case}.0"]), expected, rtol=1e-9)
    for name, value in state(one).items():
        np.testing.assert_allclose(two[f"whole.{case}.0"][name], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", ["hybrid", "free", "effects"])
def test_both_stop_when_one_is_told_to_and_go_on_to_the_same_bits(two, case):
    assert same(two[f"whole.{case}.0"], two[f"whole.{case}.1"])
    for rank in (0, 1):
        assert "stopped after step 6 of 9" in losses(two[f"stopped.{case}.{rank}"])
        assert same(two[f"resumed.{case}.{rank}"], two[f"whole.{case}.{rank}"])
    assert same(two[f"stopped.{case}.0"], two[f"stopped.{case}.1"])
    assert not same(two[f"stopped.{case}.0"], two[f"whole.{case}.0"])


def test_shares_are_a_steps_members_and_as_equal_as_can_be():
    members = torch.arange(10, 17)
    shares = [Team(rank, 3).share(members) for rank in range(3)]
    assert sorted(torch.cat(shares).tolist()) == members.tolist()
    assert [len(share) for share in shares] == [3, 2, 2]
    assert torch.equal(ALONE.share(members), members)
    with pytest.raises(UsageError, match=r"batch_subjects: expected 8 subjects a step or more.*got a step of 7"):
        Team(0, 8).share(members)


def test_noise_is_cut_from_that_of_the_whole_step(ragged):
    def noise():
        return gaussian_noise(torch.Generator().manual_seed(1), "cpu", torch.float64)

    sites = ragged.template.sites
    for rank in (0, 1):
        whole, cut = noise(), Team(rank, 2).noise(noise(), ragged.template, 5)
        for site in sites:
            unit = "subject" in site.plates
            expected = whole(site.name, (5 if unit else 1, 2))
            got = cut(site.name, (len(range(5)[rank::2]) if unit else 1, 2))
            assert torch.equal(got, expected[rank::2] if unit else expected)


def test_what_needs_a_whole_batch_is_refused(ragged):
    family, source = family_of(ragged.template, ragged.batch, "encoded"), Whole(ragged.template, ragged.batch)
    words = "training in several processes: expected members that stand alone, got "
    with pytest.raises(UsageError, match=words + ".* encoded from a whole batch; train in one process"):
        fit(family, source, plan(2), team=Team(0, 2))
    with pytest.raises(UsageError, match=words + "a bank, or many data sets"):
        Team(0, 2).check(family, whole=True)
    Team(0, 1).check(family, whole=True)


def test_a_process_by_itself_is_a_team_of_one():
    with team_of(torch.device("cpu")) as team:
        assert (team.rank, team.size) == (0, 1)
        assert team.any(True)
        assert team.first(lambda: 3) == 3


@pytest.mark.slow
def test_torchrun_trains_a_study_and_survives_sigterm(prepared, finished):
    """A signal to torchrun ends all processes; the same command goes on to the bits of an uninterrupted training."""
    study = prepared.write_study(training={"steps": 400, "checkpoint_every": 50})
    checkpoint = prepared.model.parent / "checkpoint.safetensors"
    arguments = ("-m", "parcellation", "train", str(study))
    process = torchrun(*arguments)
    text = finish(process)
    assert process.returncode == 0, text
    model = prepared.model.read_bytes()
    for path in prepared.model.parent.iterdir():
        path.unlink()
    process = torchrun(*arguments)
    wait_for(checkpoint.exists, 120)
    process.send_signal(signal.SIGTERM)
    text = finish(process)
    assert process.returncode != 0
    assert "stopped after step" in text
    assert not prepared.model.exists()
    assert 50 <= len(load_file(checkpoint)["losses"]) < 400
    process = torchrun(*arguments)
    text = finish(process)
    assert process.returncode == 0, text
    assert prepared.model.read_bytes() == model
