"""A recognition network: each observation by itself, and only what has nothing to pool."""

import pytest
import torch

from parcellation.errors import UsageError
from parcellation.plates import Batch, Observed
from parcellation.recognition import Recognition
from parcellation.templates.auto_encoder import AutoEncoder
from tests.conftest import full, generator


@pytest.fixture
def recognised():
    template = AutoEncoder(5, 2, "linear_gaussian")
    x = torch.randn(7, 5, generator=generator(0), dtype=torch.float64)
    return Recognition(template, template.sites, hidden=4).double(), full(template, Observed(x, torch.ones(7) > 0))


def test_an_encoding_has_every_latent_of_every_datum(recognised):
    encoder, batch = recognised
    encoding = encoder(batch, {})["z"]
    assert encoding.estimate.shape == encoding.log_precision.shape == (7, 2)
    assert encoding.extra.shape == (7, 2, 0)
    assert float(encoding.estimate.std(0).detach().min()) > 0.01


def test_a_datum_s_encoding_does_not_depend_on_the_others(recognised):
    encoder, batch = recognised
    whole = encoder(batch, {})["z"]
    part = batch.seen.select(0, torch.tensor([4, 1]))
    some = encoder(Batch(part, part, {"datum": torch.tensor([4, 1])}, batch.cards), {})["z"]
    assert torch.allclose(some.estimate, whole.estimate[[4, 1]], atol=1e-12)
    assert torch.allclose(some.log_precision, whole.log_precision[[4, 1]], atol=1e-12)


def test_all_features_are_used_together(recognised):
    encoder, batch = recognised
    x = batch.seen.x.requires_grad_()
    estimate = encoder(batch, {})["z"].estimate
    (slope,) = torch.autograd.grad(estimate[3, 0], x)
    assert (slope[3] != 0).all()
    assert float(slope[[0, 1, 2, 4, 5, 6]].abs().max()) == 0


def test_a_site_that_needs_pooling_is_refused(effects):
    template, _ = effects
    words = "encoder: recognition is for sites of one observation each, not population, group"
    with pytest.raises(UsageError, match=words):
        Recognition(template, template.sites)
