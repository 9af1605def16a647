"""Plates, sites and templates: a model is a list of sites, each with the plates it lives on.

Every tensor carries all plate dimensions in the template's order, of size 1 where it does not vary, then the event:
with the plates (subject, session, vertex) a subject's profiles are `(S, 1, 1, K, D)`. Broadcasting then replaces all
bookkeeping, and the weight of a site in a mini-batch is a product of full / reduced cardinalities over its plates.
Leading dimensions (draws) may precede the plates.
"""

import hashlib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from parcellation.errors import UsageError

Values = Mapping[str, Tensor]
Noise = Callable[[str, tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class Observed:
    """Data of the chosen ground variables.

    x: observations, shape (*plates, D), 0 where masked; mask: False for a missing one, shape (*plates,);
    covariates: known quantities, each of shape (*plates,) with size 1 where constant.
    """

    x: Float[Tensor, "*plates D"]
    mask: Bool[Tensor, "*plates"]
    covariates: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def squares(self) -> Tensor:
        """Squared norm of every observation, shape (*plates,): needed at each evaluation, computed once."""
        return torch.linalg.vector_norm(self.x, dim=-1).square()  # no temporary as large as x

    def select(self, dimension: int, index: Int[Tensor, " n"]) -> "Observed":
        """Keep the given positions of one plate."""
        pick = {
            name: value.index_select(dimension, index) if value.shape[dimension] > 1 else value
            for name, value in self.covariates.items()
        }
        return Observed(self.x.index_select(dimension, index), self.mask.index_select(dimension, index), pick)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> "Observed":
        """The same data elsewhere."""
        pick = {name: value.to(device, dtype) for name, value in self.covariates.items()}
        return Observed(self.x.to(device, dtype), self.mask.to(device), pick)


@dataclass(frozen=True)
class Batch:
    """The ground variables of one step.

    `seen` is what encoders look at, `scored` what the likelihood is evaluated on: they differ where a plate is reduced
    in the likelihood only. `index` gives, for each reduced plate, the positions in the full model (of `scored`);
    `cards` the full cardinality of every plate. `known` is the mask with everything below the chosen members of the
    outermost plate, where other plates are reduced; None where none is, and `seen` has it.
    """

    seen: Observed
    scored: Observed
    index: Mapping[str, Tensor]
    cards: Mapping[str, int]
    known: Bool[Tensor, "*all"] | None = None

    @classmethod
    def full(cls, plates: tuple[str, ...], observed: Observed) -> "Batch":
        """All data of a model, which an evidence lower bound is computed with."""
        return cls(observed, observed, {}, dict(zip(plates, observed.mask.shape, strict=True)))


@dataclass(frozen=True)
class Site:
    """One latent random-variable template: Normal given its ancestors.

    prior maps values of earlier sites and the observed covariates to (mean, standard deviation), each broadcastable to
    (*plates, *event). joint: data tell the elements along the event's last dimension together, so that their posterior
    has a full covariance.
    """

    name: str
    plates: tuple[str, ...]
    event: tuple[int, ...]
    prior: Callable[[Values, Observed], tuple[Tensor, Tensor]]
    joint: bool = False


class Template(ABC):
    """A hierarchical model: its plates, its sites in an order in which every parent comes first, and its likelihood.

    `reducible` names the plates that a mini-batch may subsample; `likelihood_only` those of them that encoders must
    still see whole; `encoder` the encoder made for it. `generative` holds parameters of the model itself, which are
    trained together with the family's; None where the model has none but its sites.
    """

    plates: ClassVar[tuple[str, ...]]
    reducible: ClassVar[frozenset[str]]
    likelihood_only: ClassVar[frozenset[str]] = frozenset()
    encoder: ClassVar[str] = "deep_set"
    generative: nn.Module | None = None
    sites: tuple[Site, ...]

    @abstractmethod
    def log_likelihood(self, values: Values, observed: Observed) -> Tensor:
        """Log density of the observations, one number per ground variable, shape (*draws, *plates) or broadcastable.

        Masked observations contribute exactly 0. Enumerated variables are summed out.
        """

    @abstractmethod
    def hyperparameters(self) -> dict:
        """Constructor arguments, as tensors and plain values, that rebuild this template."""

    def site(self, name: str) -> Site:
        """The site of this name."""
        return next(site for site in self.sites if site.name == name)

    @property
    def unit_plate(self) -> str:
        """The outermost plate: its members are what a trained model is applied to, one by one."""
        return self.plates[0]

    def population_sites(self) -> list[Site]:
        """Sites outside the outermost plate: shared by all its members."""
        return [site for site in self.sites if self.unit_plate not in site.plates]

    def shape(self, site: Site, observed: Observed) -> tuple[int, ...]:
        """Shape of a site's values for these data: plates (1 where the site does not vary), then event."""
        sizes = zip(self.plates, observed.mask.shape, strict=True)
        return tuple(size if plate in site.plates else 1 for plate, size in sizes) + site.event

    def present(self, site: Site, batch: Batch) -> Bool[Tensor, "*plates"]:
        """Whether a scored ground variable has any observation below it in the full data: else it weighs nothing.

        What else is in the batch does not matter. Sites outside the outermost plate always count.
        """
        present = batch.seen.mask if batch.known is None else batch.known
        for d, plate in enumerate(self.plates):
            if plate not in site.plates:
                present = present.any(d, keepdim=True)
            elif plate != self.unit_plate and plate in batch.index:
                present = present.index_select(d, batch.index[plate])
        return present if self.unit_plate in site.plates else torch.ones_like(present)

    def weight(self, plates: tuple[str, ...], batch: Batch) -> float:
        """Product of full / reduced cardinality over the given plates."""
        weight = 1.0
        for dimension, plate in enumerate(self.plates):
            if plate in plates:
                weight *= batch.cards[plate] / batch.scored.mask.shape[dimension]
        return weight

    def reduce(self, batch: Batch, index: Mapping[str, Tensor]) -> Batch:
        """The batch restricted to the given positions of some plates (independent index sets, their product).

        Raises UsageError for a plate that the template does not allow to be reduced.
        """
        seen, scored = batch.seen, batch.scored
        known = seen.mask if batch.known is None else batch.known
        for plate, positions in index.items():
            if plate not in self.reducible:
                allowed = ", ".join(sorted(self.reducible))
                raise UsageError(
                    f"{type(self).__name__}: plate {plate!r} may not be reduced; expected one of: {allowed}"
                )
            dimension = self.plates.index(plate)
            scored = scored.select(dimension, positions)
            if plate not in self.likelihood_only:
                seen = seen.select(dimension, positions)
            if plate == self.unit_plate:
                known = known.index_select(dimension, positions)
        return replace(batch, seen=seen, scored=scored, index={**batch.index, **index}, known=known)

    def draw(self, observed: Observed, noise: Noise) -> dict[str, Tensor]:
        """Values of all sites from the prior, shaped for these data."""
        values: dict[str, Tensor] = {}
        for site in self.sites:
            mean, sd = site.prior(values, observed)
            values[site.name] = mean + sd * noise(site.name, self.shape(site, observed))
        return values

    def observations(self, values: Values, blank: Observed, noise: Noise) -> Observed:
        """Data drawn given the values of all sites, 0 where masked; `blank` has mask and covariates, its x is not read.

        Optional: raises UsageError where a template does not say how.
        """
        raise UsageError(f"{type(self).__name__}: does not say how observations are drawn")


def gaussian_noise(generator: torch.Generator, device: torch.device | str, dtype: torch.dtype) -> Noise:
    """Standard normal noise, site after site, from one generator."""
    return lambda name, shape: torch.randn(shape, generator=generator, dtype=dtype).to(device)


def seeded(*key: int | str) -> torch.Generator:
    """A generator that depends on nothing but the key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def template_class(name: str) -> type[Template]:
    """The template in `templates/<name>.py`: the class that its `TEMPLATE` names.

    Raises UsageError, listing the templates there are, for an unknown name.
    """
    folder = importlib.import_module("parcellation.templates").__path__
    names = sorted(module.name for module in pkgutil.iter_modules(folder))
    if name not in names:
        raise UsageError(f"model.template: expected one of {', '.join(names)}, got {name!r}")
    return importlib.import_module(f"parcellation.templates.{name}").TEMPLATE
