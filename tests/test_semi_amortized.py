"""Refinement at test time never loses, reaches what is exact, and training through it is differentiated as it says."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from parcellation.encoding import Encoding
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.plates import gaussian_noise, seeded
from parcellation.posterior import Posterior
from parcellation.semi_amortized import (
    _clipped,
    at_draw,
    bounds,
    check_refinable,
    refine,
    semi_amortized,
)
from parcellation.training import Plan, Whole, fit
from tests.conftest import draw_cohort, full, generator
from tests.test_natural_step import plain_problem
from tests.test_posterior import model_of


def keyed(*key):
    return lambda *purpose: gaussian_noise(seeded(*key, *purpose), "cpu", torch.float64)


@pytest.fixture(scope="module")
def subject():
    """A subject that is unlike the others, a family near an answer, and draws of the population."""
    drawn = draw_cohort((4, 2, 40), features=4, planted={"log_kappa": 0.3, "log_epsilon": -0.5}, seed=5)
    observed = drawn.subject(1)
    model = model_of(drawn)
    population = model.family.draw_population(model.blank(), keyed("population")(), 16)
    return model.family, full(drawn.template, observed), population


def gain(subject, encodings, key):
    """What these encodings gain beyond the encoder's, on other draws than refinement has seen: mean and error."""
    family, batch, population = subject
    many = {name: value.repeat(8, *[1] * (value.ndim - 1)) for name, value in population.items()}
    own = {
        name: replace(one, estimate=one.estimate.repeat(8, *[1] * (one.estimate.ndim - 1)))
        for name, one in encodings.items()
    }
    before, after = (bounds(family, batch, one, many, keyed(key)(), 128) for one in (family.encodings(batch), own))
    difference = after - before
    return float(difference.mean()), float(difference.std() / 128**0.5)


def test_steps_gain_and_more_steps_lose_nothing(subject):
    family, batch, population = subject
    encoder = family.encodings(batch)
    found = {steps: refine(family, batch, encoder, population, keyed("steps"), steps) for steps in (2, 10, 40)}
    gains = {steps: gain(subject, one, "fresh") for steps, one in found.items()}
    assert gains[10][0] > 3 * gains[10][1]
    for fewer, more in ((2, 10), (10, 40)):
        assert gains[more][0] >= gains[fewer][0] - 3 * max(gains[fewer][1], gains[more][1])


def test_no_steps_are_the_encoders_answer_to_the_bit(subject):
    family, batch, population = subject
    encoder = family.encodings(batch)
    found = at_draw(refine(family, batch, encoder, population, keyed("none"), 0), 3)
    assert found.keys() == {"log_kappa_session", "mu_subject", "mu_session"}
    for name, one in found.items():
        assert torch.equal(one.estimate, encoder[name].estimate.expand(one.estimate.shape))
        assert torch.equal(one.log_precision, encoder[name].log_precision)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_answer_is_never_below_the_encoders_on_the_draws_it_is_chosen_by(subject, steps):
    family, batch, population = subject
    encoder = family.encodings(batch)

    def ruin(name, step, encoding, slope):
        return encoding.map(lambda part: part + 3)

    found = refine(family, batch, encoder, population, keyed("ruin"), steps, ruin)
    assert all(torch.equal(one.estimate, encoder[name].estimate) for name, one in found.items())
    found = refine(family, batch, encoder, population, keyed("few"), steps)
    before, after = (bounds(family, batch, one, population, keyed("few")("choose"), 16) for one in (encoder, found))
    assert float(after.mean()) >= float(before.mean())


def test_a_conjugate_model_is_refined_to_its_exact_posterior(effects):
    problem, family, evidence, exact = plain_problem(effects)
    population = {"population": problem.population["population"].expand(32, 1, 1, 3)}
    far = Encoding(exact.estimate + 0.3, exact.log_precision + 1.0, exact.extra)
    found = refine(family, problem.batch, {"group": far}, population, keyed("exact"), 40)
    weights = bounds(family, problem.batch, found, population, keyed("fresh")(), 32)
    assert float(weights.mean()) == pytest.approx(float(evidence), abs=0.02)


def test_flows_without_known_steps_are_refused(effects):
    template, observed = effects
    family = Family(template, full(template, observed).cards, "hybrid", {"group": "affine"})
    with pytest.raises(UsageError, match=r"group: AffineFlow.*--refine 0"):
        check_refinable(family)


