"""Trees of files: what is a run, which variant is used, and what is odd. BIDS trees are in test_layouts_bids."""

import re
from pathlib import Path

import pytest

from parcellation.descriptions import described_layouts
from parcellation.errors import BadData, InputMissing, NotADataset, NothingSelected, UsageError
from parcellation.layouts import load_layout
from parcellation.manifest import discover
from tests.trees import add_run, found, kinds, study_of, whole_subject


def test_a_whole_young_adult_subject_is_two_sessions_of_two_runs(tmp_path):
    whole_subject(tmp_path, "100307")
    frame, findings = discover(study_of(tmp_path))
    keys = list(zip(frame["subject"], frame["session"], frame["run"], strict=True))
    assert keys == [("100307", s, r) for s in "12" for r in ("LR", "RL")]
    assert frame.loc[0, "bold"].endswith("/rfMRI_REST1_LR/rfMRI_REST1_LR_Atlas_MSMAll_hp2000_clean.dtseries.nii")
    assert Path(frame.loc[0, "bold"]).is_absolute()
    assert findings == []


def test_names_of_subjects_keep_zeros_and_are_in_their_natural_order(tmp_path):
    for subject in ("10", "9", "007"):
        whole_subject(tmp_path, subject)
    assert discover(study_of(tmp_path))[0]["subject"].unique().tolist() == ["007", "9", "10"]


def test_sessions_at_7t_have_names_of_their_own(tmp_path):
    whole_subject(tmp_path, "100610")
    for number, phase in zip("1234", ("PA", "AP", "PA", "AP"), strict=True):
        add_run(tmp_path, "100610", f"rfMRI_REST{number}_7T_{phase}")
    frame, findings = discover(study_of(tmp_path))
    assert frame["session"].unique().tolist() == ["1", "2", "7T1", "7T2", "7T3", "7T4"]
    assert findings == []


def test_lifespan_folders_and_visits(tmp_path):
    for visit in ("V1", "V2"):
        for number in "12":
            for phase in ("AP", "PA"):
                add_run(tmp_path, f"HCA6002236_{visit}_MR", f"rfMRI_REST{number}_{phase}", "_MSMAll_hp0_clean")
    frame, findings = discover(study_of(tmp_path))
    assert frame["subject"].unique().tolist() == ["HCA6002236"]
    assert frame["session"].unique().tolist() == ["1", "2", "V21", "V22"]
    assert len(frame) == 8
    assert findings == []


def test_what_is_no_run_is_listed_with_the_reason(tmp_path):
    whole_subject(tmp_path, "1")
    add_run(tmp_path, "1", "rfMRI_REST")
    add_run(tmp_path, "1", "rfMRI_REST1_LR", "_hp_preclean")
    add_run(tmp_path, "1", "rfMRI_REST1_LR", "_1.6mm_MSMAll_hp2000_clean")
    frame, findings = discover(study_of(tmp_path))
    assert len(frame) == 4
    assert kinds(findings) == {"not a run": 3}
    assert {one.detail.split(": ")[1] for one in findings} == {
        "several runs of one subject in one file",
        "not named like a run",
        "a copy on the 59k mesh",
    }


ORDER = [
    "_MSMAll_hp2000_clean",
    "_MSMAll_hp0_clean",
    "_MSMAll_hp2000_clean_rclean_tclean",
    "_MSMAll_hp2000_clean_rclean",
    "_hp2000_clean",
    "_hp0_clean",
    "_hp2000_clean_tclean",
    "_MSMAll",
    "",
]


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_best_variant_there_is_used_and_the_others_are_listed(tmp_path, first):
    for variant in ORDER[first:]:
        add_run(tmp_path, "1", "rfMRI_REST1_LR", variant)
    frame, findings = discover(study_of(tmp_path))
    assert Path(frame.loc[0, "bold"]).name == f"rfMRI_REST1_LR_Atlas{ORDER[first]}.dtseries.nii"
    passed = [one for one in findings if one.kind == "variant passed over"]
    assert len(passed) == len(ORDER) - first - 1
    assert kinds(findings).get("not cleaned", 0) == ("clean" not in ORDER[first])


