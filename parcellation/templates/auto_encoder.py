r"""Auto-encoder: one latent vector per datum, decoded by parameters that are trained too (Kingma & Welling 2014).

    z[n] ~ Normal(0, I)         (L)
    x[n] ~ decoder(z[n])        (D)

One plate, datum. The decoder's parameters are the template's `generative` module: the objective is maximised over them
and the family together. With a linear Gaussian decoder this is probabilistic principal component analysis, whose
posterior, evidence and greatest evidence are in closed form (Tipping & Bishop 1999).
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Normal
from zuko.nn import MLP

from parcellation.errors import UsageError
from parcellation.plates import Observed, Site, Template, Values

LOG_TAU = math.log(2 * math.pi)


class LinearGaussian(nn.Module):
    r"""x ~ Normal(W z + m, sd^2 I): shapes W (D, L), m (D); M = W'W + sd^2 I below."""

    def __init__(self, features: int, latents: int):
        super().__init__()
        self.mean = nn.Linear(latents, features)  # W and m
        self.log_sd = nn.Parameter(torch.zeros(()))

    def log_density(self, z: Float[Tensor, "*draws N L"], x: Float[Tensor, "N D"]) -> Float[Tensor, "*draws N"]:
        """log p(x | z) of every datum."""
        return Normal(self.mean(z), self.log_sd.exp()).log_prob(x).sum(-1)

    def posterior(self, x: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N L"], Float[Tensor, "L L"]]:
        r"""Exact p(z | x): means M^-1 W'(x - m) and their covariance sd^2 M^-1, the same for every datum."""
        W, variance = self.mean.weight, (2 * self.log_sd).exp()
        M = W.mT @ W + variance * torch.eye(W.shape[1], dtype=W.dtype, device=W.device)
        return torch.linalg.solve(M, W.mT @ (x - self.mean.bias).mT).mT, variance * torch.linalg.inv(M)

    def log_evidence(self, x: Float[Tensor, "N D"]) -> Float[Tensor, " N"]:
        r"""Exact log p(x) of every datum: Normal(m, W W' + sd^2 I)."""
        W = self.mean.weight
        covariance = W @ W.mT + (2 * self.log_sd).exp() * torch.eye(len(W), dtype=W.dtype, device=W.device)
        return torch.distributions.MultivariateNormal(self.mean.bias, covariance).log_prob(x)


def greatest_evidence(x: Float[Tensor, "N D"], latents: int) -> Float[Tensor, ""]:
    r"""Greatest log p(x) of all data over W, m and sd, from the eigenvalues of the sample covariance.

    -N/2 (D log 2 pi + sum_{i <= L} log l_i + (D - L) log v + D),  v the mean of the discarded eigenvalues l_i, i > L.
    """
    N, D = x.shape
    eigenvalues = torch.linalg.eigvalsh(torch.cov(x.mT, correction=0)).flip(0)
    noise = eigenvalues[latents:].mean()
    return -N / 2 * (D * LOG_TAU + eigenvalues[:latents].log().sum() + (D - latents) * noise.log() + D)


class Bernoulli(nn.Module):
    """x in {0, 1}, independent given z with logits from a network with one hidden layer."""

    def __init__(self, features: int, latents: int, hidden: int = 64):
        super().__init__()
        self.logits = MLP(latents, features, [hidden], activation=nn.SiLU)

    def log_density(self, z: Float[Tensor, "*draws N L"], x: Float[Tensor, "N D"]) -> Float[Tensor, "*draws N"]:
        """log p(x | z) of every datum."""
        logits = self.logits(z)
        return (x * logits - nn.functional.softplus(logits)).sum(-1)


DECODERS = {"linear_gaussian": LinearGaussian, "bernoulli": Bernoulli}


class AutoEncoder(Template):
    """The template for D features and L latent dimensions; settings go to the decoder.

    Raises UsageError for an unknown decoder.
    """

    plates = ("datum",)
    reducible = frozenset({"datum"})
    encoder = "recognition"

    def __init__(self, features: int, latents: int, decoder: str = "bernoulli", **settings):
        if decoder not in DECODERS:
            raise UsageError(f"decoder: expected one of {', '.join(DECODERS)}, got {decoder!r}")
        self.features, self.latents, self.decoder, self.settings = features, latents, decoder, settings
        self.generative = DECODERS[decoder](features, latents, **settings)
        self.sites = (Site("z", ("datum",), (latents,), self._z),)

    def _z(self, values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
        zero = observed.x.new_zeros(1, self.latents)
        return zero, torch.ones_like(zero)

    def hyperparameters(self) -> dict:
        """Constructor arguments; trained parameters belong to the family."""
        return dict(features=self.features, latents=self.latents, decoder=self.decoder, **self.settings)

    def log_likelihood(self, values: Values, observed: Observed) -> Float[Tensor, "*draws datum"]:
        """Log density of every datum, shape (*draws, datum)."""
        return torch.where(observed.mask, self.generative.log_density(values["z"], observed.x), 0.0)


TEMPLATE = AutoEncoder
