"""The bank: its encoding is that of the full data, its gradient on average too, and a training resumes with it."""

import itertools

import numpy as np
import pytest
import torch

from parcellation.elbo import elbo
from parcellation.errors import Stopped, UsageError
from parcellation.family import Family
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, chunks, fill_bank, fit
from tests.conftest import full, generator, noise
from tests.test_elbo import average_over_batches
from tests.test_encoding import close
from tests.test_family import shaken
from tests.test_training import family_of, plan, same, state, stop_after


@pytest.fixture(params=[{}, {"encoding_size": 4}, {"encoder": "vector_set", "pooling": "attention"}], ids=str)
def banked(request, effects):
    """A family with a bank, away from its start; its batch of ragged groups; its source."""
    template, observed = effects
    batch = full(template, observed)
    family = shaken(Family(template, batch.cards, "encoded", bank=True, **request.param).double(), 0.3)
    return family, batch, Whole(template, batch)


def test_when_all_have_been_visited_the_encoding_is_that_of_the_full_data(banked):
    family, batch, source = banked
    expected = family.encodings(batch)["population"]
    for chunk in chunks(source, family.template, 3):
        family.visit(chunk)
    for members in ([0], [1, 3]):  # whichever groups the step is about
        got = family.encodings(source.batch(torch.tensor(members)))["population"]
        assert close(got, expected, atol=1e-12)


def test_members_visited_so_far_stand_for_all(banked):
    family, batch, source = banked
    family.visit(source.batch(torch.tensor([0, 2])))
    got = family.encodings(source.batch(torch.tensor([1])))["population"]
    part = family.template.reduce(batch, {"group": torch.tensor([0, 2])})
    family.bank = None
    assert close(got, family.encodings(part)["population"], atol=1e-12)


def test_a_later_visit_replaces_what_was_known(banked):
    family, batch, source = banked
    fill_bank(family, source, 2)
    shaken(family, 0.2)  # other weights: the bank is of the old ones until everyone has been visited
    expected, one = family.encodings(batch)["population"], source.batch(torch.tensor([0]))
    assert not close(family.encodings(one)["population"], expected, atol=1e-3)
    for g in range(4):
        family.visit(source.batch(torch.tensor([g])))
    assert close(family.encodings(one)["population"], expected, atol=1e-12)


def embedding_gradient(family, batch) -> torch.Tensor:
    """Of a number that depends on the population's whole encoding, with respect to the embedding's weights."""
    encoding = family.encodings(batch)["population"]
    wanted = (encoding.estimate * torch.tensor([1.0, -2.0, 3.0]).double()).sum() + encoding.log_precision.sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(wanted, list(family.encoder.embed.parameters()))])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_of_visits_average_to_that_of_the_full_data(size, banked):
    family, batch, source = banked
    expected = embedding_gradient(family, batch)
    fill_bank(family, source, 4)
    parts = []
    for index in itertools.combinations(range(4), size):
        family.visit(source.batch(torch.tensor(index)))
        parts.append(embedding_gradient(family, source.batch(torch.tensor([0]))))
    assert float(expected.abs().max()) > 0.01
    assert torch.allclose(torch.stack(parts).mean(0), expected, rtol=1e-9, atol=1e-12)


def test_only_the_next_encodings_have_a_visits_gradient(banked):
    family, _, source = banked
    fill_bank(family, source, 4)
    family.visit(source.batch(torch.tensor([2])))
    one = source.batch(torch.tensor([0]))
    first, second = (family.encodings(one)["population"].estimate.sum() for _ in range(2))
    weight = family.encoder.embed[0].weight
    assert torch.autograd.grad(first, weight)[0].abs().max() > 0
    assert torch.autograd.grad(second, weight, allow_unused=True)[0] is None


def test_a_bound_of_other_data_does_not_look_into_the_bank(banked):
    family, batch, source = banked
    before = elbo(family, batch, noise(0), draws=3)
    family.visit(source.batch(torch.tensor([1])))
    assert elbo(family, batch, noise(0), draws=3) == before


def test_with_a_bank_batches_average_to_the_full_objective(banked):
    # The excess of an encoded population's objective is gone, exactly, at any weights.
    family, batch, source = banked
    template, observed = family.template, batch.seen
    fill_bank(family, source, 4)
    whole, average, parts = average_over_batches(family, template, observed, {"group": 2})
    assert average == pytest.approx(whole, rel=1e-10)
    assert max(parts) - min(parts) > 1
    family.bank = None
    _, without, _ = average_over_batches(family, template, observed, {"group": 2})
    assert abs(without - average) > 0.05


def test_a_training_with_a_bank_resumes_bit_for_bit(effects, tmp_path):
    template, observed = effects
    batch, path, how = full(template, observed), tmp_path / "c.safetensors", plan(8, every=4)
    one, other = (family_of(template, batch, "encoded", bank=True) for _ in range(2))
    losses = fit(one, Whole(template, batch), how)
    with pytest.raises(Stopped):
        fit(other, Whole(template, batch), how, path, stop=stop_after(5))
    again = family_of(template, batch, "encoded", seed=9, bank=True)
    assert np.array_equal(fit(again, Whole(template, batch), how, path), losses)
    assert same(state(again), state(one))
    assert bool(one.bank.visited.all())


def test_a_training_with_a_bank_finds_the_posterior():
    template = GaussianRandomEffects(2, 1.0, 1.0, 1.0)
    observed = template.simulate(12, 20, generator(0))
    batch = full(template, observed)
    family = family_of(template, batch, "encoded", shake=0.15, bank=True)
    start = float(template.log_evidence(observed)) - elbo(family, batch, noise(1), draws=50).mean
    fit(family, Whole(template, batch), Plan(120, 4, 0.03, 0, {}))
    bound = elbo(family, batch, noise(1), draws=50)
    assert start > 5
    assert -4 * bound.standard_error < float(template.log_evidence(observed)) - bound.mean < 0.3


def test_a_bank_without_encoded_population_sites_is_refused(effects):
    template, observed = effects
    with pytest.raises(UsageError, match="expected encoded population sites"):
        Family(template, full(template, observed).cards, "hybrid", bank=True)


def test_an_encoder_without_weights_needs_no_bank(ragged):
    with pytest.raises(
        UsageError, match="NetworkPooling has no weights to train for the population: settle it beforehand"
    ):
        Family(ragged.template, ragged.batch.cards, "encoded", bank=True)
