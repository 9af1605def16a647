"""A subject's answer as a file, with the key of what it was made of."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np

from parcellation.errors import BadData, InputMissing
from parcellation.posterior import SubjectPosterior
from parcellation.tensor_file import keep_arrays, kept_arrays

PROFILES = tuple(f"{what}_{part}" for what in ("profile", "contrast") for part in ("mean", "low", "high"))
ARRAYS = ("probability", "entropy", "mutual_information", "mask", *PROFILES, "label_draws")


def write_posterior(path: Path, answer: SubjectPosterior, key: str) -> None:
    """Keep a subject's answer, whole."""
    arrays = {name: np.asarray(getattr(answer, name)) for name in ARRAYS}
    rest = {f.name: getattr(answer, f.name) for f in fields(answer) if f.name not in ARRAYS}
    keep_arrays(path, arrays, "answer", json.dumps(rest | {"key": key}, sort_keys=True))


def read_posterior(path: Path) -> tuple[SubjectPosterior, str] | None:
    """A subject's kept answer and the key it was kept with; None when there is none or it is damaged."""
    try:
        arrays, text = kept_arrays(path, "answer") or ({}, "{}")
        rest = json.loads(text)
        arrays = {name: arrays[name] for name in ARRAYS}
        answer = SubjectPosterior(rest["subject"], tuple(rest["sessions"]), tuple(rest["frames"]), **arrays)
        return answer, rest["key"]
    except (BadData, InputMissing, KeyError, ValueError, TypeError):
        return None
