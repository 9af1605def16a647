"""`index`: what is there and what is not, and a check of manifests written by hand."""

import pytest

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
    assert said == "2 subjects, 3 sessions, 3 runs\n"
    assert len(snapshot(fresh.path)) == len(before) + 1


def test_one_unreadable_run_is_listed_and_strict_makes_it_65(fresh):
    path = manifest(fresh, rows_of(fresh))
    replace(fresh.run_file("sim01"), b"")
    assert "sub-sim01 ses-1 run-LR" in command("index", "--manifest", path)
    assert "1 of 3 runs cannot be read" in command("index", "--manifest", path, "--strict", code=65)


def test_no_readable_run_is_65(fresh):
    for subject, session in RUNS:
        fresh.run_file(subject, int(session)).unlink()
    assert "3 of 3 runs cannot be read" in command("index", "--manifest", manifest(fresh, rows_of(fresh)), code=65)


def test_runs_are_counted_not_files(fresh):
    """Two files of one run are gone; the other run is there."""
    for name in ("left.mgh", "right.mgh"):
        replace(fresh.path / name, b"not empty")
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
    assert "1 of 9 runs cannot be read" in command("index", fresh.study, "--strict", code=65)
    assert not (fresh.path / "work").exists()
    assert "empty" in command("index", fresh.study)


def test_the_manifest_that_is_written_is_a_good_one(finished):
    assert "5 subjects, 9 sessions, 9 runs" in command("index", "--manifest", finished.path / "work/manifest.tsv")


@pytest.mark.parametrize("more", [("--participant-label", "sim02"), ("--session-label", "1")])
def test_narrowed(fresh, more):
    said = command("index", fresh.study, *more)
    assert ("1 subject, 2 sessions, 2 runs" if "sim02" in more else "5 subjects, 5 sessions, 5 runs") in said


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
