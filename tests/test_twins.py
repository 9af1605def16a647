"""The same data under several names is found by content."""

import numpy as np
import pytest

from parcellation.store import Store, write_unit
from parcellation.twins import twins


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "s")


def add(store, subject, session, **sources):
    write_unit(store, subject, session, np.ones((3, 4), np.float32), frames=100, sources=sources)


def test_different_data_are_none(store):
    add(store, "01", "1", a="x")
    add(store, "01", "2", a="y")
    assert twins(store) == []


def test_two_subjects_two_sessions_and_two_runs(store):
    add(store, "01", "1", LR="x", RL="y")
    add(store, "02", "1", LR="x", RL="y")
    add(store, "03", "1", LR="z")
    add(store, "03", "2", other="z")
    add(store, "04", "1", LR="w", RL="w")
    assert twins(store) == [
        "the same data more than once: subject 01, session 1 and subject 02, session 1 (LR, RL); "
        "one person under two names, or a copy?",
        "the same data more than once: subject 03, session 1 and subject 03, session 2 (LR, other); a copy?",
        "the same data more than once: subject 04, session 1 (LR, RL); a copy?",
    ]


def test_a_damaged_unit_is_passed_over(store):
    add(store, "01", "1", a="x")
    add(store, "02", "1", a="x")
    store.path("02", "1").write_bytes(b"none")
    assert twins(store) == []
