"""`prepare`: faulty runs are left out with their reason, the others go on; finished sessions are skipped."""

import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from parcellation.bold_files import write_cifti
from parcellation.store import Store
from parcellation.surfaces import Mesh, Vertices
from pipelines.fuzz.encodings import gifti
from tests.fmriprep_tables import fmriprep_table
from tests.shared_data import CASES, needs_cases
from tests.studies import change_run, command, contents, replace, snapshot

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 439000000\n"


def truncate(path):
    replace(path, path.read_bytes()[:-1000])


def cut_in_the_header(path):
    replace(path, path.read_bytes()[:400])


def point(path):
    replace(path, POINTER)


def empty(path):
    replace(path, b"")


def constant(path):
    change_run(path, lambda series: np.full_like(series, 7))


def missing_values(path):
    change_run(path, lambda series: np.full_like(series, np.nan))


def short(path):
    change_run(path, lambda series: series[:19])


def other_mesh(path):
    path.unlink()
    series = np.random.default_rng(0).normal(size=(100, 80)).astype(np.float32)
    write_cifti(path, series, Vertices.of(Mesh("fsLR", (32492, 32492)), range(50), range(30)), 0.72)


def volume(path):
    path.unlink()
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4, 30), np.float32), np.eye(4)), path.with_suffix("").with_suffix(".nii"))
    path.with_suffix("").with_suffix(".nii").rename(path)


def cifti_1(path):
    replace(path, (CASES / "cifti/MSC_Conte69.SmoothedMyelinMap.32k_fs_LR.dtseries.nii").read_bytes())


FAULTS = {
    truncate: "truncated",
    cut_in_the_header: "cut off",
    point: "Git LFS",
    empty: "empty",
    constant: "signal",
    missing_values: "signal",
    short: "at least 20 frames",
    other_mesh: "32492 vertices",
    volume: "volume",
    cifti_1: "wb_command -file-convert -cifti-version-convert",
}
AVAILABLE = [pytest.param(one, marks=needs_cases if one is cifti_1 else (), id=one.__name__) for one in FAULTS]


@pytest.mark.parametrize("spoil", AVAILABLE)
def test_a_faulty_run_is_left_out_and_named(fresh, spoil):
    # The first run of all: nothing may be taken from it.
    path = fresh.run_file("sim01", 1)
    spoil(path)
    said = command("prepare", fresh.study)
    assert "8 of 9 sessions prepared" in said
    assert "1 runs left out:" in said
    line = next(line for line in said.splitlines() if line.startswith("  subject sim01, session 1, run LR: "))
    assert path.name in line
    assert FAULTS[spoil] in line
    assert FAULTS[spoil] in (fresh.path / "work/excluded/sub-sim01_ses-1.txt").read_text(encoding="utf-8")


def test_strict_ends_with_65_and_keeps_what_is_good(fresh):
    truncate(fresh.run_file("sim02", 2))
    said = command("prepare", fresh.study, "--strict", code=65)
    assert fresh.run_file("sim02", 2).name in said
    assert fresh.unit("sim05").exists()


def test_what_another_process_is_at_is_left_to_it_with_what_it_has_noted(fresh):
    constant(fresh.run_file("sim02"))
    command("prepare", fresh.study, "--participant-label", "sim02")
    noted = fresh.path / "work/excluded/sub-sim02_ses-1.txt"
    before = noted.read_bytes()
    store = Store(fresh.unit("sim02", 2).parent)
    with store.claim("sim02", "1") as mine:
        assert mine
        said = command("prepare", fresh.study, "--participant-label", "sim02")
    assert "subject sim02, session 1: another process is at it" in said
    assert noted.read_bytes() == before


def test_nothing_usable_is_65_and_every_file_is_named(fresh):
    files = [fresh.run_file(f"sim0{n}", t) for n in range(1, 6) for t in (1, 2) if (n, t) != (5, 2)]
    for path in files:
        constant(path)
    said = command("prepare", fresh.study, code=65)
    assert "0 of 9 sessions prepared" in said
    assert all(str(path) in said for path in files)
    for path in files:
        point(path)
    shutil.rmtree(fresh.path / "work")
    assert "no run can be opened" in command("prepare", fresh.study, code=65)


