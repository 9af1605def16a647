"""How well a fitted model predicts the fingerprints of people that it was not fitted to.

Log predictive density of a session's fingerprints, nats a value: mean over vertices x, shape (D,), of

    log sum_k pi_k Normal(x; m_k, v_k I) / D

twice: given the *population* alone, with its map, its profiles and v_k = kappa^2 + sigma_k^2 + epsilon_k^2; and given
the *person's* other half of the sessions, with that half's label probabilities as they are believed, the subject's
profiles and v_k = kappa^2 + sigma_k^2 + the variance that is left of the profile. Vertices are scored one by one, so
what they share is not counted on. The same data scored under several numbers of networks tell which describes people.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from parcellation.model_file import TrainedModel
from parcellation.networks import session_square
from parcellation.plates import Observed, Values
from parcellation.posterior import pooling, tempered_labels
from parcellation.refitted_map import mean_map
from parcellation.shares import log_total


@dataclass(frozen=True)
class Density:
    """Nats a value, given the population and given the person's other sessions; None with fewer than two sessions."""

    population: float
    person: float | None


@torch.no_grad()
def held_out_density(model: TrainedModel, observed: Observed) -> Density:
    """Density of one unseen subject's data, shapes (1, T, V, D), in the units of the features.

    The person's is the mean of both directions between the halves of the sessions.
    """
    log_map = mean_map(model).log()
    present = torch.nonzero(observed.mask.any(-1)[0])[:, 0]
    population = _given_population(model, observed.select(1, present), log_map)
    if len(present) < 2:
        return Density(population, None)
    first, second = (observed.select(1, part) for part in present.tensor_split(2))
    both = [_given_person(model, first, second, log_map), _given_person(model, second, first, log_map)]
    return Density(population, sum(both) / 2)


def _given_population(model: TrainedModel, observed: Observed, log_map: Float[Tensor, "V K"]) -> float:
    centre = model.family.centre(observed)
    spread = (2 * centre["log_epsilon"]).exp() + (2 * centre["log_sigma"]).exp()  # (1, 1, 1, K)
    return _density(centre["mu"], spread[0, 0], _log_noise(model, observed, centre), log_map[None], observed)


def _given_person(model: TrainedModel, known: Observed, new: Observed, log_map: Float[Tensor, "V K"]) -> float:
    """Density of the sessions `new` given the sessions `known` of the same person."""
    centre = model.family.centre(known)
    summaries = pooling(model.family).summarise(known, centre)
    labels = tempered_labels(model, known, log_map, summaries.profiles)[:, 0]  # (1, V, K)
    mean, variance = summaries.subject  # (1, K, D), (1, K)
    spread = (2 * centre["log_sigma"]).exp()[0, 0] + variance
    # A noisy person is noisy again: how the known sessions' noise differs from what their length leads to expect.
    own = (summaries.noise.log()[..., None] - _log_noise(model, known, centre)).mean()
    log_noise = _log_noise(model, new, centre) + own
    return _density(mean[:, None, None], spread, log_noise, labels.clamp_min(1e-12).log(), new)


def _log_noise(model: TrainedModel, observed: Observed, centre: Values) -> Float[Tensor, "1 T 1"]:
    """Log sd of an observation in sessions of these lengths."""
    mean, _ = model.family.template.site("log_kappa_session").prior(centre, observed)
    return mean


def _density(
    profiles: Float[Tensor, "1 1 1 K D"],
    spread: Float[Tensor, "1 K"],
    log_noise: Float[Tensor, "1 #T 1"],
    log_share: Float[Tensor, "1 V K"],
    observed: Observed,
) -> float:
    """Mean over vertices and sessions with data; spread: variance of a session's profile about `profiles`."""
    total, count, D = 0.0, 0, observed.x.shape[-1]
    for t in range(observed.x.shape[1]):
        square = session_square(profiles, torch.zeros_like(log_noise[:, :1]), observed, t)[:, 0]  # (1, V, K)
        variance = (2 * log_noise[:, min(t, log_noise.shape[1] - 1)]).exp() + spread  # (1, K)
        one = -0.5 * (square / variance[:, None] + D * (variance[:, None].log() + math.log(2 * math.pi)))
        mask: Bool[Tensor, "1 V"] = observed.mask[:, t]
        total += float(log_total(log_share.to(one) + one)[mask].double().sum())
        count += int(mask.sum())
    return total / (count * D)
