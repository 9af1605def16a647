"""The cohort's table: names stay text, faults are named by row, and a tree is read with everything odd listed."""

import csv
import json
import os
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parcellation.config import Data, parse_study
from parcellation.errors import BadData, InputMissing, NothingSelected
from parcellation.manifest import (
    COLUMNS,
    bold_paths,
    check_files,
    discover,
    read_manifest,
    select,
    used_paths,
    write_manifest,
)
from tests.trees import whole_subject

HEADER = "subject\tsession\trun\tbold"


def table(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "manifest.tsv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def frame_of(*rows: dict) -> pd.DataFrame:
    return pd.DataFrame([dict.fromkeys(COLUMNS, "") | row for row in rows], columns=list(COLUMNS), dtype=object)


def refused(path: Path) -> str:
    with pytest.raises(BadData) as caught:
        read_manifest(path)
    return str(caught.value)


def study_of(root: Path, **data):
    return parse_study({"name": "s", "data": {"root": str(root), **data}}, root / "study.yaml")


# A table


def test_names_are_text_whatever_they_look_like(tmp_path):
    names = ["001", "1e5", "NA", "nan", "100307", "True", "0x10", "None", "1"]
    frame = read_manifest(table(tmp_path, *(f"{name}\t{name}\t{name}\t{i}.nii" for i, name in enumerate(names))))
    for column in ("subject", "session", "run"):
        assert frame[column].tolist() == names
    assert tuple(frame.columns) == COLUMNS
    assert all(isinstance(value, str) for value in frame.to_numpy().ravel())


def test_prefixes_are_taken_off_once(tmp_path):
    frame = read_manifest(table(tmp_path, "sub-01\tses-pre\trun-2\ta.nii"))
    assert frame.loc[0, ["subject", "session", "run"]].tolist() == ["01", "pre", "2"]
    assert "subject: expected" in refused(table(tmp_path, "sub-sub-01\t1\t1\ta.nii"))


def test_paths_are_relative_to_the_manifest_and_normal(tmp_path):
    frame = read_manifest(table(tmp_path, "1\t1\t1\t../a/./b.nii", "2\t1\t1\t/abs/c.nii"))
    assert bold_paths(frame.loc[0]) == (tmp_path.resolve().parent / "a/b.nii",)
    assert bold_paths(frame.loc[1]) == (Path("/abs/c.nii"),)


def test_two_hemispheres_a_run(tmp_path):
    header = "subject\tsession\trun\tbold_left\tbold_right\tconfounds"
    frame = read_manifest(table(tmp_path, "1\t1\t1\tl.mgz\tr.mgz\tc.tsv", header=header))
    assert [path.name for path in bold_paths(frame.loc[0])] == ["l.mgz", "r.mgz"]
    assert Path(frame.loc[0, "confounds"]).is_absolute()
    assert frame.loc[0, "bold"] == ""
    assert "got bold_left" in refused(table(tmp_path, "1\t1\t1\tl.mgz\t\t", header=header))
    assert "got neither" in refused(table(tmp_path, "1\t1\t1\t\t\t", header=header))
    assert "line 2, line 2" in refused(table(tmp_path, "1\t1\t1\tl.mgz\tl.mgz\t", header=header))


@pytest.mark.parametrize("name", ["../1", "a/b", "a_b", "a-b", "", ".", "a b", "é", "١", "a" * 65, "a\u200b"])
def test_names_that_are_not_safe_in_a_file_name_are_refused(tmp_path, name):
    for values in ([name, "1", "1"], ["1", name, "1"], ["1", "1", name]):
        message = refused(table(tmp_path, "\t".join([*values, "x.nii"])))
        assert "line 2: " in message
        assert f"got {name!r}" in message


def test_missing_columns_are_named(tmp_path):
    assert "columns missing: session, run; got subject, bold" in refused(
        table(tmp_path, "1\ta.nii", header="subject\tbold")
    )
    assert "columns missing: bold (or bold_left and bold_right)" in refused(
        table(tmp_path, "1\t1\t1\tl", header="subject\tsession\trun\tbold_left")
    )
    assert "tabs, not commas" in refused(table(tmp_path, "1,1,1,a", header="subject,session,run,bold"))


def test_a_misspelt_column_is_refused_and_a_foreign_one_is_not_read(tmp_path):
    assert "unknown column 'confound'; did you mean 'confounds'?" in refused(
        table(tmp_path, "1\t1\t1\ta\tb", header=HEADER + "\tconfound")
    )
    frame = read_manifest(table(tmp_path, "1\t1\t1\ta\t33", header=HEADER + "\tage"))
    assert tuple(frame.columns) == COLUMNS


def test_doubled_rows_and_doubled_files_name_their_lines(tmp_path):
    os.symlink("a.nii", tmp_path / "link.nii")
    message = refused(
        table(
            tmp_path,
            "1\t1\tA\ta.nii",
            "1\t1\tB\tb.nii",
            "sub-1\t1\tA\tc.nii",
            "2\t1\tA\tx/../b.nii",
            "3\t1\tA\tlink.nii",
        )
    )
    assert "line 2, line 4: sub-1 ses-1 run-A more than once" in message
    assert f"line 3, line 5: {tmp_path.resolve() / 'b.nii'} more than once" in message
    assert f"line 2, line 6: {tmp_path.resolve() / 'a.nii'} more than once" in message


@pytest.mark.parametrize("column", ["confounds", "motion"])
def test_what_one_run_is_cleaned_with_is_not_another_runs_too(tmp_path, column):
    """PennLINC/xcp_d#1062, in a table: which of the two it belongs to, nobody can know."""
    rows = ("1\t1\tA\ta.nii\tx.tsv", "1\t1\tB\tb.nii\tx.tsv")
    message = refused(table(tmp_path, *rows, header=f"{HEADER}\t{column}"))
    assert f"line 2, line 3: {tmp_path.resolve() / 'x.tsv'} more than once" in message
    # The first frames of every run may be left out by one file.
    assert len(read_manifest(table(tmp_path, *rows, header=f"{HEADER}\tcensor"))) == 2
    both = table(tmp_path, "1\t1\tA\ta.nii\tx.tsv\tx.tsv", header=f"{HEADER}\tconfounds\tmotion")
    assert len(read_manifest(both)) == 1


def test_only_files_that_a_study_reads_are_looked_at(tmp_path):
    row = dict.fromkeys(COLUMNS, "") | {name: f"/{name}" for name in ("bold", "confounds", "censor", "motion")}
    assert used_paths(row) == tuple(Path(f"/{name}") for name in ("bold", "confounds", "censor", "motion"))
    for said, names in [
        ({}, ("bold", "censor")),
        ({"confounds": "all"}, ("bold", "confounds", "censor")),
        ({"motion_limit": 0.2}, ("bold", "censor", "motion")),
    ]:
        data = Data(layout="manifest", manifest="m.tsv", **said)
        assert used_paths(row, data) == tuple(Path(f"/{name}") for name in names)
        missing = check_files(frame_of(row | {"subject": "1", "session": "1", "run": "1"}), data)
        assert len(missing) == len(names)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "720", "0,72", "2 s", "1_0", "1e400"])
