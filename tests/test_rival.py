"""Laws that every rival obeys: densities are normalised, batches average, rows move when visited."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from parcellation.approximation import Approximation
from parcellation.baselines.adavi import Adavi
from parcellation.baselines.asvi import Asvi
from parcellation.baselines.cascading_flows import AmortizedCascadingFlows, CascadingFlows
from parcellation.baselines.mean_field import MeanField
from parcellation.baselines.per_variable import PerVariable
from parcellation.baselines.rival import Rival, prior_centres
from parcellation.elbo import elbo, objective
from parcellation.plates import Batch, Observed, Site, Template
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit
from tests.conftest import full, generator, noise

FREE = (MeanField, Asvi, PerVariable, CascadingFlows)  # nothing is read off the data
ENCODED = (AmortizedCascadingFlows, Adavi)


def build(kind: type[Rival], batch: Batch, template: Template, shake: float = 0.0, seed: int = 0, **settings) -> Rival:
    """A float64 rival whose first weights depend on the seed, `shake` away from its start."""
    if kind in ENCODED:
        settings["features"] = batch.seen.x.shape[-1]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        rival = kind(template, batch.cards, **settings).double()
    g = generator(seed)
    with torch.no_grad():
        for parameter in rival.parameters():
            parameter.add_(shake * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    return rival


def set_rows(rival: Rival, name: str, *parts: Tensor) -> None:
    """Put these, each broadcastable to (*plates, n), side by side as the rows of a site."""
    rows = rival.free[name]
    with torch.no_grad():
        both = torch.cat([part.expand(*rows.sizes, -1) for part in parts], -1)
        rows.rows.weight.copy_(both.flatten(0, -2))


class Independent(Template):
    """One site: every member's theta ~ Normal(0.5, 1.5), x ~ Normal(theta, 0.8), in D dimensions."""

    plates = ("member",)
    reducible = frozenset({"member"})

    def __init__(self, dimensions: int):
        self.sites = (Site("theta", ("member",), (dimensions,), self._prior),)
        self.dimensions = dimensions

    def _prior(self, values, observed):
        return observed.x.new_full((1, self.dimensions), 0.5), observed.x.new_full((1, self.dimensions), 1.5)

    def log_likelihood(self, values, observed) -> Float[Tensor, "*draws member"]:
        sd = observed.x.new_tensor(0.8)
        return observed.mask * Normal(values["theta"], sd).log_prob(observed.x).sum(-1)

    def hyperparameters(self) -> dict:
        return dict(dimensions=self.dimensions)

    def simulate(self, members: int) -> Observed:
        x = 0.5 + torch.randn(members, self.dimensions, generator=generator(2), dtype=torch.float64)
        return Observed(x, torch.ones(members, dtype=torch.bool))

    def posterior(self, observed: Observed) -> tuple[Tensor, Tensor]:
        precision = 1.5**-2 + 0.8**-2
        mean = (0.5 / 1.5**2 + observed.x / 0.8**2) / precision
        return mean, torch.full_like(mean, precision**-0.5)

    def log_evidence(self, observed: Observed) -> float:
        mean, sd = observed.x.new_tensor([0.5, (1.5**2 + 0.8**2) ** 0.5])
        return float(Normal(mean, sd).log_prob(observed.x).sum())


def mean_field_gap(template: GaussianRandomEffects, observed: Observed) -> float:
    """Nats by which the best independent q misses the evidence: (sum_i log Lambda_ii - log det Lambda) / 2.

    The posterior's precision Lambda has 1 / sd_group^2 between population and every group: its Schur complement is the
    precision of the population's marginal. All others on the diagonal appear in both terms.
    """
    _, spread = template._averages(observed)
    marginal = (1 / (template.sd_group**2 + spread)).sum(0) + template.sd_population**-2
    conditional = len(spread) / template.sd_group**2 + template.sd_population**-2
    return float(0.5 * (conditional / marginal).log().sum())


def best_mean_field(template: GaussianRandomEffects, observed: Observed) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and sd of every site in the best independent q: posterior means, conditional sd's."""
    _, spread = template._averages(observed)
    posterior = template.posterior(observed)
    precision = {
        "population": torch.tensor(template.sd_population**-2 + len(spread) * template.sd_group**-2).double(),
        "group": template.sd_group**-2 + 1 / spread,
    }
    return {name: (posterior[name][0], precision[name].rsqrt().expand_as(posterior[name][0])) for name in posterior}


