"""Importance-weighted evidence against evidence in closed form."""

import math

import pytest
import torch

from parcellation.family import Family
from parcellation.importance import ImportanceEvidence, importance_evidence
from parcellation.plates import Observed
from parcellation.templates.auto_encoder import AutoEncoder
from tests.conftest import full, generator, noise
from tests.test_family import exact_family, shaken


def test_weights_of_the_exact_posterior_are_the_evidence_themselves(effects):
    template, observed = effects
    got = importance_evidence(exact_family(template, observed), full(template, observed), noise(0), 7)
    assert got.log_weights.shape == (7, 1)  # a population joins the groups
    assert torch.allclose(got.log_weights, template.log_evidence(observed), rtol=0, atol=1e-9)
    assert float(got.effective_draws) == pytest.approx(7)
    assert float(got.standard_error) < 1e-9


def test_another_distribution_gives_the_evidence_too(effects):
    template, observed = effects
    family = shaken(exact_family(template, observed), 0.03)
    got = importance_evidence(family, full(template, observed), noise(0), 4000, chunk=900)
    assert 20 < float(got.effective_draws) < 3900
    assert float(got.standard_error) < 0.3
    truth = float(template.log_evidence(observed))
    assert float(got.log_evidence) == pytest.approx(truth, abs=4 * float(got.standard_error))
    assert float(got.log_weights.mean()) < truth - 0.05  # one draw a time it is the ELBO


def test_chunks_are_a_matter_of_memory_only(effects):
    template, observed = effects
    family = shaken(exact_family(template, observed), 0.1)
    one, other = (importance_evidence(family, full(template, observed), _steady(), 6, chunk=c) for c in (6, 4))
    assert one.log_weights.shape == other.log_weights.shape
    assert torch.equal(one.log_weights[0], other.log_weights[0])


def _steady():
    """The same noise for a draw, whatever the others are."""

    def of(name, shape):
        rows = [torch.randn(shape[1:], generator=generator(n), dtype=torch.float64) for n in range(shape[0])]
        return torch.stack(rows)

    return of


def test_groups_given_their_population_have_evidences_of_their_own(effects):
    template, observed = effects
    family = exact_family(template, observed)
    population = torch.full((1, 1, 3), 0.3, dtype=torch.float64)
    got = importance_evidence(family, full(template, observed), noise(0), 5, given={"population": population})
    for group in range(4):
        n = int(observed.mask[group].sum())
        within = template.sd_sample**2 * torch.eye(n, dtype=torch.float64) + template.sd_group**2
        normal = torch.distributions.MultivariateNormal(torch.full((n,), 0.3, dtype=torch.float64), within)
        expected = normal.log_prob(observed.x[group, :n].T).sum()
        assert torch.allclose(got.log_evidence[group], expected, rtol=0, atol=1e-9)


def test_subjects_given_their_population_add_up(ragged):
    family = Family(ragged.template, ragged.batch.cards, "hybrid").double()
    given = {site.name: ragged.values[site.name] for site in ragged.template.population_sites()}
    got = importance_evidence(family, ragged.batch, noise(0), 6, given=given)
    assert got.log_weights.shape == (6, 5)
    assert got.log_weights.isfinite().all()


def test_the_standard_error_is_that_of_repetitions():
    # Many data of one model, each with its own draws: errors over standard errors are standard normal.
    template = AutoEncoder(6, 2, "linear_gaussian")
    x = template.generative.double().mean(torch.randn(300, 2, generator=generator(1), dtype=torch.float64)).detach()
    x = x + torch.randn(x.shape, generator=generator(2), dtype=torch.float64)
    family = shaken(Family(template, {"datum": 300}, "encoded").double(), 0.05)
    with torch.no_grad():
        family.encoder.linear["z"].bias[2:] -= 1.0  # wider than the posterior, so that weights have a variance
    got = importance_evidence(family, full(template, Observed(x, torch.ones(300) > 0)), noise(0), 2000)
    with torch.no_grad():
        error = (got.log_evidence - template.generative.log_evidence(x)) / got.standard_error
    assert got.log_weights.shape == (2000, 300)
    assert float(got.effective_draws.min()) < 1500
    assert float(error.mean()) == pytest.approx(0, abs=0.2)
    assert float(error.std()) == pytest.approx(1, abs=0.2)


def test_effective_draws_count_equal_weights():
    log_weights = torch.tensor([[0.0, 0.0], [0.0, -50.0], [0.0, -50.0], [-50.0, -50.0]])
    got = ImportanceEvidence(log_weights)
    assert got.effective_draws.tolist() == pytest.approx([3.0, 1.0])
    assert got.log_evidence.tolist() == pytest.approx([math.log(3 / 4), math.log(1 / 4)])


def test_a_reduced_batch_is_refused(effects):
    template, observed = effects
    batch = template.reduce(full(template, observed), {"group": torch.tensor([0])})
    with pytest.raises(ValueError, match="an evidence needs the full data"):
        importance_evidence(exact_family(template, observed), batch, noise(0), 2)
