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

from parcellation.encoders import ENCODERS, DeepSet, Members
from parcellation.encoding import SMALL, Encoding
from parcellation.errors import UsageError
from parcellation.free_encoding import Decoder
from parcellation.plates import Site, Template

POOLINGS = ("mean", "attention")


class VectorSet(DeepSet):
    """One vector per ground variable and a decoder a site, for templates that say their number of `features`.

    size: numbers in a vector; pooling: mean or attention. Weights of a plate's members and the log precision are those
    of `DeepSet`; attention multiplies the weights.
    """

    def __init__(
        self, template: Template, sites: Sequence[Site], size: int = 8, pooling: str = "mean", hidden: int = 16
    ):
        nn.Module.__init__(self)
        if pooling not in POOLINGS:
            raise UsageError(f"encoder: pooling: expected {' or '.join(POOLINGS)}, got {pooling!r}")
        self._prepare(template, sites)
        self.size, width = size, template.features + hidden
        self.channels = {site.name: (1, width) for site in sites}
        self.embed = MLP(template.features, hidden, [hidden], activation=nn.SiLU)
        self.project = nn.ModuleDict({site.name: nn.Linear(width, size) for site in sites})
        self.decode = nn.ModuleDict({site.name: Decoder(size, site.event) for site in sites})
        pooled = [f"{site.name}_{plate}" for site in sites for plate in self.pooled_plates(site)]
        pooled = pooled if pooling == "attention" else []
        self.attention = nn.ModuleDict({name: MLP(width, 1, [hidden], activation=nn.SiLU) for name in pooled})

    def _embed(self, x: Float[Tensor, "*plates D"]) -> Float[Tensor, "*plates 1 C"]:
        return torch.cat([x, self.embed(x)], -1)[..., None, :]

    def _share(self, name: str, plate: str, channels: Tensor, weight: Tensor) -> Float[Tensor, "*plates"]:
        if not self.attention:
            return super()._share(name, plate, channels, weight)
        d = self.template.plates.index(plate)
        score = self.attention[f"{name}_{plate}"](channels[..., 0, :])[..., 0]
        # Not minus infinity: where nobody is there the softmax would be NaN, and its gradient with it.
        score = torch.where(weight > 0, score + weight.clamp_min(SMALL).log(), -1e9)
        return torch.where(weight > 0, score.softmax(d), 0.0)

    def _decode(self, name: str, members: Members) -> Encoding:
        vector = self.project[name](members.channels[..., 0, :])
        encoding, event = self.decode[name](vector, 0), len(self.template.site(name).event)
        precision, counts = (members.log_precision + self.precision[name]), members.log_counts / 5
        precision = precision.reshape(*precision.shape, *[1] * event)
        counts = counts.reshape(*counts.shape[:-1], *[1] * event, counts.shape[-1])
        return Encoding(encoding.estimate, encoding.log_precision + precision, counts, vector=vector)


ENCODERS["vector_set"] = VectorSet
