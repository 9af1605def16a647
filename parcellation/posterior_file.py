"""A subject's answer as a file, with the key of what it was made of."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from parcellation.files import whole_file
from parcellation.posterior import SubjectPosterior

PROFILES = tuple(f"{what}_{part}" for what in ("profile", "contrast") for part in ("mean", "low", "high"))
ARRAYS = ("probability", "entropy", "mutual_information", "mask", *PROFILES, "label_draws")


def write_posterior(path: Path, answer: SubjectPosterior, key: str) -> None:
    """Keep a subject's answer, whole."""
    arrays = {name: np.ascontiguousarray(getattr(answer, name)) for name in ARRAYS}
    rest = {f.name: getattr(answer, f.name) for f in fields(answer) if f.name not in ARRAYS}
    with whole_file(path) as temporary:
        # One entry only: safetensors writes several in any order, and equal answers are to be equal files.
        save_file(arrays, temporary, metadata={"answer": json.dumps(rest | {"key": key}, sort_keys=True)})


def read_posterior(path: Path) -> tuple[SubjectPosterior, str] | None:
    """A subject's kept answer and the key it was kept with; None when there is none or it is damaged."""
    try:
        with safe_open(path, "np") as file:
            arrays = {name: file.get_tensor(name) for name in ARRAYS}
            rest = json.loads((file.metadata() or {})["answer"])
            answer = SubjectPosterior(rest["subject"], tuple(rest["sessions"]), tuple(rest["frames"]), **arrays)
            return answer, rest["key"]
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None
