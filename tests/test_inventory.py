"""What a cohort holds by headers and tables alone: frames and minutes that count, and why others do not."""

import math
from pathlib import Path

import numpy as np
import pytest

from parcellation.bold_files import write_cifti, write_pair
from parcellation.config import Data
from parcellation.findings import Finding
from parcellation.inventory import (
    MESH,
    SHORT,
    SPACE,
    UNCLEANED,
    UNREADABLE,
    by_subject,
    table_lines,
    take_stock,
    unusable,
    write_table,
)
from parcellation.manifest import check_files, read_manifest
from parcellation.surfaces import Mesh, Vertices
from tests.fmriprep_tables import fmriprep_table
from tests.shared_data import CASES, needs_cases

SMALL, DENSE = Mesh("fsaverage", (642, 642)), Mesh("fsLR", (4842, 4842))


def run(folder: Path, name: str, frames: int = 60, mesh: Mesh = SMALL, time: float = 2.0) -> str:
    vertices = Vertices.of(mesh, range(5), range(5))
    write_cifti(folder / name, np.ones((frames, 10), np.float32), vertices, time)
    return name


def stock_of(folder: Path, *rows: str, header: str = "subject\tsession\trun\tbold", **settings):
    """The table, and the findings as (kind, subject/session/run)."""
    (folder / "m.tsv").write_text("\n".join([header, *rows]) + "\n")
    frame = read_manifest(folder / "m.tsv")
    data = Data(layout="manifest", manifest=folder / "m.tsv", **settings)
    findings = check_files(frame, data)
    stock, more = take_stock(data, frame, findings)
    return stock, findings + more


def told(findings: list[Finding]) -> dict[str, str]:
    return {f"{one.subject}/{one.session}/{one.run}": one.kind for one in findings}


def test_frames_and_minutes_after_censoring(tmp_path):
    run(tmp_path, "a.dtseries.nii")
    run(tmp_path, "b.dtseries.nii", 90, time=0.8)
    (tmp_path / "c.txt").write_text("1\n" * 45 + "0\n" * 15)
    rows = ["1\t1\tA\ta.dtseries.nii\tc.txt\t", "1\t1\tB\tb.dtseries.nii\t\t2.0"]
    stock, findings = stock_of(tmp_path, *rows, header="subject\tsession\trun\tbold\tcensor\ttr")
    assert findings == []
    assert stock.drop(columns=["subject", "session", "run"]).to_dict("list") == {
        "mesh": ["fsaverage_den-642"] * 2,
        "frames": [60, 90],
        "frames_kept": [45, 90],
        "minutes_kept": [1.5, 3.0],
        "repetition_time": [2.0, 2.0],
    }


def test_each_reason_has_its_kind_and_others_go_on(tmp_path):
    good, cut = run(tmp_path, "good.dtseries.nii"), run(tmp_path, "cut.dtseries.nii")
    (tmp_path / cut).write_bytes((tmp_path / cut).read_bytes()[:-8])
    (tmp_path / "wrong.txt").write_text("1\n" * 59)
    (tmp_path / "few.txt").write_text("1\n" * 3 + "0\n" * 57)
    for name in ("wrong", "few", "lone"):
        run(tmp_path, f"{name}.dtseries.nii", frames={"lone": 1}.get(name, 60))
    run(tmp_path, "dense.dtseries.nii", mesh=DENSE)
    rows = [
        f"1\t1\t1\t{good}\t",
        f"1\t1\t2\t{cut}\t",
        "2\t1\t1\twrong.dtseries.nii\twrong.txt",
        "2\t1\t2\tfew.dtseries.nii\tfew.txt",
        "2\t2\t1\tlone.dtseries.nii\t",
        "2\t2\t2\tdense.dtseries.nii\t",
        "3\t1\t1\tgone.dtseries.nii\t",
    ]
    stock, findings = stock_of(tmp_path, *rows, header="subject\tsession\trun\tbold\tcensor")
    assert told(findings) == {
        "1/1/2": UNREADABLE,
        "2/1/1": UNCLEANED,
        "2/1/2": SHORT,
        "2/2/1": SHORT,
        "2/2/2": MESH,
        "3/1/1": UNREADABLE,
    }
    text = "\n".join(map(str, findings))
    for words in (
        "truncated: expected",
        "expected 60 values, one a frame of its run, got 59",
        "at least 20 frames to keep, got 3 of 60",
        "at least 20 frames to keep, got 1 of 1",
        "on fsLR_den-5k; most runs are on fsaverage_den-642",
        "gone.dtseries.nii: not there",
    ):
        assert words in text
    assert stock["frames_kept"].tolist() == [60, 0, 0, 0, 0, 0, 0]
    assert len(unusable(findings)) == 6