def gap(rival, template, observed, draws: int = 200) -> tuple[float, float]:
    """Nats by which its bound is below the evidence, and the standard error; all draws at once."""
    missing = template.log_evidence(observed) - log_ratios(rival, template, observed, draws)
    return float(missing.mean()), float(missing.std() / draws**0.5)


@torch.no_grad()
def log_ratios(rival, template, observed, draws: int) -> Tensor:
    """log p(x, theta) - log q(theta) of single draws."""
    draw = rival.draw(full(template, observed), noise(3), path=False, draws=(draws,))
    total = template.log_likelihood(draw.values, observed).flatten(1).sum(1)
    for site in template.sites:
        mean, sd = site.prior(draw.values, observed)
        total = total + Normal(mean, sd).log_prob(draw.values[site.name]).flatten(1).sum(1)
        total = total - draw.log_q[site.name].flatten(1).sum(1)
    return total


@pytest.mark.parametrize("kind", FREE + ENCODED)
def test_its_bound_is_that_of_elbo(kind, effects):
    template, observed = effects
    rival = build(kind, full(template, observed), template, shake=0.1)
    bound = elbo(rival, full(template, observed), noise(0), 50)
    missing, error = gap(rival, template, observed, 1000)
    both = (error**2 + bound.standard_error**2) ** 0.5
    assert float(template.log_evidence(observed)) - bound.mean == pytest.approx(missing, abs=4.5 * both)


@pytest.mark.parametrize("kind", FREE + ENCODED)
def test_a_rival_is_an_approximation(kind, effects):
    template, observed = effects
    batch = full(template, observed)
    plain = kind(template, batch.cards, **({"features": 3} if kind in ENCODED else {}))
    assert isinstance(plain, Approximation)
    assert plain.augmented == issubclass(kind, CascadingFlows)


@pytest.mark.parametrize("kind", FREE + ENCODED)
def test_every_parameter_gets_a_gradient(kind, effects, ragged):
    for template, observed in (effects, (ragged.template, ragged.observed)):
        batch = full(template, observed)
        rival = build(kind, batch, template, shake=0.1)
        objective(rival, batch, rival.draw(batch, noise(0))).backward()
        for name, parameter in rival.named_parameters():
            assert parameter.grad is not None, name
            gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            assert gradient.isfinite().all(), name
            if "free." in name and template is effects[0]:
                assert (gradient.abs().amax(-1) > 0).all(), name  # every row
            assert gradient.abs().max() > 0, name


@pytest.mark.parametrize("kind", FREE + ENCODED)
def test_the_importance_identity(kind):
    # E_q[p / q] = p(x) for every normalised q, wherever it is; both may have the auxiliary noise beside them.
    template = GaussianRandomEffects(1, sd_population=1.0, sd_group=0.8, sd_sample=1.0)
    observed = template.simulate(2, 2, generator(0))
    rival, draws = build(kind, full(template, observed), template, shake=0.1), 20_000
    if kind in FREE:
        fit(rival, Whole(template, full(template, observed)), Plan(30, 2, 0.03, 0, {}))
    ratio = (log_ratios(rival, template, observed, draws) - template.log_evidence(observed)).exp()
    assert float(ratio.std()) > 0.005
    # Weights that are too heavy-tailed would make the standard error a lie.
    assert float(ratio.square().max() / ratio.square().sum()) < 0.1
    assert float(ratio.mean()) == pytest.approx(1, abs=4 * float(ratio.std()) / draws**0.5)


def recorded_noise(seed: int) -> Callable:
    """`of(batch)`: noise of the full model when it is asked first, then every batch's own variables' part of it."""
    whole, g = {}, generator(seed)

    def of(template: Template, batch: Batch):
        def part(name, shape):
            if name not in whole:
                whole[name] = torch.randn(shape, generator=g, dtype=torch.float64)
            values = whole[name]
            for d, plate in enumerate(template.plates):
                if plate in batch.index and values.shape[d] > 1:
                    values = values.index_select(d, batch.index[plate])
            return values

        return part

    return of


