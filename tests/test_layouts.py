"""Trees of empty files, in every layout that is described: what is a run, which variant is used, and what is odd."""

import re
from pathlib import Path

import pytest

from parcellation.config import parse_study
from parcellation.descriptions import described_layouts
from parcellation.errors import BadData, InputMissing, NotADataset, NothingSelected, UsageError
from parcellation.findings import Finding
from parcellation.layouts import load_layout
from parcellation.manifest import bold_paths, discover

BEST = "_MSMAll_hp2000_clean"


def study_of(root: Path, **data):
    return parse_study({"name": "s", "data": {"root": str(root), **data}}, root / "study.yaml")


def tree(root: Path, *names: str) -> Path:
    """A tree of files without any content."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def found(root: Path, **data) -> tuple[dict[str, str], list[Finding]]:
    """The file of each run by `subject/session/run`, and the findings but that the files are empty."""
    frame, findings = discover(study_of(root, **data))
    files = {
        f"{row['subject']}/{row['session']}/{row['run']}": " ".join(path.name for path in bold_paths(row))
        for row in frame.to_dict("records")
    }
    return files, [one for one in findings if not one.detail.endswith(": empty")]


def add_run(root: Path, subject: str, run: str, variant: str = BEST, content: bytes = b"data") -> Path:
    path = root / subject / "MNINonLinear" / "Results" / run / f"{run}_Atlas{variant}.dtseries.nii"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def whole_subject(root: Path, subject: str) -> None:
    for number in "12":
        for phase in ("LR", "RL"):
            add_run(root, subject, f"rfMRI_REST{number}_{phase}")


def kinds(findings: list[Finding]) -> dict[str, int]:
    return {kind: sum(one.kind == kind for one in findings) for kind in sorted({one.kind for one in findings})}


# HCP


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


# fMRIPrep

CIFTI = "sub-{0}/func/sub-{0}_task-rest{1}_space-fsLR_den-91k_bold.dtseries.nii"
LEFT, RIGHT = (f"sub-01/func/sub-01_task-rest_hemi-{side}_space-fsaverage5_bold.func.gii" for side in "LR")


def test_fmriprep_cifti_with_sessions_and_runs(tmp_path):
    names = [f"sub-001/ses-{t}/func/sub-001_ses-{t}_task-rest_run-0{r}" for t in ("1e5", "pre") for r in (1, 2)]
    tree(tmp_path, *(f"{name}_space-fsLR_den-91k_bold.dtseries.nii" for name in names))
    tree(tmp_path, *(f"{name}_desc-confounds_timeseries.tsv" for name in names), "sub-001.html")
    frame, _ = discover(study_of(tmp_path, layout="fmriprep"))
    assert list(zip(frame["subject"], frame["session"], frame["run"], strict=True)) == [
        ("001", t, r) for t in ("1e5", "pre") for r in ("01", "02")
    ]
    for row, name in zip(frame.to_dict("records"), names, strict=True):
        assert row["confounds"] == row["motion"] == str(tmp_path / f"{name}_desc-confounds_timeseries.tsv")


@pytest.mark.parametrize(
    "ending",
    [
        "_hemi-{}_space-fsaverage5_bold.func.gii",
        "_space-fsaverage5_hemi-{}_bold.func.gii",
        "_space-fsaverage5_hemi-{}.func.gii",
        "_hemi-{}_space-fsLR_den-32k_bold.func.gii",
        "_hemi-{}_space-fsaverage6_bold.func.gii",
    ],
)
def test_fmriprep_gifti_in_every_order_of_names_is_a_pair(tmp_path, ending):
    names = {side: f"sub-01/func/sub-01_task-rest_run-1{ending.format(side)}" for side in "RL"}
    tree(tmp_path, *names.values(), "sub-01/func/sub-01_task-rest_run-1_desc-confounds_regressors.tsv")
    row = discover(study_of(tmp_path, layout="fmriprep"))[0].to_dict("records")[0]
    assert (row["bold"], row["run"]) == ("", "1")
    assert [row["bold_left"], row["bold_right"]] == [str(tmp_path / names[side]) for side in "LR"]
    assert row["confounds"].endswith("_desc-confounds_regressors.tsv")


def test_a_pair_takes_its_repetition_time_from_the_sidecar(tmp_path):
    tree(tmp_path, LEFT, RIGHT, CIFTI.format("02", ""))
    sidecar = tmp_path / LEFT.replace(".func.gii", ".json")
    says = {'{"RepetitionTime": 0.8}': "0.8", "": "", "[]": "", '{"RepetitionTime": "2"}': ""}
    for content, expected in says.items():
        sidecar.write_text(content)
        assert discover(study_of(tmp_path, layout="fmriprep", variants=["*gii"]))[0]["tr"].tolist() == [expected]
    (tmp_path / "sub-02/func/sub-02_task-rest_space-fsLR_den-91k_bold.json").write_text('{"RepetitionTime": 9}')
    assert discover(study_of(tmp_path, layout="fmriprep", variants=["*nii"]))[0]["tr"].tolist() == [""]


def test_variants_of_an_fmriprep_run_are_stated_and_configurable(tmp_path):
    tree(tmp_path, LEFT, RIGHT, CIFTI.format("01", ""), CIFTI.format("01", "").replace("91k", "170k"))
    files, findings = found(tmp_path, layout="fmriprep")
    assert files == {"01/1/1": Path(CIFTI.format("01", "")).name}
    assert [one.detail.split(";")[0].split("/")[-1] for one in findings] == [
        "sub-01_task-rest_hemi-R_space-fsaverage5_bold.func.gii",
        "sub-01_task-rest_space-fsLR_den-170k_bold.dtseries.nii",
    ]
    for variant, expected in [("space-fsaverage5*", f"{Path(LEFT).name} {Path(RIGHT).name}"), ("*170k*", "170k")]:
        assert expected in found(tmp_path, layout="fmriprep", variants=[variant])[0]["01/1/1"]


def test_one_hemisphere_alone_is_listed_and_another_variant_used(tmp_path):
    tree(tmp_path, LEFT, CIFTI.format("01", ""), "sub-02/func/" + Path(LEFT).name.replace("01", "02"))
    files, findings = found(tmp_path, layout="fmriprep")
    assert list(files) == ["01/1/1"]
    assert kinds(findings) == {"missing hemisphere": 2, "no run": 1, "no usable variant": 1}


def test_what_fmriprep_writes_besides_is_no_run(tmp_path):
    tree(
        tmp_path,
        CIFTI.format("01", ""),
        "sub-01/func/sub-01_task-rest_hemi-L_space-fsnative_bold.func.gii",
        "sub-01/func/sub-01_task-rest_bold_space-fsaverage5.L.func.gii",
        "sub-01/func/sub-01_task-rest_echo-1_space-fsLR_den-91k_bold.dtseries.nii",
        "sub-01/func/sub-01_task-nback_space-fsLR_den-91k_bold.dtseries.nii",
    )
    files, findings = found(tmp_path, layout="fmriprep")
    assert list(files) == ["01/1/1"]
    assert kinds(findings) == {"not a run": 3, "other task": 1}
    said = "\n".join(map(str, findings))
    for words in ("subject's own mesh", "oldest fMRIPrep", "single echo", "nback: 1 files", "data.tasks"):
        assert words in said


def test_tasks_are_chosen_and_more_than_one_name_their_runs(tmp_path):
    tree(tmp_path, *(CIFTI.format("01", "").replace("rest", task) for task in ("REST1", "rest2", "nback")))
    with pytest.raises(
        NothingSelected, match=r"no run is of task rest; tasks there are REST1, nback, rest2: data.tasks"
    ):
        discover(study_of(tmp_path, layout="fmriprep"))
    assert list(found(tmp_path, layout="fmriprep", tasks=["nback"])[0]) == ["01/1/1"]
    for tasks in (["rest*"], ["rest1", "rest2"]):
        assert list(found(tmp_path, layout="fmriprep", tasks=tasks)[0]) == ["01/1/REST1", "01/1/rest2"]
    whole_subject(tmp_path / "hcp", "1")
    with pytest.raises(UsageError, match="layout hcp do not name a task"):
        discover(study_of(tmp_path / "hcp", tasks=["rest"]))


def test_parts_of_a_name_tell_runs_apart(tmp_path):
    parts = ["", "_dir-AP_run-1", "_dir-PA_run-1", "_acq-x_run-1", "_run-2"]
    tree(tmp_path, *(CIFTI.format("01", part) for part in parts))
    assert list(found(tmp_path, layout="fmriprep")[0]) == [
        f"01/1/{run}" for run in ("1", "2", "acqx1", "dirAP1", "dirPA1")
    ]


def test_names_that_would_be_the_same_are_doubled(tmp_path):
    tree(tmp_path, CIFTI.format("01", ""), CIFTI.format("01", "_run-1"))
    with pytest.raises(BadData, match="sub-01 ses-1 run-1 doubled"):
        discover(study_of(tmp_path, layout="fmriprep"))
    other = tree(tmp_path / "other", LEFT, RIGHT, LEFT.replace("hemi-L_space-fsaverage5", "space-fsaverage5_hemi-L"))
    with pytest.raises(BadData, match="doubled"):
        discover(study_of(other, layout="fmriprep"))


def test_confounds_of_another_run_are_never_taken(tmp_path):
    """PennLINC/xcp_d#1062: the second run's table was not there, and the third's was used."""
    names = [f"sub-01/func/sub-01_task-rest_dir-PA_run-{run}" for run in "123"]
    tree(tmp_path, *(f"{name}_space-fsLR_den-91k_bold.dtseries.nii" for name in names))
    tree(tmp_path, *(f"{name}_desc-confounds_timeseries.tsv" for name in (names[0], names[2])))
    tree(tmp_path, "sub-01/func/sub-01_task-rest_desc-confounds_timeseries.tsv")
    frame, _ = discover(study_of(tmp_path, layout="fmriprep"))
    taken = [Path(one).name.removesuffix("_desc-confounds_timeseries.tsv") for one in frame["confounds"]]
    assert taken == [Path(names[0]).name, "", Path(names[2]).name]


