"""Models, stores, manifests and names from somebody who means ill: an error of ours, and nothing else happens."""

import ast
import gzip
import json
import os
import re
import time

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from parcellation.errors import BadData
from parcellation.files import checksum
from parcellation.model_file import load_model
from parcellation.timeseries import open_bold
from tests.readme import ROOT
from tests.studies import command, contents, process, replace

# --- a model ---


def header_of(folder) -> dict:
    return json.loads((folder.path / "work/model/model.json").read_text(encoding="utf-8"))


def write_header(folder, header: dict) -> None:
    replace(folder.path / "work/model/model.json", json.dumps(header).encode())


def changed(header: dict, path: str, value: object) -> dict:
    """The header with the value at a dotted path replaced."""
    name, _, rest = path.partition(".")
    return header | {name: changed(header[name], rest, value) if rest else value}


HEADERS = {
    "template": ["no_such_model", "../../outside", "", "auto_encoder", None, 3, ["functional_parcellation"]],
    "format": [0, 2, "1", None, [1]],
    "numbers": ["", None, "0" * 64],
    "hyperparameters": [{}, [], {"frames_reference": "many"}, {"command": "rm"}],
    "family": [{}, [], None, {"cards": {}, "scheme": "hybrid"}],
    "family.cards": [
        {"subject": 10**12, "session": 2, "vertex": 304},
        {"subject": 3, "session": 10**6, "vertex": 10**9},
        {"subject": 3, "session": 2, "vertex": -304},
        {"subject": "3", "session": 2, "vertex": 304},
        {"subject": 3},
        [3, 2, 304],
    ],
    "family.scheme": ["sideways", {"mu": "../x"}, 3],
    "family.flow": ["os.system", {"no_such_site": "affine"}, 3],
    "family.encoder": ["os.system", "../x", 3],
    "family.encoding_size": [10**12, -3, "many"],
    "family.passes": [10**12, -1],
    "label_power": [None, {"single": 1, "system": "rm"}, {"single": "1"}, {"single": float("nan")}],
    "retest_link": [None, {"own": "x"}, {"own": float("inf")}, {"system": 1}],
    "details": [None, [], {}, {"study": {}}],
    "details.study": [None, {}, {"name": "a"}, []],
    "details.study.region.name": ["../../../outside", "a/b", "", "<script>"],
    "details.study.model.networks": [10**9, 0, "2"],
    "details.study.model.template": [7],
    "details.study.model.names": [["../x", "../x"], ["a\tb", "c"], ["a", "b", "c"], "ab", ["a\nb", "\x1b[2J"]],
    "details.study.features": [{"components": "__import__"}, None, {"system": 1}],
    "details.orientation": [{"names": ["a\nb", "c"]}, {"names": 5}, "names", {"names": ["x"]}],
    "details.colours": [[[1, 2]], [[1, 2, 3], [4, 5, 10**9]], "red", [["a", "b", "c"]] * 2],
    "details.subjects": [None, [], [1, 2], 5],
    "details.sessions": ["many", None],
    "details.ground": [None, {}, []],
    "details.ground.region": [
        {},
        {"space": "fsaverage", "counts": [10242, 10242], "hemisphere": [0], "number": [10**9]},
        {"space": "fsaverage", "counts": [10242, 10242], "hemisphere": [0], "number": [0]},
    ],
    "details.ground.brain": [
        {"space": "../x", "counts": [10242, 10242], "hemisphere": [0], "number": [0]},
        {"space": "fsaverage", "counts": [7, 7], "hemisphere": [0], "number": [0]},
        {"space": "fsaverage", "counts": [10**15, 10**15], "hemisphere": [0], "number": [0]},
    ],
    "details.ground.targets": [{}, {"names": [], "members": {}, "target": []}],
    "identity": [None, [], {"vertices": "other"}],
}  # fmt: skip


@pytest.mark.parametrize("path", HEADERS)
def test_a_model_whose_header_is_hostile_is_refused_and_nothing_written(path, study):
    """Of any value, by every verb that applies a model; with the checksum right, since who writes a model knows it."""
    header = header_of(study)
    outside = {one for one in study.path.parent.rglob("*") if "study/" not in str(one)}
    before = contents(study.results)
    patients = study.write_study("new.yaml", model={"file": "work/model"}, outputs={"work": "new", "directory": "n"})
    for value in HEADERS[path]:
        write_header(study, changed(header, path, value))
        started = time.process_time()
        said = command("infer", study.study, code=65)
        assert "model" in said, value
        assert len(said) < 2000
        if path.startswith("details"):
            assert "work/model" in command("prepare", patients, code=65)
        assert time.process_time() - started < 5  # of a processor: nothing that a header says is worked off
    assert contents(study.results) == before
    assert {one for one in study.path.parent.rglob("*") if "study/" not in str(one)} == outside
    assert not (study.path / "n").exists()


