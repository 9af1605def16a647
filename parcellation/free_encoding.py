"""Encodings that are parameters: a row per ground variable, which holds the encoding itself or a vector to decode."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from parcellation.encoding import Encoding
from parcellation.plates import Site, Template


class Decoder(nn.Module):
    """Estimate and log precision of every element as linear functions of a vector, shared by a site's variables."""

    def __init__(self, size: int, event: tuple[int, ...]):
        super().__init__()
        self.event, self.linear = event, nn.Linear(size, 2 * math.prod(event))
        nn.init.zeros_(self.linear.bias)

    def forward(self, vector: Float[Tensor, "*plates E"], extra: int) -> Encoding:
        """The encoding that a vector stands for, with so many further summaries, all 0."""
        both = self.linear(vector).unflatten(-1, (2,) + self.event)
        estimate, log_precision = both.unbind(vector.dim() - 1)
        return Encoding(estimate, log_precision, estimate.new_zeros(*estimate.shape, extra), vector=vector)

    @torch.no_grad()
    def fit(self, rows: Float[Tensor, "n P"]) -> Float[Tensor, "n E"]:
        """Set the decoder to the principal components of these rows, and return the vectors that they decode from.

        The nearest that so many numbers reach; exact when there are as many as the rows vary in.
        """
        self.linear.bias.copy_(rows.mean(0))
        left, scale, right = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
        there = min(self.linear.in_features, len(scale))
        self.linear.weight[:, :there] = right[:there].T
        vectors = rows.new_zeros(len(rows), self.linear.in_features)
        vectors[:, :there] = left[:, :there] * scale[:there]
        return vectors


class FreeEncoding(nn.Module):
    """One row of encoding parameters per ground variable of a site.

    size: numbers in a row, which the site's variables share a decoder of; None for rows that are the encoding. Rows of
    the outermost plate are visited rarely, so their gradient is sparse: an unvisited row must not move.
    """

    def __init__(
        self, template: Template, site: Site, cards: Mapping[str, int], extra: int = 0, size: int | None = None
    ):
        super().__init__()
        self.plates, self.event, self.extra = template.plates, site.event, extra
        self.sizes = tuple(cards[plate] if plate in site.plates else 1 for plate in template.plates)
        self.sparse = template.unit_plate in site.plates
        width = 2 * math.prod(site.event) if size is None else size
        shape = math.prod(self.sizes), width
        # All vectors 0 would leave the decoder without a gradient.
        rows = torch.zeros(shape) if size is None else 0.1 * torch.randn(shape)
        self.rows = nn.Embedding(*shape, sparse=self.sparse, _weight=rows)
        self.decoder = None if size is None else Decoder(size, site.event)
        # Where elements are told together: how, which no gradient changes.
        joint = torch.eye(site.event[-1]).expand(*self.sizes, *site.event, -1).clone() if site.joint else None
        self.register_buffer("joint", joint)

    def forward(self, index: Mapping[str, Tensor]) -> Encoding:
        """Encodings at the given positions of some plates; all positions of the others."""
        device = self.rows.weight.device
        place = torch.zeros((), dtype=torch.long, device=device)
        for plate, size in zip(self.plates, self.sizes, strict=True):
            positions = torch.arange(size, device=device) if size == 1 or plate not in index else index[plate]
            place = (place * size)[..., None] + positions
        if self.decoder is not None:
            return replace(self.decoder(self.rows(place), self.extra), joint=self.joint)
        estimate, log_precision = self.rows(place).unflatten(-1, (2,) + self.event).unbind(len(self.sizes))
        extra = estimate.new_zeros(*estimate.shape, self.extra)
        return Encoding(estimate, log_precision, extra, joint=self.joint)

    @torch.no_grad()
    def set(self, encoding: Encoding) -> None:
        """Start from this encoding at every ground variable, or from the nearest that vectors decode to."""
        shape = self.sizes + self.event
        if self.joint is not None and encoding.joint is not None:
            self.joint.copy_(encoding.joint)
        parts = (encoding.estimate, encoding.log_precision)
        rows = torch.cat([part.expand(shape).reshape(self.rows.num_embeddings, -1) for part in parts], -1)
        self.rows.weight.copy_(rows if self.decoder is None else self.decoder.fit(rows.to(self.rows.weight)))
