"""`infer`: an answer depends on a subject's own data and the model, on nothing and nobody else."""

import json
import shutil

import nibabel as nib
import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from tests.studies import DEAD, SUBJECTS, command, contents, damage, replace, snapshot
from tests.workbench import validate_bids


def arrays(path):
    return load_file(path)


def same(one, other):
    one, other = arrays(one), arrays(other)
    return one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)


def participants(folder):
    return pd.read_csv(folder.results / "participants.tsv", sep="\t", dtype=str).set_index("participant_id")


def test_before_training_is_66(prepared):
    assert "parcellation train" in command("infer", prepared.study, code=66)
    assert not prepared.results.exists()


def test_a_subject_alone_has_the_same_answer_to_the_byte(study, finished):
    shutil.rmtree(study.path / "work/posterior")
    shutil.rmtree(study.results)
    assert "1 subjects inferred" in command("infer", study.study, "--participant-label", "sim04")
    assert study.posterior("sim04").read_bytes() == finished.posterior("sim04").read_bytes()
    own, all_ = contents(study.results / "sub-sim04"), contents(finished.results / "sub-sim04")
    assert own == all_
    assert list(participants(study).index) == ["sub-sim04"]
    assert not study.posterior("sim01").exists()


def test_one_answer_that_is_gone_or_damaged_is_made_again_and_no_other(study):
    command("infer", study.study)
    before = snapshot(study.path / "work", study.results)
    study.posterior("sim02").unlink()
    damage(study.posterior("sim03"))
    replace(study.posterior("sim03"), study.posterior("sim03").read_bytes()[:300])
    assert "5 subjects inferred, 3 of them before" in command("infer", study.study)
    after = snapshot(study.path / "work", study.results)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {str(study.posterior(one)) for one in ("sim02", "sim03")}
    assert {path: digest for path, (_, digest) in after.items()} == {p: digest for p, (_, digest) in before.items()}


def test_more_draws_are_new_answers(study):
    assert "of them before" not in command("infer", study.write_study(outputs={"draws": 8}))


@pytest.mark.parametrize("spoil", [damage, lambda path: replace(path, path.read_bytes()[:800])])
def test_a_damaged_unit_leaves_its_subject_out_with_its_name(study, spoil):
    shutil.rmtree(study.path / "work/posterior")
    shutil.rmtree(study.results)
    spoil(study.unit("sim04", 2))
    said = command("infer", study.study)
    assert "4 subjects inferred" in said
    assert study.unit("sim04", 2).name in said
    assert not (study.results / "sub-sim04").exists()
    assert "sub-sim04" not in participants(study).index
    assert study.unit("sim04", 2).name in command("infer", study.study, "--strict", code=65)
    assert study.unit("sim04", 2).name in (study.path / "work/excluded/sub-sim04.txt").read_text(encoding="utf-8")
    if spoil is damage:  # found only when its arrays are read
        command("report", study.study)
        assert study.unit("sim04", 2).name in (study.results / "report.html").read_text(encoding="utf-8")


def test_only_damaged_units_is_65(study):
    shutil.rmtree(study.path / "work/posterior")
    for path in study.path.glob("work/fingerprints/*/sub-*.safetensors"):
        replace(path, path.read_bytes()[:800])
    assert study.unit("sim01").name in command("infer", study.study, code=65)


def test_a_damaged_model_is_65_and_named(study):
    before = snapshot(study.results)
    damage(study.model)
    for verb in ("infer", "report"):
        assert "model.safetensors" in command(verb, study.study, code=65)
    replace(study.path / "work/model/model.json", b"{")
    assert "work/model" in command("infer", study.study, code=65)
    assert snapshot(study.results) == before


def test_answers_of_an_earlier_model_are_not_mixed_in(study):
    """Three networks after two; only one subject is inferred anew."""
    command("train", study.write_study(model={"networks": 3}))
    shutil.rmtree(study.results)
    command("infer", study.study, "--participant-label", "sim01")
    assert list(participants(study).index) == ["sub-sim01"]
    assert len(list(study.results.glob("sub-*"))) == 1


def test_one_session_is_less_certain_and_flagged(study):
    whole = arrays(study.posterior("sim04"))["entropy"].mean()
    said = command("infer", study.study, "--participant-label", "sim04", "--session-label", "ses-2")
    assert "1 subjects inferred" in said
    assert arrays(study.posterior("sim04"))["entropy"].mean() >= whole
    assert participants(study).loc["sub-sim04", "sessions"] == "1"
    assert participants(study).loc["sub-sim04", "flags"] == "fewer sessions than others"
    command("infer", study.study, "--participant-label", "sim05", "--session-label", "2", code=18)
    assert "5 subjects inferred, 4 of them before" in command("infer", study.study)
    assert arrays(study.posterior("sim04"))["entropy"].mean() == whole


