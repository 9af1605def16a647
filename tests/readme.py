"""What README.md tells a user to write and to type, taken from its fenced blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str, page: str = "README.md") -> list[str]:
    """The texts of a page's fenced blocks of one kind (`yaml`; empty for commands), in order."""
    return [text for found, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if found == kind]


def study_yaml() -> str:
    """`study.yaml` of the study on HCP data."""
    return blocks("yaml")[0]


def study_commands() -> list[str]:
    """The commands of that study, a line each: `parcellation index study.yaml`, ..."""
    return _commands("study.yaml")


def cohort_yaml() -> str:
    """`patients.yaml` of the new cohort, which names the trained model."""
    return blocks("yaml")[1]


def cohort_commands() -> list[str]:
    """The commands of the new cohort."""
    return _commands("patients.yaml")


def _commands(study: str) -> list[str]:
    """The lines of the one block whose every line is a command on this study."""
    (found,) = [
        lines
        for lines in map(str.splitlines, blocks(""))
        if all(line.startswith("parcellation ") and line.endswith(f" {study}") for line in lines)
    ]
    return found
