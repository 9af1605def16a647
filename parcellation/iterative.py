"""Iterative amortized inference: a small network emits the update of an estimate from the estimate and its gradient.

After Marino et al. (2018). The gradient comes as a natural step would use it (`natural_step.Slope`), so that its units
are those of the posterior: how far a mean is to move in posterior sd's, and by which share a precision is too large.
With it the network sees where the estimate stands: its distance from the prior's mean, and how much the data tell.
Two networks a site, one for means and one for precisions, are shared by all variables, all steps and all members.

They are trained by the same loop as a family (`training.fit`), on a family that is trained already and stays as it is;
the gradient that a network is given counts as a constant.
"""

import copy
from collections.abc import Mapping

import torch
from torch import nn
from zuko.nn import MLP

from parcellation.elbo import TrainingLoss, objective
from parcellation.encoding import Encoding
from parcellation.family import Draw, Family
from parcellation.flows import small
from parcellation.natural_step import LONGEST, STEEPEST, Slope, meaned, moved, refinable, slopes
from parcellation.plates import Batch, Noise, Values
from parcellation.semi_amortized import check_refinable, own_estimates

POPULATION_DRAWS = 8  # of a training step
START = 0.5  # of a natural step: what an untrained network emits


class Update(nn.Module):
    """The update of one site's encodings."""

    def __init__(self, hidden: int = 16):
        super().__init__()
        self.mean = small(MLP(4, 2, [hidden], activation=nn.SiLU))
        self.precision = small(MLP(3, 1, [hidden], activation=nn.SiLU))

    def forward(self, encoding: Encoding, slope: Slope, step: int) -> Encoding:
        """The next encoding. Means: a factor of the way that the gradient points, and a move besides."""
        told = encoding.log_precision
        common, own = slope.length.mean(0), slope.length - slope.length.mean(0)
        sd = slope.prior_sd * (1 - slope.weight).clamp_min(1e-6).sqrt()
        away = (slope.weight * (encoding.estimate - slope.prior_mean) / sd).mean(0)
        ratio = (slope.weight / (1 - slope.weight).clamp_min(1e-6)).log().mean(0)
        seen = [common.asinh(), away.asinh(), ratio / 5, torch.full_like(common, step / 5)]
        factor, further = self.mean(torch.stack(seen, -1)).unbind(-1)
        shared = (START + factor) * common + further
        precision = [slope.excess, meaned(ratio, told.shape) / 5, torch.full_like(told, step / 5)]
        excess = START * slope.excess + self.precision(torch.stack(precision, -1))[..., 0]
        return moved(
            encoding,
            slope,
            shared.clamp(-LONGEST, LONGEST),
            ((START + factor) * own).clamp(-LONGEST, LONGEST),
            excess.clamp(1 - STEEPEST, 1 - 1 / STEEPEST),
        )


class Iterative(nn.Module):
    """An approximation to train by `iterative_loss`: the updates' weights are its parameters, the family's are not.

    steps: that are taken in training; more or fewer can be taken afterwards.
    """

    def __init__(self, family: Family, steps: int = 5):
        super().__init__()
        check_refinable(family)
        # A copy that needs no gradient, and no part of this one, so that its weights are not trained.
        self.family_ = (copy.deepcopy(family).requires_grad_(False),)
        self.template, self.cards, self.steps = family.template, family.cards, steps
        self.settings = dict(family.settings) | {"iterative_steps": steps}
        self.free = nn.ModuleDict()
        self.updates = nn.ModuleDict({name: Update() for name in refinable(family)})

    @property
    def family(self) -> Family:
        """The family whose answers are improved."""
        return self.family_[0]

    def rule(self, name: str, step: int, encoding: Encoding, slope: Slope) -> Encoding:
        """For `semi_amortized.refine`, in the place of a natural step."""
        return self.updates[name](encoding, slope, step)

    def encodings(self, batch: Batch) -> Mapping[str, Encoding]:
        """The family's own, where the steps begin."""
        return self.family.encodings(batch)

    def draw(
        self,
        batch: Batch,
        noise: Noise,
        encodings: Mapping[str, Encoding] | None = None,
        given: Values | None = None,
        path: bool = True,
        draws: tuple[int, ...] = (),
    ) -> Draw:
        """As the family draws."""
        return self.family.draw(batch, noise, encodings, given, path, draws)


def iterative_loss(approximation: Iterative, batch: Batch, noise: Noise) -> TrainingLoss:
    """Minus the members' bound after the steps, averaged over population draws that are frozen, in nats.

    Each draw has estimates of its own, as they have at test time.
    """
    family, draws = approximation.family, POPULATION_DRAWS
    population = family.draw_population(batch.seen, noise, draws)
    encodings = {name: one.detach() for name, one in family.encodings(batch).items() if name not in population}
    encodings |= {name: own_estimates(encodings[name], draws) for name in approximation.updates}
    for step in range(approximation.steps):
        slope = slopes(family, batch, encodings, noise, draws, population)
        encodings |= {name: approximation.rule(name, step, encodings[name], one) for name, one in slope.items()}
    draw = family.draw(batch, noise, encodings, population, draws=(draws,))
    return TrainingLoss(-objective(family, batch, draw) / draws)