def test_names_of_the_networks(study):
    study.write_study(model={"names": ["Broca-anterior", "Broca-posterior"]})
    command("train", study.study)
    command("infer", study.study)
    table = nib.load(next(study.results.glob("sub-sim01/anat/*.dlabel.nii"))).header.get_axis(0).label[0]
    assert [name for name, _ in table.values()] == ["???", "Broca-anterior", "Broca-posterior"]


# --- refined ---


def sidecars(folder, subject):
    paths = folder.results.glob(f"{subject}/anat/*_dseg.json")
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def test_no_steps_are_the_ordinary_answers_to_the_byte(study):
    assert "5 subjects inferred, 5 of them before" in command("infer", study.study, "--refine", "0")
    before = {one: study.posterior(one).read_bytes() for one in SUBJECTS}, contents(study.results)
    shutil.rmtree(study.path / "work/posterior")
    command("infer", study.study, "--refine", "0")
    assert ({one: study.posterior(one).read_bytes() for one in SUBJECTS}, contents(study.results)) == before


def test_refined_answers_are_others_kept_by_their_steps_and_said_everywhere(study, finished):
    said = command("infer", study.study, "-v", "--refine", "2", "--participant-label", "sim04")
    assert "refined by 2 steps" in said
    assert "subject sim04: refining by 2 steps" in said
    alone = study.posterior("sim04").read_bytes()
    assert alone != finished.posterior("sim04").read_bytes()
    assert list(participants(study).index) == ["sub-sim04"]  # the others' are not mixed in
    assert {facts["RefinementSteps"] for facts in sidecars(study, "sub-sim04")} == {2}
    description = json.loads((study.results / "dataset_description.json").read_text(encoding="utf-8"))
    assert description["GeneratedBy"][0]["RefinementSteps"] == 2
    assert "2 natural-gradient steps" in (study.results / "CITATION.md").read_text(encoding="utf-8")
    command("report", study.study)
    assert "refined by 2 steps" in (study.results / "report.html").read_text(encoding="utf-8")
    said = command("infer", study.study, "--refine", "2")
    assert "5 subjects inferred, 1 of them before" in said
    assert study.posterior("sim04").read_bytes() == alone
    assert "of them before" not in command("infer", study.study, "--refine", "3")
    command("infer", study.study)
    assert study.posterior("sim04").read_bytes() == finished.posterior("sim04").read_bytes()
    assert not any("RefinementSteps" in facts for facts in sidecars(study, "sub-sim04"))


@pytest.mark.parametrize("steps", ["-1", "many", "1.5", "10001"])
def test_steps_that_are_no_number_are_64(finished, steps):
    before = snapshot(finished.results)
    assert "from 0 to 10000" in command("infer", finished.study, f"--refine={steps}", code=64)
    assert snapshot(finished.results) == before


def test_a_model_that_is_trained_through_steps_is_refined_by_as_many(study):
    command("train", study.write_study(training={"inner_steps": 1, "steps": 2}))
    assert "refined by 1 step each" in command("infer", study.study, "--participant-label", "sim04")
    with_steps = study.posterior("sim04").read_bytes()
    command("infer", study.study, "--participant-label", "sim04", "--refine", "0")
    assert study.posterior("sim04").read_bytes() != with_steps


def test_flows_without_known_steps_are_64_with_the_way_out(study):
    flows = {"mu_subject": "affine", "mu_session": "affine", "log_kappa_session": "affine"}
    command("train", study.write_study(model={"flows": flows}, training={"steps": 2}))
    assert "--refine 0" in command("infer", study.study, "--refine", "1", code=64)


# --- a new cohort, without retraining ---


def test_a_new_cohort_needs_no_training(treated, finished):
    assert "3 subjects inferred" in treated.said["infer"]
    assert not (treated.path / "work-patients/model").exists()
    assert treated.model.read_bytes() == finished.model.read_bytes()
    table = pd.read_csv(treated.path / "results-patients/participants.tsv", sep="\t", dtype=str)
    assert dict(zip(table.participant_id, table.sessions, strict=True)) == {
        "sub-P01": "2",
        "sub-P02": "1",
        "sub-P03": "2",
    }
    assert dict(zip(table.participant_id, table.masked_vertices, strict=True))["sub-P03"] == str(len(DEAD))


def test_the_same_files_on_the_same_axis(treated, finished):
    files = {path.replace("P01", "sim04") for path in contents(treated.path / "results-patients/sub-P01")}
    assert files == {path for path in contents(finished.results / "sub-sim04")}
    paths = [*treated.path.glob("results-patients/*/anat/*.dlabel.nii"), *finished.results.rglob("*.dlabel.nii")]
    axes = [nib.load(path).header.get_axis(1) for path in paths]
    assert len(axes) == 3 + len(SUBJECTS) + 1
    assert all(axis == axes[0] for axis in axes)