def test_sessions_and_runs_that_most_subjects_have_are_missed(tmp_path):
    """neurospin/pypreprocess#62: two of the sessions were expected of everybody."""
    sessions = {"01": "1234", "02": "1234", "03": "1234", "04": "1", "05": "134"}
    name = "sub-{0}/ses-{1}/func/sub-{0}_ses-{1}_task-rest_run-{2}_space-fsLR_den-91k_bold.dtseries.nii"
    tree(tmp_path, *(name.format(s, t, 1) for s, wanted in sessions.items() for t in wanted))
    tree(tmp_path, *(name.format(s, "1", 2) for s in ("01", "02", "03", "04")))
    files, findings = found(tmp_path, layout="fmriprep")
    assert len(files) == 20
    assert sorted(str(one).split(":")[0] for one in findings) == [
        "sub-04 ses-2",
        "sub-04 ses-3",
        "sub-04 ses-4",
        "sub-05 ses-1 run-2",
        "sub-05 ses-2",
    ]


def test_the_usual_cleaning_is_the_layouts_unless_the_study_says_otherwise(tmp_path):
    tree(tmp_path, CIFTI.format("01", ""))
    data = study_of(tmp_path, layout="fmriprep").data
    assert (data.confounds, data.band_pass, data.detrend) == ("simple", (0.008, 0.1), True)
    assert kinds(found(tmp_path, layout="fmriprep")[1]) == {}
    as_it_is = study_of(tmp_path, layout="fmriprep", confounds="none", band_pass=None).data
    assert (as_it_is.confounds, as_it_is.band_pass, as_it_is.detrend) == ("none", None, True)
    assert kinds(found(tmp_path, layout="fmriprep", confounds="none")[1]) == {"not cleaned": 1}
    for layout in ("hcp", "xcpd"):
        data = study_of(tmp_path, layout=layout).data
        assert (data.confounds, data.band_pass, data.detrend) == ("none", None, False)


