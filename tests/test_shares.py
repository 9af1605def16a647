import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parcellation.shares import log_shares, log_total, shares

FORMS = {shares: torch.softmax, log_shares: torch.log_softmax, log_total: torch.logsumexp}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.booleans(), st.integers(0, 9))
def test_they_are_softmax_over_the_last_dimension_in_either_layout(shape, networks_first, seed):
    scores = 50 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    laid = scores.mT.contiguous().mT if networks_first else scores
    for ours, theirs in FORMS.items():
        torch.testing.assert_close(ours(laid), theirs(scores, -1))


@pytest.mark.parametrize("function", FORMS)
def test_gradients_are_those_of_the_plain_form(function):
    scores = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, scores)


def test_scores_that_lie_network_by_network_are_not_copied():
    scores = torch.randn(4, 3, 1000).mT
    assert scores.mT.contiguous().data_ptr() == scores.data_ptr()
    assert shares(scores).stride() == scores.stride()
