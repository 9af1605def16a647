"""Deep sets: invariance to order and size, masks as removal."""

import pytest
import torch

from parcellation.encoders import DeepSet
from parcellation.plates import Observed
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from tests.conftest import full, generator
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


def test_a_deep_set_is_free_of_size_but_knows_how_much_it_saw(deep_set):
    encoder, template, observed = deep_set
    one = encoder(full(template, observed), {})
    twice = Observed(torch.cat([observed.x] * 2, 1), torch.cat([observed.mask] * 2, 1))
    other = encoder(full(template, twice), {})
    for name in one:
        assert torch.allclose(other[name].estimate, one[name].estimate, atol=1e-12), name
    more = other["group"].log_precision - one["group"].log_precision
    assert torch.allclose(more, torch.full_like(more, 2.0).log())


def test_a_deep_set_takes_the_full_number_of_groups(deep_set):
    encoder, template, observed = deep_set
    batch = template.reduce(full(template, observed), {"group": torch.tensor([0, 2])})
    whole, part = encoder(full(template, observed), {})["population"], encoder(batch, {})["population"]
    assert torch.allclose(part.log_precision, whole.log_precision)


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
