"""The family: schemes, indexing, densities, and the path gradient."""

import pytest
import torch

from parcellation.elbo import elbo, objective
from parcellation.encoders import Encoding
from parcellation.errors import UsageError
from parcellation.family import Family, scheme_sites
from parcellation.plates import Observed
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from tests.conftest import draw_cohort, full, generator, noise


def test_schemes_say_which_sites_are_free():
    template = draw_cohort((2, 2, 2)).template
    hybrid = scheme_sites(template, "hybrid")
    assert {name for name, kind in hybrid.items() if kind == "encoded"} == {
        "log_kappa_session",
        "mu_subject",
        "mu_session",
    }
    assert set(scheme_sites(template, "free").values()) == {"free"}
    assert set(scheme_sites(template, "encoded").values()) == {"encoded"}
    with pytest.raises(UsageError, match="expected free, encoded or hybrid, got 'half'"):
        scheme_sites(template, "half")
    assert scheme_sites(template, {"mu": "encoded", "mu_session": "free"}) == hybrid | {
        "mu": "encoded",
        "mu_session": "free",
    }
    with pytest.raises(UsageError, match=r"expected sites among log_kappa, .*, got mu_group"):
        scheme_sites(template, {"mu_group": "free"})
    with pytest.raises(UsageError, match="expected free or encoded for a site, got 'half'"):
        scheme_sites(template, {"mu": "half"})


def test_a_scheme_by_site_has_the_evidence_as_its_bound(effects):
    # Population encoded, groups free: neither of the named schemes.
    template, observed = effects
    batch = full(template, observed)
    family = Family(template, batch.cards, {"population": "encoded", "group": "free"}).double()
    assert set(family.free) == {"group"}
    assert [site.name for site in family.encoder.sites] == ["population"]
    bound = elbo(family, batch, noise(0), 50)
    assert bound.mean < float(template.log_evidence(observed)) + 4 * bound.standard_error


def test_a_new_subject_costs_no_weights_unless_its_sites_are_free():
    template = draw_cohort((2, 2, 2)).template

    def weights(scheme: str, subjects: int) -> int:
        cards = dict(subject=subjects, session=2, vertex=4)
        return sum(p.numel() for p in Family(template, cards, scheme).parameters())

    assert weights("hybrid", 2) == weights("hybrid", 200)
    assert weights("encoded", 2) == weights("encoded", 200)
    K, D, T = 3, 5, 2
    assert weights("free", 3) - weights("free", 2) == 2 * (K * D + T * K * D + T)  # estimate and precision of each


def test_only_visited_rows_have_a_gradient(effects):
    template, observed = effects
    family = Family(template, full(template, observed).cards, "free").double()
    batch = template.reduce(full(template, observed), {"group": torch.tensor([1, 3])})
    objective(family, batch, family.draw(batch, noise(0))).backward()
    gradient = family.free["group"].rows.weight.grad
    assert gradient.is_sparse
    assert gradient.coalesce().indices().flatten().tolist() == [1, 3]


@pytest.mark.parametrize("scheme", ["free", "encoded", "hybrid"])
@pytest.mark.parametrize("flow", ["precision", "affine", "spline", {"group": "coupling"}, {"mu_subject": "coupling"}])
@pytest.mark.parametrize("size", [None, 4])
def test_every_parameter_gets_a_gradient(scheme, flow, size, effects, ragged):
    for template, observed in (effects, (ragged.template, ragged.observed)):
        if isinstance(flow, dict) and not flow.keys() <= {site.name for site in template.sites}:
            continue
        # Encodings that are not all 0: else the first layer's inputs may be 0, and so its gradient at the first step.
        cards = full(template, observed).cards
        family = shaken(Family(template, cards, scheme, flow, encoding_size=size).double(), 0.1)
        batch = full(template, observed)
        objective(family, batch, family.draw(batch, noise(0))).backward()
        for name, parameter in family.named_parameters():
            assert parameter.grad is not None, name
            gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            assert gradient.isfinite().all(), name
            assert gradient.abs().max() > 0, name


def exact_family(template, observed, flow: str | None = None) -> Family:
    """The free family whose encodings and flows are the closed-form posterior of the random effects."""
    family = Family(template, full(template, observed).cards, "free", flow).double()
    average, spread = template._averages(observed)
    precision = 1 / (template.sd_group**2 + spread)
    total = precision.sum(0, keepdim=True)
    nothing = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    population = (precision * average).sum(0, keepdim=True) / total
    seen = {
        "population": Encoding(population, total.log(), nothing),
        "group": Encoding(average, -spread.log(), nothing),
    }
    for name, answer in family.answers(seen, observed).items():
        family.free[name].set(answer)
    with torch.no_grad():
        for flow in family.flows.values():
            for parameter in flow.correct.parameters():
                parameter.zero_()
    return family


def test_at_the_exact_posterior_every_draw_gives_the_evidence(effects):
    template, observed = effects
    family, batch = exact_family(template, observed), full(template, observed)
    evidence = float(template.log_evidence(observed))
    for seed in range(5):
        got = objective(family, batch, family.draw(batch, noise(seed)))
        assert float(got.detach()) == pytest.approx(evidence, abs=1e-9)


