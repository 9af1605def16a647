"""What the objective and training ask: the family has it all, and so has every rival (`test_rival`)."""

from parcellation.approximation import Approximation
from parcellation.family import Family
from tests.conftest import full


def test_the_family_is_an_approximation(effects):
    template, observed = effects
    for scheme in ("free", "encoded", "hybrid"):
        assert isinstance(Family(template, full(template, observed).cards, scheme), Approximation)


def test_what_cannot_be_drawn_from_is_none(effects):
    assert not isinstance(effects[0], Approximation)
