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

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.distributions import AffineTransform

from parcellation.encoding import Encoding, Streamed
from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.label_power import pooling, refit_map
from parcellation.model_file import TrainedModel
from parcellation.network_pooling import NetworkPooling
from parcellation.posterior import check_applicable
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
    ) -> AffineTransform:
        """The transform from u to theta; mean and sd are the prior conditional's."""
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

    Warns where a network has become more like another of the trained ones: then they may not be the same networks.
    Raises UsageError for a cohort of fewer than 20 members, and for a model that cannot be applied to new ones.
    """
    family, cards = model.family, source.cards
    template = family.template
    check_size(cards[template.unit_plate])
    check_applicable(family)
    names = [site.name for site in template.population_sites()]
    batches = Streamed(lambda: chunks(source, template, CHUNK))
    encoder, start = pooling(family), family.centre(model.blank())
    if not isinstance(encoder, NetworkPooling):
        raise UsageError(f"population reinferred: expected a model of networks, got {type(template).__name__}")
    result = with_population(model, encoder.population_of(batches, cards, names, start), digest)
    if model.label_power.at(1) < 1:
        refit_map(result, source)
    if swapped := _swapped(start["mu"], result.family.centre(model.blank())["mu"]):
        log.warning(
            "population: of the re-inferred networks, number %s is more like another of the model's; networks may have "
            "changed their places, and names and colours with them", ", ".join(str(k + 1) for k in swapped),
        )  # fmt: skip
    return result


def _swapped(before: Float[Tensor, "1 1 1 K D"], after: Float[Tensor, "1 1 1 K D"]) -> list[int]:
    """Networks that are not the old ones of the same number in the assignment that moves profiles least."""
    distance = torch.cdist(after[0, 0, 0].double(), before[0, 0, 0].double()).square()
    new, old = linear_sum_assignment(distance.cpu().numpy())
    return [int(k) for k, was in zip(new, old, strict=True) if k != was]


def with_population(model: TrainedModel, population: dict[str, Encoding], digest: str) -> TrainedModel:
    """The model with these encodings of its population sites, all of them."""
    family: Family = copy.deepcopy(model.family)
    family.fixed = dict(population)
    for name in population:
        if name in family.free:
            family.flows[name] = GaussianFlow()
    return TrainedModel(family, model.identity, model.details, model.arrays, digest, model.label_power)
