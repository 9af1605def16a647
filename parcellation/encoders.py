"""Encoders: permutation-invariant functions of the data that give one encoding per ground variable.

`DeepSet` serves any template: embed every observation, average over the plates that a site is not on, correct.
`NetworkPooling` serves mixtures of networks: its set embedding is attention to networks (who belongs where, given the
population), unrolled over a few passes, so that a subject's encoding for network k is about network k.

Encoders are size-free (means, never sums), see masks, and take the *full* cardinalities, so that what is learned on
reduced batches holds for the full model.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from zuko.nn import MLP

from parcellation.encoding import SMALL, Encoding, concatenate
from parcellation.errors import UsageError
from parcellation.network_pooling import NetworkPooling
from parcellation.plates import Batch, Observed, Site, Template, Values

__all__ = ["ENCODERS", "DeepSet", "Encoding", "NetworkPooling", "concatenate", "encoder_class"]


class DeepSet(nn.Module):
    """Mean-pooled deep set, feature by feature, for sites whose event is that of an observation, (D,).

    For a site on plates P the estimate is a mean over the other plates of [x, embed(x)], linearly combined; its log
    precision starts at the log number of pooled members of the next plate and is corrected by the flow.
    """

    extra = 1

    def __init__(self, template: Template, sites: Sequence[Site], hidden: int = 8):
        super().__init__()
        self.template, self.sites = template, sites
        self.embed = MLP(1, hidden, [hidden], activation=nn.SiLU)
        self.combine = nn.ModuleDict({site.name: nn.Linear(hidden, 1) for site in sites})
        self.precision = nn.ParameterDict({site.name: torch.zeros(()) for site in sites})
        with torch.no_grad():
            for layer in self.combine.values():
                layer.weight.mul_(0.01)
                layer.bias.zero_()

    def forward(self, batch: Batch, centre: Values) -> dict[str, Encoding]:
        """One encoding per site; `centre` is not used."""
        channels = torch.cat([batch.seen.x[..., None], self.embed(batch.seen.x[..., None])], -1)
        return {site.name: self._encode(site, channels, batch) for site in self.sites}

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

    def _encode(self, site: Site, channels: Tensor, batch: Batch) -> Encoding:
        weight, log_count = batch.seen.mask.to(channels), channels.new_zeros(())
        # Innermost plates first: a mean of means, each over the members that have data.
        for d, plate in reversed(list(enumerate(self.template.plates))):
            if plate in site.plates:
                continue
            count = weight.sum(d, keepdim=True)
            channels = (weight[..., None, None] * channels).sum(d, keepdim=True) / count.clamp_min(1)[..., None, None]
            full = batch.cards[plate] / batch.seen.mask.shape[d]
            log_count = (full * count.clamp_min(SMALL)).log()
            weight = (count > 0).to(weight)
        estimate = channels[..., 0] + self.combine[site.name](channels[..., 1:])[..., 0]
        log_precision = (log_count + self.precision[site.name])[..., None].expand(*weight.shape, 1)
        return Encoding(estimate, log_precision, log_precision[..., None] / 5)


ENCODERS = {"deep_set": DeepSet, "network_pooling": NetworkPooling}


def encoder_class(name: str) -> type[nn.Module]:
    """An encoder by its name; raises UsageError with the names there are."""
    if name not in ENCODERS:
        raise UsageError(f"encoder: expected one of {', '.join(ENCODERS)}, got {name!r}")
    return ENCODERS[name]
