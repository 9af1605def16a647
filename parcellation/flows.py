"""Conditional flows: each pushes a site's prior conditional, given sampled parents, into its posterior.

    theta = T(u; encoding, parents),   u ~ Normal(mean(parents), sd(parents))

A flow's weights are shared by all ground variables of its site; what differs between them is the encoding. `forward`
returns the transform from u to theta, so sampling is one pass, and so is the density of a given theta. Those here are
affine, element by element; `warped_flows` has others.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import AffineTransform, Transform
from zuko.nn import MLP

from parcellation.encoders import Encoding
from parcellation.errors import UsageError

PART = 1 << 15  # elements whose corrections are computed at a time where no gradient is asked for


class PrecisionFlow(nn.Module):
    r"""Affine flow that combines the prior conditional with the encoding as a Gaussian would, then is corrected.

    With prior Normal(mu, s^2) given the parents and encoding (m, tau), and r = log(tau s^2):

        theta = mu + w (m - mu) + sqrt(1 - w) (u - mu),    w = sigmoid(r)

    which is exact when the encoding is a sufficient statistic. A small network of (r, extra), shared by the site's
    ground variables, corrects m by a gain and r by a shift. The parents enter through mu and s, so slope and scale are
    not tied as they are in an affine flow of the encoding alone.
    """

    centred = False

    def __init__(self, extra: int, hidden: int = 16):
        super().__init__()
        self.correct = small(MLP(1 + extra, 2, [hidden], activation=nn.SiLU))

    def forward(
        self, encoding: Encoding, mean: Float[Tensor, "*#variables"], sd: Float[Tensor, "*#variables"]
    ) -> AffineTransform:
        """The transform from u to theta; mean and sd are the prior conditional's."""
        ratio = encoding.log_precision + 2 * sd.log()
        gain, shift = _corrections(self.correct, ratio / 5, encoding.extra).unbind(-1)
        offset = (1 + gain) * (encoding.estimate - mean)
        ratio = ratio + shift
        scale = (0.5 * nn.functional.logsigmoid(-ratio)).exp()
        return AffineTransform(mean + ratio.sigmoid() * offset - scale * mean, scale)


class CentredFlow(nn.Module):
    r"""The same combination for encodings that are parameters: the estimate m is the posterior's median itself.

    With c the mean of the prior conditional where the parents are at their medians, and w = sigmoid(log(tau s^2)):

        theta = m + (1 - w) (mu - c) + sqrt(1 - w) (u - mu)

    In `PrecisionFlow` the mean is (1 - w) mu + w m. While rows are far from learned, w learns to make up for m instead
    of the width, and so does a gain; slopes in the parents are then wrong, the parents' posterior as narrow as that
    makes it, and too narrow to tell the slope. Here mean and width are learned apart, and the slope with the width. A
    small network of r = log(tau s^2), shared by the site's ground variables, corrects r.
    """

    centred = True

    def __init__(self, extra: int, hidden: int = 16):
        super().__init__()
        self.correct = small(MLP(1 + extra, 1, [hidden], activation=nn.SiLU))

    def forward(
        self, encoding: Encoding, mean: Float[Tensor, "*#variables"], sd: Float[Tensor, "*#variables"]
    ) -> AffineTransform:
        """The transform from u to theta; mean and sd are the prior conditional's."""
        ratio = encoding.log_precision + 2 * sd.log()
        ratio = ratio + _corrections(self.correct, ratio / 5, encoding.extra)[..., 0]
        scale = (0.5 * nn.functional.logsigmoid(-ratio)).exp()
        return AffineTransform(encoding.estimate + scale.square() * (mean - encoding.centre) - scale * mean, scale)


class AffineFlow(nn.Module):
    r"""Plain conditional affine flow: theta = exp(a) u + b with (a, b) a network of encoding and parents.

    The network has a linear path beside its hidden layer, because posterior means of Gaussian models are linear.
    """

    centred = False

    def __init__(self, extra: int, hidden: int = 16):
        super().__init__()
        self.linear = small(nn.Linear(4 + extra, 2))
        self.bend = small(MLP(4 + extra, 2, [hidden], activation=nn.SiLU))

    def forward(
        self, encoding: Encoding, mean: Float[Tensor, "*#variables"], sd: Float[Tensor, "*#variables"]
    ) -> AffineTransform:
        """The transform from u to theta; mean and sd are the prior conditional's."""
        known = torch.broadcast_tensors(encoding.estimate, encoding.log_precision, mean, sd.log())
        inputs = torch.cat([torch.stack(known, -1), encoding.extra.expand(*known[0].shape, -1)], -1)
        log_scale, shift = (self.linear(inputs) + self.bend(inputs)).unbind(-1)
        return AffineTransform(shift, log_scale.exp())


def _corrections(network: MLP, ratio: Float[Tensor, "*variables"], extra: Float[Tensor, "*_ C"]) -> Tensor:
    """What the network says of (ratio, extra), shape (*variables, 1 or 2).

    Without a gradient a part at a time, whose hidden layers a processor's cache has room for.
    """
    if torch.is_grad_enabled() or ratio.numel() <= PART:
        return _said(network, ratio, extra)
    d = max(range(ratio.dim()), key=lambda one: ratio.shape[one])
    size = max(1, PART * ratio.shape[d] // ratio.numel())
    pieces = ratio.split(size, d)
    own = d + extra.dim() - 1 - ratio.dim()  # the same dimension of extra, which may have fewer in front
    extras = extra.split(size, own) if own >= 0 and extra.shape[own] > 1 else [extra] * len(pieces)
    return torch.cat([_said(network, *piece) for piece in zip(pieces, extras, strict=True)], d)


def _said(network: MLP, ratio: Tensor, extra: Tensor) -> Tensor:
    """What extra adds to the first layer is the same for many elements, so it is multiplied once and not copied."""
    first, *rest = network
    hidden = ratio[..., None] * first.weight[:, 0] + nn.functional.linear(extra, first.weight[:, 1:], first.bias)
    for layer in rest:
        hidden = layer(hidden)
    return hidden


def small(network: nn.Module) -> nn.Module:
    """The network with small outputs: not zero, so that every weight has a gradient from the first step on."""
    last = network if isinstance(network, nn.Linear) else network[-1]
    with torch.no_grad():
        last.weight.mul_(0.01)
        last.bias.zero_()
    return network


FLOWS = {"precision": PrecisionFlow, "centred": CentredFlow, "affine": AffineFlow}


def make_flow(name: str, extra: int) -> nn.Module:
    """A flow by its name; `extra` is the number of further summaries in its site's encoding."""
    if name not in FLOWS:
        raise UsageError(f"flow: expected one of {', '.join(FLOWS)}, got {name!r}")
    return FLOWS[name](extra)


def sum_event(density: Tensor, event: int) -> Tensor:
    """Sum over the last `event` dimensions."""
    return density.sum(tuple(range(-event, 0))) if event else density


def log_density(
    transform: Transform,
    mean: Float[Tensor, "*#variables"],
    sd: Float[Tensor, "*#variables"],
    value: Float[Tensor, "*#variables"],
    event: int,
) -> Tensor:
    """Log density of transform(u), u ~ Normal(mean, sd), at a value; summed over its last `event` dimensions.

    Written out because checks of arguments decide by values, which a vectorised function cannot.
    """
    base = transform.inv(value)
    log_base = -0.5 * ((base - mean) / sd).square() - sd.log() - 0.5 * math.log(2 * math.pi)
    stretch = transform.log_abs_det_jacobian(base, value)
    return sum_event(log_base, event) - sum_event(stretch, event - transform.domain.event_dim)
