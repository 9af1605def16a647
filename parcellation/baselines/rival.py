"""What the rivals share: all that is trained goes into one vector of parameters per ground variable.

What follows, from the vector and the sampled parents to a draw and its density, is a function without weights. The
path gradient then takes no more than detaching the vectors, and a step costs what the visited variables cost.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal

from parcellation.family import Draw
from parcellation.flows import sum_event
from parcellation.plates import Batch, Noise, Observed, Site, Template, Values


class Rows(nn.Module):
    """One row of parameters per ground variable of a site; rows of plates that may be reduced move when visited."""

    def __init__(self, template: Template, site: Site, cards: Mapping[str, int], start: Float[Tensor, " P"]):
        super().__init__()
        self.plates = template.plates
        self.sizes = tuple(cards[plate] if plate in site.plates else 1 for plate in template.plates)
        self.sparse = not template.reducible.isdisjoint(site.plates)
        rows = int(torch.tensor(self.sizes).prod())
        self.rows = nn.Embedding.from_pretrained(start.detach().repeat(rows, 1), freeze=False, sparse=self.sparse)

    def forward(self, index: Mapping[str, Tensor]) -> Float[Tensor, "*plates P"]:
        """Rows at the given positions of some plates; all positions of the others."""
        device = self.rows.weight.device
        place = torch.zeros((), dtype=torch.long, device=device)
        for plate, size in zip(self.plates, self.sizes, strict=True):
            positions = torch.arange(size, device=device) if size == 1 or plate not in index else index[plate]
            place = (place * size)[..., None] + positions
        return self.rows(place)


@runtime_checkable
class Conditional(Protocol):
    """The distribution of one site's ground variables given their parents."""

    def push(self, noise: Tensor) -> Tensor:
        """A draw from standard normal noise of its shape."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of a draw, summed over the event: shape (*draws, *plates)."""


@dataclass(frozen=True)
class Gaussian:
    """Independent normals; `event` is the number of event dimensions."""

    mean: Float[Tensor, "*#variables"]
    sd: Float[Tensor, "*#variables"]
    event: int

    def push(self, noise: Tensor) -> Tensor:
        """mean + sd x noise."""
        return self.mean + self.sd * noise

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, summed over the event."""
        return sum_event(Normal(self.mean, self.sd).log_prob(value), self.event)


class Rival(nn.Module, ABC):
    """An approximation of the posterior: see `parcellation.approximation`.

    starts: for each site the row that its ground variables begin with; sites without one have no rows.
    augmented: whether `log_q` is the density of more than the sites, so that the bound computed from it is the
    augmented one, which is below the method's ELBO as that is below the evidence.
    """

    augmented: ClassVar[bool] = False

    def __init__(self, template: Template, cards: Mapping[str, int], starts: Mapping[str, Float[Tensor, " P"]]):
        super().__init__()
        self.template, self.cards, self.generative = template, dict(cards), template.generative
        self.settings = {"method": type(self).__name__}
        self.free = nn.ModuleDict({n: Rows(template, template.site(n), cards, start) for n, start in starts.items()})

    def encodings(self, batch: Batch) -> dict[str, Tensor]:
        """Parameters of the batch's ground variables: for every site (*plates, ...)."""
        return {name: rows(batch.index) for name, rows in self.free.items()}

    @abstractmethod
    def conditional(self, site: Site, parameters: Tensor, mean: Tensor, sd: Tensor) -> Conditional:
        """The site's distribution given its parameters and the prior's mean and sd at the sampled parents."""

    def draw(
        self,
        batch: Batch,
        noise: Noise,
        encodings: Mapping[str, Tensor] | None = None,
        given: Values | None = None,
        path: bool = True,
        draws: tuple[int, ...] = (),
    ) -> Draw:
        """Draw every site in turn, parents first; sites in `given` keep those values and get no density."""
        encodings = self.encodings(batch) if encodings is None else encodings
        values, log_q = dict(given or {}), {}
        for site in self.template.sites:
            if site.name not in values:
                prior = site.prior(values, batch.scored)
                shape = draws + self.template.shape(site, batch.scored)
                values[site.name], log_q[site.name] = self.draw_site(
                    site, encodings[site.name], prior, noise, shape, path
                )
        return Draw(values, log_q)

    def draw_site(
        self,
        site: Site,
        parameters: Tensor,
        prior: tuple[Tensor, Tensor],
        noise: Noise,
        shape: tuple[int, ...],
        path: bool,
    ) -> tuple[Tensor, Tensor]:
        """Value, of the given shape, and log density of one site."""
        conditional = self.conditional(site, parameters, *prior)
        value = conditional.push(noise(site.name, shape))
        if path:
            conditional = self.conditional(site, parameters.detach(), *prior)
        return value, conditional.log_prob(value)


def event_size(site: Site) -> int:
    """Numbers in one ground variable."""
    return int(torch.tensor(site.event).prod())


def by_element(site: Site, rows: Float[Tensor, "*plates P"]) -> Float[Tensor, "n *variables"]:
    """Rows whose parameters belong to elements of the event: n tensors of shape (*plates, *event)."""
    return rows.unflatten(-1, (-1,) + site.event).movedim(rows.dim() - 1, 0)


def prior_centres(template: Template, observed: Observed) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and sd of every site's prior where all its ancestors are at their centres.

    Free locations and scales are counted from there, in these units: a row of zeros is the template's own start (its
    anchors among it), and one learning rate fits all sites.
    """
    values: dict[str, Tensor] = {}
    centres: dict[str, tuple[Tensor, Tensor]] = {}
    for site in template.sites:
        centres[site.name] = site.prior(values, observed)
        values[site.name] = centres[site.name][0]
    return centres


def restrict(template: Template, site: Site, encoding: Tensor, batch: Batch) -> Tensor:
    """An encoding of what encoders see, at the positions that are scored."""
    for plate in template.likelihood_only & batch.index.keys() & set(site.plates):
        d = template.plates.index(plate)
        encoding = encoding.index_select(d, batch.index[plate]) if encoding.shape[d] > 1 else encoding
    return encoding