def test_a_run_that_was_bad_and_is_whole_again_is_made(fresh, finished):
    good = fresh.run_file("sim01").read_bytes()
    truncate(fresh.run_file("sim01"))
    command("prepare", fresh.study)
    assert "1 runs left out" in command("prepare", fresh.study)
    shutil.copy2(finished.run_file("sim01"), fresh.run_file("sim01"))
    assert good == fresh.run_file("sim01").read_bytes()
    said = command("prepare", fresh.study)
    assert "9 of 9 sessions prepared, 8 of them before" in said
    assert "left out" not in said
    assert not list((fresh.path / "work/excluded").iterdir())
    assert contents(fresh.path / "work/fingerprints") == contents(finished.path / "work/fingerprints")


def test_a_unit_that_is_gone_or_damaged_is_made_again_and_no_other(study):
    before = snapshot(study.path / "work/fingerprints")
    study.unit("sim02").unlink()
    replace(study.unit("sim03"), study.unit("sim03").read_bytes()[:500])
    assert "9 of 9 sessions prepared, 7 of them before" in command("prepare", study.study)
    after = snapshot(study.path / "work/fingerprints")
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {str(study.unit("sim02")), str(study.unit("sim03"))}
    assert {path: digest for path, (_, digest) in after.items()} == {p: digest for p, (_, digest) in before.items()}


def test_a_run_that_changed_makes_its_unit_new(study):
    change_run(study.run_file("sim02", 1), lambda series: series[::-1])
    assert "9 of 9 sessions prepared, 8 of them before" in command("prepare", study.study)


def test_some_subjects_and_sessions(fresh, finished):
    said = command("prepare", fresh.study, "--participant-label", "sub-sim02", "sim05", "--session-label", "ses-1")
    assert "2 of 2 sessions prepared" in said
    (folder,) = fresh.path.glob("work/fingerprints/*")
    assert Store(folder).units() == [("sim02", "1"), ("sim05", "1")]
    for subject in ("sim02", "sim05"):
        assert fresh.unit(subject).read_bytes() == finished.unit(subject).read_bytes()


def test_whoever_is_prepared_first_stands_on_the_ground_of_the_whole_cohort(fresh, finished):
    # Subject sim05's file has no right hemisphere; alone it would have the left targets only.
    path = fresh.run_file("sim05")
    image = nib.load(path)
    models = image.header.get_axis(1)
    left = models.name == "CIFTI_STRUCTURE_CORTEX_LEFT"
    series = np.asarray(image.dataobj)[:, left]
    path.unlink()
    new = nib.Cifti2Image(series, header=(image.header.get_axis(0), models[left]))
    new.nifti_header.set_intent("ConnDenseSeries")
    nib.save(new, path)
    command("prepare", fresh.study, "--participant-label", "sim05")
    command("prepare", fresh.study)
    assert len(list(fresh.path.glob("work/fingerprints/*"))) == 1
    assert fresh.unit("sim01").read_bytes() == finished.unit("sim01").read_bytes()
    (folder,) = fresh.path.glob("work/fingerprints/*")
    assert not Store(folder).read("sim05", "1").target_mask.all()


def test_not_a_tree_is_16(fresh):
    shutil.rmtree(fresh.path / "HCP")
    (fresh.path / "HCP").mkdir()
    for verb in ("index", "prepare"):
        assert "not a tree of layout hcp" in command(verb, fresh.study, code=16)
    assert not (fresh.path / "work").exists()


def test_a_region_that_is_not_known_is_64_with_what_there_is(fresh):
    said = command("prepare", fresh.write_study(region={"name": "wernicke"}), code=64)
    assert "wernicke" in said
    assert "broca" in said


def fmriprep_tree(folder, subjects=("sim01", "sim02", "sim03")):
    """The runs as fMRIPrep names them, each with its table of confounds; returns the tables' paths."""
    tables = {}
    for subject in subjects:
        stem = folder.path / f"FMRIPREP/sub-{subject}/ses-1/func/sub-{subject}_ses-1_task-rest_run-1"
        replace(
            stem.with_name(f"{stem.name}_space-fsLR_den-91k_bold.dtseries.nii"), folder.run_file(subject).read_bytes()
        )
        tables[subject] = stem.with_name(f"{stem.name}_desc-confounds_timeseries.tsv")
        fmriprep_table(100).to_csv(tables[subject], sep="\t", index=False, na_rep="n/a")
    folder.write_study(data={"layout": "fmriprep", "root": "FMRIPREP"})
    return tables


