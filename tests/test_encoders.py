"""Deep sets: invariance to order and size, masks as removal."""

import itertools
import math

import pytest
import torch

from parcellation.elbo import elbo
from parcellation.encoders import DeepSet
from parcellation.family import Family
from parcellation.plates import Observed
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from tests.conftest import full, generator, noise
from tests.test_encoding import along, close, reorder


@pytest.fixture
def deep_set(effects):
    template, observed = effects
    encoder = DeepSet(template, template.sites).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(1), dtype=torch.float64))
    return encoder, template, observed


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_deep_set_does_not_depend_on_order(deep_set, dimension):
    encoder, template, observed = deep_set
    order = torch.randperm(observed.mask.shape[dimension], generator=generator(2))
    one = encoder(full(template, observed), {})
    other = encoder(full(template, reorder(observed, dimension, order)), {})
    for name in one:
        expected = along(one[name], dimension, order) if dimension == 0 else one[name]
        assert close(other[name], expected), name


@pytest.mark.parametrize(("name", "d"), [("group", 1), ("population", 0)])
def test_a_deep_set_is_free_of_size_but_knows_how_much_it_saw(name, d, deep_set):
    encoder, template, observed = deep_set
    one = encoder(full(template, observed), {})[name]
    twice = Observed(torch.cat([observed.x] * 2, d), torch.cat([observed.mask] * 2, d))
    other = encoder(full(template, twice), {})[name]
    assert torch.allclose(other.estimate, one.estimate, atol=1e-12)
    more = other.log_precision - one.log_precision
    assert torch.allclose(more, torch.full_like(more, 2.0).log())


def test_an_encoding_has_the_log_count_of_every_pooled_plate(deep_set):
    encoder, template, observed = deep_set  # groups of 5, 2, 4 and 3 samples
    encodings = encoder(full(template, observed), {})
    counts = torch.tensor([5.0, 2, 4, 3]).double()
    assert torch.allclose(5 * encodings["group"].extra[:, 0, 0, 1], counts.log())
    assert not bool(encodings["group"].extra[..., 0].any())  # other groups say nothing, given the population
    population = 5 * encodings["population"].extra[0, 0, 0]
    assert torch.allclose(population, torch.stack([torch.tensor(4.0).double().log(), counts.log().mean()]))


def exact_encoder(family: Family) -> Family:
    """The encoded family, set to the closed-form posterior of the random effects, whatever the sizes of the groups."""
    template, encoder = family.template, family.encoder
    with torch.no_grad():
        for parameter in itertools.chain(encoder.combine.parameters(), family.flows.parameters()):
            parameter.zero_()
        encoder.between["population_group"].fill_(2 * math.log(template.sd_sample / template.sd_group))
        encoder.precision["population"].fill_(-2 * math.log(template.sd_group))
        encoder.precision["group"].fill_(-2 * math.log(template.sd_sample))
    return family


def test_a_deep_set_can_be_exact_for_groups_of_any_sizes(effects):
    template, observed = effects  # ragged
    family = exact_encoder(Family(template, full(template, observed).cards, "encoded").double())
    for data in (observed, template.simulate(30, 2, generator(3)), observed.select(0, torch.tensor([1]))):
        bound = elbo(family, full(template, data), noise(0), draws=3)
        assert bound.mean == pytest.approx(float(template.log_evidence(data)), abs=1e-9)
        assert bound.standard_error < 1e-9


def test_a_deep_set_takes_the_full_number_of_groups(deep_set):
    encoder, template, observed = deep_set
    observed = Observed(observed.x, torch.ones_like(observed.mask))
    batch = template.reduce(full(template, observed), {"group": torch.tensor([0, 2])})
    whole, part = encoder(full(template, observed), {})["population"], encoder(batch, {})["population"]
    assert torch.allclose(part.log_precision, whole.log_precision)
    assert torch.equal(part.extra, whole.extra)


def test_a_masked_sample_is_a_removed_sample_and_a_masked_group_a_removed_group(deep_set):
    encoder, template, observed = deep_set
    group = encoder(full(template, observed), {})["group"]
    two = observed.select(0, torch.tensor([1]))  # a group of two samples in five places
    removed = encoder(full(template, two.select(1, torch.tensor([0, 1]))), {})["group"]
    assert torch.allclose(group.estimate[1], removed.estimate[0], atol=1e-12)
    assert torch.allclose(group.log_precision[1], removed.log_precision[0], atol=1e-12)
    mask = observed.mask.clone()
    mask[3] = False
    masked = encoder(full(template, Observed(observed.x * mask[..., None], mask)), {})["population"]
    without = encoder(full(template, observed.select(0, torch.arange(3))), {})["population"]
    assert torch.allclose(masked.estimate, without.estimate, atol=1e-12)
    assert torch.allclose(masked.log_precision, without.log_precision, atol=1e-12)


def test_a_deep_set_starts_at_the_averages():
    template = GaussianRandomEffects(3)
    observed = template.simulate(4, 5, generator(0))
    with torch.no_grad():
        encoder = DeepSet(template, template.sites).double()
        for layer in encoder.combine.values():
            layer.weight.zero_()
        encodings = encoder(full(template, observed), {})
    assert torch.allclose(encodings["group"].estimate, observed.x.mean(1, keepdim=True))
    assert torch.allclose(encodings["population"].estimate, observed.x.mean((0, 1), keepdim=True))
