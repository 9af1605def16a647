"""The retest link: what it does to probabilities, and known exponents found again."""

import numpy as np
import pytest

from parcellation.retest_link import RetestLink, fit_link


@pytest.fixture
def said() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of 30 subjects (30, 200, 3) and of the population (200, 3)."""
    g = np.random.default_rng(0)
    return g.dirichlet(np.full(3, 0.4), (30, 200)), g.dirichlet(np.ones(3), 200)


def drawn(probability: np.ndarray) -> np.ndarray:
    uniform = np.random.default_rng(1).random((*probability.shape[:-1], 1))
    return (uniform > probability.cumsum(-1)).sum(-1).clip(0, probability.shape[-1] - 1)


def test_no_link_changes_nothing_and_no_evidence_leaves_the_map(said):
    probability, group = said
    np.testing.assert_allclose(RetestLink().apply(probability, group), probability, atol=1e-4)
    np.testing.assert_allclose(RetestLink(0.0, 1.0).apply(probability, group)[3], group, rtol=1e-4)


@pytest.mark.parametrize(("own", "group_power"), [(0.5, 0.4), (1.0, 0.0), (0.0, 1.0)])
def test_known_exponents_are_found_again(said, own, group_power):
    again = drawn(RetestLink(own, group_power).apply(*said))
    link = fit_link(said[0], again, said[1])
    # 6000 labels: the errors of the exponents are about 0.02 and 0.03.
    assert link.own == pytest.approx(own, abs=0.06)
    assert link.map == pytest.approx(group_power, abs=0.1)
    assert link.checked


def test_an_overconfident_half_is_believed_less(said):
    probability, group = said
    sure = probability**4 / (probability**4).sum(-1, keepdims=True)
    assert fit_link(sure, drawn(probability), group).own < 0.4
