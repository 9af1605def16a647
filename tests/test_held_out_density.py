"""Density of unseen people: against a direct computation, and that it tells the right number of networks."""

import math

import pytest
import torch

from parcellation.family import Family
from parcellation.held_out_density import held_out_density
from parcellation.model_file import TrainedModel
from parcellation.plates import Observed
from parcellation.refitted_map import mean_map
from parcellation.templates.functional_parcellation import FunctionalParcellation
from parcellation.training import Whole, anchor, settle_population, warm_start
from tests.conftest import Drawn, draw_cohort, full

SCALES = {"log_kappa": 0.0, "log_epsilon": -1.5, "log_sigma": -2.0}


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    return draw_cohort((12, 2, 120), networks=3, features=8, seed=4, planted=SCALES)


def model_of(drawn: Drawn, networks: int, subjects: range) -> TrainedModel:
    """A model of some subjects by coordinate ascent, anchored at their averages."""
    observed = drawn.observed.select(0, torch.tensor(list(subjects)))
    source = Whole(drawn.template, full(drawn.template, observed))
    reference = anchor(source, drawn.template.plates, networks, 0, 4)
    source = Whole(FunctionalParcellation(reference, 400.0), source.full)
    family = Family(source.template, source.cards, "hybrid").double()
    settle_population(family, source, 4, warm_start(family, source, 4))
    return TrainedModel(family, {}, {}, {})


def mean(model: TrainedModel, drawn: Drawn, subjects: range, field: str) -> float:
    return sum(getattr(held_out_density(model, drawn.subject(s)), field) for s in subjects) / len(subjects)


def test_given_the_population_it_is_a_mixture_of_normals(drawn):
    model, observed = model_of(drawn, 3, range(8)), drawn.subject(9)
    centre = model.family.centre(observed)
    mu, log_map = centre["mu"][0, 0, 0], mean_map(model).log()
    noise, _ = model.family.template.site("log_kappa_session").prior(centre, observed)
    total = []
    for t in range(2):
        variance = (2 * noise[0, t, 0]).exp() + (2 * centre["log_epsilon"]).exp() + (2 * centre["log_sigma"]).exp()
        normal = torch.distributions.Normal(mu, variance.sqrt()[0, 0, 0, :, None])
        total.append((log_map + normal.log_prob(observed.x[0, t, :, None]).sum(-1)).logsumexp(-1) / 8)
    assert held_out_density(model, observed).population == pytest.approx(float(torch.stack(total).mean()), rel=1e-6)


def test_the_person_s_other_sessions_tell_more_than_the_population(drawn):
    model = model_of(drawn, 3, range(8))
    assert mean(model, drawn, range(8, 12), "person") > mean(model, drawn, range(8, 12), "population") + 0.01


def test_the_right_number_of_networks_predicts_better_than_fewer(drawn):
    few, right = (mean(model_of(drawn, k, range(8)), drawn, range(8, 12), "person") for k in (2, 3))
    assert right > few + 0.02


def test_one_session_has_no_other_and_masked_vertices_do_not_count(drawn):
    model, observed = model_of(drawn, 3, range(8)), drawn.subject(9)
    one = held_out_density(model, observed.select(1, torch.tensor([0])))
    assert one.person is None
    mask = observed.mask.clone()
    mask[:, :, :20] = False
    x = torch.where(mask[..., None], observed.x, 0.0)
    whole = held_out_density(model, Observed(x, mask, observed.covariates)).population
    assert math.isfinite(whole)
    assert whole != held_out_density(model, observed).population
    part = Observed(x + 5.0 * ~mask[..., None], mask, observed.covariates)
    assert held_out_density(model, part).population == pytest.approx(whole, rel=1e-9)
