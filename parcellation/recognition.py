"""A recognition network: one encoding per observation, from all its features at once.

The encoder of auto-encoding variational Bayes (Kingma & Welling 2014): where every observation has latent variables of
its own, there is nothing to pool over.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from zuko.nn import MLP

from parcellation.encoders import ENCODERS, Encoding
from parcellation.errors import UsageError
from parcellation.plates import Batch, Site, Template, Values


class Recognition(nn.Module):
    """Estimate and log precision of every element of a site from an observation's features (template.features).

    A linear path beside a hidden layer, because posterior means of Gaussian models are linear. Raises UsageError for a
    site that is not on all plates: several observations would have to be pooled.
    """

    def __init__(self, template: Template, sites: Sequence[Site], hidden: int = 64):
        super().__init__()
        pooled = [site.name for site in sites if set(site.plates) != set(template.plates)]
        if pooled:
            raise UsageError(f"encoder: recognition is for sites of one observation each, not {', '.join(pooled)}")
        self.events = {site.name: (2, *site.event) for site in sites}
        widths = {name: math.prod(event) for name, event in self.events.items()}
        self.linear = nn.ModuleDict({name: nn.Linear(template.features, width) for name, width in widths.items()})
        self.bend = nn.ModuleDict(
            {name: MLP(template.features, width, [hidden], activation=nn.SiLU) for name, width in widths.items()}
        )
        with torch.no_grad():
            for name in self.events:
                for layer in (self.linear[name], self.bend[name][-1]):
                    layer.weight.mul_(0.1)
                    layer.bias.zero_()

    @classmethod
    def extras(cls, template: Template) -> int:
        """Number of further summaries in an encoding: none."""
        return 0

    def forward(self, batch: Batch, centre: Values) -> dict[str, Encoding]:
        """One encoding per site; `centre` is not used."""
        result, x = {}, batch.seen.x
        for name, event in self.events.items():
            both = (self.linear[name](x) + self.bend[name](x)).unflatten(-1, event)
            estimate, log_precision = both.unbind(batch.seen.mask.ndim)
            result[name] = Encoding(estimate, log_precision, estimate.new_zeros(*estimate.shape, 0))
        return result


ENCODERS["recognition"] = Recognition
