"""A natural step: exact where the model is conjugate, from any start; bounded; the same in parts."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parcellation import natural_step as module
from parcellation.encoding import Encoding
from parcellation.family import Family
from parcellation.natural_step import Rates, antithetic, natural_step, refinable, slopes
from parcellation.plates import gaussian_noise
from tests.conftest import draw_cohort, full, generator
from tests.test_posterior import model_of
from tests.test_refinement import group_evidence, group_problem

PAIR = torch.tensor([1.0, -1.0], dtype=torch.float64)


def two_points(name, shape):
    """Noise of 1 and -1 in turn: its mean is 0 and its mean square 1, as they are of normal noise."""
    return PAIR.repeat(shape[0] // 2).reshape(-1, *[1] * (len(shape) - 1)).expand(shape)


def plain_problem(effects):
    """A group of the random effects, a flow without learned corrections, and the exact encoding."""
    problem, family, evidence = group_problem(effects)
    with torch.no_grad():
        for parameter in family.flows.parameters():
            parameter.zero_()
    template, _ = effects
    x = problem.batch.seen.x[0][problem.batch.seen.mask[0]]
    told = torch.full((1, 1, 1), len(x) / template.sd_sample**2, dtype=torch.float64).log()
    exact = Encoding(x.mean(0)[None, None], told, torch.zeros(1, 1, 1, len(template.plates), dtype=torch.float64))
    return problem, family, evidence, exact


def step(problem, family, encoding, rates, draws=2, noise=two_points, **options):
    slope = slopes(family, problem.batch, {"group": encoding}, noise, draws, problem.population, **options)
    return natural_step(encoding, slope["group"], rates)


@settings(max_examples=8, deadline=None)
@given(offset=st.floats(-1, 1), log_factor=st.floats(-0.6, 0.6))
def test_one_step_is_exact_in_a_conjugate_model_from_any_start(offset, log_factor):
    from parcellation.templates.gaussian_random_effects import GaussianRandomEffects

    template = GaussianRandomEffects(3, sd_population=1.3, sd_group=0.7, sd_sample=0.4)
    problem, family, evidence, exact = plain_problem((template, template.simulate(4, 5, generator(0))))
    width = (0.5 * -exact.log_precision).exp()
    start = replace(exact, estimate=exact.estimate + offset * width, log_precision=exact.log_precision + log_factor)
    found = step(problem, family, start, Rates())
    assert torch.allclose(found.log_precision, exact.log_precision, atol=1e-9)
    assert torch.allclose(found.estimate, exact.estimate, atol=1e-9)
    draw = family.draw(problem.batch, two_points, {"group": found}, problem.population, False, (2,))
    weights = module.objective(family, problem.batch, draw) / 2
    assert float(weights.detach()) == pytest.approx(float(evidence), abs=1e-5)


def test_a_step_is_never_longer_than_allowed(effects):
    problem, family, _, exact = plain_problem(effects)
    far = replace(exact, estimate=exact.estimate + 1e4, log_precision=exact.log_precision + 5)
    found = step(problem, family, far, Rates())
    assert float(found.log_precision - far.log_precision) == pytest.approx(-torch.tensor(2.0).log().item())
    prior, told = 0.7**-2, float(found.log_precision.exp())
    mean = lambda one, told: (told * one.estimate + prior * 0.3) / (told + prior)  # noqa: E731
    moved = mean(found, told) - mean(far, float(far.log_precision.exp()))
    assert float(moved.abs().max()) < 3 * 2 / (told + prior) ** 0.5 + 1e-9


@pytest.mark.parametrize("rate", [0.25, 0.6])
def test_what_a_step_leaves_of_the_start_is_known_to_the_full_gradient_only(effects, rate):
    """In a conjugate model a step of this rate takes that share of the way: 1 - rate of the start is left."""
    problem, family, _, exact = plain_problem(effects)
    for graph, expected in ((True, 1 - rate), (False, 1.0)):
        estimate = (exact.estimate + 0.1).requires_grad_()
        rates = Rates(shared=rate, precision=0.0)
        found = step(problem, family, replace(exact, estimate=estimate), rates, differentiable=graph, path=False)
        (left,) = torch.autograd.grad(found.estimate.sum(), estimate)
        assert torch.allclose(left, torch.full_like(left, expected), atol=1e-9)


def test_draws_with_estimates_of_their_own_reach_the_answers_of_their_own_populations():
    drawn = draw_cohort((3, 2, 25), features=4, planted={"log_kappa": 0.3}, seed=5)
    model = model_of(drawn)
    family, batch = model.family, full(drawn.template, drawn.subject(1))
    population = family.draw_population(model.blank(), gaussian_noise(generator(1), "cpu", torch.float64), 2)
    population["mu"][1] += 0.5
    encodings = {name: one.detach() for name, one in family.encodings(batch).items() if name in refinable(family)}
    for name, one in encodings.items():
        shape = drawn.template.shape(drawn.template.site(name), batch.scored)
        encodings[name] = replace(one, estimate=one.estimate.expand(2, *shape))
    for number in range(20):
        noise = gaussian_noise(generator(number), "cpu", torch.float64)
        found = slopes(family, batch, encodings, noise, 2, population)
        rates = Rates(0.5, 0.5 / (1 + number), 0.0)
        encodings |= {name: natural_step(encodings[name], one, rates) for name, one in found.items()}
    first, second = encodings["mu_session"].estimate
    assert float((first - second).abs().max()) > 1e-3


def test_parts_that_fit_into_memory_give_the_same_slopes(effects, monkeypatch):
    problem, family, _, exact = plain_problem(effects)
    noise = antithetic(gaussian_noise(generator(3), "cpu", torch.float64))
    start = replace(exact, estimate=exact.estimate + 0.2)
    own = replace(start, estimate=start.estimate.expand(6, *start.estimate.shape))
    arguments = (family, problem.batch, {"group": own}, module._held(noise), 6, problem.population)
    whole = slopes(*arguments)["group"]
    monkeypatch.setattr(module, "CHUNK", 2 * problem.batch.scored.mask.numel())
    parts = slopes(*arguments)["group"]
    for name in ("length", "excess", "weight", "prior_sd"):
        assert torch.allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12), name


def test_only_encoded_sites_with_precision_flows_are_refined(effects):
    template, observed = effects
    cards = full(template, observed).cards
    assert refinable(Family(template, cards, "hybrid")) == ["group"]
    assert refinable(Family(template, cards, "hybrid", {"group": "affine"})) == []
    assert refinable(Family(template, cards, "free")) == []


def test_evidence_of_the_groups_is_what_the_examples_are_judged_by(effects):
    _, _, evidence, _ = plain_problem(effects)
    template, observed = effects
    assert float(group_evidence(template, observed.select(0, torch.tensor([0])), 0.3)) == float(evidence)
