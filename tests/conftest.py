"""Shapes of the model side are checked by machine in every test, and the tiny data that several tests share."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook

# Before any of them is imported. The data side says its shapes in docstrings, and checks what it reads from files.
MODEL_SIDE = (
    "plates", "shares", "networks", "topography", "templates", "encoding", "label_pooling", "smooth_labels",
    "network_pooling", "encoders", "recognition", "flows", "joint_flow", "warped_flows", "free_encoding", "vector_sets",
    "family", "approximation", "baselines", "elbo", "importance", "pareto", "annealing", "natural_step", "refinement",
    "semi_amortized", "iterative", "amortization_gap", "training", "model_file", "posterior", "cohort_source",
    "summary_bank", "data_sets", "population", "distributed", "training_reference", "held_out_density", "refitted_map",
    "recorded_step",
    "posterior_file", "label_summary",
)  # fmt: skip
install_import_hook([f"parcellation.{room}" for room in MODEL_SIDE], "beartype.beartype")

from tests.messages import record  # noqa: E402

if "MESSAGES" in os.environ:
    record(Path(os.environ["MESSAGES"]))

from parcellation.plates import Batch, Observed, Template, gaussian_noise  # noqa: E402
from parcellation.templates.functional_parcellation import FunctionalParcellation  # noqa: E402
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects  # noqa: E402
from tests.studies import finished, fresh, patients, prepared, study, treated  # noqa: E402, F401


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(seed: int):
    """Standard normal noise in float64."""
    return gaussian_noise(generator(seed), "cpu", torch.float64)


def full(template: Template, observed: Observed) -> Batch:
    return Batch.full(template.plates, observed)


@dataclass(frozen=True)
class Drawn:
    """A cohort drawn from the functional parcellation template: data, values of every site, labels (S, V)."""

    template: FunctionalParcellation
    observed: Observed
    values: dict[str, torch.Tensor]
    labels: torch.Tensor

    @property
    def batch(self) -> Batch:
        return full(self.template, self.observed)

    def subject(self, s: int) -> Observed:
        return self.observed.select(0, torch.tensor([s]))


def draw_cohort(
    sizes: tuple[int, int, int],
    networks: int = 3,
    features: int = 5,
    seed: int = 0,
    masked: float = 0.0,
    planted: Mapping[str, float] | None = None,
) -> Drawn:
    """Subjects, sessions and vertices from the template, float64; `planted` holds values of scalar and scale sites.

    masked: share of the sessions that are missing; every subject keeps one.
    """
    g = generator(seed)
    reference = torch.randn(networks, features, generator=g, dtype=torch.float64)
    template = FunctionalParcellation(reference, frames_reference=400.0)
    mask = torch.rand(sizes[:2], generator=g) >= masked
    mask[:, 0] = True
    frames = 400.0 / 2 ** torch.randint(3, sizes[:2], generator=g).to(torch.float64)
    blank = Observed(
        torch.zeros(*sizes, features, dtype=torch.float64),
        mask[..., None].expand(sizes).contiguous(),
        {"frames": (frames * mask)[..., None]},
    )
    planted = {"log_kappa": -1.0, "log_epsilon": -1.2, "log_sigma": -1.6} | dict(planted or {})
    values: dict[str, torch.Tensor] = {}
    for site in template.sites:
        mean, sd = site.prior(values, blank)
        shape = template.shape(site, blank)
        random = mean + sd * torch.randn(shape, generator=g, dtype=torch.float64)
        values[site.name] = torch.full_like(random, planted[site.name]) if site.name in planted else random
    share = template.log_map(values)[0, 0].exp()
    labels = torch.multinomial(share, sizes[0], replacement=True, generator=g).T  # (S, V)
    profiles = values["mu_session"][:, :, 0]  # (S, T, K, D)
    at = labels[:, None, :, None].expand(sizes[0], sizes[1], sizes[2], features)
    x = profiles.gather(2, at)
    x = x + values["log_kappa_session"].exp()[..., None] * torch.randn(x.shape, generator=g, dtype=torch.float64)
    return Drawn(template, Observed(x * blank.mask[..., None], blank.mask, blank.covariates), values, labels)


@pytest.fixture(autouse=True)
def first_weights():
    """Layers draw their first weights from the global generator: the same in every run and order of the tests."""
    torch.manual_seed(0)


class MemoryCohort:
    """What training and posterior ask of a cohort, over tensors in memory."""

    def __init__(self, observed: Observed):
        self.x, self.mask = observed.x.numpy(), observed.mask.numpy()
        self.frames = observed.covariates["frames"][..., 0].numpy()
        self.subjects = [f"s{s}" for s in range(len(self.x))]
        self.vertices = np.arange(self.x.shape[2])

    def sessions(self, subject: str) -> list[str]:
        return [f"t{t}" for t in range(self.x.shape[1])]

    def read(self, index):
        return SimpleNamespace(x=self.x[index], mask=self.mask[index], frames=self.frames[index])


@pytest.fixture
def ragged() -> Drawn:
    """Five subjects, some sessions missing, a vertex that is missing in one session and one that is missing in all."""
    drawn = draw_cohort((5, 3, 8), masked=0.4, seed=3)
    mask = drawn.observed.mask.clone()
    mask[1, 0, 2] = False
    mask[2, :, 4] = False
    observed = Observed(drawn.observed.x * mask[..., None], mask, drawn.observed.covariates)
    return Drawn(drawn.template, observed, drawn.values, drawn.labels)


@pytest.fixture
def effects() -> tuple[GaussianRandomEffects, Observed]:
    """Gaussian random effects, three dimensions, four groups of two to five samples, float64."""
    template = GaussianRandomEffects(3, sd_population=1.3, sd_group=0.7, sd_sample=0.4)
    observed = template.simulate(4, 5, generator(0))
    mask = torch.arange(5) < torch.tensor([5, 2, 4, 3])[:, None]
    return template, Observed(observed.x * mask[..., None], mask)