def test_minutes_of_a_run_and_of_a_session(tmp_path):
    for name, frames in (("a", 60), ("b", 90), ("c", 30)):
        run(tmp_path, f"{name}.dtseries.nii", frames)
    rows = [f"1\t{t}\t{r}\t{name}.dtseries.nii" for t, r, name in (("1", "1", "a"), ("1", "2", "b"), ("2", "1", "c"))]
    stock, findings = stock_of(tmp_path, *rows, minimum_minutes_run=2)
    assert told(findings) == {"1/2/1": SHORT}
    assert "at least 2 minutes to keep, got 1.00" in findings[0].detail
    stock, findings = stock_of(tmp_path, *rows, minimum_minutes_session=5)
    assert told(findings) == {"1/2/1": SHORT}
    assert "at least 5 minutes to keep in the session, got 1.00" in findings[0].detail
    assert stock["minutes_kept"].tolist() == [2, 3, 0]
    # Runs that are too short do not help their session.
    assert set(told(stock_of(tmp_path, *rows, minimum_minutes_run=2.5, minimum_minutes_session=5)[1]).values()) == {
        SHORT
    }


def test_a_repetition_time_that_nobody_says_is_not_guessed(tmp_path):
    paths = tmp_path / "l.func.gii", tmp_path / "r.func.gii"
    write_pair(paths, np.ones((30, 1284), np.float32), Vertices.of(SMALL, range(642), range(642)), 2.0)
    header = "subject\tsession\trun\tbold_left\tbold_right\ttr"
    stock, findings = stock_of(tmp_path, "1\t1\t1\tl.func.gii\tr.func.gii\t", header=header)
    assert findings == []
    assert math.isnan(stock.loc[0, "minutes_kept"])
    assert table_lines(by_subject(stock, findings))[1].split()[-1] == "n/a"
    _, findings = stock_of(tmp_path, "1\t1\t1\tl.func.gii\tr.func.gii\t", header=header, band_pass=(0.01, 0.1))
    assert told(findings) == {"1/1/1": UNCLEANED}
    _, findings = stock_of(tmp_path, "1\t1\t1\tl.func.gii\tr.func.gii\t", header=header, minimum_minutes_run=1)
    assert told(findings) == {"1/1/1": SHORT}
    stock, findings = stock_of(tmp_path, "1\t1\t1\tl.func.gii\tr.func.gii\t2", header=header, minimum_minutes_run=1)
    assert (stock.loc[0, "minutes_kept"], findings) == (1.0, [])


def test_a_mesh_of_two_spaces_wants_a_setting(tmp_path):
    paths = tmp_path / "l.mgh", tmp_path / "r.mgh"
    mesh = Mesh("fsaverage", (10242, 10242))
    write_pair(paths, np.ones((2, 20484), np.float32), Vertices.of(mesh, range(10242), range(10242)), 2.0)
    header = "subject\tsession\trun\tbold_left\tbold_right"
    stock, findings = stock_of(tmp_path, "1\t1\t1\tl.mgh\tr.mgh", header=header)
    assert {one.kind for one in findings} == {SPACE, SHORT}
    assert stock.loc[0, ["mesh", "frames"]].tolist() == ["", 2]
    said = stock_of(tmp_path, "1\t1\t1\tl.mgh\tr.mgh", header=header, space="fsaverage", minimum_frames=2)
    assert said[0].loc[0, "mesh"] == "fsaverage_den-10k"
    # Three frames are what correlations need at least.
    assert told(said[1]) == {"1/1/1": SHORT}