class TestTraining:
    @pytest.fixture(scope="class")
    @staticmethod
    def cohort():
        return draw_cohort((6, 2, 20), features=4, planted={"log_kappa": 0.3}, seed=2)

    def gradients(self, cohort, estimator):
        family = model_of(cohort).family
        loss = estimator(family, cohort.batch, gaussian_noise(generator(7), "cpu", torch.float64)).tensor
        loss.backward()
        return float(loss.detach()), {name: value.grad for name, value in family.named_parameters()}

    def test_full_and_first_order_have_one_loss_and_two_gradients(self, cohort):
        (loss, full_), (same, first) = (self.gradients(cohort, semi_amortized(2, one)) for one in (False, True))
        assert loss == same
        assert all(bool(value.isfinite().all()) for value in full_.values())
        names = [name for name in full_ if name.startswith("flows.mu_session")]
        assert names
        assert any(not torch.allclose(full_[name], first[name], rtol=1e-3) for name in names)

    def test_each_is_a_training_of_its_own(self):
        names = {semi_amortized(steps, first).__name__ for steps in (1, 2) for first in (False, True)}
        assert len(names) == 4

    @pytest.mark.parametrize("first_order", [False, True])
    def test_it_trains_by_the_ordinary_loop(self, cohort, first_order):
        family, estimator = model_of(cohort).family, semi_amortized(1, first_order)

        def loss():
            return float(
                estimator(family, cohort.batch, gaussian_noise(generator(7), "cpu", torch.float64)).tensor.detach()
            )

        before = loss()
        fit(family, Whole(cohort.template, cohort.batch), Plan(6, 6, 0.02, 0, {}), estimator=estimator)
        assert loss() < before


def test_what_comes_back_is_never_larger_than_what_came_back_to_the_answer():
    start, limits = torch.ones(3, dtype=torch.float64, requires_grad=True), {}
    encoding = Encoding(start, torch.zeros(3, dtype=torch.float64), torch.zeros(3, 0))
    for _ in range(3):
        encoding = Encoding(encoding.estimate * 10, encoding.log_precision, encoding.extra)
        encoding = _clipped(encoding, "site", limits)
    encoding.estimate.sum().backward()
    assert torch.allclose(start.grad, torch.full((3,), 10.0, dtype=torch.float64))  # of the first step alone


class TestPosterior:
    @pytest.fixture(scope="class")
    @staticmethod
    def drawn():
        return draw_cohort((6, 3, 12), features=4, planted={"log_kappa": 0.3})

    def answer(self, drawn, order=(0, 1, 2), steps=4, model=None):
        posterior = Posterior(model or model_of(drawn), 8, steps)
        names = tuple("abc"[t] for t in order)
        observed = drawn.subject(2).select(1, torch.tensor(order))
        return posterior.subject("x", names, observed, lambda profiles: profiles)

    def test_no_steps_are_the_ordinary_answer_to_the_bit(self, drawn):
        plain = Posterior(model_of(drawn), 8).subject("x", ("a", "b", "c"), drawn.subject(2), lambda p: p)
        assert np.array_equal(self.answer(drawn, steps=0).probability, plain.probability)
        assert not np.array_equal(self.answer(drawn).probability, plain.probability)

    def test_who_else_is_inferred_and_the_order_of_sessions_do_not_matter(self, drawn):
        one, other = self.answer(drawn), self.answer(drawn, (2, 0, 1))
        assert np.allclose(one.probability, other.probability, rtol=1e-6, atol=1e-9)
        posterior = Posterior(model_of(drawn), 8, 4)
        posterior.subject("y", ("a", "b", "c"), drawn.subject(0), lambda p: p)
        again = posterior.subject("x", ("a", "b", "c"), drawn.subject(2), lambda p: p)
        assert np.array_equal(again.probability, one.probability)

    def test_a_tempered_model_is_refined_and_then_tempered(self, drawn):
        from parcellation.model_file import LabelPower

        model = model_of(drawn, power=LabelPower(0.5, 0.3, True))
        refined, plain = self.answer(drawn, model=model), self.answer(drawn, model=model, steps=0)
        assert np.isfinite(refined.probability).all()
        assert not np.array_equal(refined.probability, plain.probability)
        assert np.abs(refined.probability - plain.probability).max() < 0.3
