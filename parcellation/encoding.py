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
    joint: correlation of the information along the event's last dimension, shape (*plates, ..., J, J), where that is
    not told element by element: the information is D joint D, D^2 the precision; else None.
    """

    estimate: Float[Tensor, "*#variables"]
    log_precision: Float[Tensor, "*#variables"]
    extra: Float[Tensor, "*_ C"]
    centre: Float[Tensor, "*#variables"] | None = None
    vector: Float[Tensor, "*_ E"] | None = None
    joint: Float[Tensor, "*_ J J"] | None = None

    @classmethod
    def about(
        cls,
        mode: Float[Tensor, "*n J"],
        slope: Float[Tensor, "*n J"],
        information: Float[Tensor, "*n J J"],
        least: Float[Tensor, "*#n J"],
        extras: int,
    ) -> "Encoding":
        """The noisy observation of a log likelihood with this slope and information at `mode`, along J elements.

        Combined with the prior that was held against the slope, it leads to the mode. least: information that is added
        to each element, for what the data say nothing of; the combined mean does not depend on it.
        """
        whole = information + torch.diag_embed(least.expand(mode.shape))
        estimate = mode + torch.linalg.solve(whole, slope)
        precision = whole.diagonal(dim1=-2, dim2=-1)
        root = precision.sqrt()
        joint = whole / (root[..., None] * root[..., None, :])
        return cls(estimate, precision.log(), mode.new_zeros(*mode.shape, extras), joint=joint)

    def combined(self, mean: Tensor, sd: Tensor) -> Tensor:
        """Posterior mean, given the mean and sd of the prior conditional."""
        if self.joint is None:
            return mean + (self.log_precision + 2 * sd.log()).sigmoid() * (self.estimate - mean)
        return mean + sd * self.whitened(mean, sd)[0]

    def whitened(self, mean: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
        """In units of the prior's sd: how far the posterior's mean is from the prior's, and the precision's root.

        The precision is L L', at least 1, with L (..., J, J) lower triangular along the last dimension.
        """
        half = (0.5 * self.log_precision + sd.log()).exp()
        one = torch.eye(half.shape[-1]).to(half)
        told = half[..., None] * (one if self.joint is None else self.joint) * half[..., None, :]
        root = torch.linalg.cholesky(told + one)
        pulled = told @ ((self.estimate - mean) / sd).expand(told.shape[:-1])[..., None]
        return torch.cholesky_solve(pulled, root)[..., 0], root

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
