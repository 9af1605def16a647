"""`index`: what is there and what is not, and a check of manifests written by hand."""

import json

import numpy as np
import pytest

from parcellation.bold_files import write_pair
from parcellation.surfaces import Mesh, Vertices
from tests.shared_data import CASES, needs_cases
from tests.studies import PATIENTS, command, replace, snapshot

RUNS = ("sim01", "1"), ("sim01", "2"), ("sim02", "1")


def manifest(folder, rows, name="manifest.tsv"):
    replace(folder.path / name, "".join("\t".join(row) + "\n" for row in rows).encode())
    return folder.path / name


def rows_of(folder):
    yield "subject", "session", "run", "bold"
    for subject, session in RUNS:
        yield subject, session, "LR", str(folder.run_file(subject, int(session)).relative_to(folder.path))


def test_a_good_manifest(fresh):
    before = snapshot(fresh.path)
    said = command("index", "--manifest", manifest(fresh, rows_of(fresh)))
    first, header, *rows = said.splitlines()
    # Only a study can say of which of two spaces a mesh is.
    assert rows[2] == "mesh not named: 3"
    assert first == "2 subjects, 3 sessions, 3 runs"
    assert header.split()[:4] == ["subject", "sessions", "runs", "unusable"]
    assert [row.split()[:3] for row in rows[:2]] == [["sim01", "2", "2"], ["sim02", "1", "1"]]
    assert [row.split()[-3:-1] for row in rows[:2]] == [["200", "200"], ["100", "100"]]
    assert len(snapshot(fresh.path)) == len(before) + 1


def test_one_unreadable_run_is_listed_and_strict_makes_it_65(fresh):
    path = manifest(fresh, rows_of(fresh))
    replace(fresh.run_file("sim01"), b"")
    assert "sub-sim01 ses-1 run-LR" in command("index", "--manifest", path)
    assert "1 of 3 runs cannot be used" in command("index", "--manifest", path, "--strict", code=65)


def test_no_readable_run_is_65(fresh):
    for subject, session in RUNS:
        fresh.run_file(subject, int(session)).unlink()
    assert "3 of 3 runs cannot be used" in command("index", "--manifest", manifest(fresh, rows_of(fresh)), code=65)


def test_runs_are_counted_not_files(fresh):
    """Two files of one run are gone; the other run is there."""
    paths, mesh = (fresh.path / "left.mgh", fresh.path / "right.mgh"), Mesh("fsaverage", (642, 642))
    write_pair(paths, np.ones((30, 1284), np.float32), Vertices.of(mesh, range(642), range(642)), 2.0)
    header = ("subject", "session", "run", "bold_left", "bold_right")
    rows = [header, ("a", "1", "1", "gone_left.mgh", "gone_right.mgh"), ("b", "1", "1", "left.mgh", "right.mgh")]
    assert "unreadable: 2" in command("index", "--manifest", manifest(fresh, rows))


def test_doubled_rows_are_65_with_their_lines(fresh):
    rows = [*rows_of(fresh), ("sub-sim01", "1", "LR", "HCP/other.dtseries.nii")]
    path = manifest(fresh, rows)
    said = command("index", "--manifest", path, code=65)
    assert "line 2, line 5: sub-sim01 ses-1 run-LR more than once" in said
    study = fresh.write_study(data={"layout": "manifest", "manifest": "manifest.tsv"})
    assert "more than once" in command("prepare", study, code=65)


def test_columns_that_are_missing_are_named(fresh):
    said = command("index", "--manifest", manifest(fresh, [("subject", "bold"), ("a", "b")]), code=65)
    assert "session, run" in said


def test_a_manifest_that_is_not_there_is_66(tmp_path):
    command("index", "--manifest", tmp_path / "none.tsv", code=66)


def test_strict_index_of_a_tree_is_65_and_writes_nothing(fresh):
    replace(fresh.run_file("sim01"), b"")
    assert "1 of 9 runs cannot be used" in command("index", fresh.study, "--strict", code=65)
    assert not (fresh.path / "work").exists()
    assert "empty" in command("index", fresh.study)


def test_the_manifest_that_is_written_is_a_good_one(finished):
    assert "5 subjects, 9 sessions, 9 runs" in command("index", "--manifest", finished.path / "work/manifest.tsv")


