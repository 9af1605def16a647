"""Cascading flows: layers against autograd, and the order augmented bound <= ELBO <= evidence by quadrature."""

import math

import pytest
import torch
from torch.distributions import Normal

from parcellation.baselines.cascading_flows import AmortizedCascadingFlows, Cascade, CascadingFlows, Layer
from parcellation.plates import Batch
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit
from tests.conftest import full, generator, noise
from tests.test_rival import Independent, build, gap, log_ratios, set_rows

N = 4


def cascade(layers: int = 2, amount: float = 0.5) -> Cascade:
    rows = amount * torch.randn(layers, N * N + 2 * N + 3, generator=generator(0), dtype=torch.float64)
    mean, sd = torch.tensor([0.3, -0.2]).double(), torch.tensor([0.5, 1.5]).double()
    return Cascade([Layer.of(row, N) for row in rows], mean, sd)


def test_a_layer_s_inverse_and_determinant():
    (layer,) = cascade(1).layers
    z = 3 * torch.randn(50, N, generator=generator(1), dtype=torch.float64)
    back, stretch = layer.pull(layer.push(z))
    assert torch.allclose(back, z, atol=1e-12)
    jacobians = torch.func.vmap(torch.func.jacrev(layer.push))(z)
    assert torch.allclose(stretch, torch.linalg.slogdet(jacobians).logabsdet, atol=1e-12)


@pytest.mark.parametrize("gate", [1e-3, 0.05, 1.0])
def test_ramps_are_inverted_whatever_their_gate(gate):
    eye = torch.eye(N).double()
    layer = Layer(eye, eye, torch.zeros(N).double(), torch.tensor([gate]).double())
    z = torch.linspace(-30, 30, 41).double()[:, None].expand(-1, N)
    assert torch.allclose(layer.pull(layer.push(z))[0], z, atol=1e-7)
    assert torch.equal(layer.push(torch.zeros(N).double()), torch.zeros(N).double())


def test_density_is_that_of_what_is_pushed():
    flow = cascade()
    z = torch.randn(20, N, generator=generator(1), dtype=torch.float64)
    jacobians = torch.func.vmap(torch.func.jacrev(flow.push))(z)
    expected = Normal(0.0, 1.0).log_prob(z).sum(-1) - torch.linalg.slogdet(jacobians).logabsdet
    assert torch.allclose(flow.log_prob(flow.push(z)), expected, atol=1e-11)


def open_gates(rival) -> None:
    with torch.no_grad():
        for rows in rival.free.values():
            rows.rows.weight.unflatten(-1, (rival.layers, -1))[..., -3:] = 40.0


def test_with_all_gates_at_one_it_is_the_prior(effects):
    template, observed = effects
    batch = full(template, observed)
    rival = build(CascadingFlows, batch, template, shake=0.5)
    open_gates(rival)
    draw, prior = rival.draw(batch, noise(0)), noise(0)
    population = template.sd_population * prior("population", (1, 1, 3))
    prior("auxiliary", (1, 1, 3))
    group = population + template.sd_group * prior("group", (4, 1, 3))
    assert torch.allclose(draw.values["group"], group, atol=1e-12)
    expected = Normal(population, template.sd_group).log_prob(group).sum(-1)
    assert torch.allclose(draw.log_q["group"], expected, atol=1e-10)


def test_exact_for_independent_variables():
    template = Independent(2)
    observed = template.simulate(4)
    rival = build(CascadingFlows, full(template, observed), template, layers=1)
    mean, sd = template.posterior(observed)
    nothing = torch.zeros(4, 2).double()
    shift = torch.cat(
        [mean - 0.5 * sd / 1.5, nothing], -1
    )  # theta = mean + (u - 0.5) sd / 1.5; the noise is left alone
    scale = torch.cat([(sd / 1.5).log(), nothing], -1)
    gates = torch.tensor([40.0, -40.0, 40.0]).double()  # U alone
    set_rows(rival, "theta", torch.zeros(16).double(), scale, shift, gates)
    missing, error = gap(rival, template, observed, 20)
    assert missing == pytest.approx(0, abs=1e-10)
    assert error < 1e-10


def log_marginal(rival, template, batch, values) -> torch.Tensor:
    """log q(theta), the auxiliary noise integrated out on a grid, of draws (n, ...); one dimension, one auxiliary."""
    grid = torch.linspace(-14, 14, 701, dtype=torch.float64)
    total = 0.0
    for site in template.sites:
        prior = site.prior(values, batch.scored)
        conditional = rival.conditional(site, rival.encodings(batch)[site.name], *prior)
        value = values[site.name].expand(len(grid), *values[site.name].shape)
        both = torch.cat([value, grid[:, None, None, None, None].expand_as(value)], -1)
        density = conditional.log_prob(both).logsumexp(0) + math.log(grid[1] - grid[0])
        total = total + density.flatten(1).sum(1)
    return total


