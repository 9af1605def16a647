"""Softmax over networks, of which there are few and which stand last in every tensor.

PyTorch goes through a dimension of two by scalar code, 25 times slower than across a long one. Here networks are moved
before the vertices in memory, which most scores have already (`profiles @ x.mT`), and shapes stay what they are.
"""

from jaxtyping import Float
from torch import Tensor


def shares(scores: Float[Tensor, "*rest V K"]) -> Float[Tensor, "*rest V K"]:
    """Probabilities of the networks at every vertex: softmax over the last dimension."""
    return scores.mT.contiguous().softmax(-2).mT


def log_shares(scores: Float[Tensor, "*rest V K"]) -> Float[Tensor, "*rest V K"]:
    """Their logarithms."""
    return scores.mT.contiguous().log_softmax(-2).mT


def log_total(scores: Float[Tensor, "*rest V K"]) -> Float[Tensor, "*rest V"]:
    """Log of the sum of exponentials over the last dimension."""
    return scores.mT.contiguous().logsumexp(-2)
