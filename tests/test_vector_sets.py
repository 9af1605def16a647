"""Vector sets: invariance to order and size, masks as removal, nested and crossed plates, both poolings."""

import pytest
import torch

from parcellation.elbo import elbo
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.plates import Observed
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit
from parcellation.vector_sets import POOLINGS, VectorSet
from tests.conftest import draw_cohort, full, generator, noise
from tests.test_encoding import along, close, reorder


def made(template, sites=None, pooling: str = "mean", size: int = 8) -> VectorSet:
    """An encoder with arbitrary weights, float64."""
    encoder = VectorSet(template, sites or template.sites, size, pooling).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(1), dtype=torch.float64))
    return encoder


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dimension", [0, 1])
def test_order_does_not_matter(pooling, dimension, effects):
    template, observed = effects
    encoder = made(template, pooling=pooling)
    order = torch.randperm(observed.mask.shape[dimension], generator=generator(2))
    one = encoder(full(template, observed), {})
    other = encoder(full(template, reorder(observed, dimension, order)), {})
    for name in one:
        assert close(other[name], along(one[name], dimension, order)), name


@pytest.mark.parametrize("pooling", POOLINGS)
def test_size_does_not_matter_but_how_much_there_is(pooling, effects):
    template, observed = effects
    encoder = made(template, pooling=pooling)
    one = encoder(full(template, observed), {})
    twice = Observed(torch.cat([observed.x] * 2, 1), torch.cat([observed.mask] * 2, 1))
    other = encoder(full(template, twice), {})
    # Groups only: in the population's, groups of several sizes weigh by how well each of them is known.
    assert torch.allclose(other["group"].vector, one["group"].vector, atol=1e-12)
    more = other["group"].log_precision - one["group"].log_precision
    assert torch.allclose(more, torch.full_like(more, 2.0).log())


@pytest.mark.parametrize("pooling", POOLINGS)
def test_what_is_masked_is_not_there(pooling, effects):
    template, observed = effects
    encoder, mask = made(template, pooling=pooling), observed.mask.clone()
    two = observed.select(0, torch.tensor([1]))  # a group of two samples in five places
    removed = encoder(full(template, two.select(1, torch.tensor([0, 1]))), {})["group"]
    assert torch.allclose(encoder(full(template, observed), {})["group"].vector[1], removed.vector[0], atol=1e-12)
    mask[3] = False
    masked = encoder(full(template, Observed(observed.x * mask[..., None], mask)), {})
    without = encoder(full(template, observed.select(0, torch.arange(3))), {})
    assert torch.allclose(masked["population"].vector, without["population"].vector, atol=1e-12)
    assert all(part.isfinite().all() for one in masked.values() for part in one.parts().values())


@pytest.mark.parametrize("pooling", POOLINGS)
def test_one_vector_for_every_combination_of_plates_nested_and_crossed(pooling):
    drawn = draw_cohort((4, 2, 3))
    encoder = made(drawn.template, pooling=pooling, size=6)
    encodings = encoder(drawn.batch, {})
    for site in drawn.template.sites:
        shape = drawn.template.shape(site, drawn.observed)
        assert encodings[site.name].vector.shape == (*shape[:3], 6), site.name
        assert encodings[site.name].estimate.shape == shape, site.name
    # A vertex's encoding over subjects knows nothing of other vertices, and neither does one of a subject of others.
    changed = drawn.observed.x.clone()
    changed[1, :, 2] += 1
    other = encoder(full(drawn.template, Observed(changed, drawn.observed.mask, drawn.observed.covariates)), {})
    moved = (other["logits_group"].vector - encodings["logits_group"].vector).abs().amax((0, 1, 3))
    assert moved[:2].max() == 0 < moved[2]
    moved = (other["mu_subject"].vector - encodings["mu_subject"].vector).abs().amax((1, 2, 3))
    assert moved[[0, 2, 3]].max() == 0 < moved[1]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_shares_sum_to_one_and_those_of_attention_are_not_even(pooling, effects):
    template, observed = effects
    encoder = made(template, pooling=pooling)
    channels = torch.randn(4, 5, 1, encoder.project["group"].in_features, generator=generator(3), dtype=torch.float64)
    there = observed.mask.clone()
    there[2] = False
    weight = there * torch.rand(4, 5, generator=generator(4), dtype=torch.float64)
    share = encoder._share("group", "sample", channels, weight)
    assert torch.allclose(share.sum(1), torch.tensor([1.0, 1, 0, 1], dtype=torch.float64))
    assert (share[~there] == 0).all()
    even = weight / weight.sum(1, keepdim=True).clamp_min(1e-9)
    assert torch.allclose(share, even) == (pooling == "mean")


def test_an_unknown_pooling_is_refused():
    with pytest.raises(UsageError, match="pooling: expected mean or attention, got 'max'"):
        VectorSet(GaussianRandomEffects(2), [], pooling="max")


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_as_long_as_the_variables_come_near_the_evidence(pooling):
    template = GaussianRandomEffects(2, 1.0, 1.0, 1.0)
    observed = template.simulate(10, 20, generator(0))
    single = full(template, observed.to("cpu", torch.float32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        family = Family(template, single.cards, "encoded", encoding_size=8, pooling=pooling)
    fit(family, Whole(template, single), Plan(250, 10, 0.03, 0, {}))
    gap = float(template.log_evidence(observed)) - elbo(family.double(), full(template, observed), noise(0), 50).mean
    assert -0.05 < gap < 0.5