def with_numbers(folder, change) -> None:
    """A model with other numbers and a checksum that fits them."""
    path = folder.path / "work/model/model.safetensors"
    arrays = change(load_file(path))
    content = arrays if isinstance(arrays, bytes) else None
    if content is None:
        save_file(arrays, folder.path / "new.safetensors")
        content = (folder.path / "new.safetensors").read_bytes()
    replace(path, content)
    write_header(folder, header_of(folder) | {"numbers": checksum(path)})


def declared(shape: list[int], length: int = 16, claimed: int | None = None) -> bytes:
    """A safetensors file whose header says of this shape, on so few bytes."""
    text = json.dumps({"family.x": {"dtype": "F32", "shape": shape, "data_offsets": [0, length]}}).encode()
    return (len(text) if claimed is None else claimed).to_bytes(8, "little") + text + b"\0" * length


NUMBERS = {
    "huge shape": lambda arrays: declared([10**9, 10**9]),
    "shape that overflows": lambda arrays: declared([2**40, 2**40]),
    "long header": lambda arrays: declared([4], claimed=2**60),
    "no header": lambda arrays: b"\0" * 8,
    "nothing": lambda arrays: b"",
    "a pickle": lambda arrays: b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
    "extra array": lambda arrays: arrays | {"family.more": np.zeros(3, np.float32)},
    "one less": lambda arrays: dict(list(arrays.items())[1:]),
    "other shape": lambda arrays: {n: a[..., :-1].copy() if n.startswith("family.f") else a for n, a in arrays.items()},
    "no feature map": lambda arrays: {n: a for n, a in arrays.items() if not n.startswith("features")},
    "feature map of nan": lambda arrays: arrays | {"features.scale": np.array([np.nan])},
    "feature map of other targets": lambda arrays: arrays | {"features.mean": np.zeros(3, np.float32)},
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_a_model_whose_numbers_are_hostile_is_refused(name, study):
    with_numbers(study, NUMBERS[name])
    started = time.process_time()
    assert "model" in command("infer", study.study, code=65)
    assert time.process_time() - started < 5


def test_a_model_of_a_later_format_is_refused_by_its_number(study):
    write_header(study, header_of(study) | {"format": 2, "software": "9.0"})
    assert "expected model format 1, got 2 (software 9.0)" in command("infer", study.study, code=65)


def test_what_an_earlier_version_did_not_write_is_its_default(study, finished):
    """Settings that are newer than a model had no effect on it; its maps are the same to the bit."""
    header = header_of(study)
    header.pop("retest_link")
    header["details"]["study"]["training"].pop("inner_steps")
    header["details"]["study"]["outputs"].pop("profile_maps")
    write_header(study, header)
    command("infer", study.study)
    assert "training" in load_model(study.path / "work/model").details["study"]
    for path in sorted((finished.results / "sub-sim01/anat").glob("*.nii")):
        assert (study.results / path.relative_to(finished.results)).read_bytes() == path.read_bytes()


# --- what a work folder keeps ---


NO_JSON = (b"", b"{", b"5", b"\xff\xfe")
NO_GROUND = (b"[]", b'{"key": 1}', b'{"key": 1, "ground": {"region": []}}')


@pytest.mark.parametrize(
    ("name", "content"),
    [("manifest.json", one) for one in NO_JSON] + [("ground.json", one) for one in (*NO_JSON, *NO_GROUND)],
)
def test_a_damaged_file_of_the_work_folder_is_named(name, content, study):
    replace(study.path / "work" / name, content)
    said = command("infer", study.study, code=65)
    assert f"work/{name}: damaged" in said
    assert "again" in said


def test_an_answer_of_which_a_bit_is_other_is_made_again(study, finished):
    path = study.posterior("sim02")
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    replace(path, bytes(content))
    command("infer", study.study)
    assert path.read_bytes() == finished.posterior("sim02").read_bytes()
    assert contents(study.results / "sub-sim02") == contents(finished.results / "sub-sim02")


# --- names ---

NAMES = [
    "../outside",
    "..",
    "a/../../b",
    "/etc",
    "a\x1b[31m",
    "a\0b",
    "<script>alert(1)</script>",
    "$(id)",
    "`id`",
    "a;id",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("column", [0, 1, 2])
def test_names_of_a_manifest_never_become_paths_or_commands(name, column, fresh):
    row = ["sim01", "1", "1", str(fresh.run_file("sim01"))]
    row[column] = name
    table = "subject\tsession\trun\tbold\n" + "\t".join(row) + "\n"
    replace(fresh.path / "manifest.tsv", table.encode())
    before = {str(one) for one in fresh.path.parent.rglob("*")}
    study = fresh.write_study(data={"layout": "manifest", "manifest": "manifest.tsv", "root": None})
    said = command("prepare", study, code=65)
    assert "line 2" in said
    assert "\x1b" not in said
    assert {str(one) for one in fresh.path.parent.rglob("*")} == before


def test_names_of_a_tree_never_become_paths_or_commands(fresh):
    for name in ("-rf", "$(id)", "a b", "..x", "a\x1b[31m"):
        folder = fresh.path / "HCP" / name / "MNINonLinear/Results/rfMRI_REST1_LR"
        folder.mkdir(parents=True)
        os.link(fresh.run_file("sim01"), folder / fresh.run_file("sim01").name)
    said = command("index", fresh.study)
    assert "\x1b" not in said
    assert {row.split("\t")[0] for row in (fresh.path / "work/manifest.tsv").read_text().splitlines()[1:]} == {
        f"sim0{number}" for number in range(1, 6)
    }


@pytest.mark.slow
def test_names_of_networks_and_studies_are_text_in_the_report(study):
    names = ["<script>alert(1)</script>", "<img src=x onerror=alert(2)>"]
    command("infer", study.write_study(model={"names": names}))
    command("report", study.study)
    page = (study.results / "report.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(2)&gt;" in page


# --- archives ---


def bomb(size: int) -> bytes:
    """So many zeros, gzipped."""
    part = gzip.compress(b"\0" * (1 << 20), 9)
    return part * (size >> 20)


@pytest.mark.parametrize("name", ["a.mgz", "a.func.gii.gz", "a.dtseries.nii.gz"])
def test_a_gzip_bomb_is_refused_in_little_memory(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(bomb(4 << 30))
    code = f"""
import resource, sys
from pathlib import Path
from parcellation.errors import ParcellationError
from parcellation.timeseries import open_bold
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_bold((Path({str(path)!r}),) * (2 if {name!r} == "a.mgz" else 1), "fsaverage")
except ParcellationError as error:
    print(type(error).__name__, error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    one = process(code=code)
    text, _ = one.communicate(timeout=120)
    assert one.returncode == 0, text
    assert re.match(r"(BadData|UsageError|InputMissing) ", text), text
    assert int(text.split()[-1]) < 200, text


def test_a_file_of_series_that_says_too_much_is_refused(tmp_path):
    path = tmp_path / "a.mgz"
    path.write_bytes(gzip.compress(np.array([1, 10**9, 1, 1, 10**6, 3], ">i4").tobytes() + b"\0" * 300))
    with pytest.raises(BadData, match=r"a\.mgz"):
        open_bold((path, path), "fsaverage")


# --- code ---

SOURCES = sorted([*(ROOT / "parcellation").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")])
FORBIDDEN = {
    "eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "torch.load", "joblib.load", "yaml.load",
    "yaml.unsafe_load", "yaml.full_load", "subprocess.getoutput", "subprocess.getstatusoutput", "marshal.loads",
    "shelve.open", "dill.load", "__import__", "pandas.read_pickle",
}  # fmt: skip


# What a child of the very same process says to it through a pipe.
PRIVATE = {("experiments.py", "pickle.loads")}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_no_code_calls_a_shell_or_reads_a_pickle():
    """Nothing runs text: processes are started from lists of arguments, files hold data."""
    found = []
    for path in SOURCES:
        for node, name in calls(path):
            said = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            wrong = said.get("shell", "False") != "False" or said.get("allow_pickle", "False") != "False"
            if (name in FORBIDDEN or wrong) and (path.name, name) not in PRIVATE:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:80]}")
    assert found == []


def test_such_code_would_be_found(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("import subprocess\nsubprocess.run('ls ' + name, shell=True)\nx = eval('1')\n", encoding="utf-8")
    assert [name for _, name in calls(path)] == ["subprocess.run", "eval"]


def test_tags_of_a_study_call_nothing(tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(f"name: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n", encoding="utf-8")
    assert "constructor for the tag" in command("prepare", study, code=64)
    assert not (tmp_path / "made").exists()
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(study.read_text())
