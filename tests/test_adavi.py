"""ADAVI: the best mean-field posterior at its exact weights, read off the data by shared ones."""

import pytest
import torch

from parcellation.baselines.adavi import Adavi
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit
from tests.conftest import full, generator, noise
from tests.test_rival import best_mean_field, build, gap, mean_field_gap


def exact(template, observed) -> Adavi:
    """Weights of the best mean-field posterior, a linear function of averages; groups must be of equal size."""
    rival = build(Adavi, full(template, observed), template)
    D = template.dimensions
    _, spread = template._averages(observed)
    width = rival.encoder.width
    precision = 1 / (template.sd_group**2 + spread)
    to_population = float((precision.sum(0) / (precision.sum(0) + template.sd_population**-2)).mean())
    share = float((template.sd_group**-2 / (template.sd_group**-2 + 1 / spread)).mean())
    sds = {name: sd.flatten()[0] for name, (_, sd) in best_mean_field(template, observed).items()}
    with torch.no_grad():
        for network in [*rival.encoder.pool.values(), *rival.bend.values()]:
            network[-1].weight.zero_()
            network[-1].bias.zero_()
        for name, sd in sds.items():
            rival.linear[name].weight.zero_()
            rival.linear[name].bias[D:] = sd.log()
        rival.linear["population"].weight[:D, :D] = to_population * torch.eye(D)
        rival.linear["group"].weight[:D, :D] = (1 - share) * torch.eye(D)
        rival.linear["group"].weight[:D, width : width + D] = share * to_population * torch.eye(D)
    return rival


def test_its_best_weights_miss_random_effects_by_the_mean_field_gap_on_any_data_set():
    template = GaussianRandomEffects(3, 1.3, 0.7, 0.4)
    rival = exact(template, template.simulate(4, 2, generator(0)))
    for seed in (1, 2):  # the weights depend on the sizes only: they are sample-amortized
        observed = template.simulate(4, 2, generator(seed))
        expected = mean_field_gap(template, observed)
        missing, error = gap(rival, template, observed, 1500)
        assert expected > 0.1
        assert missing == pytest.approx(expected, abs=4 * error)


def test_training_on_one_data_set_finds_the_mean_field_gap():
    template = GaussianRandomEffects(2, 1.0, 1.0, 1.0)
    observed = template.simulate(4, 3, generator(0))
    rival = build(Adavi, full(template, observed), template)
    fit(rival, Whole(template, full(template, observed)), Plan(200, 4, 0.03, 0, {}))
    missing, error = gap(rival, template, observed, 2000)
    assert missing == pytest.approx(mean_field_gap(template, observed), abs=0.1 + 4 * error)


def test_its_weights_do_not_grow_with_the_plate():
    template = GaussianRandomEffects(2)
    small, large = (
        sum(p.numel() for p in Adavi(template, dict(group=groups, sample=5), 2).parameters()) for groups in (2, 200)
    )
    assert small == large


def test_draws_do_not_depend_on_the_parents(effects):
    template, observed = effects
    batch = full(template, observed)
    rival = build(Adavi, batch, template, shake=0.2)
    groups = [
        rival.draw(batch, noise(0), given={"population": torch.full((1, 1, 3), value).double()}).values["group"]
        for value in (-5.0, 5.0)
    ]
    assert torch.equal(*groups)
