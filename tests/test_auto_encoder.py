"""Auto-encoder: probabilistic principal components in closed form; a model keeps what is trained of its template."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch.distributions import MultivariateNormal, Normal

from parcellation.elbo import elbo, path_gradient, sgvb_a, sgvb_b
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.importance import importance_evidence
from parcellation.model_file import TrainedModel, load_model, save_model
from parcellation.plates import Observed, template_class
from parcellation.templates.auto_encoder import AutoEncoder, Bernoulli, LinearGaussian, greatest_evidence
from parcellation.training import Plan, Whole, fit
from tests.conftest import full, generator, noise

N, D, L = 300, 6, 2


def draw_data(count: int = N) -> torch.Tensor:
    """Data in D dimensions with L directions of unequal size in noise of sd 0.5, about a mean."""
    g = generator(0)
    loadings = torch.randn(D, L, generator=g, dtype=torch.float64) * torch.tensor([1.2, 0.6])
    z, e = (torch.randn(count, size, generator=g, dtype=torch.float64) for size in (L, D))
    return z @ loadings.mT + 0.5 * e + 1


def observe(x: torch.Tensor) -> Observed:
    return Observed(x, torch.ones(len(x), dtype=torch.bool))


def family_of(template: AutoEncoder, count: int, seed: int = 0, **settings) -> Family:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Family(template, {"datum": count}, "encoded", **settings).double()


def template_of(decoder: str, seed: int = 0) -> AutoEncoder:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoEncoder(D, L, decoder)


def at_maximum(x: torch.Tensor) -> LinearGaussian:
    """The decoder of greatest evidence: Tipping & Bishop's, with orthogonal loadings."""
    values, vectors = torch.linalg.eigh(torch.cov(x.mT, correction=0))
    noise_variance = values[:-L].mean()
    decoder = LinearGaussian(D, L).double()
    with torch.no_grad():
        decoder.mean.weight.copy_(vectors[:, -L:] * (values[-L:] - noise_variance).sqrt())
        decoder.mean.bias.copy_(x.mean(0))
        decoder.log_sd.copy_(0.5 * noise_variance.log())
    return decoder


# Closed forms


def test_the_posterior_and_the_evidence_are_bayes_rule():
    x, decoder = draw_data()[:4], at_maximum(draw_data())
    z = torch.randn(4, L, generator=generator(3), dtype=torch.float64)
    mean, covariance = decoder.posterior(x)
    joint = decoder.log_density(z, x) + Normal(0.0, 1.0).log_prob(z).sum(-1)
    assert torch.allclose(joint - MultivariateNormal(mean, covariance).log_prob(z), decoder.log_evidence(x), atol=1e-9)


def test_the_greatest_evidence_is_that_of_the_closed_form_maximum_and_of_another_library():
    x = draw_data()
    best = float(greatest_evidence(x, L))
    decoder = at_maximum(x)
    evidence = decoder.log_evidence(x).sum()
    assert best == pytest.approx(float(evidence.detach()), rel=1e-12)
    evidence.backward()  # a stationary point
    assert max(float(p.grad.abs().max()) for p in decoder.parameters()) < 1e-8
    # Its noise is estimated with N - 1 in the denominator: below the maximum, by little.
    other = PCA(L, svd_solver="full").fit(x.numpy()).score(x.numpy()) * N
    assert best - 0.05 < other <= best
    for shift in (0.01, -0.01):
        with torch.no_grad():
            decoder.log_sd.add_(shift)
            assert float(decoder.log_evidence(x).sum()) < best
            decoder.log_sd.sub_(shift)


# Learning


def divergence(family: Family, x: torch.Tensor) -> torch.Tensor:
    """KL(q || exact posterior) of every datum, nats, shape (N,)."""
    batch = full(family.template, observe(x))
    mean, covariance = family.template.generative.posterior(x)
    zero = torch.zeros(1, L, dtype=torch.float64)
    transform = family.flows["z"](family.encodings(batch)["z"], zero, zero + 1)
    q = MultivariateNormal(transform(zero), torch.diag_embed(transform.scale.square().expand(len(x), L)))
    return torch.distributions.kl_divergence(q, MultivariateNormal(mean, covariance))


