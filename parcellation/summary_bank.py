r"""A bank of what an encoder makes of every member of the outermost plate: the population is encoded from all of them.

An encoder that sees a batch only encodes the batch's population, so that the objective exceeds log p(x). With the bank
the population's encoding is that of the full data at every step, and a step still costs what its members cost:

    h~[g] = h[g]                                     of all members, as they were last visited, without a gradient
    h~[a] = h[a] + count / size (h[a] - sg(h[a]))    of the members of a visit (sg: the same numbers, no gradient)

so that a visit's gradient is, on average, the full one. Visited are *other* members than those of the step: both
gradients that are multiplied in d objective / d encoding x d encoding / d weights must be independent, or their
covariance pulls the encoder back to what the batch says. Staleness vanishes as the learning rate does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from parcellation.encoders import Encoding, Members
from parcellation.plates import Batch, Site, Template

PARTS = [part.name for part in fields(Members)]


@runtime_checkable
class Pooling(Protocol):
    """An encoder that makes a population site's encoding of summaries of the outermost plate's members."""

    def members(self, batch: Batch) -> dict[str, Members]:
        """Summaries of the batch's members, by site."""

    def encode(self, name: str, members: Members, full: float) -> Encoding:
        """A site's encoding, each member standing for `full` of them."""


class SummaryBank(nn.Module):
    """Summaries of all `cards` members for these population sites, in buffers, so that a checkpoint holds them.

    channels: shape of a member's channels for each site, (D, C).
    """

    def __init__(self, template: Template, sites: Sequence[Site], cards: Mapping[str, int], channels: Mapping):
        super().__init__()
        self.names, self.count = [site.name for site in sites], cards[template.unit_plate]
        self._fresh: tuple[Tensor, dict[str, Members]] | None = None
        for site in sites:
            kept = {template.unit_plate, *site.plates}
            sizes = [cards[plate] if plate in kept else 1 for plate in template.plates]
            self.register_buffer(f"{site.name}_channels", torch.zeros(*sizes, *channels[site.name]))
            self.register_buffer(f"{site.name}_log_precision", torch.zeros(sizes))
            self.register_buffer(f"{site.name}_log_counts", torch.zeros(*sizes, len(sizes)))
            self.register_buffer(f"{site.name}_present", torch.zeros(sizes, dtype=torch.bool))
        self.register_buffer("visited", torch.zeros(self.count, dtype=torch.bool))

    def visit(self, index: Int[Tensor, " n"], members: Mapping[str, Members]) -> None:
        """Take these members' summaries; the next encodings, and only those, have their gradient."""
        self.visited[index] = True
        for name in self.names:
            for part in PARTS:
                self.get_buffer(f"{name}_{part}")[index] = getattr(members[name], part).detach()
        self._fresh = index, dict(members)

    def encodings(self, encoder: Pooling) -> dict[str, Encoding]:
        """Encodings of the population sites from all members visited so far, which stand for all."""
        full = self.count / float(self.visited.sum())
        fresh, self._fresh = self._fresh, None
        return {name: encoder.encode(name, self._members(name, fresh), full) for name in self.names}

    def _members(self, name: str, fresh: tuple[Tensor, dict[str, Members]] | None) -> Members:
        # Copies: the next visit writes to the buffers while this one's graph may still be needed.
        stored = Members(**{part: self.get_buffer(f"{name}_{part}").clone() for part in PARTS})
        if fresh is None or not torch.is_grad_enabled():
            return stored
        index, members = fresh
        factor = int(self.visited.sum()) / len(index)
        changed = {}
        for part in ("channels", "log_precision"):
            new = getattr(members[name], part)
            changed[part] = getattr(stored, part).index_copy(0, index, new.detach() + factor * (new - new.detach()))
        return replace(stored, **changed)
