import json

import numpy as np
import pytest

from parcellation import truth
from parcellation.errors import InputMissing, UsageError
from parcellation.simulation import SimulationConfig


def test_digest_depends_on_settings_and_arrays_and_not_on_paths(tmp_path):
    array = np.arange(3.0)
    first = truth.digest(SimulationConfig(), array)
    assert truth.digest(SimulationConfig(weights=tmp_path / "w.npy"), array) == first
    assert truth.digest(SimulationConfig(seed=1), array) != first
    assert truth.digest(SimulationConfig(), array + 1) != first


def test_a_folder_belongs_to_one_cohort(tmp_path):
    truth.claim(tmp_path, SimulationConfig(), "a", {"source": "made up"})
    settings = json.loads((tmp_path / "truth/settings.json").read_text())
    assert settings["settings"]["subjects"] == 24
    assert settings["source"] == "made up"
    truth.claim(tmp_path, SimulationConfig(), "a", {})
    with pytest.raises(UsageError, match="name another folder"):
        truth.claim(tmp_path, SimulationConfig(), "b", {})


def test_reading_what_is_not_there(tmp_path):
    with pytest.raises(InputMissing, match="no such truth"):
        truth.read_subject(tmp_path, "sim01")


def test_equal_arrays_give_equal_files(tmp_path):
    for name in ("a.npz", "b.npz"):
        truth.write_arrays(tmp_path / name, x=np.arange(4), y=np.eye(2))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
