"""Automatic structured variational inference (Ambrogioni et al. 2021): prior parameters mixed with free ones by a gate.

    q(theta | parents) = Normal(g m(parents) + (1 - g) a,  h s(parents) + (1 - h) b),   g, h in (0, 1)

One pair (a, b) and one pair of gates per number of every ground variable. With g = 0 it is mean-field, with g = h = 1
the prior. Exact for conjugate chains and for random effects, whose posterior conditionals are such mixtures.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from parcellation.baselines.rival import Gaussian, Rival, by_element, event_size, prior_centres
from parcellation.plates import Batch, Site, Template


class Asvi(Rival):
    """Free mean and log sd, counted from the prior's centre and in its sd, and the logits of the two gates."""

    def __init__(self, template: Template, cards: Mapping[str, int]):
        super().__init__(template, cards, {site.name: torch.zeros(4 * event_size(site)) for site in template.sites})

    def encodings(self, batch: Batch) -> dict[str, Tensor]:
        """Free means, free sd's and both gates, shape (4, *plates, *event)."""
        result = {}
        for name, (mean, sd) in prior_centres(self.template, batch.scored).items():
            shift, log_scale, *gates = by_element(self.template.site(name), self.free[name](batch.index))
            result[name] = torch.stack([mean + sd * shift, sd * log_scale.exp(), *(g.sigmoid() for g in gates)])
        return result

    def conditional(self, site: Site, parameters: Tensor, mean: Tensor, sd: Tensor) -> Gaussian:
        """Mixed with the prior at the sampled parents."""
        free_mean, free_sd, g, h = parameters
        return Gaussian(g * mean + (1 - g) * free_mean, h * sd + (1 - h) * free_sd, len(site.event))
