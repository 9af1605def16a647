"""What the benchmark of scale says of its figures."""

import pytest

from pipelines.benchmarks.scale import SIZES, conclusions, predicted


def figures(name: str, **values: float) -> dict[str, float]:
    return {f"{name}.{key}": value for key, value in values.items()}


def test_only_stages_that_read_the_whole_cohort_grow_with_it():
    known = figures(
        "cortex17_100", train_cpu_s=100.0, features_s=3.0, start_s=20.0, anchor_s=7.0, steps_s=80.0, peak_mib=900.0
    )
    more = 1000 / SIZES["cortex17_100"].subjects - 1
    assert predicted(known, "cortex17_100", 1000) == (100 + more * 10, 900)
    assert predicted(known, "cortex17_100", 100) == (100, 900)


def test_it_says_how_flat_steps_are_and_what_a_thousand_would_take():
    known = figures("broca50", step_ms=20.0) | figures("broca1000", step_ms=23.0)
    known |= figures("cortex7_100", step_ms=900.0, train_cpu_s=100.0, features_s=10.0, peak_mib=1400.0)
    flat, prediction = conclusions(known)
    assert "15% above" in flat
    assert prediction == "cortex7 with 1000 subjects, predicted: training 190 CPU s, 1400 MiB"


@pytest.mark.parametrize("known", [{}, figures("broca50", step_ms=20.0), figures("hard200", nll=0.13)])
def test_nothing_follows_from_sizes_that_are_not_there(known):
    assert conclusions(known) == []