# XCP-D

XCPD = "sub-01/ses-1/func/sub-01_ses-1_task-rest{}_space-fsLR_{}.nii"
XCPD_ORDER = [
    "den-91k_desc-denoised_bold.dtseries",
    "den-91k_desc-residual_bold.dtseries",
    "den-91k_desc-denoisedSmoothed_bold.dtseries",
    "den-91k_desc-residual_smooth_bold.dtseries",
]
PARCELS = [
    "seg-Glasser_den-91k_stat-mean_timeseries.ptseries",
    "atlas-Glasser_den-91k_timeseries.ptseries",
    "atlas-Glasser_den-91k_bold.ptseries",
]


@pytest.mark.parametrize("first", range(len(XCPD_ORDER)))
def test_xcpd_of_all_versions_not_smoothed_first(tmp_path, first):
    names = [XCPD.format("_run-1", kind) for kind in XCPD_ORDER[first:]]
    tree(tmp_path, *names, XCPD.format("_run-1", PARCELS[0]), names[0].split("_space")[0] + "_outliers.tsv")
    files, findings = found(tmp_path, layout="xcpd")
    assert files == {"01/1/1": Path(names[0]).name}
    assert kinds(findings) == {"variant passed over": len(names)}
    frame = discover(study_of(tmp_path, layout="xcpd"))[0]
    assert Path(frame.loc[0, "censor"]).name == "sub-01_ses-1_task-rest_run-1_outliers.tsv"


