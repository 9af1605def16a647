"""Stochastic variational inference without plate amortization: one conditional flow per ground variable.

The architecture is that of the free scheme of `Family`, flow and encoding, but no weight is shared: each ground
variable has its own copy of its site's flow, which is trained only when the variable is visited (Hoffman et al. 2013).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Transform
from torch.func import functional_call, vmap
from torch.nn.utils import parameters_to_vector

from parcellation.baselines.rival import Rival, event_size
from parcellation.encoders import Encoding, encoder_class
from parcellation.flows import log_density, make_flow
from parcellation.plates import Batch, Site, Template


class PerVariable(Rival):
    """Rows of [estimate, log precision, weights of the flow]; all start from the same flow.

    flow: name of the flow of every site, or a mapping from site to name; by default what the free scheme has.
    """

    def __init__(self, template: Template, cards: Mapping[str, int], flow: str | Mapping[str, str] | None = None):
        self.extra = encoder_class(template.encoder).extras(template)
        kinds = _default_flows(template) if flow is None else flow
        kinds = {site.name: kinds if isinstance(kinds, str) else kinds[site.name] for site in template.sites}
        flows = {name: make_flow(kind, self.extra) for name, kind in kinds.items()}
        starts = {
            site.name: torch.cat(
                [torch.zeros(2 * event_size(site)), parameters_to_vector(flows[site.name].parameters())]
            )
            for site in template.sites
        }
        super().__init__(template, cards, starts)
        self.architecture = flows  # a plain mapping: their weights are in the rows

    def _apply(self, function, recurse=True):
        """Constants of the architecture move with the rows."""
        for flow in self.architecture.values():
            flow._apply(function)
        return super()._apply(function, recurse)

    def encodings(self, batch: Batch) -> dict[str, Tensor]:
        """Rows, those of centred flows with the prior's mean where the parents are at their medians."""
        rows = super().encodings(batch)
        if not any(flow.centred for flow in self.architecture.values()):
            return rows
        medians: dict[str, Tensor] = {}
        for site in self.template.sites:
            mean, sd = site.prior(medians, batch.scored)
            shape = self.template.shape(site, batch.scored)
            if self.architecture[site.name].centred:
                centre = mean.expand(shape).reshape(*rows[site.name].shape[:-1], -1)
                rows[site.name] = torch.cat([rows[site.name], centre], -1)
            medians[site.name] = self.conditional(site, rows[site.name], mean, sd).push(mean.new_zeros(shape))
        return rows

    def conditional(self, site: Site, parameters: Tensor, mean: Tensor, sd: Tensor) -> "OwnFlows":
        """Every ground variable's own flow, at the prior given the sampled parents."""
        return OwnFlows(self.architecture[site.name], site.event, self.extra, parameters, mean, sd)


@dataclass(frozen=True)
class OwnFlows:
    """Flows of one architecture, whose encodings, weights and centres, if they have them, are rows (*plates, P)."""

    flow: nn.Module
    event: tuple[int, ...]
    extra: int
    rows: Float[Tensor, "*plates P"]
    mean: Float[Tensor, "*#variables"]
    sd: Float[Tensor, "*#variables"]

    def push(self, noise: Tensor) -> Tensor:
        """Noise, scaled to the prior conditional, through the flows."""
        return self._each(lambda transform, mean, sd, z: transform(mean + sd * z), noise).reshape(noise.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density, summed over the event."""
        density = self._each(lambda *one: log_density(*one, len(self.event)), value)
        return density.reshape(value.shape[: value.dim() - len(self.event)])

    def _each(self, function, argument: Tensor) -> Tensor:
        """function(transform, mean, sd, argument) of every ground variable, these along one dimension."""
        plates = self.rows.shape[:-1]
        draws = argument.dim() - len(plates) - len(self.event)

        def one(row, mean, sd, argument):
            return function(self._transform(row, mean, sd), mean, sd, argument)

        flat = [
            t.expand(argument.shape).flatten(draws, draws + len(plates) - 1) for t in (self.mean, self.sd, argument)
        ]
        return vmap(one, in_dims=(0, draws, draws, draws), out_dims=draws)(self.rows.flatten(0, -2), *flat)

    def _transform(self, row: Float[Tensor, " P"], mean: Tensor, sd: Tensor) -> Transform:
        size, weights = math.prod(self.event), {}
        estimate, log_precision = (part.reshape(self.event) for part in row[: 2 * size].chunk(2))
        rest = row[2 * size :]
        for name, parameter in self.flow.named_parameters():
            weights[name], rest = rest[: parameter.numel()].reshape(parameter.shape), rest[parameter.numel() :]
        centre = rest.reshape(self.event) if self.flow.centred else None
        encoding = Encoding(estimate, log_precision, estimate.new_zeros(*self.event, self.extra), centre)
        return functional_call(self.flow, weights, (encoding, mean, sd))


def _default_flows(template: Template) -> dict[str, str]:
    """Those of `Family` with free encodings."""
    rare = {site.name for site in template.sites if template.unit_plate in site.plates}
    return {site.name: "centred" if site.name in rare else "precision" for site in template.sites}
