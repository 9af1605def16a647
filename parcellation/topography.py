r"""Smooth layouts of networks: logits as weighted modes of the region, with a spectrum that is learned.

With phi (V, J) the first modes of the region's Laplacian, lambda_j their eigenvalues, and K-1 contrasts of networks,

    spectrum_group     log sd of the constant mode; log sd of slow modes, log tau; log range
    topography_group   weights of the population's map, (K-1, J):  Normal(0, sd_j)
    log_residual       log sd of what a vertex has beyond its neighbours
    logits_group[v]    Normal(phi[v] topography_group, residual)

and, where subjects have layouts of their own, spectrum_subject and, for each subject, weights of the deviation:

    topography[s]      Normal(0, sd_j);   z[s, v] ~ Categorical(softmax(logits_group[v] + phi[v] topography[s]))

    sd_j = tau (1 + lambda_j / lambda_c)^(-decay),   lambda_c = lambda_1 exp(range),   decay = (nu + d/2) / 2, nu = 1

is a Matern field's (Lindgren et al. 2011) over a region of d dimensions; the constant mode has an sd of its own. Given
the weights vertices are independent, so plates and batches are what they were.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.networks import constant
from parcellation.plates import Observed, Site, Values
from parcellation.shares import log_shares, log_total

# Means and sd's of the constant's log sd, of log tau and of log range; of log_residual.
SPECTRUM_GROUP = ((0.0, 0.0, 1.5), (1.0, 1.0, 1.0))  # slow modes of size 1 add up to about what a free map has
SPECTRUM_SUBJECT = ((-1.0, -1.0, 1.5), (1.5, 1.5, 1.0))  # from invisible to as large as the group's
RESIDUAL = (-1.5, 1.0)
NODES = 64  # of a mean over subjects, where there are three networks or more
NODES_OF_ONE = 24  # where there are two, and the mean is over one dimension


class Topography:
    """The modes of a region and what is expected of their weights.

    phi: shape (V, J), mean square 1, the first the constant; eigenvalues: (J,), the first 0; decay: see above;
    subjects: whether subjects deviate.
    """

    def __init__(self, phi: Float[Tensor, "V J"], eigenvalues: Float[Tensor, " J"], decay: float, subjects: bool):
        self.phi, self.eigenvalues, self.decay, self.subjects = phi, eigenvalues, decay, subjects
        slow = eigenvalues[eigenvalues > 1e-9 * eigenvalues.max()]
        self.relative = eigenvalues / slow.min() if len(slow) else eigenvalues

    def group_sites(self, contrasts: int) -> tuple[Site, ...]:
        """Sites of the population's map."""
        event = (contrasts, self.phi.shape[1])

        def logits(values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
            mean = self.field(values["topography_group"], observed)
            return mean, values["log_residual"].exp()[..., None].expand(mean.shape)

        return (
            Site("spectrum_group", (), (3,), lambda v, o: listed(o, SPECTRUM_GROUP), joint=True),
            Site("log_residual", (), (), lambda v, o: constant(o, RESIDUAL, ())),
            Site("topography_group", (), event, lambda v, o: self._weights(v["spectrum_group"], contrasts), joint=True),
            Site("logits_group", ("vertex",), (contrasts,), logits),
        )

    def subject_spectrum(self) -> tuple[Site, ...]:
        """The population's site of how subjects deviate; none where they do not."""
        site = Site("spectrum_subject", (), (3,), lambda v, o: listed(o, SPECTRUM_SUBJECT), joint=True)
        return (site,) if self.subjects else ()

    def subject_sites(self, contrasts: int) -> tuple[Site, ...]:
        """Sites of subjects' deviations; none where they do not."""
        event, plates = (contrasts, self.phi.shape[1]), ("subject",)

        def prior(values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
            return self._weights(values["spectrum_subject"], contrasts)

        return (Site("topography", plates, event, prior, joint=True),) if self.subjects else ()

    def _weights(self, spectrum: Float[Tensor, "*plates 3"], contrasts: int) -> tuple[Tensor, Tensor]:
        sd = self.log_sd(spectrum).exp()[..., None, :].expand(*spectrum.shape[:-1], contrasts, -1)
        return torch.zeros_like(sd), sd

    def log_sd(self, spectrum: Float[Tensor, "*plates 3"]) -> Float[Tensor, "*plates J"]:
        """Log prior sd of every mode's weight."""
        level, tau, extent = (part[..., None] for part in spectrum.unbind(-1))
        slow = tau - self.decay * torch.log1p(self.relative.to(spectrum)[1:] * (-extent).exp())
        return torch.cat([level, slow], -1)

    def slopes(self, spectrum: Float[Tensor, " 3"]) -> Float[Tensor, "J 3"]:
        """Derivatives of `log_sd` by the spectrum."""
        ratio = self.relative.to(spectrum)[1:] * (-spectrum[2]).exp()
        first, rest = torch.eye(3).to(spectrum)[:1], torch.stack([0 * ratio, 1 + 0 * ratio, ratio / (1 + ratio)], -1)
        return torch.cat([first, rest * torch.tensor([1.0, 1.0, self.decay]).to(spectrum)])

    def field(
        self, weights: Float[Tensor, "*plates 1 C J"], observed: Observed | None = None
    ) -> Float[Tensor, "*plates V C"]:
        """Logits of every vertex from weights, which have size 1 on the vertex plate; `observed` may have few vertices.

        Its covariate `vertex` says which, by their positions in the region; all where there is none.
        """
        phi = self.phi.to(weights)
        if observed is not None and "vertex" in observed.covariates:
            phi = phi[observed.covariates["vertex"].flatten().long()]
        return (weights[..., 0, :, :] @ phi.mT).mT

    def mean_log_map(
        self, logits: Float[Tensor, "*draws 1 1 V C"], spectrum: Float[Tensor, "*draws 1 1 1 3"], basis: Tensor
    ) -> Float[Tensor, "*draws 1 1 V K"]:
        """Log of the mean of softmax(logits + deviation) over subjects, whose deviations are Normal at every vertex.

        By Gauss-Hermite nodes for two networks (error below 1e-5 up to an sd of 5), else by Sobol points and their
        opposites (error about .003).
        """
        variance = (2 * self.log_sd(spectrum)).exp() @ self.phi.to(logits).square().mT  # (*draws, 1, 1, 1, V)
        spread, total = variance.sqrt().mT, None
        nodes, log_weights = _nodes(logits.shape[-1])
        for node, log_weight in zip(nodes.to(logits), log_weights.to(logits), strict=True):
            one = log_shares((logits + spread * node) @ basis.to(logits)) + log_weight
            total = one if total is None else torch.logaddexp(total, one)
        return total - log_total(total)[..., None]


def listed(observed: Observed, prior: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[Tensor, Tensor]:
    """A (mean, sd) for every element of a site's event, which is a vector."""
    return tuple(observed.x.new_tensor(part)[None, None, None] for part in prior)


def _nodes(dimensions: int) -> tuple[Float[Tensor, "N {dimensions}"], Float[Tensor, " N"]]:
    """Points and log weights for means over standard normal vectors; the same on every call."""
    if dimensions == 1:
        half = torch.arange(1, NODES_OF_ONE, dtype=torch.float64)
        off = (half / 2).sqrt().mul(math.sqrt(2.0))  # Golub and Welsch (1969), for the standard normal weight
        points, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
        return points[:, None], vectors[0].square().log()
    uniform = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=0).draw(NODES, dtype=torch.float64)
    points = torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6))
    points = torch.cat([points, -points])
    points = points / points.square().mean(0).sqrt()
    return points, points.new_full((len(points),), -math.log(len(points)))
