"""A part of a settings file refuses what it does not know, and does not change."""

import pytest
from pydantic import ValidationError

from parcellation.section import Section


class One(Section):
    rate: float = 1.0


@pytest.mark.parametrize("content", [{"rat": 2.0}, {"rate": float("nan")}, {"rate": float("inf")}, {"rate": "much"}])
def test_what_is_not_known_or_no_number_is_refused(content):
    with pytest.raises(ValidationError):
        One.model_validate(content)


def test_a_section_is_frozen():
    with pytest.raises(ValidationError):
        One().rate = 2.0
