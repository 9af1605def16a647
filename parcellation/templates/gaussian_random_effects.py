"""Gaussian random effects: groups of samples around group means around a population mean; all in closed form.

    population ~ Normal(0, sd_population)         (D)
    group[g]   ~ Normal(population, sd_group)     (D)
    x[g, n]    ~ Normal(group[g], sd_sample)      (D)

Dimensions are independent. With Lambda = 1 / (sd_group^2 + sd_sample^2 / N_g) the precision of a group's average about
the population mean, the posterior and the evidence are Gaussian algebra, so every method is judged against the truth.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.plates import Noise, Observed, Site, Template, Values, gaussian_noise


class GaussianRandomEffects(Template):
    """The template with D dimensions and three standard deviations (population, group, sample)."""

    plates = ("group", "sample")
    reducible = frozenset({"group", "sample"})

    def __init__(self, dimensions: int, sd_population: float = 1.0, sd_group: float = 0.2, sd_sample: float = 0.05):
        self.dimensions = dimensions
        self.sd_population, self.sd_group, self.sd_sample = sd_population, sd_group, sd_sample
        self.sites = (
            Site("population", (), (dimensions,), self._population),
            Site("group", ("group",), (dimensions,), lambda v, _: (v["population"], _like(v["population"], sd_group))),
        )

    def _population(self, values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
        zero = observed.x.new_zeros(1, 1, self.dimensions)
        return zero, torch.full_like(zero, self.sd_population)

    @property
    def features(self) -> int:
        """Length of an observation."""
        return self.dimensions

    def hyperparameters(self) -> dict:
        """Constructor arguments."""
        return dict(
            dimensions=self.dimensions,
            sd_population=self.sd_population,
            sd_group=self.sd_group,
            sd_sample=self.sd_sample,
        )

    def log_likelihood(self, values: Values, observed: Observed) -> Float[Tensor, "*draws group sample"]:
        """Log density of every sample, shape (*draws, group, sample)."""
        residual = (observed.x - values["group"]) / self.sd_sample
        constant = math.log(self.sd_sample) + 0.5 * math.log(2 * math.pi)
        return observed.mask * (-0.5 * residual.square() - constant).sum(-1)

    def simulate(self, groups: int, samples: int, generator: torch.Generator) -> Observed:
        """A data set drawn from the model, float64."""
        mask = torch.ones(groups, samples, dtype=torch.bool)
        blank = Observed(torch.zeros(groups, samples, 1, dtype=torch.float64), mask)
        noise = gaussian_noise(generator, "cpu", torch.float64)
        return self.observations(self.draw(blank, noise), blank, noise)

    def observations(self, values: Values, blank: Observed, noise: Noise) -> Observed:
        """Samples about the groups."""
        x = values["group"] + self.sd_sample * noise("x", (*blank.mask.shape, self.dimensions))
        return Observed(x * blank.mask[..., None], blank.mask, blank.covariates)

    def posterior(self, observed: Observed) -> dict[str, tuple[Tensor, Tensor]]:
        """Exact posterior mean and standard deviation of every site; groups are marginal, means over the population."""
        average, spread = self._averages(observed)
        precision = 1 / (self.sd_group**2 + spread)
        total = precision.sum(0, keepdim=True) + self.sd_population**-2
        population = (precision * average).sum(0, keepdim=True) / total
        share = self.sd_group**-2 / (self.sd_group**-2 + 1 / spread)
        group = share * population + (1 - share) * average
        variance = 1 / (self.sd_group**-2 + 1 / spread) + share**2 / total
        return {"population": (population, total.rsqrt()), "group": (group, variance.sqrt())}

    def posterior_draws(self, observed: Observed, noise: Noise, draws: int) -> dict[str, Tensor]:
        """Independent draws from the exact joint posterior, shapes (draws, 1, 1, D) and (draws, group, 1, D)."""
        average, spread = self._averages(observed)
        mean, sd = self.posterior(observed)["population"]
        population = mean + sd * noise("population", (draws, *mean.shape))
        share = self.sd_group**-2 / (self.sd_group**-2 + 1 / spread)
        sd = (self.sd_group**-2 + 1 / spread).rsqrt()
        centre = share * population + (1 - share) * average
        return {"population": population, "group": centre + sd * noise("group", (draws, *average.shape))}

    def log_evidence(self, observed: Observed) -> Float[Tensor, ""]:
        """Exact log p(x), a number: samples about their group's average, then averages about the population."""
        observed = observed.select(0, observed.mask.any(1).nonzero()[:, 0])  # a group without samples says nothing
        n = observed.mask.sum(1, keepdim=True)[..., None].to(observed.x.dtype)
        average, spread = self._averages(observed)
        within = (observed.mask[..., None] * (observed.x - average)).square().sum(1, keepdim=True)
        log_within = (
            -0.5 * within / self.sd_sample**2
            - 0.5 * (n - 1) * math.log(2 * math.pi * self.sd_sample**2)
            - 0.5 * n.log()
        ).sum()
        variance = self.sd_group**2 + spread
        precision, weighted = (1 / variance).sum(0), (average / variance).sum(0)
        posterior = 1 / (precision + self.sd_population**-2)
        log_average = (-0.5 * average.square() / variance - 0.5 * (2 * math.pi * variance).log()).sum()
        log_population = 0.5 * (posterior * weighted.square() + (posterior / self.sd_population**2).log()).sum()
        return log_within + log_average + log_population

    def _averages(self, observed: Observed) -> tuple[Float[Tensor, "G 1 D"], Float[Tensor, "G 1 D"]]:
        """Average of each group's samples and the variance of that average, (G, 1, D); 0 and infinite for none."""
        n = observed.mask.sum(1, keepdim=True)[..., None].to(observed.x.dtype)
        average = (observed.mask[..., None] * observed.x).sum(1, keepdim=True) / n.clamp_min(1)
        return average, (self.sd_sample**2 / n).expand_as(average)


def _like(reference: Tensor, value: float) -> Tensor:
    return torch.full_like(reference, value)


TEMPLATE = GaussianRandomEffects