def test_confounds_are_counted_as_they_will_be_used(tmp_path):
    for name in ("a", "b", "c"):
        run(tmp_path, f"{name}.dtseries.nii", 80)
    table = fmriprep_table(80)
    table.loc[:9, "framewise_displacement"] = 2
    table.to_csv(tmp_path / "a.tsv", sep="\t", index=False, na_rep="n/a")
    table[:79].to_csv(tmp_path / "b.tsv", sep="\t", index=False, na_rep="n/a")
    rows = ["1\t1\tA\ta.dtseries.nii\ta.tsv", "1\t1\tB\tb.dtseries.nii\tb.tsv", "1\t1\tC\tc.dtseries.nii\t"]
    header = "subject\tsession\trun\tbold\tconfounds"
    stock, findings = stock_of(tmp_path, *rows, header=header, confounds={"strategy": ["motion", "scrub"]})
    assert stock["frames_kept"].tolist() == [70, 0, 0]
    assert told(findings) == {"1/1/B": UNCLEANED, "1/1/C": UNCLEANED}
    assert "expected 80 rows of confounds" in findings[0].detail
    assert "names no file of them" in findings[1].detail


@needs_cases
def test_real_files_that_cannot_be_used(tmp_path):
    """nipy/nibabel#747 and #537: CIFTI-1, and a file of which the end is missing; both before any work."""
    cifti = CASES / "cifti"
    files = ["MSC_Conte69.SmoothedMyelinMap.32k_fs_LR.dtseries.nii", "truncated_4S156_den-91k.dlabel.nii"]
    (tmp_path / "short.dtseries.nii").write_bytes((cifti / "wb_int16scaled_10tp_5k.dtseries.nii").read_bytes()[:-1])
    rows = [f"{i}\t1\t1\t{cifti / name}" for i, name in enumerate(files)] + ["2\t1\t1\tshort.dtseries.nii"]
    rows.append(f"3\t1\t1\t{cifti / 'wb_int16scaled_10tp_5k.dtseries.nii'}")
    stock, findings = stock_of(tmp_path, *rows, minimum_frames=5)
    assert set(told(findings).values()) == {UNREADABLE}
    assert stock["frames_kept"].tolist() == [0, 0, 0, 10]
    details = [one.detail for one in findings]
    assert "wb_command -file-convert -cifti-version-convert" in details[0]
    assert "truncated" in details[2]


# Tables


def test_a_row_a_subject_also_for_those_without_a_run(tmp_path):
    run(tmp_path, "a.dtseries.nii")
    run(tmp_path, "b.dtseries.nii", 5)
    rows = ["10\t1\tA\ta.dtseries.nii", "9\t1\tA\tb.dtseries.nii"]
    stock, findings = stock_of(tmp_path, *rows)
    findings += [Finding("missing run", "", "10", "1", "B"), Finding("no usable variant", "", "007", "1", "A")]
    findings += [Finding("variant passed over", "", "10", "1", "A"), Finding("other task", "nback")]
    table = by_subject(stock, findings)
    assert table["subject"].tolist() == ["007", "9", "10"]
    assert table.drop(columns="subject").to_numpy().tolist() == [
        [0, 0, 0, 1, 0, 0, 0, 0.0],
        [1, 1, 1, 0, 0, 5, 0, 0.0],
        [1, 1, 0, 1, 1, 60, 60, 2.0],
    ]
    lines = table_lines(table)
    assert lines[0].split("  ")[0].strip() == "subject"
    assert lines[1].split()[0] == "007"
    write_table(tmp_path / "t.tsv", table)
    assert (tmp_path / "t.tsv").read_text().splitlines()[1].split("\t") == [
        "007",
        "0",
        "0",
        "0",
        "1",
        "0",
        "0",
        "0",
        "0",
    ]


def test_of_many_subjects_the_first_are_shown(tmp_path):
    run(tmp_path, "a.dtseries.nii")
    stock, _ = stock_of(tmp_path, "1\t1\t1\ta.dtseries.nii")
    table = by_subject(stock, [Finding("no run", "", f"{i:03d}") for i in range(2, 40)])
    assert len(table_lines(table)) == 22
    assert table_lines(table)[-1] == "and 19 more"


@pytest.mark.parametrize("kinds", [(), (UNREADABLE,)])
def test_runs_are_counted_once(kinds):
    findings = [Finding(UNREADABLE, text, "1", "1", "1") for text in "ab"] + [Finding(UNREADABLE, "folder")]
    assert unusable(findings, kinds) == ({("1", "1", "1")} if kinds else set())