def test_a_repetition_time_is_positive_seconds(tmp_path, value):
    message = refused(table(tmp_path, f"1\t1\t1\ta.nii\t{value}", header=HEADER + "\ttr"))
    assert "line 2: tr: expected" in message
    assert value in message


def test_repetition_times_that_are_fine(tmp_path):
    lines = [f"{i}\t1\t1\t{i}.nii\t{tr}" for i, tr in enumerate(["0.72", "1", ".8", "7.2e-1", ""])]
    assert read_manifest(table(tmp_path, *lines, header=HEADER + "\ttr"))["tr"].tolist() == [
        "0.72",
        "1",
        ".8",
        "7.2e-1",
        "",
    ]


def test_tables_that_are_none(tmp_path):
    with pytest.raises(InputMissing, match="no such manifest"):
        read_manifest(tmp_path / "none.tsv")
    for content, words in [
        (b"", "expected a header and at least one run"),
        (HEADER.encode(), "expected a header and at least one run"),
        (b"\xff\xfe\x00s", "cannot be read as a table"),
        (HEADER.encode() + b"\n1\t1\t1\n", "line 2: expected 4 values as in the header, got 3"),
        (HEADER.encode() + b"\n1\t1\t1\ta\tb\n", "line 2: expected 4 values as in the header, got 5"),
        (HEADER.encode() + b'\n1\t1\t1\t"a\n', "cannot be read as a table"),
        (b"subject\tsubject\tsession\trun\tbold\n1\t1\t1\t1\ta\n", "column 'subject' twice"),
    ]:
        (tmp_path / "m.tsv").write_bytes(content)
        assert words in refused(tmp_path / "m.tsv")


def test_tables_saved_by_a_spreadsheet(tmp_path):
    (tmp_path / "m.tsv").write_bytes(b"\xef\xbb\xbf" + HEADER.encode() + b'\r\n01\t1\t1\t"a, b.nii"\r\n\r\n')
    frame = read_manifest(tmp_path / "m.tsv")
    assert frame["subject"].tolist() == ["01"]
    assert bold_paths(frame.loc[0])[0].name == "a, b.nii"


def test_many_faults_are_counted(tmp_path):
    message = refused(table(tmp_path, *(f"_\t1\t{i}\t{i}.nii" for i in range(30))))
    assert len(message.splitlines()) == 11
    assert message.endswith("and 20 more")


def test_the_schema_is_a_json_schema_of_the_columns():
    schema = json.loads(files("data_manifest").joinpath("manifest.schema.json").read_text())
    assert tuple(schema["properties"]) == COLUMNS
    assert all({"type", "description"} <= set(column) for column in schema["properties"].values())
    assert set(schema["required"]) < set(COLUMNS)