@pytest.mark.parametrize("kind", FREE)
def test_batches_average_to_the_full_objective(kind, effects, ragged):
    for template, observed, plate in ((*effects, "group"), (ragged.template, ragged.observed, "vertex")):
        whole, of = full(template, observed), recorded_noise(5)
        rival = build(kind, whole, template, shake=0.2)
        members = torch.arange(whole.cards[plate])[:, None]
        batches = [whole] + [template.reduce(whole, {plate: member}) for member in members]
        with torch.no_grad():
            every, *parts = [float(objective(rival, b, rival.draw(b, of(template, b)))) for b in batches]
        assert sum(parts) / len(parts) == pytest.approx(every, rel=1e-10)
        assert max(parts) - min(parts) > 1


@pytest.mark.parametrize("kind", [*FREE, AmortizedCascadingFlows])
def test_a_ground_variable_moves_when_visited_and_only_then(kind, effects, ragged):
    for template, observed, plate, site in (
        (*effects, "group", "group"),
        (ragged.template, ragged.observed, "vertex", "logits_group"),
    ):
        whole = full(template, observed)
        rival = build(kind, whole, template, shake=0.1)
        part = template.reduce(whole, {plate: torch.tensor([1, 3])})
        before = rival.free[site].rows.weight.detach().clone()
        # Twice: a momentum from a first visit must not move what a second step leaves alone.
        fit(rival, OneBatch(whole, whole), Plan(1, 10, 0.01, 0, {}))
        between = rival.free[site].rows.weight.detach().clone()
        fit(rival, OneBatch(whole, part), Plan(3, 10, 0.01, 0, {}))
        after = rival.free[site].rows.weight.detach()
        visited = torch.zeros(len(before), dtype=torch.bool).index_fill(0, torch.tensor([1, 3]), True)
        assert ((after != between).any(1) == visited).all()
        present = template.present(template.site(site), whole).flatten()
        assert ((between != before).any(1) | ~present).all()


class OneBatch:
    """A source that gives the same batch at every step."""

    def __init__(self, whole: Batch, batch: Batch):
        self.cards, self._batch = whole.cards, batch

    def batch(self, index):
        return self._batch


@pytest.mark.parametrize("kind", FREE + ENCODED)
def test_the_same_seed_gives_the_same_weights(kind, effects):
    template, observed = effects
    states = []
    for seed in (0, 0, 1):
        rival = build(kind, full(template, observed), template)
        losses = fit(rival, Whole(template, full(template, observed)), Plan(5, 2, 0.03, seed, {}))
        states.append([*(value.clone() for value in rival.state_dict().values()), torch.tensor(losses)])
    assert all(torch.equal(a, b) for a, b in zip(states[0], states[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(states[0], states[2], strict=True))


@pytest.mark.parametrize("kind", FREE + ENCODED)
def test_the_path_gradient_is_unbiased(kind, effects):
    template, observed = effects
    batch = full(template, observed)
    rival, draws, rounds = build(kind, batch, template, shake=0.1), 50, 16

    def gradient(seed: int, path: bool) -> Tensor:
        rival.zero_grad()
        draw = rival.draw(batch, noise(seed), path=path, draws=(draws,))
        (objective(rival, batch, draw) / draws).backward()
        return torch.cat([p.grad.to_dense().flatten() for p in rival.parameters()])

    difference = torch.stack([gradient(seed, True) - gradient(seed, False) for seed in range(rounds)])
    score = difference.mean(0) / (difference.std(0) / rounds**0.5).clamp_min(1e-12)
    assert float(difference.std()) > 1e-4  # they are two estimators
    # A biased estimator is off in most of its parameters; the largest score of thousands says nothing.
    assert float(score.square().mean()) < 2.0


@pytest.mark.parametrize("kind", FREE + ENCODED)
def test_given_values_are_kept_and_have_no_density(kind, effects):
    template, observed = effects
    batch = full(template, observed)
    population = torch.full((1, 1, 3), 7.0, dtype=torch.float64)
    draw = build(kind, batch, template).draw(batch, noise(0), given={"population": population})
    assert draw.values["population"] is population
    assert set(draw.log_q) == {"group"}
    assert draw.log_q["group"].shape == (4, 1)


def test_centres_are_those_of_the_template(ragged):
    centres = prior_centres(ragged.template, ragged.observed)
    mean, sd = centres["mu_session"]
    assert torch.equal(mean.squeeze(), ragged.template.reference)
    assert float(sd.flatten()[0]) == pytest.approx(torch.tensor(-2.0).exp().item())
