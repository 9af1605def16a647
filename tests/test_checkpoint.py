"""A checkpoint is never torn: whenever a process that saves is killed, the file is one whole state."""

import itertools
import os
import signal
import time

import numpy as np
import pytest
import torch

from parcellation.files import PART
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import _optimisers, _restore, _save
from tests.conftest import full, generator
from tests.slurm import wait_for
from tests.test_training import family_of, plan

GROUPS = 30_000  # with encodings of their own: a state that takes long to write
TRIES = 10  # for a kill within a write


def save_for_ever(path, family, first: int) -> None:
    """Save states one after the other; all that is in one has its number, so that a mixture would be seen."""
    optimisers = _optimisers(family, plan(1))
    for number in itertools.count(first):
        with torch.no_grad():
            for parameter in family.parameters():
                parameter.fill_(number)
        _save(path, "key", family, optimisers, [float(number)])


def killed_while_saving(path, family, first: int, seconds: float) -> bool:
    """Whether the file was half written when a process that saves was killed, so many seconds after it had begun."""
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(path, family, first)
        finally:
            os._exit(1)
    try:
        wait_for(lambda: path.exists() and _number(path, family) >= first, 60, often=0.001)
        time.sleep(seconds)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    parts = list(path.parent.glob(f"{PART}*"))
    for part in parts:
        part.unlink()
    return bool(parts)


def _number(path, family) -> int:
    """The number of a state, once it is sure that all of it has this number."""
    losses = _restore(path, "key", family, _optimisers(family, plan(1)))
    assert len(losses) == 1
    values = {float(value) for parameter in family.parameters() for value in parameter.detach().unique()}
    assert values == set(losses)
    return int(losses[0])


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_while_a_checkpoint_is_written_leave_a_whole_one(kills, tmp_path):
    """So many kills that fell within a write; those between two writes do not count."""
    template = GaussianRandomEffects(3, sd_population=1.3, sd_group=0.7, sd_sample=0.4)
    batch = full(template, template.simulate(GROUPS, 1, generator(0)))
    family, path = family_of(template, batch, "free"), tmp_path / "checkpoint.safetensors"
    moments = iter(np.random.default_rng(0).uniform(0, 0.02, TRIES * kills))
    number = within = 0
    while within < kills:
        within += killed_while_saving(path, family, number + 1, next(moments))
        found = _number(path, family)
        assert found > number
        number = found
