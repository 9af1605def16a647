"""A trained model with the population of another cohort: read off everybody in it, without training.

The population sites get new encodings, those of a streamed expectation-maximisation over the whole cohort that starts
at the trained population. Everything else stays the model's: the flows and encoder of subjects and sessions, the label
power, the feature map. A subject is then inferred given that population, as before.

An *encoded* site keeps its flow, which has learned to correct encodings. A *free* site's flow was learned together with
the rows, and neither means anything without the other (a gain of the flow is made up for by the rows), so new encodings
of a free site are combined with the prior as the noisy observations that they are.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.distributions import AffineTransform

from parcellation.encoding import Encoding, Streamed
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.joint_flow import JointAffine
from parcellation.model_file import TrainedModel
from parcellation.plates import Values
from parcellation.posterior import check_applicable, pooling
from parcellation.refitted_map import refit_map
from parcellation.training import Source, chunks

log = logging.getLogger(__name__)

LEAST_SUBJECTS = 20  # fewer say too little about the spread between people, and about the map at a vertex
CHUNK = 8  # subjects in memory at a time


class GaussianFlow(nn.Module):
    r"""Combines the prior conditional with an encoding as a Gaussian does with a noisy observation; nothing is learned.

    With prior Normal(mu, s^2) given the parents, encoding (m, tau) and w = tau s^2 / (1 + tau s^2):

        theta = mu + w (m - mu) + sqrt(1 - w) (u - mu)
    """

    centred = False

    def forward(
        self, encoding: Encoding, mean: Float[Tensor, "*#variables"], sd: Float[Tensor, "*#variables"]
    ) -> AffineTransform | JointAffine:
        """The transform from u to theta; mean and sd are the prior conditional's."""
        if encoding.joint is not None:
            return JointAffine(mean, sd, *encoding.whitened(mean, sd))
        ratio = encoding.log_precision + 2 * sd.log()
        scale = (0.5 * nn.functional.logsigmoid(-ratio)).exp()
        return AffineTransform(mean + ratio.sigmoid() * (encoding.estimate - mean) - scale * mean, scale)


def identity(model: TrainedModel, units: Sequence[Sequence[str]]) -> str:
    """Digest of the model with the population of these fingerprints, each (subject, session, checksum of content)."""
    content = [model.digest, "population re-inferred", [list(unit) for unit in units]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def check_size(subjects: int) -> None:
    """Refuse a cohort that is too small to tell its population; raises UsageError."""
    if subjects < LEAST_SUBJECTS:
        raise UsageError(
            f"population reinferred: expected a cohort of at least {LEAST_SUBJECTS} subjects with fingerprints, got "
            f"{subjects}; with `--population fixed` the population stays the model's"
        )


@torch.no_grad()
def reinfer(model: TrainedModel, source: Source, digest: str) -> TrainedModel:
    """The model with the population of this cohort; `digest` names it (see `identity`).

    A map that is very different can lead networks to change their places on the way, which the likelihood does not mind
    and the prior of the profiles does: they are put back, each to the trained network that its profile is like.
    Warns of networks that are unlike all trained ones. Raises UsageError for a cohort of fewer than 20 members, and for
    a model that cannot be applied to new ones.
    """
    family, cards = model.family, source.cards
    template, blank = family.template, model.blank()
    check_size(cards[template.unit_plate])
    check_applicable(family)
    names = [site.name for site in template.population_sites()]
    batches = Streamed(lambda: chunks(source, template, CHUNK))
    encoder, start = pooling(family), family.centre(blank)
    population = encoder.population_of(batches, cards, names, start)
    centre = encoder.centre(population, blank)
    order = nearest(start["mu"], centre["mu"])
    if order != sorted(order):
        log.info("population: networks go back to their places: %s", order)
        population = encoder.population_of(batches, cards, names, permuted(centre, order, template.basis))
    result = with_population(model, population, digest)
    if not model.label_power.plain:
        refit_map(result, source)
    _warn_of_others(start["mu"], result.family.centre(blank)["mu"])
    return result


def nearest(before: Float[Tensor, "1 1 1 K D"], after: Float[Tensor, "1 1 1 K D"]) -> list[int]:
    """For each network, which of those after it is now, in the assignment that moves profiles least."""
    distance = torch.cdist(before[0, 0, 0].double(), after[0, 0, 0].double()).square()
    return linear_sum_assignment(distance.cpu().numpy())[1].tolist()


def permuted(centre: Values, order: Sequence[int], basis: Float[Tensor, "contrast K"]) -> dict[str, Tensor]:
    """Population values with the networks in another order; basis: contrasts that the map is given in."""
    own = {name: centre[name][..., order] for name in ("log_epsilon", "log_sigma")}
    basis = basis.to(centre["logits_group"])
    logits = (centre["logits_group"] @ basis)[..., order] @ basis.mT
    if "topography_group" in centre:  # contrasts are one dimension further in front
        own["topography_group"] = basis @ (basis.mT @ centre["topography_group"])[..., order, :]
    return {**centre, **own, "mu": centre["mu"][..., order, :], "logits_group": logits}


def _warn_of_others(before: Float[Tensor, "1 1 1 K D"], after: Float[Tensor, "1 1 1 K D"]) -> None:
    """Warn of networks that have moved by more than what sets them apart from the mean of all networks."""
    apart = (before - before.mean(-2, keepdim=True)).square().sum(-1).flatten()
    moved = (after - before).square().sum(-1).flatten()
    if others := [str(k + 1) for k in torch.nonzero(moved > apart)[:, 0].tolist()]:
        log.warning("population: unlike any network of the model: number %s; do not rely on names", ", ".join(others))


def with_population(model: TrainedModel, population: dict[str, Encoding], digest: str) -> TrainedModel:
    """The model with these encodings of its population sites, all of them."""
    family: Family = copy.deepcopy(model.family)
    family.fixed = dict(population)
    for name in population:
        if name in family.free:
            family.flows[name] = GaussianFlow()
    return replace(model, family=family, digest=digest)