def shaken(family: Family, amount: float) -> Family:
    g = generator(4)
    with torch.no_grad():
        for parameter in family.parameters():
            parameter.add_(amount * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return family


def test_importance_weights_average_to_the_evidence():
    template = GaussianRandomEffects(1, sd_population=1.0, sd_group=0.5, sd_sample=0.5)
    observed = template.simulate(2, 3, generator(0))
    check_importance_weights(template, observed, shaken(exact_family(template, observed), 0.15))


@pytest.mark.parametrize("flow", ["precision", "coupling", "autoregressive", "spline"])
def test_importance_weights_of_every_flow_average_to_the_evidence(flow):
    template = GaussianRandomEffects(2, sd_population=1.0, sd_group=0.5, sd_sample=0.5)
    observed = template.simulate(2, 3, generator(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        family = Family(template, full(template, observed).cards, "free", flow, encoding_size=8).double()
    for name, answer in exact_family(template, observed).encodings(full(template, observed)).items():
        family.free[name].set(answer)
    check_importance_weights(template, observed, shaken(family, 0.05))


def check_importance_weights(template, observed, family):
    """log q is a normalised density of what is drawn: E_q[p / q] = p(x) for every q, this one not the posterior."""
    batch = full(template, observed)
    draws = 20_000
    with torch.no_grad():
        draw = family.draw(batch, noise(1), path=False, draws=(draws,))
    log_p = template.log_likelihood(draw.values, observed).sum((-1, -2))
    for site in template.sites:
        mean, sd = site.prior(draw.values, observed)
        log_p = log_p + torch.distributions.Normal(mean, sd).log_prob(draw.values[site.name]).sum((-1, -2, -3))
    log_q = sum(value.sum((-1, -2)) for value in draw.log_q.values())
    ratio = (log_p - log_q - template.log_evidence(observed)).exp()
    assert 0.05 < float(ratio.std()) < 2  # it is another distribution, and near enough for the average to be one
    assert float(ratio.mean()) == pytest.approx(1, abs=4 * float(ratio.std()) / draws**0.5)


def test_given_values_are_kept_and_have_no_density(effects):
    template, observed = effects
    family, batch = Family(template, full(template, observed).cards, "free").double(), full(template, observed)
    population = torch.full((1, 1, 3), 7.0, dtype=torch.float64)
    draw = family.draw(batch, noise(0), given={"population": population})
    assert draw.values["population"] is population
    assert set(draw.log_q) == {"group"}
    assert draw.log_q["group"].shape == (4, 1)


def gradient_of_log_q_alone(path: bool, template, observed) -> torch.Tensor:
    """Gradient of log q at values that are held fixed, so that only the parameters of the density can have one."""
    family, batch = shaken(exact_family(template, observed), 0.1), full(template, observed)
    draw = family.draw(batch, noise(0), path=path)
    wanted = draw.log_q["population"].sum()
    parameters = list(family.flows["population"].parameters())
    moved = draw.values["population"]
    total = torch.autograd.grad(wanted, parameters, retain_graph=True)
    through_values = torch.autograd.grad(
        moved, parameters, torch.autograd.grad(wanted, moved, retain_graph=True)[0], retain_graph=True
    )
    return torch.cat([(a - b).flatten() for a, b in zip(total, through_values, strict=True)])


def test_the_path_gradient_goes_through_the_values_only(effects):
    assert gradient_of_log_q_alone(True, *effects).abs().max() < 1e-12
    assert gradient_of_log_q_alone(False, *effects).abs().max() > 1e-3


def gradients(family, batch, path: bool, seeds) -> torch.Tensor:
    rows = []
    for seed in seeds:
        family.zero_grad()
        objective(family, batch, family.draw(batch, noise(seed), path=path)).backward()
        rows.append(torch.cat([_dense(p.grad).flatten() for p in family.parameters()]))
    return torch.stack(rows)


def _dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient


def test_the_path_gradient_is_unbiased(effects):
    template, observed = effects
    family, batch = shaken(exact_family(template, observed), 0.2), full(template, observed)
    path, total = (gradients(family, batch, path, range(200)) for path in (True, False))
    difference = path - total  # paired: the same draws
    score = difference.mean(0) / (difference.std(0) / 200**0.5).clamp_min(1e-12)
    assert float(difference.std()) > 0.01  # they are two estimators
    assert float(score.abs().max()) < 4.5  # the largest of about 100 standard scores


def test_the_path_gradient_has_no_variance_at_the_exact_posterior(effects):
    template, observed = effects
    family, batch = exact_family(template, observed), full(template, observed)
    assert gradients(family, batch, True, range(3)).abs().max() < 1e-9
    assert gradients(family, batch, False, range(3)).std(0).max() > 0.1


def test_encodings_of_the_chosen_are_those_of_the_whole(ragged):
    family = Family(ragged.template, ragged.batch.cards, "hybrid").double()
    whole = family.encodings(ragged.batch)
    index = {"subject": torch.tensor([4, 1]), "vertex": torch.tensor([6, 0])}
    part = family.encodings(ragged.template.reduce(ragged.batch, index))
    for name in ("mu_subject", "mu_session", "log_kappa_session"):
        # Encoders see all vertices of the chosen subjects, so the vertices of the likelihood change nothing.
        assert torch.allclose(part[name].estimate, whole[name].estimate[[4, 1]], atol=1e-12)
    assert torch.equal(part["logits_group"].estimate, whole["logits_group"].estimate[:, :, [6, 0]])


def test_encoded_sites_on_vertices_are_restricted_to_the_scored_ones(ragged):
    family = Family(ragged.template, ragged.batch.cards, "encoded").double()
    whole = family.encodings(ragged.batch)["logits_group"]
    part = family.encodings(ragged.template.reduce(ragged.batch, {"vertex": torch.tensor([6, 0])}))["logits_group"]
    assert torch.allclose(part.estimate, whole.estimate[:, :, [6, 0]], atol=1e-12)
    assert part.log_precision.shape[:3] == (1, 1, 2)


def test_population_draws_have_one_member_of_the_outermost_plate(ragged):
    family = Family(ragged.template, ragged.batch.cards, "hybrid").double()
    draws = family.draw_population(ragged.subject(0), noise(0), 6)
    assert set(draws) == {site.name for site in ragged.template.population_sites()}
    assert draws["mu"].shape == (6, 1, 1, 1, 3, 5)
    assert draws["logits_group"].shape == (6, 1, 1, 8, 2)


def test_draws_do_not_depend_on_how_many_subjects_there_are(ragged):
    family = Family(ragged.template, ragged.batch.cards, "hybrid").double()
    fixed = {site.name: ragged.values[site.name] for site in ragged.template.population_sites()}

    def constant(name, shape):
        return torch.full(shape, 0.3, dtype=torch.float64)

    whole = family.draw(ragged.batch, constant, given=fixed).values["mu_session"]
    one = ragged.subject(3)
    alone = family.draw(full(ragged.template, one), constant, given=fixed).values["mu_session"]
    assert torch.allclose(alone[0], whole[3], atol=1e-12)


def test_settled_encodings_move_with_the_weights(effects):
    template, observed = effects
    family = Family(template, full(template, observed).cards, "encoded")
    family.fixed["population"] = Encoding(torch.zeros(1, 1, 3), torch.zeros(1, 1, 1), torch.zeros(1, 1, 1, 1))
    assert family.double().fixed["population"].estimate.dtype == torch.float64
    assert set(family.population_encodings()) == {"population"}


def test_an_unknown_encoder_is_refused_with_the_names_there_are(effects):
    template, observed = effects
    with pytest.raises(
        UsageError, match="expected one of deep_set, network_pooling, recognition, vector_set, got 'transformer'"
    ):
        Family(template, full(template, observed).cards, encoder="transformer")


def test_a_deep_set_serves_a_group_without_samples(effects):
    template, observed = effects
    mask = observed.mask.clone()
    mask[0] = False
    empty = Observed(observed.x * mask[..., None], mask)
    family = Family(template, full(template, observed).cards, "hybrid").double()
    encoding = family.encodings(full(template, empty))["group"]
    assert encoding.estimate.isfinite().all()
    assert float(encoding.log_precision[0].detach().max()) < -10  # no information, so its posterior is its prior


def test_flows_of_some_sites_leave_the_others_as_they_are(effects):
    template, observed = effects
    cards = full(template, observed).cards
    chosen = Family(template, cards, "free", {"group": "coupling"})
    assert type(chosen.flows["population"]) is type(Family(template, cards, "free").flows["population"])
    assert type(chosen.flows["group"]) is not type(chosen.flows["population"])
    with pytest.raises(UsageError, match=r"model.flows: expected sites among population, group, got subject"):
        Family(template, cards, "free", {"subject": "coupling"})


@pytest.mark.parametrize("groups", [2, 20])
def test_a_group_costs_as_many_numbers_as_its_encoding_has(groups):
    template = GaussianRandomEffects(2)
    family = Family(template, dict(group=groups, sample=50), "free", encoding_size=8)
    assert family.free["group"].rows.weight.numel() == 8 * groups
    alone = Family(template, dict(group=1, sample=50), "free", encoding_size=8)
    assert sum(p.numel() for p in family.parameters()) - sum(p.numel() for p in alone.parameters()) == 8 * (groups - 1)


def test_encoders_measure_against_the_population_sites_that_are_free(ragged):
    # The map is read off the batch, the rest of the population is free, and subjects are encoded given both.
    family = Family(ragged.template, ragged.batch.cards, {"logits_group": "encoded"}).double()
    assert "logits_group" not in family.free
    assert "mu" in family.free
    before = family.encodings(ragged.batch)
    with torch.no_grad():
        family.free["mu"].rows.weight.add_(3.0)
    after = family.encodings(ragged.batch)
    for name in ("logits_group", "mu_subject"):
        assert not torch.allclose(after[name].estimate, before[name].estimate), name