def test_one_session_less_is_no_more_certain(treated):
    entropy = {one: arrays(treated.posterior(one, "work-patients"))["entropy"].mean() for one in ("P01", "P02")}
    assert entropy["P02"] >= entropy["P01"]


def test_vertices_without_data_have_the_populations_answer(treated):
    found = arrays(treated.posterior("P03", "work-patients"))
    np.testing.assert_array_equal(np.flatnonzero(~found["mask"]), DEAD)
    assert all(np.isfinite(values).all() for values in found.values())
    (path,) = treated.path.glob("results-patients/tpl-*/*_probseg.dscalar.nii")
    (labels,) = treated.path.glob("results-patients/tpl-*/*_dseg.dlabel.nii")
    region = np.asarray(nib.load(labels).dataobj)[0] > 0
    population = np.asarray(nib.load(path).dataobj)[:, region].T
    np.testing.assert_allclose(found["probability"][list(DEAD)], population[list(DEAD)], atol=1e-6)
    assert np.abs(found["probability"] - population)[found["mask"]].max() > 1e-4


def test_every_file_of_the_new_cohort_is_finite(treated):
    for path in treated.path.glob("results-patients/**/*.nii"):
        assert np.isfinite(np.asarray(nib.load(path).dataobj)).all()


# --- in parts, as a cluster's jobs do ---


def test_parts_in_any_order_and_then_the_group_are_the_whole(study, finished):
    shutil.rmtree(study.path / "work/posterior")
    shutil.rmtree(study.path / "work/novelty")
    shutil.rmtree(study.results)
    for part in (SUBJECTS[3:], SUBJECTS[:3]):
        said = command("infer", study.study, "--level", "participant", "--participant-label", *part)
        assert f"{len(part)} subjects inferred" in said
        # What all share is nobody's to write meanwhile.
        assert not list(study.results.glob("tpl-*"))
        assert not (study.results / "participants.tsv").exists()
    before = snapshot(study.path / "work/posterior")
    left = study.results / "tpl-fsaverage/.part-1-killed.tsv"
    replace(left, b"by a process that was killed")
    command("infer", study.study, "--level", "group")
    left.unlink()
    assert snapshot(study.path / "work/posterior") == before
    got, expected = contents(study.results), contents(finished.results)
    listed = (study.path / "work/deliverables.txt").read_text(encoding="utf-8").split()
    assert set(listed) == set(got) == set(expected) - {"report.html"}
    # It has the paths of this copy.
    assert {name for name in got if got[name] != expected[name]} == {"logs/study.json"}


def test_a_part_with_nobody_to_infer_is_no_failure(study):
    for path in study.path.glob("work/fingerprints/*/sub-sim05_*"):
        path.unlink()
    assert "0 subjects inferred" in command(
        "infer", study.study, "--level", "participant", "--participant-label", "sim05"
    )
    damage(study.unit("sim04"))
    study.posterior("sim04").unlink()
    said = command("infer", study.study, "--level", "participant", "--participant-label", "sim04", "sim05")
    assert study.unit("sim04").name in said
    said = command("infer", study.study, "--level", "group")
    assert "3 subjects inferred" in said
    assert study.unit("sim04").name in said
    assert list(participants(study).index) == ["sub-sim01", "sub-sim02", "sub-sim03"]
    command("infer", study.study, "--level", "group", "--strict", code=65)


def test_a_group_of_nobody_is_65(study):
    shutil.rmtree(study.path / "work/posterior")
    assert "sim01: not inferred yet" in command("infer", study.study, "--level", "group", code=65)


def test_a_chosen_contrast_is_made_of_everybody_and_of_every_answer_anew(study):
    first, second = pd.read_csv(next(study.results.glob("tpl-*/*_dseg.tsv")), sep="\t").name
    study.write_study(outputs={"contrasts": [[second, first]], "profile_maps": True})
    assert "5 subjects inferred: " in command("infer", study.study)
    paths = [path for place in ("sub-*/func", "tpl-*") for path in study.results.glob(f"{place}/*_stat-contrast_*.tsv")]
    assert len(paths) == 6
    for path in paths:
        table = pd.read_csv(path, sep="\t").set_index("network")
        here, back = table.loc[f"{first} minus {second}"], table.loc[f"{second} minus {first}"]
        np.testing.assert_allclose(here["mean"], -back["mean"], rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(here["low"], -back["high"], rtol=1e-4, atol=1e-7)
    assert len([*study.results.glob("sub-*/func/*_stat-profile_boldmap.dscalar.nii")]) == 5
    validate_bids(study.results)
    assert "5 of them before" in command("infer", study.study)
    study.write_study(outputs={"contrasts": [[second, "Wernicke"]]})
    assert f"expected names among {first}, {second}" in command("infer", study.study, code=64)
