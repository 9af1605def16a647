"""Cascading flows (Ambrogioni, Silvestri and van Gerven 2021): prior conditionals, transformed with auxiliary noise.

A ground variable u ~ p(. | sampled parents) and auxiliary noise e ~ Normal(0, I) go together through gated layers

    z <- g z + (1 - g) L z,     z <- g z + (1 - g) (U z + b),     z <- g z + (1 - g) f(z),        (u, e) -> (theta, e')

with L and U lower and upper triangular of positive diagonal and f(z) = (z + sqrt(z^2 + 4)) / 2 - 1, a smooth ramp. With
all gates at 1 the posterior is the prior, so the posterior inherits its structure.

q(theta) is the marginal of q(theta, e') and has no closed form. What is computed is the *augmented* bound

    E_q[log p(x, theta) + log Normal(e'; 0, I) - log q(theta, e')]  =  ELBO - E KL(q(e' | theta), Normal(0, I))

which is below the method's ELBO. `log_q` here is log q(theta, e') - log Normal(e'; 0, I). Auxiliary noise is each
variable's own: the original also couples it from children to parents, a sum over a plate that no reduced batch has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from parcellation.baselines.rival import Rival, event_size
from parcellation.baselines.set_encoder import SetEncoder
from parcellation.plates import Batch, Noise, Site, Template

RAMP = 3.0  # logit of the ramps' gates at the start: nearly at 1, where a ramp does nothing


class CascadingFlows(Rival):
    """Rows of layers, one row per ground variable.

    layers: number of layers; auxiliary: numbers of auxiliary noise per ground variable, as many as it has for None.
    """

    augmented: ClassVar[bool] = True

    def __init__(self, template: Template, cards: Mapping[str, int], layers: int = 2, auxiliary: int | None = None):
        self.layers = layers
        self.auxiliary = {s.name: event_size(s) if auxiliary is None else auxiliary for s in template.sites}
        super().__init__(template, cards, {site.name: self.start(site) for site in template.sites})

    def width(self, site: Site) -> int:
        """Numbers that go through a layer together, n."""
        return event_size(site) + self.auxiliary[site.name]

    def start(self, site: Site) -> Float[Tensor, " P"]:
        """A row: for each layer the triangles (n, n), U's log diagonal and shift (n) and the logits of three gates."""
        n = self.width(site)
        layer = torch.zeros(n * n + 2 * n + 3)
        layer[-1] = RAMP
        return layer.repeat(self.layers)

    def conditional(self, site: Site, parameters: Tensor, mean: Tensor, sd: Tensor) -> "Cascade":
        """Of a ground variable and its auxiliary noise together."""
        rows = parameters.unflatten(-1, (self.layers, -1)).unbind(-2)
        return Cascade([Layer.of(row, self.width(site)) for row in rows], _flat(mean, sd, site), _flat(sd, mean, site))

    def draw_site(
        self,
        site: Site,
        parameters: Tensor,
        prior: tuple[Tensor, Tensor],
        noise: Noise,
        shape: tuple[int, ...],
        path: bool,
    ) -> tuple[Tensor, Tensor]:
        """Value, and log density of it and the auxiliary noise less the latter's standard normal log density."""
        plates = shape[: len(shape) - len(site.event)]
        base = noise(site.name, shape).reshape(*plates, -1)
        base = torch.cat([base, noise(f"{site.name}.auxiliary", (*plates, self.auxiliary[site.name]))], -1)
        conditional = self.conditional(site, parameters, *prior)
        both = conditional.push(base)
        if path:
            conditional = self.conditional(site, parameters.detach(), *prior)
        value, auxiliary = both.split([event_size(site), self.auxiliary[site.name]], -1)
        return value.reshape(shape), conditional.log_prob(both) - _log_normal(auxiliary)


class AmortizedCascadingFlows(CascadingFlows):
    """The sample-amortized variant: shifts are linear in the variable's encoding of the data set.

    The encoder is shared and is ADAVI's; the layers, and the linear maps of the encoding, stay the variable's own.
    Trained over many data sets, given whole. features: length of an observation, D.
    """

    def __init__(
        self,
        template: Template,
        cards: Mapping[str, int],
        features: int,
        layers: int = 2,
        auxiliary: int | None = None,
    ):
        encoder = SetEncoder(template, features)
        self.context = {site.name: encoder.size(site) for site in template.sites}
        super().__init__(template, cards, layers, auxiliary)
        self.encoder = encoder

    def start(self, site: Site) -> Float[Tensor, " P"]:
        """A row: the layers', then the linear map from encoding to shifts, (layers, n, C)."""
        maps = self.layers * self.width(site) * self.context[site.name]
        return torch.cat([super().start(site), torch.zeros(maps)])

    def encodings(self, batch: Batch) -> dict[str, Tensor]:
        """Rows of layers, their shifts moved."""
        rows, encoded = super().encodings(batch), self.encoder(batch)
        return {site.name: self._moved(site, rows[site.name], encoded[site.name]) for site in self.template.sites}

    def _moved(self, site: Site, rows: Float[Tensor, "*plates P"], encoding: Float[Tensor, "*plates C"]) -> Tensor:
        n, C = self.width(site), self.context[site.name]
        layers, maps = rows.split([rows.shape[-1] - self.layers * n * C, self.layers * n * C], -1)
        shift = (maps.unflatten(-1, (self.layers, n, C)) @ encoding[..., None, :, None])[..., 0]  # (*plates, layers, n)
        layers = layers.unflatten(-1, (self.layers, -1))
        before, own, gates = layers.split([n * n + n, n, 3], -1)
        return torch.cat([before, own + shift, gates], -1).flatten(-2)


