"""A flow for variables whose elements are told together: Gaussian, with a full covariance along the last dimension."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Transform, constraints

from parcellation.encoders import Encoding


class JointFlow(nn.Module):
    r"""`PrecisionFlow` for an encoding whose information is a matrix along the event's last dimension.

    With prior Normal(mu, s^2) given the parents, information A = S D joint D S in units of it (S, D diagonal), and
    L L' = 1 + A:

        theta = mu + s (L L')^-1 A (m - mu) / s + s L'^-1 (u - mu) / s

    exact when the encoding is a sufficient statistic. Nothing is learned: a gain of m, as in `PrecisionFlow`, and
    encodings that start from the population's own map feed on each other, and maps end far surer than data say.
    """

    centred = False

    def forward(
        self, encoding: Encoding, mean: Float[Tensor, "*#variables"], sd: Float[Tensor, "*#variables"]
    ) -> "JointAffine":
        """The transform from u to theta; mean and sd are the prior conditional's."""
        return JointAffine(mean, sd, *encoding.whitened(mean, sd))


class JointAffine(Transform):
    """u -> mean + sd (centre + root'^-1 (u - mean) / sd), with a lower triangular root along the last dimension."""

    bijective = True
    domain = constraints.real_vector
    codomain = constraints.real_vector

    def __init__(self, mean: Tensor, sd: Tensor, centre: Tensor, root: Float[Tensor, "*variables J J"]):
        super().__init__()
        self.mean, self.sd, self.centre, self.root = mean, sd, centre, root

    def _call(self, u: Tensor) -> Tensor:
        z = ((u - self.mean) / self.sd)[..., None]
        root = self.root.mT.expand(*z.shape[:-2], -1, -1)
        return self.mean + self.sd * (self.centre + torch.linalg.solve_triangular(root, z, upper=True)[..., 0])

    def _inverse(self, theta: Tensor) -> Tensor:
        z = (theta - self.mean) / self.sd - self.centre
        return self.mean + self.sd * (self.root.mT @ z[..., None])[..., 0]

    def log_abs_det_jacobian(self, u: Tensor, theta: Tensor) -> Tensor:
        """Log determinant, one number for each vector."""
        return -self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1).expand(u.shape[:-1])
