"""Deep sets whose encodings are vectors of a settable size, pooled by means or by attention.

    h = [x, MLP(x)],   pooled over the plates that a site is not on, innermost first,   vector = linear(h)

Means, or attention weights that sum to one (masked softmax; Lee et al. 2019 with one seed a site and plate), never
sums: an encoding does not depend on the order or the number of a plate's members, and what is masked is not there.
Nested and crossed plates are pooled alike, one plate at a time.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from zuko.nn import MLP

from parcellation.encoders import ENCODERS, DeepSet
from parcellation.encoding import SMALL, Encoding
from parcellation.errors import UsageError
from parcellation.free_encoding import Decoder
from parcellation.plates import Batch, Site, Template, Values

POOLINGS = ("mean", "attention")


class VectorSet(nn.Module):
    """One vector per ground variable and a decoder a site, for templates that say their number of `features`.

    size: numbers in a vector; pooling: mean or attention. The log precision counts from the log number of pooled
    members of the next plate, in the full model.
    """

    extra = DeepSet.extra

    def __init__(
        self, template: Template, sites: Sequence[Site], size: int = 8, pooling: str = "mean", hidden: int = 16
    ):
        super().__init__()
        if pooling not in POOLINGS:
            raise UsageError(f"encoder: pooling: expected {' or '.join(POOLINGS)}, got {pooling!r}")
        self.template, self.sites, self.size = template, sites, size
        features = template.features
        self.embed = MLP(features, hidden, [hidden], activation=nn.SiLU)
        width = features + hidden
        self.project = nn.ModuleDict({site.name: nn.Linear(width, size) for site in sites})
        self.decode = nn.ModuleDict({site.name: Decoder(size, site.event) for site in sites})
        pooled = {s.name: [p for p in template.plates if p not in s.plates] for s in sites if pooling == "attention"}
        self.attention = nn.ModuleDict(
            {
                f"{name}_{plate}": MLP(width, 1, [hidden], activation=nn.SiLU)
                for name in pooled
                for plate in pooled[name]
            }
        )

    def forward(self, batch: Batch, centre: Values) -> dict[str, Encoding]:
        """One encoding per site; `centre` is not used."""
        channels = torch.cat([batch.seen.x, self.embed(batch.seen.x)], -1)
        return {site.name: self._encode(site, channels, batch) for site in self.sites}

    population_of = DeepSet.population_of

    def _encode(self, site: Site, channels: Float[Tensor, "*plates C"], batch: Batch) -> Encoding:
        there, log_count = batch.seen.mask[..., None], channels.new_zeros(())
        for d, plate in reversed(list(enumerate(self.template.plates))):
            if plate in site.plates:
                continue
            channels = (self._weights(site, plate, channels, there, d) * channels).sum(d, keepdim=True)
            full = batch.cards[plate] / there.shape[d]
            log_count = (full * there.sum(d, keepdim=True).to(channels).clamp_min(SMALL)).log()
            there = there.any(d, keepdim=True)
        encoding = self.decode[site.name](self.project[site.name](channels), self.extra)
        return self._counted(encoding, log_count, len(site.event))

    def _weights(self, site: Site, plate: str, channels: Tensor, there: Tensor, d: int) -> Float[Tensor, "*plates 1"]:
        """Weights of a plate's members, which sum to one; all 0 where nobody is there."""
        if not self.attention:
            return there / there.sum(d, keepdim=True).clamp_min(1).to(channels)
        score = self.attention[f"{site.name}_{plate}"](channels)
        # Not minus infinity: where nobody is there the softmax would be NaN, and its gradient with it.
        return torch.where(there, score, -1e9).softmax(d) * there

    def _counted(self, encoding: Encoding, log_count: Tensor, event: int) -> Encoding:
        """The encoding with its precision counted from the log number of members, (*plates, 1) or a number."""
        count = log_count.reshape(*log_count.shape[:-1], *[1] * event) if log_count.dim() else log_count
        log_precision = encoding.log_precision + count
        extra = (count[..., None] / 5).expand(*log_precision.shape, self.extra)
        return Encoding(encoding.estimate, log_precision, extra, vector=encoding.vector)


ENCODERS["vector_set"] = VectorSet
