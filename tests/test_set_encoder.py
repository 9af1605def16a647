"""The hierarchical set encoder: what it sees, and what it does not depend on."""

import torch

from parcellation.baselines.set_encoder import SetEncoder
from parcellation.plates import Observed
from tests.conftest import full


def encoder_of(template, features: int) -> SetEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SetEncoder(template, features).double()


def test_an_encoding_joins_its_own_part_and_those_above(ragged):
    encoder = encoder_of(ragged.template, 5)
    site = ragged.template.site
    assert encoder.levels(site("mu_session")) == [("subject", "session"), ("subject",), ()]
    assert encoder.levels(site("logits_group")) == [("vertex",), ()]
    assert encoder.levels(site("mu")) == [()]
    encodings = encoder(ragged.batch)
    assert encodings["mu_session"].shape == (5, 3, 1, 3 * 13)
    assert encodings["logits_group"].shape == (1, 1, 8, 2 * 13)


def test_the_order_of_members_does_not_matter(ragged):
    encoder = encoder_of(ragged.template, 5)
    order = torch.tensor([3, 1, 4, 0, 2])
    one, other = encoder(ragged.batch), encoder(full(ragged.template, ragged.observed.select(0, order)))
    assert torch.allclose(one["mu_subject"][order], other["mu_subject"], atol=1e-12)
    assert torch.allclose(one["mu"], other["mu"], atol=1e-12)


def test_masked_observations_and_members_without_any_are_not_seen(effects):
    template, observed = effects
    encoder = encoder_of(template, 3)
    noisy = Observed(torch.where(observed.mask[..., None], observed.x, 99.0), observed.mask)
    one, other = (encoder(full(template, data)) for data in (observed, noisy))
    for name in one:
        assert torch.allclose(one[name], other[name], atol=1e-12)
    mask = observed.mask.clone()
    mask[2] = False
    without = encoder(full(template, Observed(observed.x, mask)))
    rest = encoder(full(template, observed.select(0, torch.tensor([0, 1, 3]))))
    assert without["group"].isfinite().all()
    assert torch.allclose(without["population"], rest["population"], atol=1e-12)


def test_its_first_numbers_are_averages(effects):
    template, observed = effects
    encoder = encoder_of(template, 3)
    with torch.no_grad():
        for network in encoder.pool.values():
            network[-1].weight.zero_()
            network[-1].bias.zero_()
    got = encoder(full(template, observed))
    average, _ = template._averages(observed)
    assert torch.allclose(got["group"][..., :3], average, atol=1e-12)
    assert torch.allclose(got["population"][..., :3], average.mean(0, keepdim=True), atol=1e-12)


def test_encoders_see_all_vertices_and_encodings_are_of_the_scored_ones(ragged):
    encoder = encoder_of(ragged.template, 5)
    whole = encoder(ragged.batch)
    part = encoder(ragged.template.reduce(ragged.batch, {"vertex": torch.tensor([6, 0])}))
    assert torch.allclose(part["mu_subject"], whole["mu_subject"], atol=1e-12)
    assert torch.allclose(part["logits_group"], whole["logits_group"][:, :, [6, 0]], atol=1e-12)
