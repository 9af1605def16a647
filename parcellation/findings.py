"""What is missing, doubled or odd about a cohort's subjects, sessions and runs, and the order they are named in."""

import re
from collections import defaultdict
from dataclasses import dataclass

import pandas as pd

PREFIXES = {"subject": "sub-", "session": "ses-", "run": "run-"}


@dataclass(frozen=True, order=True)
class Finding:
    """Something missing, doubled or odd about a subject, a session or a run; `kind` is the same for alike findings."""

    kind: str
    detail: str
    subject: str = ""
    session: str = ""
    run: str = ""

    def __str__(self) -> str:
        names = [prefix + getattr(self, name) for name, prefix in PREFIXES.items() if getattr(self, name)]
        return f"{' '.join(names) or 'data set'}: {self.detail}"


def natural(name: str) -> tuple:
    """Sort key by which 2 comes before 10 and names of equal numbers keep one order."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"([0-9]+)", name)), name


def summary(frame: pd.DataFrame, findings: list[Finding], examples: int = 3) -> str:
    """A few lines to print: how much there is, and for every kind of finding its number and first examples."""
    sessions = frame[["subject", "session"]].drop_duplicates()
    counts = ((frame["subject"].nunique(), "subject"), (len(sessions), "session"), (len(frame), "run"))
    lines = [", ".join(f"{n} {word}{'' if n == 1 else 's'}" for n, word in counts)]
    kinds: dict[str, list[Finding]] = defaultdict(list)
    for finding in sorted(findings):
        kinds[finding.kind].append(finding)
    for kind, alike in kinds.items():
        lines.append(f"{kind}: {len(alike)}")
        lines += [f"  {finding}" for finding in alike[:examples]]
        lines += [f"  and {len(alike) - examples} more"] if len(alike) > examples else []
    return "\n".join(lines)