@pytest.mark.parametrize("more", [("--participant-label", "sim02"), ("--session-label", "1")])
def test_a_selection_is_looked_at_and_the_manifest_stays_the_cohorts(fresh, more):
    said = command("index", fresh.study, *more)
    assert ("1 subject, 2 sessions, 2 runs" if "sim02" in more else "5 subjects, 5 sessions, 5 runs") in said
    whole = (fresh.path / "work/manifest.tsv").read_bytes()
    assert whole.count(b"\n") == 1 + 9
    assert not (fresh.path / "work/subjects.tsv").exists()
    command("index", fresh.study)
    assert (fresh.path / "work/manifest.tsv").read_bytes() == whole
    before = snapshot(fresh.path / "work")
    assert "unchanged" in command("index", fresh.study, *more)
    assert snapshot(fresh.path / "work") == before


def test_a_selection_does_not_hear_of_others(fresh):
    replace(fresh.run_file("sim01"), b"")
    assert "unreadable" not in command("index", fresh.study, "--participant-label", "sim02")
    assert "unreadable: 1" in command("index", fresh.study, "--participant-label", "sub-sim01")
    command("index", fresh.study, "--participant-label", "sim02", "--strict")
    assert "no subject is called sim99" in command("index", fresh.study, "--participant-label", "sim99", code=18)


def test_tables_of_subjects_and_runs_are_written(fresh):
    path = fresh.run_file("sim02")
    replace(path, path.read_bytes()[:-1])
    said = command("index", fresh.study)
    assert "truncated: expected" in said
    subjects = (fresh.path / "work/subjects.tsv").read_text().splitlines()
    assert subjects[0].split("\t")[:4] == ["subject", "sessions", "runs", "unusable"]
    assert [line.split("\t")[:4] for line in subjects[1:3]] == [["sim01", "2", "2", "0"], ["sim02", "2", "2", "1"]]
    runs = [line.split("\t") for line in (fresh.path / "work/runs.tsv").read_text().splitlines()]
    assert len(runs) == 10
    assert dict(zip(runs[0], runs[3], strict=True)) | {"mesh": ""} == {
        "subject": "sim02",
        "session": "1",
        "run": "LR",
        "mesh": "",
        "frames": "0",
        "frames_kept": "0",
        "minutes_kept": "0",
        "repetition_time": "n/a",
    }


@pytest.mark.parametrize("name", ["study", "manifest"])
def test_a_dry_run_says_the_files_and_opens_none(fresh, name):
    """A tree of empty files: which file is used of which run, in every layout, see test_layouts."""
    for subject, session in RUNS:
        replace(fresh.run_file(subject, int(session)), b"")
    before = snapshot(fresh.path)
    if name == "manifest":
        manifest(fresh, rows_of(fresh))
        fresh.write_study(data={"layout": "manifest", "root": None, "manifest": "manifest.tsv"})
        before = snapshot(fresh.path)
    said = command("index", fresh.study, "--dry-run")
    assert f"sub-sim01 ses-2 run-LR: {fresh.run_file('sim01', 2)}" in said
    assert said.count("run-LR: ") - said.count("empty") == (3 if name == "manifest" else 9)
    assert snapshot(fresh.path) == before


def dry(folder, layout, *names, **data) -> str:
    """What a dry run says of a tree of empty files."""
    for one in names:
        replace(folder / "TREE" / one, b"")
    (folder / "s.yaml").write_text(json.dumps({"name": "s", "data": {"layout": layout, "root": "TREE"} | data}))
    return command("index", folder / "s.yaml", "--dry-run")


def test_dry_runs_of_all_layouts_and_options(tmp_path):
    hcp = "{0}/MNINonLinear/Results/rfMRI_REST1_{1}/rfMRI_REST1_{1}_Atlas{2}.dtseries.nii"
    said = dry(
        tmp_path / "hcp", "hcp", *(hcp.format("001", "LR", one) for one in ("_MSMAll_hp2000_clean", "_hp2000_clean"))
    )
    assert "sub-001 ses-1 run-LR" in said
    assert said.splitlines()[-1].endswith("_Atlas_MSMAll_hp2000_clean.dtseries.nii")
    assert (
        dry(tmp_path / "hcp", "hcp", variants=["_hp2000_clean"])
        .splitlines()[-1]
        .endswith("_Atlas_hp2000_clean.dtseries.nii")
    )
    name = "sub-1e5/ses-NA/func/sub-1e5_ses-NA_task-{}_run-1_space-fsLR_den-91k{}_bold.dtseries.nii"
    said = dry(tmp_path / "fmriprep", "fmriprep", name.format("rest", ""), name.format("film", ""))
    assert "sub-1e5 ses-NA run-1: " in said
    assert "film: 1 files" in said
    assert "task-film" in dry(tmp_path / "fmriprep", "fmriprep", tasks=["film"]).splitlines()[-1]
    said = dry(
        tmp_path / "xcpd", "xcpd", *(name.format("rest", f"_desc-{one}") for one in ("denoised", "denoisedSmoothed"))
    )
    assert said.splitlines()[-1].endswith("_desc-denoised_bold.dtseries.nii")
    assert "1 subject, 1 session, 1 run" in said


