"""One flow per ground variable: that of the family with nothing shared."""

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from parcellation.baselines.per_variable import PerVariable
from parcellation.family import Family
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit
from tests.conftest import full, generator, noise
from tests.test_family import exact_family, shaken
from tests.test_rival import build, gap, mean_field_gap, set_rows


def copy_of(family: Family, template, batch, flow: str | None = None) -> PerVariable:
    """The rival whose ground variables all have the family's flow."""
    rival = build(PerVariable, batch, template, flow=flow)
    for site in template.sites:
        encoding = family.free[site.name]({})
        parts = [encoding.estimate, encoding.log_precision]
        parts = [part.reshape(*rival.free[site.name].sizes, -1) for part in parts]
        set_rows(rival, site.name, *parts, parameters_to_vector(family.flows[site.name].parameters()))
    return rival


@pytest.mark.parametrize("flow", [None, "precision", "centred", "affine"])
def test_the_family_is_the_case_of_equal_weights(flow, effects, ragged):
    for template, observed in (effects, (ragged.template, ragged.observed)):
        batch = full(template, observed)
        family = shaken(Family(template, batch.cards, "free", flow).double(), 0.2)
        rival = copy_of(family, template, batch, flow)
        with torch.no_grad():
            for draws in ((), (3,)):
                one, other = (q.draw(batch, noise(0), draws=draws) for q in (family, rival))
                for site in template.sites:
                    assert torch.allclose(one.values[site.name], other.values[site.name], atol=1e-10)
                    assert torch.allclose(one.log_q[site.name], other.log_q[site.name], atol=1e-9)


def test_exact_at_the_posterior(effects):
    template, observed = effects
    batch = full(template, observed)
    rival = copy_of(exact_family(template, observed), template, batch)
    missing, error = gap(rival, template, observed, 10)
    assert missing == pytest.approx(0, abs=1e-9)
    assert error < 1e-9


def test_weights_are_each_variable_s_own(effects):
    template, observed = effects
    batch = full(template, observed)
    rival = build(PerVariable, batch, template, shake=0.1)
    before = rival.draw(batch, noise(0)).values["group"].detach()
    with torch.no_grad():
        rival.free["group"].rows.weight[2, 6:] += 0.1  # flow weights of one group
    after = rival.draw(batch, noise(0)).values["group"].detach()
    assert ((after != before).any(-1).flatten() == torch.tensor([False, False, True, False])).all()


def test_its_weights_grow_with_the_plate():
    template = GaussianRandomEffects(2)

    def count(groups: int) -> int:
        return sum(p.numel() for p in PerVariable(template, dict(group=groups, sample=5)).parameters())

    family = Family(template, dict(group=1, sample=5), "free")
    flow = sum(p.numel() for p in family.flows["group"].parameters())
    assert count(5) - count(4) == 2 * 2 + flow


@pytest.mark.slow
def test_training_on_reduced_batches_finds_the_posterior():
    template = GaussianRandomEffects(2, 1.0, 1.0, 1.0)
    observed = template.simulate(4, 3, generator(0))
    rival = build(PerVariable, full(template, observed), template)
    fit(rival, Whole(template, full(template, observed)), Plan(300, 2, 0.03, 0, {}, row_rate=5.0))
    missing, error = gap(rival, template, observed)
    assert -4 * error < missing < 0.1 < mean_field_gap(template, observed)