name = st.from_regex(r"\A[A-Za-z0-9]{1,12}\Z")
odd_part = st.text("aZ09 .-_'\"\\#,;%$&é中\u2028\u0085~*?[]{}", min_size=1, max_size=10).filter(lambda t: t.strip("."))
odd_path = st.lists(odd_part, min_size=1, max_size=3).map("/".join)
row = st.fixed_dictionaries(
    {"subject": name, "session": name, "run": name, "bold": odd_path, "confounds": st.just("") | odd_path},
    optional={"group": st.text("aZ09 'é\",", max_size=5), "tr": st.sampled_from(["0.72", "2", ""])},
)
names_apart = (lambda r: (r["subject"], r["session"], r["run"]), lambda r: r["bold"])
rows = st.lists(row, min_size=1, max_size=5, unique_by=names_apart)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows)
def test_writing_and_reading_gives_the_same_table(tmp_path, content):
    here = tmp_path.resolve()
    # Folders of their own: one file of confounds is never two runs'.
    absolute = [
        r | {n: str(here / n / f"{i}" / r[n]) if r[n] else "" for n in ("bold", "confounds")}
        for i, r in enumerate(content)
    ]
    frame = frame_of(*absolute)
    write_manifest(frame, tmp_path / "deep" / "m.tsv")
    pd.testing.assert_frame_equal(read_manifest(tmp_path / "deep" / "m.tsv"), frame)


def test_a_written_manifest_is_relative_and_only_as_wide_as_needed(tmp_path):
    frame = frame_of({"subject": "01", "session": "1", "run": "LR", "bold": str(tmp_path.resolve() / "d/a.nii")})
    write_manifest(frame, tmp_path / "m" / "manifest.tsv")
    with open(tmp_path / "m" / "manifest.tsv", newline="") as file:
        assert list(csv.reader(file, delimiter="\t")) == [HEADER.split("\t"), ["01", "1", "LR", "../d/a.nii"]]


def test_a_value_that_no_table_can_hold_leaves_the_old_file(tmp_path):
    (tmp_path / "m.tsv").write_text("old")
    for bad in ("/a\tb", "/a\nb", "/a\rb", "/a\udcffb"):
        with pytest.raises(BadData, match="without control characters"):
            write_manifest(frame_of({"subject": "1", "session": "1", "run": "1", "bold": bad}), tmp_path / "m.tsv")
    assert (tmp_path / "m.tsv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["m.tsv"]


# A study's data


def test_a_manifest_is_discovered_as_it_is_with_its_files_checked(tmp_path):
    path = table(tmp_path, "1\t1\t1\ta.nii\tA", "2\t1\t1\tb.nii\tB", header=HEADER + "\tgroup")
    (tmp_path / "b.nii").write_bytes(b"data")
    frame, findings = discover(study_of(tmp_path, layout="manifest", manifest=str(path)))
    assert frame["subject"].tolist() == ["1", "2"]
    assert [str(one) for one in findings] == [f"sub-1 ses-1 run-1: {tmp_path.resolve() / 'a.nii'}: not there"]
    frame, findings = discover(study_of(tmp_path, layout="manifest", manifest=str(path), group="B"))
    assert frame["subject"].tolist() == ["2"]
    assert findings == []
    with pytest.raises(NothingSelected, match=r"group 'C'; groups: \['A', 'B'\]"):
        discover(study_of(tmp_path, layout="manifest", manifest=str(path), group="C"))


def test_a_discovered_tree_is_written_and_read_back(tmp_path):
    whole_subject(tmp_path / "HCP", "001")
    frame, _ = discover(study_of(tmp_path / "HCP"))
    write_manifest(frame, tmp_path / "work" / "manifest.tsv")
    again = read_manifest(tmp_path / "work" / "manifest.tsv")
    assert check_files(again) == []
    assert [Path(p).resolve() for p in again["bold"]] == [Path(p).resolve() for p in frame["bold"]]


# Choices


@pytest.fixture
def cohort() -> pd.DataFrame:
    keys = [(s, t) for s in ("001", "002", "10") for t in ("1", "pre") if (s, t) != ("10", "pre")]
    return frame_of(*({"subject": s, "session": t, "run": "1", "bold": f"/{s}/{t}"} for s, t in keys))


def test_selection_is_with_or_without_prefix(cohort):
    assert select(cohort, ["sub-001", "10"], None)["subject"].unique().tolist() == ["001", "10"]
    assert select(cohort, None, ["ses-pre"])["subject"].tolist() == ["001", "002"]
    assert len(select(cohort, None, None)) == len(select(cohort, [], [])) == 5
    assert select(cohort, ["002"], ["1"])["bold"].tolist() == ["/002/1"]


def test_unknown_names_are_named_and_nothing_is_nobody(cohort):
    with pytest.raises(NothingSelected, match="no subject is called 1, 3; there are 001, 002, 10"):
        select(cohort, ["001", "3", "sub-1"], None)
    with pytest.raises(NothingSelected, match="no session is called 2"):
        select(cohort, None, ["ses-2"])
    with pytest.raises(NothingSelected, match="no run is of subjects"):
        select(cohort, ["10"], ["pre"])