@needs_cases
def test_only_files_of_cifti_1_are_65_and_one_of_them_is_left_out(fresh):
    """nipy/nibabel#747."""
    old = (CASES / "cifti/MSC_Conte69.SmoothedMyelinMap.32k_fs_LR.dtseries.nii").read_bytes()
    replace(fresh.run_file("sim01"), old)
    assert "cifti-version-convert" in command("index", fresh.study)
    for n in range(1, 6):
        for session in (1, 2):
            replace(fresh.run_file(f"sim0{n}", session), old)
    said = command("index", fresh.study, code=65)
    assert "10 of 10 runs cannot be used" in said
    assert "cifti-version-convert" in said


def test_names_that_look_like_numbers_stay_names(fresh):
    """incf-nidash/PyNIDM#441, nilearn#6250, HBClab/NiBetaSeries#258: also with `sub-`, and an unknown one is 18."""
    rows = list(rows_of(fresh))
    renamed = [rows[0]] + [(name, *row[1:]) for name, row in zip(("001", "1e5", "sub-NA"), rows[1:], strict=True)]
    manifest(fresh, renamed)
    fresh.write_study(data={"layout": "manifest", "root": None, "manifest": "manifest.tsv"})
    said = command("index", fresh.study)
    assert [line.split()[0] for line in said.splitlines()[2:5]] == ["001", "1e5", "NA"]
    for label in ("001", "sub-001", "NA", "1e5"):
        assert "would prepare subject" in command("prepare", fresh.study, "--participant-label", label, "--dry-run")
    command("prepare", fresh.study, "--participant-label", "1", "--dry-run", code=18)


@pytest.mark.parametrize("key", ["variants", "tasks"])
def test_a_manifest_of_another_choice_of_files_is_not_gone_on_with(study, key):
    study.write_study(data={key: ["x"]})
    said = command("prepare", study.study, code=65)
    assert f"another {key}" in said


def test_a_manifest_of_other_data_is_not_gone_on_with(study):
    """The tree was changed in the study, and `index` not run again."""
    (study.path / "OTHER").mkdir()
    study.write_study(data={"root": "OTHER"})
    for verb in ("prepare", "train", "infer"):
        said = command(verb, study.study, code=65)
        assert "another root" in said
        assert "parcellation index" in said


def test_a_manifest_that_was_edited_is_indexed_again_first(fresh):
    rows = list(rows_of(fresh))
    manifest(fresh, rows)
    fresh.write_study(data={"layout": "manifest", "root": None, "manifest": "manifest.tsv"})
    command("index", fresh.study)
    assert "2 of 2 sessions" in command("prepare", fresh.study, "--participant-label", "sim01")
    manifest(fresh, rows[:-1])
    assert "another manifest" in command("prepare", fresh.study, code=65)
    assert "1 subject, 2 sessions" in command("index", fresh.study)
    assert "2 of 2 sessions prepared, 2 of them before" in command("prepare", fresh.study)


def test_two_studies_do_not_share_a_work_folder(study):
    """Who forgets `outputs.work` for the new cohort would mix it with the first one."""
    before = snapshot(study.path / "work")
    study.write_study("patients.yaml", PATIENTS, data={"root": "HCP"}, outputs={"work": "work"})
    said = command("index", study.path / "patients.yaml", code=64)
    assert "'broca'" in said
    assert "outputs.work" in said
    command("prepare", study.path / "patients.yaml", code=65)
    assert snapshot(study.path / "work") == before


def test_a_file_under_two_subjects_is_65_at_once(fresh):
    """A link in a tree: every later verb would refuse the manifest."""
    (fresh.path / "HCP/sim09").symlink_to(fresh.path / "HCP/sim01", target_is_directory=True)
    said = command("index", fresh.study, code=65)
    assert "sim09" in said
    assert "sim01" in said
    assert "more than once" in said
    assert not (fresh.path / "work").exists()


def test_a_study_and_a_manifest_at_once_is_64(fresh):
    assert "--manifest" in command("index", fresh.study, "--manifest", fresh.path / "m.tsv", code=64)


def test_a_work_folder_that_cannot_be_written_is_73_before_any_header_is_read(fresh, monkeypatch):
    (fresh.path / "file").touch()
    fresh.write_study(outputs={"work": "file/work"})
    monkeypatch.setattr("parcellation.verbs.index.take_stock", None)
    assert "cannot be written to" in command("index", fresh.study, code=73)
