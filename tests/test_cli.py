"""The command line from outside: exit codes, help, the whole way, reruns, interruption."""

import os
import re
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from safetensors.numpy import load_file

from parcellation.cli import main
from parcellation.files import _locked_part
from tests.made import expected_maps
from tests.studies import SUBJECTS, VERBS, command, contents, process, replace, snapshot

STEM = "space-fsaverage_seg-broca2_den-10k"
ATLAS = "atlas-broca2_den-10k"
RELIEF = "tpl-fsaverage_den-10k_desc-relief_curv.dscalar.nii"
ROOT_FILES = {
    ".bidsignore",
    "CITATION.md",
    "atlas-broca2_description.json",
    "dataset_description.json",
    "logs/study.json",
    "logs/versions.txt",
    "participants.json",
    "participants.tsv",
    "report.html",
    "sizes_network.json",
    "sizes_network.tsv",
}


def values(path):
    return np.asarray(nib.load(path).dataobj)


# --- the whole way ---


def test_the_whole_way_writes_exactly_these_files(finished):
    files = set(contents(finished.results))
    workbench = {f"tpl-fsaverage/{name}" for name in ("broca2.scene", "broca2.wb.spec", RELIEF)}
    maps = expected_maps("fsaverage", STEM, ATLAS, SUBJECTS, gifti="L", surfaces="10k")
    assert files == ROOT_FILES | workbench | maps


def test_the_log_says_what_was_run(finished):
    log = (finished.results / "logs/log.txt").read_text(encoding="utf-8")
    assert f"parcellation infer {finished.study} (" in log
    assert "  5 subjects inferred" in log
    assert f"parcellation report {finished.study} (" in log


def test_each_verb_says_what_it_did(finished):
    assert "5 subjects, 9 sessions, 9 runs" in finished.said["index"]
    assert "sub-sim05 ses-2: no run of it" in finished.said["index"]
    assert "9 of 9 sessions prepared" in finished.said["prepare"]
    assert "trained on 3 subjects" in finished.said["train"]
    assert "5 subjects inferred" in finished.said["infer"]
    assert "report.html" in finished.said["report"]


def test_every_label_file_has_the_same_axis_and_whole_numbers(finished):
    paths = sorted(finished.results.rglob("*_dseg.dlabel.nii"))
    assert len(paths) == len(SUBJECTS) + 1
    first = nib.load(paths[0]).header.get_axis(1)
    for path in paths:
        image = nib.load(path)
        assert image.header.get_axis(1) == first
        assert image.get_data_dtype() == np.int32
        assert set(np.unique(values(path))) <= {0, 1, 2}
        assert set(image.header.get_axis(0).label[0]) == {0, 1, 2}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_labels_are_the_maximum_of_probabilities_that_add_up(finished, subject):
    start = finished.results / f"sub-{subject}/anat/sub-{subject}_{STEM}"
    probability, labels = values(f"{start}_probseg.dscalar.nii"), values(f"{start}_dseg.dlabel.nii")[0]
    region = labels > 0
    assert region.sum() == 304
    np.testing.assert_allclose(probability[:, region].sum(0), 1, atol=1e-6)
    np.testing.assert_array_equal(probability[:, ~region], 0)
    np.testing.assert_array_equal(labels[region], probability[:, region].argmax(0) + 1)
    entropy, confidence, information = values(f"{start}_stat-uncertainty_boldmap.dscalar.nii")
    np.testing.assert_array_equal(confidence[region], probability[:, region].max(0))
    assert (information[region] <= entropy[region] + 1e-6).all()
    assert (entropy[region] <= 1 + 1e-6).all()


def test_the_report_states_the_origin_and_scores_the_unseen(finished):
    page = (finished.results / "report.html").read_text(encoding="utf-8")
    assert "This cohort is simulated" in page
    assert "Recovery is scored on 2 subjects that the model was not trained on" in page
    assert not re.search(r'(src|href)="https?://', page)


def test_a_rerun_of_every_verb_changes_no_file_and_says_so(finished):
    before = snapshot(finished.path)
    said = {verb: command(verb, finished.study) for verb in VERBS}
    assert snapshot(finished.path) == before
    assert "unchanged" in said["index"]
    assert "9 of 9 sessions prepared, 9 of them before" in said["prepare"]
    assert "trained on these inputs already" in said["train"]
    assert "5 subjects inferred, 5 of them before" in said["infer"]
    assert "unchanged" in said["report"]


