"""Cohorts whose labels are uncertain, and models of them that coordinate ascent has begun."""

import numpy as np
import torch

from parcellation.cohort_source import CohortSource
from parcellation.family import Family
from parcellation.model_file import TrainedModel
from parcellation.plates import Observed
from parcellation.templates.functional_parcellation import FunctionalParcellation
from parcellation.training import settle_population, warm_start
from tests.conftest import Drawn, MemoryCohort, draw_cohort

SCALES = {"log_kappa": 1.1, "log_epsilon": -1.0, "log_sigma": -1.5}


def cohort(copies: int = 1, lasting: float = 0.0, sessions: int = 2) -> Drawn:
    """Subjects whose labels are uncertain, each feature seen `copies` times over, vertices with lasting deviations.

    lasting: share of the noise variance that a vertex keeps over sessions.
    """
    drawn = draw_cohort((16, sessions, 150), networks=2, features=12, seed=1, planted=SCALES)
    x = drawn.observed.x
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(16, 1, 150, 12, generator=generator, dtype=x.dtype) * np.exp(SCALES["log_kappa"])
    profiles = drawn.values["mu_session"][:, :, 0]
    at = drawn.labels[:, None, :, None].expand(x.shape)
    centre = profiles.gather(2, at)
    x = centre + (1 - lasting) ** 0.5 * (x - centre) + lasting**0.5 * noise
    reference = drawn.template.reference.repeat(1, copies)
    template = FunctionalParcellation(reference, 400.0)
    observed = Observed(x.repeat(1, 1, 1, copies), drawn.observed.mask, drawn.observed.covariates)
    return Drawn(template, observed, drawn.values, drawn.labels)


def started(drawn: Drawn, scheme: str = "hybrid") -> tuple[TrainedModel, CohortSource]:
    """A model that coordinate ascent has brought near its answer, and its training subjects."""
    source = CohortSource(drawn.template, MemoryCohort(drawn.observed), torch.device("cpu"))
    family = Family(drawn.template, source.cards, scheme)
    settle_population(family, source, 8, warm_start(family, source, 8))
    return TrainedModel(family, {}, {}, {}), source
