"""Flows that warp before they combine: for posteriors that are not Gaussian, or whose elements hang together.

    z = (u - mean) / sd,   theta = affine(mean + sd W(z; encoding, parents))

W is near the identity at first, and acts on all elements of a variable together; `affine` is one of `flows`. Sampling
is one pass for each. The density of a given theta is one pass for couplings, and one an element for the autoregressive
flow, whose fast direction is spent on sampling (Kingma et al. 2016).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import AffineTransform, Transform, constraints
from zuko.flows.autoregressive import MaskedAutoregressiveTransform
from zuko.flows.coupling import GeneralCouplingTransform
from zuko.transforms import MonotonicRQSTransform

from parcellation.encoders import Encoding
from parcellation.errors import UsageError
from parcellation.flows import FLOWS, make_flow, small, sum_event
from parcellation.joint_flow import JointFlow

HIDDEN = (32, 32)
BINS = 8


def _couplings(features: int, context: int, **univariate) -> list[nn.Module]:
    """Two layers, each moving the half that the other looks at (Dinh et al. 2017)."""
    masks = (torch.arange(features) % 2 == 1, torch.arange(features) % 2 == 0)
    settings = dict(hidden_features=HIDDEN, activation=nn.SiLU, **univariate)
    if features == 1:
        return [GeneralCouplingTransform(1, context, **settings)]  # the encoding alone moves it
    return [GeneralCouplingTransform(features, context, mask, **settings) for mask in masks]


def _splines(features: int, context: int) -> list[nn.Module]:
    """Couplings by monotonic rational-quadratic splines on (-5, 5) (Durkan et al. 2019)."""
    return _couplings(features, context, univariate=MonotonicRQSTransform, shapes=[(BINS,), (BINS,), (BINS - 1,)])


def _autoregressive(features: int, context: int) -> list[nn.Module]:
    """Element i moves by what was drawn for those before it."""
    return [MaskedAutoregressiveTransform(features, context, hidden_features=HIDDEN, activation=nn.SiLU)]


WARPS = {"coupling": _couplings, "autoregressive": _autoregressive, "spline": _splines}


class WarpedFlow(nn.Module):
    """A warp of the standardised prior conditional, then an affine flow.

    The warp's networks see the encoding relative to the prior given the parents, the parents through it, and the
    vector that the encoding was decoded from, if there is one.
    """

    def __init__(self, kind: str, affine: nn.Module, extra: int, event: tuple[int, ...], vector: int = 0):
        super().__init__()
        self.affine, self.centred, self.event = affine, affine.centred, event
        size = math.prod(event)
        self.layers = nn.ModuleList(WARPS[kind](size, size * (2 + extra) + vector))
        for layer in self.layers:
            small(layer.hyper)

    def forward(
        self, encoding: Encoding, mean: Float[Tensor, "*#variables"], sd: Float[Tensor, "*#variables"]
    ) -> "WarpedTransform":
        """The transform from u to theta; mean and sd are the prior conditional's."""
        context = self._context(encoding, mean, sd)
        layers = [layer(context) for layer in self.layers]
        return WarpedTransform(layers, self.affine(encoding, mean, sd), mean, sd, self.event)

    def _context(self, encoding: Encoding, mean: Tensor, sd: Tensor) -> Float[Tensor, "*variables C"]:
        n = len(self.event)
        known = [((encoding.estimate - mean) / sd).asinh(), (encoding.log_precision + 2 * sd.log()) / 5]
        shape = torch.broadcast_shapes(*(part.shape for part in known), encoding.extra.shape[:-1])
        known += encoding.extra.unbind(-1)
        plates = shape[: len(shape) - n]
        parts = [part.expand(shape).reshape(*plates, -1) for part in known]
        if encoding.vector is not None:
            parts.append(encoding.vector.expand(*plates, -1))
        return torch.cat(parts, -1)


class WarpedTransform(Transform):
    """The transform of a WarpedFlow for the ground variables of a batch; the event is transformed as one."""

    bijective = True

    def __init__(
        self, layers: list[Transform], affine: AffineTransform, mean: Tensor, sd: Tensor, event: tuple[int, ...]
    ):
        super().__init__()
        self.layers, self.affine, self.mean, self.sd, self.event = layers, affine, mean, sd, event

    @property
    def domain(self):
        """All reals, element by element."""
        return constraints.independent(constraints.real, len(self.event))

    codomain = domain

    def _call(self, u: Tensor) -> Tensor:
        z = self._flat(u)
        for layer in self.layers:
            z = layer(z)
        return self.affine(self._unflat(z))

    def _inverse(self, theta: Tensor) -> Tensor:
        z = self._flat(self.affine.inv(theta))
        for layer in reversed(self.layers):
            z = layer.inv(z)
        return self._unflat(z)

    def log_abs_det_jacobian(self, u: Tensor, theta: Tensor) -> Tensor:
        """Log determinant at u, one number a variable."""
        z, total = self._flat(u), 0.0
        for layer in self.layers:
            z, one = layer.call_and_ladj(z)
            total = total + one
        return total + sum_event(self.affine.log_abs_det_jacobian(u, theta), len(self.event))

    def _flat(self, u: Tensor) -> Float[Tensor, "*variables n"]:
        return ((u - self.mean) / self.sd).reshape(*u.shape[: u.dim() - len(self.event)], -1)

    def _unflat(self, z: Float[Tensor, "*variables n"]) -> Tensor:
        return self.mean + self.sd * z.reshape(*z.shape[:-1], *self.event)


def build_flow(
    name: str, extra: int, site: str, event: tuple[int, ...], vector: int = 0, centred: bool = False
) -> nn.Module:
    """The flow of a site by its name.

    extra, vector: further summaries and length of the vector in its encodings; centred: which affine flow follows a
    warp. Raises UsageError for an unknown name, or one that needs more elements than the site has.
    """
    if name == "joint":
        return JointFlow()
    if name not in WARPS:
        if name not in FLOWS:
            raise UsageError(f"flow of {site}: expected one of {', '.join([*FLOWS, *WARPS])}, got {name!r}")
        return make_flow(name, extra)
    if math.prod(event) == 1 and name != "spline":
        raise UsageError(f"flow of {site}: {name} needs two elements or more, which move each other; expected spline")
    return WarpedFlow(name, make_flow("centred" if centred else "precision", extra), extra, event, vector)