@torch.no_grad()
def bounds(rival, template, observed, draws: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Per draw: what the augmented bound is the mean of, and what the ELBO is."""
    batch = full(template, observed)
    draw = rival.draw(batch, noise(3), path=False, draws=(draws,))
    augmented = log_ratios(rival, template, observed, draws)
    joint_q = sum(value.flatten(1).sum(1) for value in draw.log_q.values())
    return augmented, augmented + joint_q - log_marginal(rival, template, batch, draw.values)


def test_the_augmented_bound_is_below_the_elbo_and_that_below_the_evidence():
    template = GaussianRandomEffects(1, 1.0, 1.0, 1.0)
    observed = template.simulate(2, 2, generator(0))
    rival = build(CascadingFlows, full(template, observed), template, shake=0.6)
    augmented, plain = bounds(rival, template, observed, 150)
    between, beyond = plain - augmented, template.log_evidence(observed) - plain
    error = [float(d.std()) / 150**0.5 for d in (between, beyond)]
    assert float(between.mean()) > 4 * error[0]
    assert float(between.mean()) > 0.01
    assert float(beyond.mean()) > 4 * error[1]


def test_both_bounds_are_one_where_the_noise_goes_its_own_way():
    template = GaussianRandomEffects(1, 1.0, 1.0, 1.0)
    observed = template.simulate(2, 2, generator(0))
    rival = build(CascadingFlows, full(template, observed), template, shake=0.3, layers=1)
    with torch.no_grad():
        for rows in rival.free.values():
            triangles = rows.rows.weight[:, :4].unflatten(-1, (2, 2))
            triangles[:, 0, 1] = triangles[:, 1, 0] = 0
            rows.rows.weight[:, 3] = rows.rows.weight[:, 5] = rows.rows.weight[:, 7] = 0  # the noise's scales and shift
            rows.rows.weight[:, -1] = 40.0
    augmented, plain = bounds(rival, template, observed, 50)
    assert torch.allclose(augmented, plain, atol=1e-6)


def test_training_on_reduced_batches_comes_near_the_posterior():
    template = GaussianRandomEffects(2, 1.0, 1.0, 1.0)
    observed = template.simulate(4, 3, generator(0))
    rival = build(CascadingFlows, full(template, observed), template)
    start, _ = gap(rival, template, observed)
    fit(rival, Whole(template, full(template, observed)), Plan(100, 2, 0.03, 0, {}))
    missing, error = gap(rival, template, observed)
    assert start > 20
    assert -4 * error < missing < start / 10


@torch.no_grad()
def test_an_encoding_moves_shifts_and_nothing_else(effects):
    template, observed = effects
    batch = full(template, observed)
    rival = build(AmortizedCascadingFlows, batch, template, shake=0.5)
    row, encoding = rival.free["group"].rows.weight, rival.encoder(batch)["group"]
    width = rival.layers * 6 * rival.context["group"]  # three numbers and three of auxiliary noise
    own, maps = row.split([row.shape[1] - width, width], 1)
    own, got = (rows.unflatten(-1, (rival.layers, -1)) for rows in (own, rival.encodings(batch)["group"][:, 0]))
    expected = torch.zeros_like(own)
    shifts = torch.einsum("glnc,gc->gln", maps.unflatten(-1, (rival.layers, 6, -1)), encoding[:, 0])
    expected[..., 36 + 6 : 36 + 12] = shifts
    assert float(shifts.abs().min()) > 0
    assert torch.allclose(got - own, expected, atol=1e-12)


class FromPrior:
    """A source of whole data sets, each drawn from the model."""

    def __init__(self, template: GaussianRandomEffects, groups: int, samples: int):
        self.template, self.sizes, self.cards = template, (groups, samples), dict(group=groups, sample=samples)
        self.generator = generator(0)

    def batch(self, index) -> Batch:
        return full(self.template, self.template.simulate(*self.sizes, self.generator))


@pytest.mark.slow
def test_the_amortized_variant_serves_data_sets_it_was_not_trained_on():
    template = GaussianRandomEffects(1, 1.0, 1.0, 1.0)
    source = FromPrior(template, 3, 10)
    rival = build(AmortizedCascadingFlows, source.batch(None), template)
    unseen = [template.simulate(3, 10, generator(100 + seed)) for seed in range(5)]
    start = [gap(rival, template, observed, 50)[0] for observed in unseen]
    fit(rival, source, Plan(400, 3, 0.01, 0, {}))
    end = [gap(rival, template, observed, 50)[0] for observed in unseen]
    assert min(start) > 5
    assert max(end) < 4
    assert sum(end) / 5 < 2
