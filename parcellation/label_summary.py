"""What label probabilities of posterior draws say together: mean, entropies, and labels drawn from them."""

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor


class LabelSums:
    """What label probabilities of draws add up to: they come some draws at a time, and none has to be kept."""

    def __init__(self) -> None:
        self._count, self._sum, self._within = 0, 0.0, 0.0

    def add(self, draws: Float[Tensor, "_ V K"]) -> Float[Tensor, "_ V K"]:
        """Count these draws, and return them."""
        self._count += len(draws)
        self._sum = self._sum + draws.sum(0, dtype=torch.float64)
        self._within = self._within + _entropy(draws).sum(0, dtype=torch.float64)
        return draws

    def summary(self) -> tuple[Float[np.ndarray, "V K"], Float[np.ndarray, " V"], Float[np.ndarray, " V"]]:
        """Mean probability (V, K), its entropy, and the mutual information of label and draw, in bits (V,), float64.

        The entropy of the mean is the mean entropy of the draws (what is uncertain even given the networks) plus the
        mutual information (what more data on them would settle).
        """
        mean = self._sum / self._sum.sum(-1, keepdim=True)
        total = _entropy(mean)
        information = (total - self._within / self._count).clamp_min(0)
        return mean.cpu().numpy(), total.cpu().numpy(), information.cpu().numpy()


def split_entropy(subjects: Float[np.ndarray, "S V K"]) -> tuple[Float[np.ndarray, " V"], Float[np.ndarray, " V"]]:
    """What is uncertain within a subject, and what varies between subjects, in bits, float64, (V,) each.

    subjects: label probabilities. The first is the mean entropy of a subject's label; the second the mutual information
    of label and subject. They add up to the entropy of the mean over subjects, the label of somebody unknown.
    """
    sums = LabelSums()
    for one in torch.from_numpy(np.asarray(subjects)).split(1):  # of a whole cortex all of them are gigabytes
        sums.add(one)
    _, total, between = sums.summary()
    return total - between, between


def _entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(-1) / np.log(2)


def draw_labels(probability: Float[Tensor, "draws V K"], generator: torch.Generator) -> Integer[np.ndarray, "draws V"]:
    """One label a vertex and draw, in 0..K-1, from the label probabilities of that draw: uint8, or int16 beyond 256."""
    V, K = probability.shape[1:]
    drawn = np.empty((len(probability), V), np.uint8 if K <= 256 else np.int16)
    for row, one in zip(drawn, probability.cpu(), strict=True):
        share = torch.rand(V, 1, generator=generator, dtype=torch.float64)[:, 0]
        below, label = torch.zeros_like(share), torch.zeros(V, dtype=torch.int16)
        for k in range(K - 1):  # network by network, as probabilities lie in memory
            below += one[:, k]
            label += below < share
        row[:] = label.numpy()
    return drawn
