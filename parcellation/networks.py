"""What models of networks share: the sites of their fingerprints, the density of a session, contrasts of a map.

    log_kappa          log sd of an observation around its network's fingerprint, for a run of reference length
    slope              logit of the share of noise variance that falls with the number of frames, in (0, 1)
    log_epsilon[k]     log sd between subjects;  log_sigma[k]  log sd between sessions of a subject
    mu[k]              population fingerprint, anchored at reference[k]
    log_kappa_session  Normal(log_kappa + slope/2 log(frames_reference / frames), 0.3)
    mu_subject[k]      Normal(mu[k], epsilon[k]);  mu_session[k]  Normal(mu_subject[k], sigma[k])

Plates: subject (S), session (T), vertex (V). K networks, D features.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.plates import Observed, Site, Values

Scorer = Callable[..., Tensor]  # of values, and a log map if any: scores of labels, shape (*draws, S, 1, V, K)

LOG_KAPPA = (-0.3, 1.0)  # features have mean square 1, so the noise of one observation is near or below 1
LOG_SCALES = (-2.0, 1.5)  # differences between people: anywhere from invisible to as large as the signal
SLOPE = (0.0, 1.5)  # logit scale: close to uniform on (0, 1)
SWAP = 10.0  # nats of prior
SESSION_NOISE = 0.3  # sessions of equal length differ in noise by about a third


def population_profiles(reference: Float[Tensor, "K D"]) -> tuple[Site, ...]:
    """Sites of the population's fingerprints, of what varies around them, and of the noise."""
    (K, D), spread = reference.shape, profile_spread(reference)

    def mu(values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
        anchors = reference.to(observed.x)[None, None, None]
        return anchors, torch.full_like(anchors, spread)

    return (
        Site("log_kappa", (), (), lambda v, o: constant(o, LOG_KAPPA, ())),
        Site("slope", (), (), lambda v, o: constant(o, SLOPE, ())),
        Site("log_epsilon", (), (K,), lambda v, o: constant(o, LOG_SCALES, (K,))),
        Site("log_sigma", (), (K,), lambda v, o: constant(o, LOG_SCALES, (K,))),
        Site("mu", (), (K, D), mu),
    )


def session_profiles(networks: int, features: int, frames_reference: float) -> tuple[Site, ...]:
    """Sites of subjects' and sessions' fingerprints, and of a session's noise."""
    event = (networks, features)

    def log_kappa(values: Values, observed: Observed) -> tuple[Tensor, Tensor]:
        shortness = (frames_reference / observed.covariates["frames"].clamp_min(1)).log()
        mean = values["log_kappa"] + 0.5 * values["slope"].sigmoid() * shortness
        return mean, torch.full_like(mean, SESSION_NOISE)

    sessions = ("subject", "session")
    return (
        Site("log_kappa_session", sessions, (), log_kappa),
        Site("mu_subject", ("subject",), event, lambda v, o: (v["mu"], v["log_epsilon"].exp()[..., None])),
        Site("mu_session", sessions, event, lambda v, o: (v["mu_subject"], v["log_sigma"].exp()[..., None])),
    )


def profile_spread(reference: Float[Tensor, "K D"]) -> float:
    """Prior sd of a network's fingerprint about its anchor: how far anchors are from their mean."""
    return float((reference - reference.mean(0)).square().mean().sqrt().clamp_min(1e-3))


def close_anchors(reference: Float[Tensor, "K D"]) -> list[tuple[int, int]]:
    """Pairs of networks (counted from 0) that may change places between cohorts, for all the prior minds.

    Swapping the profiles of two networks costs |reference_i - reference_j|^2 / spread^2 nats of prior; from about 10
    on the data of a cohort never pay that for nothing.
    """
    cost = torch.cdist(reference, reference).square() / profile_spread(reference) ** 2
    rows, columns = torch.triu_indices(*cost.shape, offset=1)
    return [(i, j) for i, j in zip(rows.tolist(), columns.tolist(), strict=True) if cost[i, j] < SWAP]


def separation(mu: Float[Tensor, "K D"], reference: Float[Tensor, "K D"]) -> float:
    """How far networks' profiles are from their mean, as a share of how far the anchors are: 0 when they collapsed."""
    return profile_spread(mu) ** 2 / profile_spread(reference) ** 2


def session_square(
    profiles: Float[Tensor, "*#draws #S #T 1 K D"],
    log_kappa: Float[Tensor, "*#draws #S #T 1"],
    observed: Observed,
    t: int,
) -> Float[Tensor, "*draws S 1 V K"]:
    """|x - profile_k|^2 / kappa^2 of one session, shape (*draws, S, 1, V, K); exactly 0 where masked."""
    x, mask = observed.x[:, t], observed.mask[:, t, :, None]  # (S, V, D), (S, V, 1)
    m = profiles[..., min(t, profiles.shape[-4] - 1), 0, :, :]  # (*draws, S, K, D)
    log_sd = log_kappa[..., min(t, log_kappa.shape[-2] - 1), :, None]  # (*draws, S, 1, 1)
    square = observed.squares[:, t, :, None] - 2 * (m @ x.mT).mT + m.square().sum(-1).unsqueeze(-2)
    return torch.where(mask, square * (-2 * log_sd).exp(), 0.0).unsqueeze(-3)  # (*draws, S, 1, V, K)


def session_density(
    profiles: Float[Tensor, "*#draws #S #T 1 K D"],
    log_kappa: Float[Tensor, "*#draws #S #T 1"],
    observed: Observed,
    t: int,
) -> Float[Tensor, "*draws S 1 V K"]:
    """log p(x | z = k, profiles, noise) of one session, shape (*draws, S, 1, V, K); exactly 0 where masked."""
    weights, network, precision = _weights(profiles, log_kappa, t)
    # What is of the network alone, and of the vertex alone, is added to the product: the fewest passes over (K, V).
    vertex = -0.5 * precision * observed.squares[:, t, None]
    density = weights @ observed.x[:, t].mT + network + vertex  # (*draws, S, K, V)
    return torch.where(observed.mask[:, t, None], density, 0.0).mT.unsqueeze(-3)


def _weights(profiles: Tensor, log_kappa: Tensor, t: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a session's fingerprints are multiplied with, (*draws, S, K, D); what is of the network alone; precision."""
    m = profiles[..., min(t, profiles.shape[-4] - 1), 0, :, :]  # (*draws, S, K, D)
    log_sd = log_kappa[..., min(t, log_kappa.shape[-2] - 1), :, None]  # (*draws, S, 1, 1)
    precision, D = (-2 * log_sd).exp(), m.shape[-1]
    network = -0.5 * precision * m.square().sum(-1, keepdim=True) - D * (log_sd + 0.5 * math.log(2 * math.pi))
    return precision * m, network, precision


def weighted_sessions(observed: Observed, power: Tensor | float = 1.0) -> list[Float[Tensor, "S V features"]]:
    """Every session's fingerprints and last features of 1, times the power and 0 where masked: for `add_evidence`.

    power: a number or (S, 1, V).
    """
    weight = (observed.mask.to(observed.x) * power)[..., None]  # (S, T, V, 1)
    x = torch.where(observed.mask[..., None], observed.x, 0.0) * weight
    most, rest = _split(weight)
    return list(torch.cat([x, most, most, rest], -1).unbind(1))


def _split(value: Tensor) -> tuple[Tensor, Tensor]:
    """What a GPU's products keep of a factor (`training.precision`: 10 bits), less two bits, and the rest of it."""
    most = value.bfloat16().to(value)
    return most, value - most


def add_evidence(
    scores: Float[Tensor, "*#draws #S K V"],
    profiles: Float[Tensor, "*#draws #S #T 1 K D"],
    log_kappa: Float[Tensor, "*#draws #S #T 1"],
    sessions: Sequence[Float[Tensor, "S V features"]],
) -> Float[Tensor, "*draws S K V"]:
    """Scores and log p(x | z = k, profiles, noise) of all sessions, up to a constant of each vertex.

    One product a session, which accumulates; one without data adds exactly nothing. What is of the network alone is
    large and the same for all vertices: it is part of that product, but not rounded where factors are.
    """
    for t, session in enumerate(sessions):
        factors, network, _ = _weights(profiles, log_kappa, t)
        network = network - network.mean(-2, keepdim=True)
        weights = torch.cat([factors, *_split(network), network], -1)  # (*draws, S, K, features)
        if len(session) == 1:  # all draws of one subject as rows of one matrix
            rows = scores.expand(*weights.shape[:-1], session.shape[1]).flatten(0, -2)
            scores = torch.addmm(rows, weights.flatten(0, -2), session[0].mT).unflatten(0, weights.shape[:-1])
        else:
            scores = scores + weights @ session.mT
    return scores


def heavy_tailed(square: Tensor, power: Tensor | float, tail: float) -> Tensor:
    """Score of a label with heavy tails: -(tail/2 + 1) log(1 + power square / (tail + 2)), elementwise.

    square: |x - profile|^2 / kappa^2 of one session. It goes to the Gaussian -power square / 2 as tail grows. Where all
    profiles are far away its differences are small: a session in which a vertex is noisy says little of its label, and
    takes nothing from what the others say.
    """
    return -(tail / 2 + 1) * torch.log1p(power * square / (tail + 2))


def contrast_basis(networks: int) -> Float[Tensor, "{networks}-1 {networks}"]:
    """Orthonormal contrasts of K networks (Helmert), shape (K-1, K), float64: a prior on them treats networks alike."""
    K = networks
    basis = torch.tril(torch.ones(K, K, dtype=torch.float64), -1)[1:]
    basis[torch.arange(K - 1), torch.arange(1, K)] = -torch.arange(1, K, dtype=torch.float64)
    return basis / basis.norm(dim=1, keepdim=True)


def constant(observed: Observed, prior: tuple[float, float], event: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The same (mean, sd) for every element of a site's event."""
    shape = (1, 1, 1) + event
    return observed.x.new_full(shape, prior[0]), observed.x.new_full(shape, prior[1])
