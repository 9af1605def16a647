"""Odd data the whole way: what is odd is masked, left out or warned of, and nothing else changes by a bit."""

import json
import shutil

import nibabel as nib
import numpy as np
import pytest
from safetensors.numpy import load_file

from parcellation.store import Store
from parcellation.tensor_file import CHECKSUM
from tests.studies import DEAD, RUN, change_run, command, region_columns, replace

FILLS = {
    "constant": lambda series: np.full_like(series, 7),
    "infinite": lambda series: np.where(np.arange(len(series))[:, None] == 50, np.inf, series),
    "one missing": lambda series: np.where(np.arange(len(series))[:, None] == 3, np.nan, series),
}


def spoiled(fill, folder):
    """A change of a run that spoils the region's vertices `DEAD`."""

    def change(series):
        columns = region_columns(folder)[list(DEAD)]
        series[:, columns] = fill(series[:, columns])
        return series

    return change


def add(folder, subject, change, source="sim03", sessions=(1, 2), tree="PATIENTS"):
    for session in sessions:
        change_run(folder.path / tree / RUN.format(subject, session), change, folder.run_file(source, session))


def test_however_a_vertex_is_dead_the_answer_is_that_of_a_masked_one(patients, treated):
    """ThomasYeoLab/CBIG#5, nipreps/fmriprep#2364: P03 has zeros and NaN where the same file now has other things."""
    masked = load_file(treated.posterior("P03", "work-patients"))
    whose = ("--participant-label", "P03")
    for fill in FILLS.values():
        add(patients, "P03", spoiled(fill, patients))
        for verb in ("prepare", "infer"):
            command(verb, patients.path / "patients.yaml", *whose)
        found = load_file(patients.posterior("P03", "work-patients"))
        assert found.keys() == masked.keys()
        for name in masked.keys() - {CHECKSUM}:  # which is of what the answer was made from, too
            np.testing.assert_array_equal(found[name], masked[name])
        units = [
            Store(next(one.path.glob("work-patients/fingerprints/*"))).read("P03", "1") for one in (patients, treated)
        ]
        np.testing.assert_array_equal(units[0].fingerprint, units[1].fingerprint)
        assert np.flatnonzero(~units[0].mask).tolist() == list(DEAD)


def test_odd_subjects_change_nobody_elses_answer(patients, treated):
    rng = np.random.default_rng(5)
    add(patients, "A1", lambda series: rng.normal(size=series.shape).astype(np.float32))
    add(patients, "A2", lambda series: series[:1], sessions=(1,))
    add(patients, "A3", lambda series: np.full_like(series, np.nan))
    add(patients, "A4", lambda series: series[:60], sessions=(2,))
    shutil.rmtree(patients.path / "work-patients/posterior")
    shutil.rmtree(patients.path / "results-patients")
    said = [command(verb, patients.path / "patients.yaml") for verb in ("index", "prepare", "infer")][1]
    for subject, reason in (("A2", "expected at least 20 frames to keep, got 1 of 1"), ("A3", "expected signal in")):
        assert f"subject {subject}, session 1, run LR: " in said
        assert reason in said
    for subject in ("P01", "P02", "P03"):
        there = treated.posterior(subject, "work-patients").read_bytes()
        assert patients.posterior(subject, "work-patients").read_bytes() == there
    # Noise is data like any other: an answer, finite, and less certain than that of a person.
    noise, person, short = (load_file(patients.posterior(one, "work-patients")) for one in ("A1", "P01", "A4"))
    assert all(np.isfinite(values).all() for values in noise.values())
    assert noise["entropy"].mean() > person["entropy"].mean()
    assert short["entropy"].shape == person["entropy"].shape


def test_one_person_under_two_names_is_warned_of(fresh):
    source = fresh.run_file("sim02", 1)
    replace(fresh.run_file("sim09", 1), source.read_bytes())
    said = command("prepare", fresh.study, "--participant-label", "sim02", "sim09")
    assert "warning: the same data more than once: subject sim02, session 1 and subject sim09, session 1" in said
    assert "warning" not in command("prepare", fresh.study, "--participant-label", "sim02", "--level", "participant")
    # What was prepared under a name that nobody has any more is nobody's twin.
    shutil.rmtree(fresh.path / "HCP/sim09")
    assert "warning" not in command("prepare", fresh.study, "--participant-label", "sim02")


@pytest.mark.slow
def test_runs_and_subjects_that_are_excluded_leave_the_model_as_it_is(fresh, tmp_path):
    """Of all subjects that there are, none named: an excluded one comes first, and one has an excluded run more."""
    models = []
    for more in (False, True):
        if more:
            shutil.rmtree(fresh.path / "work")
            add(fresh, "aaa", lambda series: series[:5], "sim01", (1, 2), "HCP")
            add(fresh, "aab", lambda series: np.zeros_like(series), "sim01", (1,), "HCP")
            extra = fresh.run_file("sim02", 1)
            extra = extra.parents[1] / extra.parent.name.replace("LR", "RL") / extra.name.replace("LR", "RL")
            replace(extra, fresh.run_file("sim02", 1).read_bytes()[:-1000])
        study = fresh.write_study(training={"subjects": None, "steps": 3})
        said = [command(verb, study) for verb in ("prepare", "train")]
        assert ("4 runs left out" in said[0]) == more
        header = json.loads((fresh.model.parent / "model.json").read_text(encoding="utf-8"))
        # The key says of which files it was made, and what was left out of them.
        assert header["details"].pop("key")
        models.append((fresh.model.read_bytes(), header))
    assert models[0] == models[1]


def test_a_region_without_vertices_says_so(fresh):
    """BayesfMRI#25: one hemisphere only; where the region is in it all is well, else the run is left out."""
    said = command("prepare", fresh.write_study(region={"labels": ["bankssts"]}), code=66)
    assert "bankssts" in said
    path = fresh.run_file("sim01")
    change_run(path, lambda series: series)
    right_only(path)
    said = command("prepare", fresh.write_study(), "--participant-label", "sim01")
    assert "none of the region's" in said
    assert "which are of the right hemisphere" in said
    assert "1 of 2 sessions prepared" in said


def right_only(path):
    image = nib.load(path)
    series, (time, models) = np.asarray(image.dataobj), (image.header.get_axis(one) for one in (0, 1))
    right = models.name == "CIFTI_STRUCTURE_CORTEX_RIGHT"
    new = nib.Cifti2Image(series[:, right], header=(time, models[right]))
    new.nifti_header.set_intent("ConnDenseSeries")
    path.unlink()
    nib.save(new, path)
