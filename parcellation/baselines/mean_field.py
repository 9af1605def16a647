"""Mean-field Gaussian: every number of every ground variable has its own mean and sd, independent of all others.

    q(theta) = product over i of Normal(theta_i; m_i, s_i)

The family of black-box variational inference (Kucukelbir et al. 2017). For a Gaussian posterior of precision Lambda its
best member has the posterior's means, variances 1 / Lambda_ii, and misses the evidence by
(sum_i log Lambda_ii - log det Lambda) / 2.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from parcellation.baselines.rival import Gaussian, Rival, by_element, event_size, prior_centres
from parcellation.plates import Batch, Site, Template


class MeanField(Rival):
    """Mean and log sd of every number, counted from the prior's centre and in its sd."""

    def __init__(self, template: Template, cards: Mapping[str, int]):
        super().__init__(template, cards, {site.name: torch.zeros(2 * event_size(site)) for site in template.sites})

    def encodings(self, batch: Batch) -> dict[str, Tensor]:
        """Means and sd's, shape (2, *plates, *event)."""
        result = {}
        for name, (mean, sd) in prior_centres(self.template, batch.scored).items():
            shift, log_scale = by_element(self.template.site(name), self.free[name](batch.index))
            result[name] = torch.stack([mean + sd * shift, sd * log_scale.exp()])
        return result

    def conditional(self, site: Site, parameters: Tensor, mean: Tensor, sd: Tensor) -> Gaussian:
        """The same for all parents."""
        return Gaussian(*parameters, len(site.event))