def test_a_run_processed_otherwise_than_most_is_listed(tmp_path):
    whole_subject(tmp_path, "1")
    whole_subject(tmp_path, "2")
    odd = tmp_path / "2/MNINonLinear/Results/rfMRI_REST2_LR"
    next(odd.iterdir()).rename(odd / "rfMRI_REST2_LR_Atlas_hp2000_clean.dtseries.nii")
    (finding,) = discover(study_of(tmp_path))[1]
    assert (finding.kind, finding.subject, finding.session, finding.run) == ("processed otherwise", "2", "2", "LR")


def test_missing_runs_sessions_and_subjects_are_listed(tmp_path):
    for subject in "123":
        whole_subject(tmp_path, subject)
    for path in tmp_path.glob("2/MNINonLinear/Results/rfMRI_REST2_*/*"):
        path.unlink()
    next(tmp_path.glob("3/MNINonLinear/Results/rfMRI_REST1_RL/*")).unlink()
    (tmp_path / "4" / "MNINonLinear").mkdir(parents=True)
    frame, findings = discover(study_of(tmp_path))
    assert len(frame) == 9
    assert [str(one) for one in findings] == [
        "sub-3 ses-1 run-RL: not there",
        "sub-2 ses-2: no run of it",
        "data set: 4: a subject's folder without any run",
    ]