@dataclass(frozen=True)
class Layer:
    """One layer of every ground variable: both triangles gated (n, n), the shift gated (n), the ramp's gate (1)."""

    lower: Float[Tensor, "*plates n n"]
    upper: Float[Tensor, "*plates n n"]
    shift: Float[Tensor, "*plates n"]
    gate: Float[Tensor, "*plates 1"]

    @classmethod
    def of(cls, row: Float[Tensor, "*plates P"], n: int) -> "Layer":
        """From a row: L has the lower triangle and the exponential of the diagonal, U the upper one."""
        triangles, log_diagonal, shift, gates = row.split([n * n, n, n, 3], -1)
        triangles, (g, h, gate) = triangles.unflatten(-1, (n, n)), gates.sigmoid()[..., None].unbind(-2)
        # Elements beside the diagonal are counted in units of 1 / n: one learning rate then fits them and the shifts.
        lower = _gated(g, triangles.tril(-1) / n + triangles.diagonal(dim1=-2, dim2=-1).exp().diag_embed())
        upper = _gated(h, triangles.triu(1) / n + log_diagonal.exp().diag_embed())
        return cls(lower, upper, (1 - h) * shift, gate)

    def push(self, z: Tensor) -> Tensor:
        """Both triangles, then the ramp."""
        z = (self.upper @ (self.lower @ z[..., None]))[..., 0] + self.shift
        return (1 + self.gate) / 2 * z + (1 - self.gate) / 2 * ((z.square() + 4).sqrt() - 2)

    def pull(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse, and the log determinant of the layer's Jacobian there, shape (*draws, *plates)."""
        a, b = (1 + self.gate) / 2, (1 - self.gate) / 2
        y = y + 2 * b
        # y = a z + b sqrt(z^2 + 4) is a quadratic in z, since a^2 - b^2 is the gate.
        z = (a * y - b * (y.square() + 4 * self.gate).sqrt()) / self.gate
        slope = a + b * z / (z.square() + 4).sqrt()
        diagonals = (m.diagonal(dim1=-2, dim2=-1).log().sum(-1) for m in (self.lower, self.upper))
        z = torch.linalg.solve_triangular(self.upper, (z - self.shift)[..., None], upper=True)
        z = torch.linalg.solve_triangular(self.lower, z, upper=False)[..., 0]
        return z, slope.log().sum(-1) + sum(diagonals)


@dataclass(frozen=True)
class Cascade:
    """Layers that push (u, e), u ~ Normal(mean, sd), e ~ Normal(0, I); mean and sd of shape (*draws, *plates, size)."""

    layers: list[Layer]
    mean: Float[Tensor, "*#variables"]
    sd: Float[Tensor, "*#variables"]

    def push(self, noise: Tensor) -> Tensor:
        """From standard normal noise for both."""
        size = self.mean.shape[-1]
        z = torch.cat([self.mean + self.sd * noise[..., :size], noise[..., size:]], -1)
        for layer in self.layers:
            z = layer.push(z)
        return z

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density of both together."""
        total = 0.0
        for layer in reversed(self.layers):
            value, stretch = layer.pull(value)
            total = total - stretch
        u, e = value.split([self.mean.shape[-1], value.shape[-1] - self.mean.shape[-1]], -1)
        return total + Normal(self.mean, self.sd).log_prob(u).sum(-1) + _log_normal(e)


def _gated(gate: Float[Tensor, "*plates 1"], matrix: Float[Tensor, "*plates n n"]) -> Tensor:
    return gate[..., None] * torch.eye(matrix.shape[-1]).to(matrix) + (1 - gate[..., None]) * matrix


def _flat(one: Tensor, other: Tensor, site: Site) -> Float[Tensor, "*variables size"]:
    """`one`, broadcast to the event, which is then one dimension."""
    shape = torch.broadcast_shapes(one.shape, other.shape)
    plates = shape[: len(shape) - len(site.event)]
    return one.expand(*plates, *site.event).reshape(*plates, event_size(site))


def _log_normal(e: Float[Tensor, "*variables n"]) -> Tensor:
    return -0.5 * (e.square() + math.log(2 * math.pi)).sum(-1)
