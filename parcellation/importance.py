r"""Importance-weighted evidence: log p(x) by draws from q, weighted by how far q is from the posterior.

    log p(x) >= E[ log 1/N sum_n w_n ],   w_n = p(x, theta_n) / q(theta_n | x),   theta_n ~ q

It is a stochastic lower bound that rises to the evidence with the number of draws (Burda et al. 2016), and worth no
more than the effective number of draws that it rests on. Where no population site joins them, the members of the
outermost plate are independent, and each has an evidence, and weights, of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from parcellation.elbo import check_whole, log_ratios
from parcellation.encoders import Encoding
from parcellation.family import Draw, Family
from parcellation.plates import Batch, Noise, Values


@dataclass(frozen=True)
class ImportanceEvidence:
    """Log weights of the draws, in nats, shape (draws, member): one member where population sites join them all."""

    log_weights: Float[Tensor, "draws member"]

    @property
    def log_evidence(self) -> Float[Tensor, " member"]:
        """Log of the mean weight of each member, in nats; their sum is the data's."""
        return self.log_weights.logsumexp(0) - math.log(len(self.log_weights))

    @property
    def standard_error(self) -> Float[Tensor, " member"]:
        """Monte-Carlo standard error of `log_evidence`, in nats: that of the mean weight, relative to it."""
        relative = (self.log_weights - self.log_evidence).exp()
        return relative.std(0) / len(relative) ** 0.5

    @property
    def effective_draws(self) -> Float[Tensor, " member"]:
        """Number of equally weighted draws that would be worth as much (Kong 1992), from 1 to draws."""
        return (2 * self.log_weights.logsumexp(0) - (2 * self.log_weights).logsumexp(0)).exp()


@torch.no_grad()
def importance_evidence(
    family: Family,
    batch: Batch,
    noise: Noise,
    draws: int,
    encodings: Mapping[str, Encoding] | None = None,
    given: Values | None = None,
    chunk: int = 100,
) -> ImportanceEvidence:
    """Importance-weighted evidence of all data of a batch; raises ValueError for a reduced one.

    encodings: of every site, when they are not the family's own; given: values of sites that are taken as known: the
    evidence is then that of the data given them; chunk: draws in memory at a time.
    """
    check_whole(batch, "an evidence")
    encodings = family.encodings(batch) if encodings is None else encodings
    joint = any(site.name not in (given or {}) for site in family.template.population_sites())
    members = 1 if joint else len(batch.scored.mask)
    sizes = [min(chunk, draws - start) for start in range(0, draws, chunk)]
    some = (family.draw(batch, noise, encodings, given, path=False, draws=(size,)) for size in sizes)
    return ImportanceEvidence(torch.cat([log_weights(family, batch, draw, members) for draw in some]))


def log_weights(family: Family, batch: Batch, draw: Draw, members: int) -> Float[Tensor, "draws {members}"]:
    """log p(x, theta) - log q(theta) of every draw: summed over all plates, or all but the outermost's members.

    Sites that were given have no term. members: 1, or how many the outermost plate has.
    """
    template = family.template
    terms = [template.log_likelihood(draw.values, batch.scored)]
    for name, ratio in log_ratios(family, batch, draw).items():
        terms.append(torch.where(template.present(template.site(name), batch), ratio, 0.0))
    return sum(term.reshape(len(term), members, -1).sum(2) for term in terms)