def test_files_without_data_stay_in_the_table_and_are_listed(tmp_path):
    whole_subject(tmp_path, "1")
    add_run(tmp_path, "1", "rfMRI_REST1_LR", content=b"")
    add_run(tmp_path, "1", "rfMRI_REST1_RL", content=b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    link = add_run(tmp_path, "1", "rfMRI_REST2_LR")
    link.unlink()
    link.symlink_to("../nowhere")
    frame, findings = discover(study_of(tmp_path))
    assert len(frame) == 4
    assert kinds(findings) == {"unreadable": 3}
    assert [re.search("empty|git lfs pull|datalad get", one.detail)[0] for one in findings] == [
        "empty",
        "git lfs pull",
        "datalad get",
    ]


def test_folders_that_are_no_tree(tmp_path):
    with pytest.raises(NotADataset, match="not a tree of layout hcp"):
        discover(study_of(tmp_path))
    with pytest.raises(InputMissing, match="no such folder"):
        discover(study_of(tmp_path / "none"))
    (tmp_path / "file").touch()
    with pytest.raises(NotADataset, match="got a file"):
        discover(study_of(tmp_path / "file"))
    whole_subject(tmp_path, "1")
    with pytest.raises(NotADataset, match=re.escape(f"give {tmp_path}")):
        discover(study_of(tmp_path / "1"))


def test_another_layout_is_named_or_refused(tmp_path):
    assert load_layout("hcp").layout == "hcp"
    with pytest.raises(UsageError, match="did you mean 'hcp'"):
        discover(study_of(tmp_path, layout="hpc"))


def test_one_more_description_is_one_more_layout(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(r"""
layout: mine
subjects: "sub-*"
runs: ["sub-*/ses-*/*_bold.dtseries.nii"]
run_file: |
  sub-(?P<subject>[a-z0-9]+) /ses-(?P<day>[0-9]+) /sub-(?P=subject)_ses-(?P=day)_run-(?P<run>[0-9]+)
  (?P<variant>(?:_desc-[a-z]+)?) _bold[.]dtseries[.]nii
session: "day{day}"
preference: [_desc-denoised, .*]
cleaned: _desc-denoised
""")
    described_layouts.cache_clear()
    monkeypatch.setattr("parcellation.descriptions.files", lambda _: tmp_path)
    root = tmp_path / "tree"
    for name in ("sub-a/ses-01/sub-a_ses-01_run-2_bold", "sub-a/ses-01/sub-a_ses-01_run-2_desc-denoised_bold"):
        path = root / f"{name}.dtseries.nii"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"data")
    (root / "sub-b").mkdir()
    frame, findings = discover(study_of(root, layout="mine"))
    assert frame.loc[0, ["subject", "session", "run"]].tolist() == ["a", "day01", "2"]
    assert frame.loc[0, "bold"].endswith("run-2_desc-denoised_bold.dtseries.nii")
    assert kinds(findings) == {"no run": 1, "variant passed over": 1}
    described_layouts.cache_clear()


def test_two_variants_as_good_as_each_other_are_not_chosen_between(tmp_path):
    for variant in ("_MSMAll_hp0_clean", "_MSMAll_hp100_clean"):
        add_run(tmp_path, "1", "rfMRI_REST1_LR", variant)
    with pytest.raises(BadData) as caught:
        discover(study_of(tmp_path))
    assert "sub-1 ses-1 run-LR doubled: " in str(caught.value)
    assert "hp0_clean" in str(caught.value)
    assert "hp100_clean" in str(caught.value)
    assert "data.variants" in str(caught.value)
    files, findings = found(tmp_path, variants=["_MSMAll_hp100_clean"])
    assert files == {"1/1/LR": "rfMRI_REST1_LR_Atlas_MSMAll_hp100_clean.dtseries.nii"}
    assert kinds(findings)["variant passed over"] == 1


@pytest.mark.parametrize("chosen", ORDER)
def test_any_variant_can_be_asked_for_by_name(tmp_path, chosen):
    for variant in ORDER:
        add_run(tmp_path, "1", "rfMRI_REST1_LR", variant)
    files, _ = found(tmp_path, variants=[chosen])
    assert files == {"1/1/LR": f"rfMRI_REST1_LR_Atlas{chosen}.dtseries.nii"}


def test_only_variants_that_are_asked_for_are_used_in_their_order(tmp_path):
    add_run(tmp_path, "1", "rfMRI_REST1_LR", "_hp2000_clean")
    add_run(tmp_path, "1", "rfMRI_REST1_LR", "_MSMAll_hp2000_clean")
    add_run(tmp_path, "1", "rfMRI_REST1_RL", "_MSMAll_hp2000_clean")
    add_run(tmp_path, "1", "rfMRI_REST2_LR", "")
    files, findings = found(tmp_path, variants=["_hp*_clean", "*clean"])
    assert files == {
        "1/1/LR": "rfMRI_REST1_LR_Atlas_hp2000_clean.dtseries.nii",
        "1/1/RL": "rfMRI_REST1_RL_Atlas_MSMAll_hp2000_clean.dtseries.nii",
    }
    (left,) = [one for one in findings if one.kind == "no usable variant"]
    assert (left.subject, left.session, left.run) == ("1", "2", "LR")
    with pytest.raises(NothingSelected, match=r"name it in data.variants"):
        discover(study_of(tmp_path, variants=["_hp1000*"]))


def test_one_run_in_two_folders_of_a_subject_is_doubled(tmp_path):
    for folder in ("HCA1", "HCA1_V1_MR"):
        add_run(tmp_path, folder, "rfMRI_REST1_AP")
    with pytest.raises(BadData, match=r"sub-HCA1 ses-1 run-AP doubled: HCA1/.* and HCA1_V1_MR/"):
        discover(study_of(tmp_path))


def test_motion_of_hcp_runs_is_found_beside_them(tmp_path):
    path = add_run(tmp_path, "1", "rfMRI_REST1_LR")
    add_run(tmp_path, "1", "rfMRI_REST1_RL")
    (path.parent / "Movement_RelativeRMS.txt").write_text("0.1\n")
    frame, findings = discover(study_of(tmp_path))
    assert frame["motion"].tolist() == [str(path.parent / "Movement_RelativeRMS.txt"), ""]
    assert kinds(findings) == {"missing session": 1}


def test_a_file_beside_a_run_counts_only_for_a_study_that_reads_it(tmp_path):
    path = add_run(tmp_path, "1", "rfMRI_REST1_LR")
    (path.parent / "Movement_RelativeRMS.txt").touch()
    assert "unreadable" not in kinds(discover(study_of(tmp_path))[1])
    assert kinds(discover(study_of(tmp_path, motion_limit=0.2))[1])["unreadable"] == 1


def test_every_description_explains_itself():
    assert sorted(described_layouts()) == ["fmriprep", "hcp", "xcpd"]
    for name in described_layouts():
        layout = load_layout(name)
        re.compile(layout.run_file, re.VERBOSE)
        for pattern in [*layout.preference, layout.cleaned, *(one["pattern"] for one in layout.not_runs)]:
            re.compile(pattern)
