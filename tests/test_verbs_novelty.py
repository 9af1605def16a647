"""Who is unlike the training cohort is in the table, on the page and in what `infer` says; older models cannot tell."""

import json

import numpy as np
import pandas as pd
from safetensors.numpy import load_file, save_file

from parcellation.config import load_study
from parcellation.files import checksum
from parcellation.model_file import load_model
from parcellation.verbs.infer import Inference
from tests.studies import PATIENTS, RUN, change_run, command, replace


def table(folder):
    return pd.read_csv(folder / "participants.tsv", sep="\t", dtype=str).set_index("participant_id")


def cohort_of_noise(folder, names=("N1", "N2", "N3")):
    """Runs without any network, of the old runs' size."""
    generator = np.random.default_rng(0)
    for subject in names:
        for session in (1, 2):
            path = folder.path / "PATIENTS" / RUN.format(subject, session)
            change_run(path, lambda x: generator.normal(x.mean(), x.std(), x.shape).astype(x.dtype),
                       folder.run_file("sim04", session))  # fmt: skip
    return folder.write_study("noise.yaml", PATIENTS)


def without_reference(folder):
    """The model as it was saved before there was a reference."""
    arrays = {name: value for name, value in load_file(folder.model).items() if not name.startswith("novelty.")}
    folder.model.unlink()
    save_file(arrays, folder.model)
    path = folder.path / "work/model/model.json"
    header = json.loads(path.read_text(encoding="utf-8")) | {"numbers": checksum(folder.model)}
    replace(path, json.dumps(header).encode())


def test_a_model_holds_its_training_subjects_scores(finished):
    reference = load_model(finished.path / "work/model").novelty
    assert reference.scores.shape == (3, 2, 2)
    assert np.isfinite(reference.scores).all()
    assert reference.population.profiles.shape[0] == 2


def test_every_subject_has_its_numbers(finished):
    rows = table(finished.results)
    assert rows.log_density.notna().all()
    p = rows.novelty_p.astype(float)
    # Three training subjects are compared with two others, the new ones with three.
    assert set(np.rint(12 * p).astype(int)) <= {3, 4, 6, 8, 9, 12}
    assert (p.loc[["sub-sim04", "sub-sim05"]] >= 0.25).all()
    page = (finished.results / "report.html").read_text(encoding="utf-8")
    assert "cannot be below 0.250: too few to flag anybody" in page
    assert "like training (p)" in page


def test_noise_is_flagged_and_the_cohort_warned_of(study, monkeypatch):
    monkeypatch.setattr("parcellation.novelty.MOST_FLAGGED", 1.0)  # three training subjects: one in four
    monkeypatch.setattr("parcellation.novelty.SHIFT_LEVEL", 0.15)  # three beside three: .1 at least
    noise = cohort_of_noise(study)
    for verb in ("index", "prepare"):
        command(verb, noise)
    said = command("infer", noise)
    assert "Unlike the training cohort: " in said
    assert "As a cohort these subjects differ from the training cohort" in said
    rows = table(study.path / "results-patients")
    assert (rows.novelty_p == "0.25").all()
    assert rows.loc["sub-N1", "flags"] == "unlike the training cohort (p = 0.250)"
    run = Inference.of(load_study(noise))  # what the report asks
    warned = run.novelty.warnings([(answer.subject, answer.sessions) for answer in run.known()])
    assert [line[:20] for line in warned] == ["Unlike the training ", "As a cohort these su"]


def test_an_older_model_cannot_tell_and_says_so(study):
    without_reference(study)
    command("infer", study.study, "--participant-label", "sim04")
    assert table(study.results).novelty_p.isna().all()
    novelty = Inference.of(load_study(study.study)).novelty
    assert "not available" in novelty.notes([("sim04", ("1", "2"))])[0]
    assert novelty.warnings([("sim04", ("1", "2"))]) == []


def test_scores_are_kept_and_found_again(study):
    (path, *_) = sorted((study.path / "work/novelty").glob("*.safetensors"))
    before = path.stat().st_mtime_ns
    command("infer", study.study)
    assert path.stat().st_mtime_ns == before
    path.unlink()
    rows = table(study.results)
    command("infer", study.study)
    assert path.exists()
    assert table(study.results).equals(rows)
