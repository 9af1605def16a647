"""Mean-field Gaussian: exact where variables are independent, short by a known divergence where they are not."""

import pytest
import torch

from parcellation.baselines.mean_field import MeanField
from parcellation.elbo import objective
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit
from tests.conftest import full, generator, noise
from tests.test_rival import Independent, best_mean_field, build, gap, mean_field_gap, set_rows


def test_exact_for_independent_variables():
    template = Independent(2)
    observed = template.simulate(4)
    rival = build(MeanField, full(template, observed), template)
    mean, sd = template.posterior(observed)
    set_rows(rival, "theta", (mean - 0.5) / 1.5, (sd / 1.5).log())
    missing, error = gap(rival, template, observed, 20)
    assert missing == pytest.approx(0, abs=1e-10)
    assert error < 1e-10


def best(template, observed) -> MeanField:
    rival = build(MeanField, full(template, observed), template)
    for name, scale in (("population", template.sd_population), ("group", template.sd_group)):
        mean, sd = best_mean_field(template, observed)[name]
        set_rows(rival, name, mean / scale, (sd / scale).log())
    return rival


def test_the_best_member_misses_random_effects_by_the_known_gap(effects):
    template, observed = effects
    expected = mean_field_gap(template, observed)
    missing, error = gap(best(template, observed), template, observed, 2000)
    assert expected > 0.1
    assert missing == pytest.approx(expected, abs=4 * error)
    assert error < expected / 5


def test_no_gradient_is_left_at_the_best_member(effects):
    template, observed = effects
    rival, batch, draws = best(template, observed), full(template, observed), 400
    rows = []
    for seed in range(20):
        rival.zero_grad()
        (objective(rival, batch, rival.draw(batch, noise(seed), draws=(draws,))) / draws).backward()
        rows.append(torch.cat([p.grad.to_dense().flatten() for p in rival.parameters()]))
    rows = torch.stack(rows)
    score = rows.mean(0) / (rows.std(0) / 20**0.5)
    assert float(score.abs().max()) < 5  # the largest of 30, of 19 degrees of freedom


def test_training_on_reduced_batches_finds_the_best_member():
    template = GaussianRandomEffects(2, 1.0, 1.0, 1.0)
    observed = template.simulate(4, 3, generator(0))
    rival = build(MeanField, full(template, observed), template)
    fit(rival, Whole(template, full(template, observed)), Plan(250, 2, 0.03, 0, {}))
    missing, error = gap(rival, template, observed, 2000)
    assert missing == pytest.approx(mean_field_gap(template, observed), abs=0.08 + 4 * error)


def test_draws_do_not_depend_on_the_parents(effects):
    template, observed = effects
    batch = full(template, observed)
    rival = build(MeanField, batch, template, shake=0.2)
    groups = [
        rival.draw(batch, noise(0), given={"population": torch.full((1, 1, 3), value).double()}).values["group"]
        for value in (-5.0, 5.0)
    ]
    assert torch.equal(*groups)
