"""Trees of fMRIPrep and XCP-D, of empty files: what is a run, which variant is used, and what is odd."""

from pathlib import Path

import pytest

from parcellation.errors import BadData, NotADataset, NothingSelected, UsageError
from parcellation.manifest import discover
from tests.trees import found, kinds, study_of, tree, whole_subject

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
