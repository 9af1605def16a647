"""Iterative amortized inference: a network of zeros takes half a natural step, and training makes it better."""

import pytest
import torch

from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.iterative import Iterative, iterative_loss
from parcellation.natural_step import Rates, natural_step, slopes
from parcellation.plates import gaussian_noise
from parcellation.semi_amortized import own_estimates, refine
from parcellation.training import Plan, Whole, fit
from tests.conftest import draw_cohort, full, generator
from tests.test_posterior import model_of
from tests.test_semi_amortized import gain, keyed

HALF = Rates(0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def cohort():
    return draw_cohort((6, 2, 30), features=4, planted={"log_kappa": 0.3}, seed=2)


def test_a_network_of_zeros_takes_half_a_natural_step(cohort):
    family, batch = model_of(cohort).family, full(cohort.template, cohort.subject(0))
    network = Iterative(family).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    population = family.draw_population(batch.seen, keyed("population")(), 4)
    encodings = {
        name: own_estimates(one.detach(), 4) for name, one in family.encodings(batch).items() if name not in population
    }
    found = slopes(family, batch, encodings, keyed("step")(), 4, population)
    for name, one in found.items():
        emitted, half = (
            network.rule(name, 0, encodings[name], one),
            natural_step(encodings[name], one, Rates(0.5, 0.5, 0.5)),
        )
        assert torch.allclose(emitted.estimate, half.estimate), name
        assert torch.allclose(emitted.log_precision, half.log_precision), name


def test_training_moves_the_network_alone_and_makes_it_better(cohort):
    family = model_of(cohort).family
    weights = {name: value.clone() for name, value in family.state_dict().items()}
    network = Iterative(family, steps=3).double()
    with torch.no_grad():
        for update in network.updates.values():
            update.mean[-1].bias[0] = -0.45  # at first, it hardly moves
    population = family.draw_population(cohort.batch.seen.select(0, torch.tensor([0])), keyed("population")(), 16)
    subject = family, full(cohort.template, cohort.subject(4)), population
    encoder = family.encodings(subject[1])
    start = gain(subject, refine(*subject[:2], encoder, population, keyed("r"), 3, network.rule), "g")
    fit(network, Whole(cohort.template, cohort.batch), Plan(20, 3, 0.03, 0, {}), estimator=iterative_loss)
    end = gain(subject, refine(*subject[:2], encoder, population, keyed("r"), 3, network.rule), "g")
    assert end[0] > start[0]
    assert all(torch.equal(value, weights[name]) for name, value in family.state_dict().items())
    assert all(parameter.grad is None for parameter in family.parameters())


def test_the_loss_is_a_function_of_the_noise_and_every_weight_has_a_gradient(cohort):
    network = Iterative(model_of(cohort).family, steps=2).double()
    losses = [iterative_loss(network, cohort.batch, gaussian_noise(generator(1), "cpu", torch.float64)) for _ in (0, 1)]
    assert float(losses[0].tensor.detach()) == float(losses[1].tensor.detach())
    losses[0].tensor.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_a_family_without_known_steps_is_refused(effects):
    template, observed = effects
    with pytest.raises(UsageError, match="precision flows"):
        Iterative(Family(template, full(template, observed).cards, "hybrid", {"group": "affine"}))