def test_results_that_were_deleted_come_back_the_same_to_the_byte(study):
    shutil.rmtree(study.results)
    command("infer", study.study)
    before = contents(study.results)
    shutil.rmtree(study.results)
    shutil.rmtree(study.path / "work/posterior")
    command("infer", study.study)
    assert contents(study.results) == before


# --- usage ---


@pytest.mark.parametrize(
    "arguments",
    [[], ["polish"], ["index"], ["infer"], ["infer", "study.yaml", "--sharpen"], ["simulate", "one.yaml"]],
)
def test_wrong_usage_is_64_and_shows_the_usage(arguments):
    assert "usage: parcellation" in command(*arguments, code=64)


def test_an_unknown_verb_is_named_with_those_there_are():
    said = command("infre", "study.yaml", code=64)
    assert "infre" in said
    assert "infer" in said


@pytest.mark.parametrize("verb", VERBS)
def test_an_unknown_key_is_64_and_the_nearest_is_named(fresh, verb):
    study = fresh.write_study(outputs={"directroy": "elsewhere"})
    said = command(verb, study, code=64)
    assert "outputs.directroy" in said
    assert "'directory'" in said
    assert not (fresh.path / "work").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_study_that_is_not_there_is_66(verb, tmp_path):
    assert "nowhere.yaml" in command(verb, tmp_path / "nowhere.yaml", code=66)


@pytest.mark.parametrize("verb", ["prepare", "infer"])
def test_an_unknown_participant_is_18_and_named(study, verb):
    before = snapshot(study.path)
    assert "sim77" in command(verb, study.study, "--participant-label", "sim77", code=18)
    assert snapshot(study.path) == before


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        ("train", "--participant-label"),
        ("train", "--session-label"),
        ("simulate", "--session-label"),
        ("report", "--participant-label"),
        ("demo", "--participant-label"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(study, verb, option):
    target = {"demo": [], "simulate": [study.path / "simulation.yaml", study.path / "new"]}.get(verb, [study.study])
    assert option in command(verb, *target, option, "sim01", code=64)


def test_a_dry_run_writes_nothing(fresh):
    before = snapshot(fresh.path)
    for verb in ("index", "prepare"):
        assert command(verb, fresh.study, "--dry-run")
    assert "would simulate 5 subjects" in command(
        "simulate", fresh.path / "simulation.yaml", fresh.path / "new", "--dry-run"
    )
    assert snapshot(fresh.path) == before
    assert not (fresh.path / "work").exists()
    assert not (fresh.path / "new").exists()


def test_a_dry_run_of_what_needs_more_writes_nothing_either(prepared):
    before = snapshot(prepared.path)
    assert "would train on 3 subjects for 10 steps" in command("train", prepared.study, "--dry-run")
    command("infer", prepared.study, "--dry-run", code=66)
    assert snapshot(prepared.path) == before


def test_a_dry_run_of_a_finished_study_writes_nothing(study):
    shutil.rmtree(study.results)
    before = snapshot(study.path)
    assert "would infer subject sim05" in command("infer", study.study, "--dry-run")
    assert "would write" in command("report", study.study, "--dry-run")
    assert snapshot(study.path) == before
    assert not study.results.exists()


def test_another_work_folder(fresh):
    command("index", fresh.study, "-w", fresh.path / "elsewhere")
    command("prepare", fresh.study, "--work-dir", fresh.path / "elsewhere", "--participant-label", "sim01")
    assert not (fresh.path / "work").exists()
    assert len(list(fresh.path.glob("elsewhere/fingerprints/*/sub-*.safetensors"))) == 2


def test_output_that_cannot_be_written_is_73_before_any_work(study):
    shutil.rmtree(study.results)
    replace(study.results, b"a file where the folder should be")
    for verb in ("infer", "report"):
        assert str(study.results) in command(verb, study.study, code=73)
    shutil.rmtree(study.path / "work")
    replace(study.path / "work", b"a file where the folder should be")
    for verb in ("index", "prepare"):
        assert str(study.path / "work") in command(verb, study.study, code=73)
    for more in ([], ["--fingerprints"]):
        command("simulate", study.path / "simulation.yaml", study.results, *more, code=73)


def test_a_model_folder_that_cannot_be_written_is_73(prepared):
    replace(prepared.path / "work/model", b"a file where the folder should be")
    assert "work/model" in command("train", prepared.study, code=73)


# --- processes ---

LOADED = """
import sys
from parcellation.cli import main
try:
    code = main({arguments!r})
except SystemExit as end:
    code = end.code
heavy = [name for name in {heavy!r} if name in sys.modules]
sys.exit(f"loaded {{heavy}}" if heavy else code)
"""


def test_help_is_quick_and_loads_nothing_heavy():
    for arguments in (["--help"], ["infer", "--help"], ["--version"]):
        heavy = ("torch", "nibabel", "numpy", "pandas", "pydantic", "nilearn", "matplotlib")
        started = time.monotonic()
        run = process(code=LOADED.format(arguments=arguments, heavy=heavy))
        text, _ = run.communicate(timeout=30)
        assert run.returncode == 0, text
        assert "parcellation" in text
        # Half a second is what a user gets; four times that is left to a busy machine.
        assert time.monotonic() - started < 2


def test_prepare_which_also_indexes_never_loads_torch(fresh):
    arguments = ["prepare", str(fresh.study), "--participant-label", "sim01"]
    run = process(code=LOADED.format(arguments=arguments, heavy=("torch", "zuko", "matplotlib")))
    text, _ = run.communicate(timeout=120)
    assert run.returncode == 0, text
    assert "2 of 2 sessions prepared" in text


def wait_for(found, timeout=60):
    """Wait until a condition holds."""
    end = time.monotonic() + timeout
    while not found():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_training_that_is_told_to_end_saves_its_state_within_seconds(prepared):
    # So many steps that it cannot be over when the signal comes.
    study = prepared.write_study(training={"steps": 4000, "checkpoint_every": 1})
    run = process("train", study)
    wait_for(lambda: (prepared.path / "work/model/checkpoint.safetensors").exists())
    started = time.monotonic()
    run.send_signal(signal.SIGTERM)
    text, _ = run.communicate(timeout=30)
    assert run.returncode == 75, text
    assert time.monotonic() - started < 10
    assert "the same command continues" in text
    assert not prepared.model.exists()
    assert not prepared.half_written()
    losses = load_file(prepared.path / "work/model/checkpoint.safetensors")["losses"]
    assert 0 < len(losses) < 4000


def test_an_interrupted_training_ends_in_the_same_bytes(prepared, finished, monkeypatch):
    stops = iter([False, False, False, True])
    monkeypatch.setattr("parcellation.verbs.train.stop_signal", lambda: nullcontext(lambda: next(stops, False)))
    said = command("train", prepared.study, code=75)
    assert "step 4 of 10" in said
    assert not prepared.model.exists()
    command("train", prepared.study)
    assert prepared.model.read_bytes() == finished.model.read_bytes()


def test_no_verb_leaves_handlers_of_its_own(prepared):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["train", str(prepared.study)]) == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_killed_prepare_continues_to_the_same_bytes(fresh, finished):
    run = process("prepare", fresh.study)
    wait_for(lambda: len(list(fresh.path.glob("work/fingerprints/*/sub-*"))) > 1)
    run.kill()
    run.communicate(timeout=30)
    command("prepare", fresh.study)
    assert contents(fresh.path / "work/fingerprints") == contents(finished.path / "work/fingerprints")


