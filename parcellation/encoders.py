"""Encoders: permutation-invariant functions of the data that give one encoding per ground variable.

`DeepSet` serves any template: embed every observation, average over the plates that a site is not on, correct.
`NetworkPooling` serves mixtures of networks: its set embedding is attention to networks (who belongs where, given the
population), unrolled over a few passes, so that a subject's encoding for network k is about network k.

Encoders are size-free (means, never sums), see masks, and take the *full* cardinalities, so that what is learned on
reduced batches holds for the full model.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from zuko.nn import MLP

from parcellation.encoding import SMALL, Encoding, concatenate
from parcellation.errors import UsageError
from parcellation.network_pooling import NetworkPooling
from parcellation.plates import Batch, Observed, Site, Template, Values

__all__ = ["ENCODERS", "DeepSet", "Encoding", "Members", "NetworkPooling", "concatenate", "encoder_class"]


@dataclass(frozen=True)
class Members:
    """What a deep set knows of each member of a plate, for one site: it is pooled over the plates below.

    channels: means of the observations' features, shape (*plates, D, C); log_precision: of a member's mean, up to a
    constant; log_counts: log number of members of each plate pooled so far, else 0, P plates in all; present: False for
    a member without data.
    """

    channels: Float[Tensor, "*plates D C"]
    log_precision: Float[Tensor, "*plates"]
    log_counts: Float[Tensor, "*plates P"]
    present: Bool[Tensor, "*plates"]


class DeepSet(nn.Module):
    r"""Mean-pooled deep set, feature by feature, for sites whose event is that of an observation, (D,).

    For a site on plates P the estimate is a mean over the other plates, innermost first, of [x, embed(x)], linearly
    combined. Members of an outer plate are weighted by how well their own means are known: with log precision l,

        w = sigmoid(l - between),   l of the pooled = log(full / reduced x sum w),   l = log count at the first plate

    as the mean of groups of several sizes is in a nested Gaussian model. A learned constant is added to the last l. The
    flow corrects it further; it is also given the log full cardinality of every pooled plate, since a model for other
    cohorts must know their sizes. The site's own plates are left out: given its parents, other members say nothing.
    """

    def __init__(self, template: Template, sites: Sequence[Site], hidden: int = 8):
        super().__init__()
        self._prepare(template, sites)
        self.channels = {site.name: (*site.event, 1 + hidden) for site in sites}
        self.embed = MLP(1, hidden, [hidden], activation=nn.SiLU)
        self.combine = nn.ModuleDict({site.name: nn.Linear(hidden, 1) for site in sites})
        with torch.no_grad():
            for layer in self.combine.values():
                layer.weight.mul_(0.01)
                layer.bias.zero_()

    def _prepare(self, template: Template, sites: Sequence[Site]) -> None:
        """What any pooling by means has: constants of precision, and spreads between members of outer plates."""
        self.template, self.sites = template, sites
        self.precision = nn.ParameterDict({site.name: torch.zeros(()) for site in sites})
        outer = {site.name: self.pooled_plates(site)[1:] for site in sites}
        self.between = nn.ParameterDict(
            {f"{name}_{plate}": torch.zeros(()) for name, plates in outer.items() for plate in plates}
        )

    @classmethod
    def extras(cls, template: Template) -> int:
        """Number of further summaries in an encoding: a log count a plate."""
        return len(template.plates)

    def pooled_plates(self, site: Site) -> list[str]:
        """Plates that a site's encodings are pooled over, innermost first."""
        return [plate for plate in reversed(self.template.plates) if plate not in site.plates]

    def forward(self, batch: Batch, centre: Values) -> dict[str, Encoding]:
        """One encoding per site; `centre` is not used."""
        return {name: self.encode(name, *one) for name, one in self._members(self.sites, batch).items()}

    def members(self, batch: Batch) -> dict[str, Members]:
        """For every population site, the members of the outermost plate: what `encode` makes the site's encoding of."""
        sites = [site for site in self.sites if self.template.unit_plate not in site.plates]
        return {name: members for name, (members, _) in self._members(sites, batch).items()}

    def encode(self, name: str, members: Members, full: float) -> Encoding:
        """A site's encoding from the members of the last plate to pool, each of which stands for `full` of them."""
        plates = self.pooled_plates(self.template.site(name))
        if plates:
            members = self._pool(name, plates[-1], members, full, first=len(plates) == 1)
        return self._decode(name, members)

    def _decode(self, name: str, members: Members) -> Encoding:
        estimate = members.channels[..., 0] + self.combine[name](members.channels[..., 1:])[..., 0]
        log_precision = (members.log_precision + self.precision[name])[..., None]
        return Encoding(estimate, log_precision, members.log_counts[..., None, :] / 5)

    def _embed(self, x: Float[Tensor, "*plates D"]) -> Float[Tensor, "*plates D C"]:
        return torch.cat([x[..., None], self.embed(x[..., None])], -1)

    def _share(self, name: str, plate: str, channels: Tensor, weight: Tensor) -> Float[Tensor, "*plates"]:
        """Shares of a plate's members in their mean, from their weights; all 0 where nobody is there."""
        return weight / weight.sum(self.template.plates.index(plate), keepdim=True).clamp_min(SMALL)

    def population_of(
        self,
        batches: Iterable[Batch],
        cards: Mapping[str, int],
        names: Collection[str],
        start: Values | None = None,
    ) -> dict[str, Encoding]:
        """Encodings of population sites from data that come in parts; the parts are put together, so they must fit.

        One pass is enough, so `start` is not used.
        """
        parts = list(batches)
        x, mask = torch.cat([part.seen.x for part in parts]), torch.cat([part.seen.mask for part in parts])
        whole = Observed(x, mask)
        encodings = self(Batch(whole, whole, {}, cards), {})
        return {name: encoding for name, encoding in encodings.items() if name in names}

    def _members(self, sites: Sequence[Site], batch: Batch) -> dict[str, tuple[Members, float]]:
        """For every site the members of the last plate to pool, and how many of the full model each stands for."""
        x, mask, plates = batch.seen.x, batch.seen.mask, self.template.plates
        each = Members(self._embed(x), x.new_zeros(mask.shape), x.new_zeros(*mask.shape, len(plates)), mask)
        full = {plate: batch.cards[plate] / size for plate, size in zip(plates, mask.shape, strict=True)}
        result = {}
        for site in sites:
            members, pooled = each, self.pooled_plates(site)
            for number, plate in enumerate(pooled[:-1]):
                members = self._pool(site.name, plate, members, full[plate], first=number == 0)
            result[site.name] = members, full[pooled[-1]] if pooled else 1.0
        return result

    def _pool(self, name: str, plate: str, members: Members, full: float, first: bool) -> Members:
        d, present = self.template.plates.index(plate), members.present.to(members.channels)
        weight = present if first else present * (members.log_precision - self.between[f"{name}_{plate}"]).sigmoid()
        total, count = weight.sum(d, keepdim=True), present.sum(d, keepdim=True)
        share, even = self._share(name, plate, members.channels, weight), present / count.clamp_min(1)
        log_counts = (even[..., None] * members.log_counts).sum(d, keepdim=True)
        here = torch.arange(len(self.template.plates), device=present.device) == d
        log_counts = torch.where(here, (full * count.clamp_min(SMALL)).log()[..., None], log_counts)
        return Members(
            (share[..., None, None] * members.channels).sum(d, keepdim=True),
            (full * total.clamp_min(SMALL)).log(),
            log_counts,
            members.present.any(d, keepdim=True),
        )


ENCODERS = {"deep_set": DeepSet, "network_pooling": NetworkPooling}


def encoder_class(name: str) -> type[nn.Module]:
    """An encoder by its name; raises UsageError with the names there are."""
    if name not in ENCODERS:
        raise UsageError(f"encoder: expected one of {', '.join(ENCODERS)}, got {name!r}")
    return ENCODERS[name]