def test_an_fmriprep_tree_is_cleaned_by_the_simple_strategy(fresh):
    """PennLINC/xcp_d#1062: confounds of another length, or of none, are that run's fault, and the others go on."""
    tables = fmriprep_tree(fresh)
    fmriprep_table(99).to_csv(tables["sim02"], sep="\t", index=False, na_rep="n/a")
    tables["sim03"].unlink()
    said = command("index", fresh.study)
    assert "cannot be cleaned: 2" in said
    assert "expected 100 rows of confounds, one a frame of its run, got 99" in said
    assert "the manifest names no file of them" in said
    said = command("prepare", fresh.study)
    assert "1 of 3 sessions prepared" in said
    assert "got 99" in said
    (folder,) = fresh.path.glob("work/fingerprints/*")
    cleaning = Store(folder).header("sim01", "1")["cleaning"]["1"]
    assert len(cleaning["confounds"]) == 28
    assert (cleaning["band_pass"], cleaning["detrend"], cleaning["frames_kept"]) == ([0.008, 0.1], True, 100)


def test_the_same_run_by_hand_and_by_layout_is_the_same_fingerprint(fresh):
    tables = fmriprep_tree(fresh, ("sim01", "sim02"))
    units = []
    rows = [["subject", "session", "run", "bold", "confounds"]]
    rows += [[subject, "1", "1", str(fresh.run_file(subject)), str(tables[subject])] for subject in tables]
    replace(fresh.path / "m.tsv", "".join("\t".join(row) + "\n" for row in rows).encode())
    cleaning = {"confounds": "simple", "band_pass": [0.008, 0.1], "detrend": True}
    for data in ({}, {"layout": "manifest", "root": None, "manifest": "m.tsv"} | cleaning):
        if data:
            fresh.write_study(data=data)
            shutil.rmtree(fresh.path / "work")
        command("prepare", fresh.study, "--participant-label", "sim01")
        (folder,) = fresh.path.glob("work/fingerprints/*")
        units.append(Store(folder).read("sim01", "1").fingerprint)
    np.testing.assert_array_equal(*units)


def by_hand(folder, extra: str = "", value: str = "") -> list[Path]:
    """A study of one run in GIFTI, whose numbers are in files beside it, under a manifest; returns these files."""
    image = nib.load(folder.run_file("sim01"))
    whole, models = np.zeros((100, 2 * 10242), np.float32), image.header.get_axis(1)
    for side, (_, where, one) in enumerate(models.iter_structures()):
        whole[:, side * 10242 + one.vertex] = np.asarray(image.dataobj)[:, where]
    names = [folder.path / f"hemi-{side}.func.gii" for side in "LR"]
    for side, path in enumerate(names):
        half = whole[:, side * 10242 : (side + 1) * 10242]
        gifti(path, half, side, "ExternalFileBinary", "C", "<f4", one_array=True)
    write_manifest(folder, names, extra, value)
    folder.write_study(data={"layout": "manifest", "root": None, "manifest": "m.tsv", "space": "fsaverage"})
    return [path.with_name(f"{path.name}.dat") for path in names]


def write_manifest(folder, names: list[Path], extra: str = "", value: str = "") -> None:
    header = f"subject\tsession\trun\tbold_left\tbold_right{extra}\n"
    replace(folder.path / "m.tsv", f"{header}sim01\t1\t1\t{names[0]}\t{names[1]}{value}\n".encode())


