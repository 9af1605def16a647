"""Automatic structured variational inference: exact on conjugate models; its gates go from mean-field to the prior."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from parcellation.baselines.asvi import Asvi
from parcellation.plates import Observed, Site, Template
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, fit
from tests.conftest import full, generator, noise
from tests.test_rival import build, gap, mean_field_gap, set_rows

SDS = (1.2, 0.7, 0.9)  # of a, of b about a, of x about b


class Chain(Template):
    """a ~ Normal(0, .), b ~ Normal(a, .), x ~ Normal(b, .), for every member on its own."""

    plates = ("member",)
    reducible = frozenset({"member"})

    def __init__(self):
        self.sites = (
            Site("a", ("member",), (), lambda v, o: (o.x.new_zeros(1), o.x.new_full((1,), SDS[0]))),
            Site("b", ("member",), (), lambda v, o: (v["a"], torch.full_like(v["a"], SDS[1]))),
        )

    def log_likelihood(self, values, observed) -> Float[Tensor, "*draws member"]:
        return Normal(values["b"], observed.x.new_tensor(SDS[2])).log_prob(observed.x[..., 0])

    def hyperparameters(self) -> dict:
        return {}

    def log_evidence(self, observed: Observed) -> float:
        sd = observed.x.new_tensor(SDS).square().sum().sqrt()
        return float(Normal(0, sd).log_prob(observed.x).sum())


def logit(p):
    return torch.special.logit(torch.as_tensor(p, dtype=torch.float64))


def test_exact_on_a_conjugate_chain():
    template = Chain()
    x = 1.5 * torch.randn(3, 1, generator=generator(0), dtype=torch.float64)
    observed = Observed(x, torch.ones(3, dtype=torch.bool))
    rival = build(Asvi, full(template, observed), template)
    precision = SDS[0] ** -2, 1 / (SDS[1] ** 2 + SDS[2] ** 2)
    _set(rival, "a", x, precision, SDS[0])
    _set(rival, "b", x, (SDS[1] ** -2, SDS[2] ** -2), SDS[1])
    missing, error = gap(rival, template, observed, 20)
    assert missing == pytest.approx(0, abs=1e-10)
    assert error < 1e-10


def _set(rival, name: str, estimate, precision, scale: float) -> None:
    """A conditional of the prior's precision `precision[0]` and an estimate of precision `precision[1]`.

    Free sd's are positive, so the gate h must leave room below the conditional's sd: 0.05 of the prior's does.
    """
    share = logit(precision[0] / (precision[0] + precision[1]))
    sd = torch.as_tensor(precision[0] + precision[1], dtype=torch.float64) ** -0.5
    log_free_sd = ((sd - 0.05 * scale) / 0.95 / scale).log()
    parts = (estimate / scale, log_free_sd, share, logit(0.05))
    set_rows(rival, name, *(part.expand(estimate.shape) for part in parts))


def test_exact_on_random_effects(effects):
    template, observed = effects
    rival = build(Asvi, full(template, observed), template)
    average, spread = template._averages(observed)
    precision = 1 / (template.sd_group**2 + spread)
    total = precision.sum(0, keepdim=True)
    population = (precision * average).sum(0, keepdim=True) / total
    _set(rival, "population", population, (template.sd_population**-2, total), template.sd_population)
    _set(rival, "group", average, (template.sd_group**-2, 1 / spread), template.sd_group)
    missing, error = gap(rival, template, observed, 20)
    assert missing == pytest.approx(0, abs=1e-9)
    assert error < 1e-9


@pytest.mark.parametrize(("gate", "slope"), [(-40.0, 0.0), (0.0, 0.5), (40.0, 1.0)])
def test_gates_go_from_mean_field_to_the_prior(gate, slope, effects):
    template, observed = effects
    batch = full(template, observed)
    rival = build(Asvi, batch, template, shake=0.3)
    with torch.no_grad():
        rival.free["group"].rows.weight[:, 6:] = gate
    given = [torch.full((1, 1, 3), value).double() for value in (0.0, 1.0)]
    draws = [rival.draw(batch, noise(0), given={"population": one}) for one in given]
    moved = draws[1].values["group"] - draws[0].values["group"]
    assert torch.allclose(moved, torch.full_like(moved, slope), atol=1e-12)
    if slope == 1:
        prior = Normal(given[1], template.sd_group).log_prob(draws[1].values["group"]).sum(-1)
        assert torch.allclose(draws[1].log_q["group"], prior, atol=1e-10)


def test_training_on_reduced_batches_finds_the_posterior():
    template = GaussianRandomEffects(2, 1.0, 1.0, 1.0)
    observed = template.simulate(4, 3, generator(0))
    rival = build(Asvi, full(template, observed), template)
    fit(rival, Whole(template, full(template, observed)), Plan(250, 2, 0.03, 0, {}))
    missing, error = gap(rival, template, observed)
    assert -4 * error < missing < 0.1 < mean_field_gap(template, observed)
