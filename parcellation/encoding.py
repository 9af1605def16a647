"""What a posterior knows about its ground variables: an encoding per variable, in the form of a noisy observation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.plates import Batch

SMALL = 1e-6


@dataclass(frozen=True)
class Encoding:
    """What a posterior knows about its ground variables, in the form of a noisy observation of them.

    estimate: shape (*plates, *event); log_precision: log of the inverse variance of the estimate, broadcastable to it;
    extra: further summaries, shape (*plates, *event or 1, C), C may be 0. centre: mean of the prior conditional where
    the parents are at their medians, for flows that measure parents from there (`Family` sees to it), else None.
    vector: what the other parts were decoded from, shape (*plates, E), where encodings are vectors, else None.
    """

    estimate: Float[Tensor, "*#variables"]
    log_precision: Float[Tensor, "*#variables"]
    extra: Float[Tensor, "*_ C"]
    centre: Float[Tensor, "*#variables"] | None = None
    vector: Float[Tensor, "*_ E"] | None = None

    def parts(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        return {part.name: getattr(self, part.name) for part in fields(self) if getattr(self, part.name) is not None}

    def map(self, function: Callable[[Tensor], Tensor]) -> "Encoding":
        """The encoding with a function applied to each of its tensors."""
        return Encoding(**{name: function(part) for name, part in self.parts().items()})

    def detach(self) -> "Encoding":
        """The same numbers, without a gradient."""
        return self.map(Tensor.detach)


def concatenate(parts: list[Encoding]) -> Encoding:
    """Encodings of successive members of the outermost plate, as one."""
    return Encoding(**{name: torch.cat([getattr(part, name) for part in parts]) for name in parts[0].parts()})


@dataclass(frozen=True)
class Streamed:
    """Batches that can be gone through again and again, made anew by `source` every time: none is kept."""

    source: Callable[[], Iterator[Batch]]

    def __iter__(self) -> Iterator[Batch]:
        return self.source()
