"""What is found odd: its text, its order, and a few lines of many."""

import pandas as pd

from parcellation.findings import Finding, natural, summary


def test_the_summary_counts_and_gives_examples():
    keys = [(s, t) for s in ("001", "002", "10") for t in ("1", "pre") if (s, t) != ("10", "pre")]
    cohort = pd.DataFrame(keys, columns=["subject", "session"])
    findings = [Finding("missing run", "not there", f"{i:03d}", "1", "LR") for i in range(5)]
    assert summary(cohort, findings).splitlines() == [
        "3 subjects, 5 sessions, 5 runs",
        "missing run: 5",
        "  sub-000 ses-1 run-LR: not there",
        "  sub-001 ses-1 run-LR: not there",
        "  sub-002 ses-1 run-LR: not there",
        "  and 2 more",
    ]
    assert summary(cohort[:1], []) == "1 subject, 1 session, 1 run"


def test_natural_order():
    assert sorted(["10", "2", "02", "b", "a10", "a9", "1e5"], key=natural) == ["1e5", "02", "2", "10", "a9", "a10", "b"]