@pytest.mark.parametrize("flow", ["precision", "affine"])
def test_what_is_learned_is_the_greatest_evidence_and_the_exact_posterior(flow):
    x, new = draw_data(N + 50).split([N, 50])
    template = template_of("linear_gaussian")
    family, batch = family_of(template, N, flow=flow, hidden=8), full(template, observe(x))
    fit(family, Whole(template, batch), Plan(400, 100, 0.1, 0, {}))
    with torch.no_grad():
        evidence, gap = float(template.generative.log_evidence(x).sum()), divergence(family, x)
    best = float(greatest_evidence(x, L))
    assert 0 <= best - evidence < 0.02 * N  # nats a datum; 0.05 is wanted
    assert float(gap.mean()) < 0.02
    bound = elbo(family, batch, noise(0), draws=50)
    assert evidence - bound.mean == pytest.approx(float(gap.sum()), abs=4 * bound.standard_error)
    # The encoder needs no training for new data.
    assert float(divergence(family, new).detach().mean()) < 0.02
    got = importance_evidence(family, full(template, observe(new)), noise(0), 50)
    with torch.no_grad():
        error = (got.log_evidence - template.generative.log_evidence(new)).sum()
    assert float(error) == pytest.approx(0, abs=4 * float(got.standard_error.square().sum().sqrt()))


@pytest.mark.parametrize("decoder", ["linear_gaussian", "bernoulli"])
@pytest.mark.parametrize("estimator", [path_gradient, sgvb_a, sgvb_b])
def test_every_parameter_of_model_and_family_gets_a_gradient(decoder, estimator):
    template = template_of(decoder)
    family, x = family_of(template, N, hidden=8), (draw_data() > 1).double()
    batch = template.reduce(full(template, observe(x)), {"datum": torch.arange(9)})
    estimator(family, batch, noise(0)).tensor.backward()
    names = dict(family.named_parameters())
    assert {name.split(".")[0] for name in names} == {"generative", "encoder", "flows"}
    for name, parameter in names.items():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().max()) > 0, name


def test_a_masked_datum_changes_nothing():
    template, x = template_of("bernoulli"), (draw_data() > 1).double()[:5]
    family, mask = family_of(template, 5), torch.tensor([True, False, True, True, False])

    def bound(x):
        return elbo(family, full(template, Observed(x, mask)), noise(0), draws=3).mean

    assert bound(x) == bound(torch.where(mask[:, None], x, 1 - x))


def test_the_bernoulli_density_adds_up_to_one():
    decoder = Bernoulli(4, L).double()
    z = torch.randn(1, L, generator=generator(0), dtype=torch.float64)
    every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * 4)
    assert float(decoder.log_density(z.expand(16, L), every).exp().sum().detach()) == pytest.approx(1, rel=1e-12)


# A model with trained parameters


@pytest.mark.parametrize("decoder", ["linear_gaussian", "bernoulli"])
def test_a_saved_model_has_its_trained_decoder(decoder, tmp_path):
    template = template_of(decoder)
    family, batch = family_of(template, N, hidden=8), full(template, observe((draw_data() > 1).double()))
    fit(family, Whole(template, batch), Plan(3, 100, 0.1, 0, {}))
    save_model(tmp_path, TrainedModel(family, {}, {}, {}))
    again = load_model(tmp_path).family
    with torch.no_grad():
        one, other = (f.draw(batch, noise(2), path=False).values["z"] for f in (family, again))
        assert torch.equal(one, other)
        one, other = (f.template.log_likelihood({"z": one}, batch.seen) for f in (family, again))
        assert torch.equal(one, other)
    assert np.isfinite(elbo(again, batch, noise(0), draws=2).mean)


def test_the_template_is_found_by_name_and_unknown_decoders_are_refused():
    assert template_class("auto_encoder") is AutoEncoder
    with pytest.raises(UsageError, match="expected one of linear_gaussian, bernoulli, got 'poisson'"):
        AutoEncoder(3, 2, "poisson")
