"""What a posterior knows about its ground variables: an encoding per variable, in the form of a noisy observation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.plates import Batch

SMALL = 1e-6


@dataclass(frozen=True)
class Encoding:
    """What a posterior knows about its ground variables, in the form of a noisy observation of them.

    estimate: shape (*plates, *event); log_precision: log of the inverse variance of the estimate, broadcastable to it;
    extra: further summaries, shape (*plates, *event or 1, C), C may be 0.
    """

    estimate: Float[Tensor, "*#variables"]
    log_precision: Float[Tensor, "*#variables"]
    extra: Float[Tensor, "*_ C"]

    def detach(self) -> "Encoding":
        """The same numbers, without a gradient."""
        return Encoding(self.estimate.detach(), self.log_precision.detach(), self.extra.detach())


def concatenate(parts: list[Encoding]) -> Encoding:
    """Encodings of successive members of the outermost plate, as one."""
    return Encoding(*(torch.cat([getattr(p, name) for p in parts]) for name in ("estimate", "log_precision", "extra")))


@dataclass(frozen=True)
class Streamed:
    """Batches that can be gone through again and again, made anew by `source` every time: none is kept."""

    source: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.source()