def test_numbers_in_a_file_beside_are_part_of_what_a_session_is_made_from(fresh):
    left, _ = by_hand(fresh)
    assert "1 of 1 sessions prepared" in command("prepare", fresh.study)
    assert "1 of them before" in command("prepare", fresh.study)
    before = fresh.unit("sim01").read_bytes()
    content = bytearray(left.read_bytes())
    content[: len(content) // 2] = content[: len(content) // 2][::-1]
    replace(left, bytes(content))
    assert "before" not in command("prepare", fresh.study)
    assert fresh.unit("sim01").read_bytes() != before
    left.unlink()
    assert "hemi-L.func.gii.dat: not there" in command("index", fresh.study, code=65)


def test_another_repetition_time_in_the_manifest_is_noticed(fresh):
    names = [path.with_suffix("") for path in by_hand(fresh, "\ttr", "\t0.72")]
    command("prepare", fresh.study)
    write_manifest(fresh, names, "\ttr", "\t0.9")
    assert "before" not in command("prepare", fresh.study)
    assert Store(fresh.unit("sim01").parent).header("sim01", "1")["tr"] == 0.9
    assert "1 of them before" in command("prepare", fresh.study)


def test_motion_beside_hcp_runs_censors_when_a_limit_is_set(fresh):
    motion = fresh.run_file("sim01").parent / "Movement_RelativeRMS.txt"
    replace(motion, b"0.05\n" * 70 + b"0.3\n" * 30)
    for subject, session in (("sim01", 2), ("sim02", 1), ("sim02", 2)):
        replace(fresh.run_file(subject, session).parent / motion.name, b"0.05\n" * 100)
    replace(fresh.run_file("sim02").parent / motion.name, b"0.05\n" * 99)
    who = ("--participant-label", "sim01", "sim02")
    fresh.write_study(data={"motion_limit": 0.2})
    assert "expected 100 values, one a frame of its run, got 99" in command("index", fresh.study, *who)
    assert "3 of 4 sessions prepared" in command("prepare", fresh.study, *who)
    (folder,) = fresh.path.glob("work/fingerprints/*")
    assert Store(folder).header("sim01", "1")["cleaning"]["LR"]["frames_kept"] == 70
    # A new table of motion makes the session anew; one that no setting reads does not.
    replace(motion, b"0.05\n" * 90 + b"0.3\n" * 10)
    assert "3 of 4 sessions prepared, 2 of them before" in command("prepare", fresh.study, *who)
    fresh.write_study()
    shutil.rmtree(fresh.path / "work")
    command("prepare", fresh.study, *who)
    replace(motion, b"")
    assert "4 of 4 sessions prepared, 4 of them before" in command("prepare", fresh.study, *who)


def test_too_few_minutes_leave_out_a_run_or_a_session(fresh):
    change_run(fresh.run_file("sim01"), lambda series: series[:60])
    step = nib.load(fresh.run_file("sim01")).header.get_axis(0).step
    enough, whole = 60 * step / 60, 100 * step / 60
    who = ("--participant-label", "sim01")
    for setting in ("minimum_minutes_run", "minimum_minutes_session"):
        fresh.write_study(data={setting: (enough + whole) / 2})
        for verb in ("index", "prepare"):
            said = command(verb, fresh.study, *who)
            assert f"minutes to keep{' in the session' * ('session' in setting)}, got {enough:.2f}" in said
        assert "1 of 2 sessions prepared" in said
    fresh.write_study(data={"minimum_minutes_run": enough, "minimum_minutes_session": enough})
    assert "2 of 2 sessions prepared" in command("prepare", fresh.study, *who)


ONE_BY_ONE = [f"--level participant --participant-label sim0{number}" for number in (2, 1, 5, 4, 3)]


@pytest.mark.parametrize("parts", [ONE_BY_ONE, ["--part 3/3", "--part 1/3", "--part 2/3"]])
def test_parts_and_then_the_group_are_the_whole(parts, fresh, finished):
    command("index", fresh.study)
    for part in parts:
        command("prepare", fresh.study, *part.split())
    assert not list(fresh.path.glob("work/fingerprints/*/index.tsv"))
    assert "9 of 9 sessions prepared" in command("prepare", fresh.study, "--level", "group")
    assert contents(fresh.path / "work/fingerprints") == contents(finished.path / "work/fingerprints")


def test_a_part_without_anything_usable_is_no_failure_and_the_group_says_it(fresh):
    truncate(fresh.run_file("sim05"))
    said = command("prepare", fresh.study, "--level", "participant", "--participant-label", "sim05")
    assert "0 of 1 sessions prepared" in said
    command("prepare", fresh.study, "--level", "participant", "--participant-label", "sim01")
    said = command("prepare", fresh.study, "--level", "group")
    assert "2 of 9 sessions prepared" in said
    assert "subject sim05, session 1" in said
    assert "sim05" in command("prepare", fresh.study, "--level", "group", "--strict", code=65)


def test_a_part_is_of_the_subjects_and_of_no_group(fresh):
    assert "0 of 0 sessions" in command("prepare", fresh.study, "--part", "7/7")
    for wrong in ("0/3", "4/3", "3", "a/b", "1/2/3", "-1/2"):
        assert "--part" in command("prepare", fresh.study, "--part", wrong, code=64)
    assert "--level participant" in command("prepare", fresh.study, "--part", "1/3", "--level", "group", code=64)
