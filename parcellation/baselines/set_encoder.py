"""Hierarchical set encoder: one summary of the data per ground variable, pooled plate after plate, innermost first.

    h = [x, MLP(x)],   pooled over a plate:  h <- mean(h) + MLP(mean(h))

A variable's encoding joins the summary of its own part of the data and those of everything above it: with the former
alone (as in Rouillard and Wassermann 2022) a variable could not know the population of a data set it was not trained
on. Means are over what is present, so encodings do not depend on the order or the number of a plate's members.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from zuko.nn import MLP

from parcellation.baselines.rival import restrict
from parcellation.plates import Batch, Site, Template


class SetEncoder(nn.Module):
    """Summaries of D + hidden numbers each; `features` is D."""

    def __init__(self, template: Template, features: int, hidden: int = 8):
        super().__init__()
        self.template = template
        self.width = features + hidden
        self.embed = MLP(features, hidden, [hidden], activation=nn.SiLU)
        self.pool = nn.ModuleDict(
            {p: MLP(self.width, self.width, [hidden], activation=nn.SiLU) for p in template.plates}
        )
        with torch.no_grad():
            for network in self.pool.values():
                network[-1].weight.mul_(0.1)

    def levels(self, site: Site) -> list[tuple[str, ...]]:
        """Plates of the summaries that a site's encoding joins: its own, and those of the sites above it."""
        above = {s.plates for s in self.template.sites if set(s.plates) < set(site.plates)} | {()}
        return sorted(above | {site.plates}, key=lambda plates: (-len(plates), plates))

    def size(self, site: Site) -> int:
        """Length of the site's encodings."""
        return self.width * len(self.levels(site))

    def forward(self, batch: Batch) -> dict[str, Float[Tensor, "*plates C"]]:
        """One encoding per ground variable of every site, at the scored positions."""
        channels = torch.cat([batch.seen.x, self.embed(batch.seen.x)], -1)
        every = {plates for site in self.template.sites for plates in self.levels(site)}
        summaries = {plates: self._pooled(channels, batch, plates) for plates in every}
        result = {}
        for site in self.template.sites:
            parts = [summaries[plates] for plates in self.levels(site)]
            parts = [part.expand(*parts[0].shape[:-1], -1) for part in parts]  # its own is the widest
            result[site.name] = restrict(self.template, site, torch.cat(parts, -1), batch)
        return result

    def _pooled(self, channels: Tensor, batch: Batch, keep: tuple[str, ...]) -> Tensor:
        weight = batch.seen.mask[..., None].to(channels)
        for d, plate in reversed(list(enumerate(self.template.plates))):
            if plate not in keep:
                count = weight.sum(d, keepdim=True)
                channels = (weight * channels).sum(d, keepdim=True) / count.clamp_min(1)
                channels, weight = channels + self.pool[plate](channels), (count > 0).to(weight)
        return channels
