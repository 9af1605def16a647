"""The retest link: how probable it is that another scan of the same person says the same.

p(label | data) is what the data say about a label. That another scan agrees is less probable, for it is noisy too: a
subject's probabilities p and the population's g at the vertex are combined to

    q_k proportional to p_k^own g_k^map

with two numbers that make q predict the labels of one half of a training subject's sessions from the other half best.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

SMALLEST = 1e-6


@dataclass(frozen=True)
class RetestLink:
    """Exponents of a subject's own probabilities and of the population's; checked: whether they were fitted on data."""

    own: float = 1.0
    map: float = 0.0
    checked: bool = False

    def apply(self, probability: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Probability that a retest has each label; probability (..., vertex, network), group (vertex, network)."""
        return _combined(np.array([self.own, self.map]), *_logs(probability, group))


UNLINKED = RetestLink()


def fit_link(probability: np.ndarray, again: np.ndarray, group: np.ndarray) -> RetestLink:
    """The link that predicts labels `again` (subject, vertex) from probability (subject, vertex, network) best.

    group: the population's map (vertex, network), or one for each subject (subject, vertex, network).

    Maximum likelihood: the multinomial logistic regression of the labels on log p and log g, which is convex.
    """
    logs = _logs(probability, group)
    chosen = again[..., None].astype(int)

    def loss(exponents: np.ndarray) -> tuple[float, np.ndarray]:
        q = _combined(exponents, *logs)
        at = np.take_along_axis(q, chosen, -1)[..., 0]
        slopes = [(np.take_along_axis(np.broadcast_to(one, q.shape), chosen, -1)[..., 0] - (q * one).sum(-1)).mean()
                  for one in logs]  # fmt: skip
        return float(-np.log(np.maximum(at, SMALLEST)).mean()), -np.array(slopes)

    own, group_power = minimize(loss, np.array([0.7, 0.3]), jac=True, method="L-BFGS-B", bounds=[(0, 4), (-1, 4)]).x
    return RetestLink(float(own), float(group_power), True)


def _logs(probability: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.log(np.maximum(probability, SMALLEST)), np.log(np.maximum(group, SMALLEST))


def _combined(exponents: np.ndarray, own: np.ndarray, group: np.ndarray) -> np.ndarray:
    scores = exponents[0] * own + exponents[1] * group
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