def test_a_prepare_that_is_told_to_end_leaves_nothing_half_written(fresh):
    run = process("prepare", fresh.study)
    wait_for(lambda: (fresh.path / "work/fingerprints").exists())
    run.send_signal(signal.SIGTERM)
    text, _ = run.communicate(timeout=30)
    assert run.returncode == 75, text
    assert "the same command continues" in text
    assert not fresh.half_written()


def test_the_console_command_hands_its_exit_code_on(tmp_path):
    run = process("infer", tmp_path / "nowhere.yaml")
    text, _ = run.communicate(timeout=60)
    assert run.returncode == 66
    assert text.startswith("parcellation: ")
    assert text.count("\n") == 1


def test_what_killed_processes_have_left_is_removed_by_who_is_not_one_of_many(study):
    def leave() -> list[Path]:
        left = []
        for folder in (study.path / "work/model", study.results / "tpl-fsaverage"):
            handle, part = _locked_part(folder / "a.tsv")
            os.close(handle)
            left.append(part)
        return left

    left = leave()
    command("infer", study.study, "--level", "participant", "--participant-label", "sim01")
    command("infer", study.study, "--dry-run")
    assert [path.exists() for path in left] == [True, True]
    command("prepare", study.study)  # whose results these may not be
    assert [path.exists() for path in left] == [False, True]
    leave()
    command("infer", study.study)
    assert not study.half_written()