@pytest.mark.parametrize("kind", XCPD_ORDER)
def test_any_xcpd_variant_can_be_asked_for(tmp_path, kind):
    tree(tmp_path, *(XCPD.format("", one) for one in (*XCPD_ORDER, PARCELS[0])))
    files, _ = found(tmp_path, layout="xcpd", variants=[f"_{kind.replace('_bold', '')}.nii"])
    assert files == {"01/1/1": Path(XCPD.format("", kind)).name}


@pytest.mark.parametrize("kind", PARCELS)
def test_parcels_of_any_version_can_be_asked_for(tmp_path, kind):
    tree(tmp_path, *(XCPD.format("", one) for one in (*XCPD_ORDER, kind)))
    files, _ = found(tmp_path, layout="xcpd", variants=["*-Glasser*.ptseries.nii"])
    assert files == {"01/1/1": Path(XCPD.format("", kind)).name}


def test_parcels_alone_are_used_only_when_asked_for(tmp_path):
    tree(tmp_path, XCPD.format("", PARCELS[0]))
    with pytest.raises(NothingSelected, match=r"_den-91k_seg-Glasser[.]ptseries[.]nii; to use one"):
        discover(study_of(tmp_path, layout="xcpd"))


def test_a_file_of_all_runs_is_not_a_further_run(tmp_path):
    kind = XCPD_ORDER[0]
    tree(tmp_path, *(XCPD.format(run, kind) for run in ("", "_run-01", "_run-02")), XCPD.format("_run-01", PARCELS[0]))
    files, findings = found(tmp_path, layout="xcpd")
    assert list(files) == ["01/1/01", "01/1/02"]
    assert [one.detail.split(": ")[1] for one in findings if one.kind == "not a run"] == [
        "several runs of one subject in one file"
    ]


def test_a_file_of_all_runs_of_both_directions_is_none_either(tmp_path):
    names = ["", "_dir-AP_run-1", "_dir-PA_run-1", "_dir-AP", "_acq-other"]
    tree(tmp_path, *(XCPD.format(part, XCPD_ORDER[0]) for part in names))
    files, _ = found(tmp_path, layout="xcpd")
    assert list(files) == ["01/1/acqother", "01/1/dirAP1", "01/1/dirPA1"]


def test_a_file_without_a_run_number_is_a_run_where_there_is_no_other(tmp_path):
    tree(tmp_path, XCPD.format("", XCPD_ORDER[0]), XCPD.format("", XCPD_ORDER[0]).replace("ses-1", "ses-2"))
    assert list(found(tmp_path, layout="xcpd")[0]) == ["01/1/1", "01/2/1"]


def test_frames_that_xcpd_makes_up_are_not_used(tmp_path):
    tree(tmp_path, XCPD.format("", XCPD_ORDER[0]), XCPD.format("", "den-91k_desc-interpolated_bold.dtseries"))
    _, findings = found(tmp_path, layout="xcpd")
    assert "made up" in findings[0].detail


@pytest.mark.parametrize("layout", ["fmriprep", "xcpd"])
def test_a_folder_too_high_or_too_low_is_named(tmp_path, layout):
    tree(tmp_path / "derivatives" / "sub-01/func", "x")
    tree(tmp_path / "derivatives", XCPD.format("", XCPD_ORDER[0]), CIFTI.format("02", ""))
    with pytest.raises(NotADataset, match=f"there are some in {tmp_path / 'derivatives'}"):
        discover(study_of(tmp_path, layout=layout))


def test_every_description_explains_itself():
    assert sorted(described_layouts()) == ["fmriprep", "hcp", "xcpd"]
    for name in described_layouts():
        layout = load_layout(name)
        re.compile(layout.run_file, re.VERBOSE)
        for pattern in [*layout.preference, layout.cleaned, *(one["pattern"] for one in layout.not_runs)]:
            re.compile(pattern)
