"""A study file: unknown keys, paths, defaults and the digest."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parcellation.config import PATHS, Section, Study, load_study, parse_study
from parcellation.errors import InputMissing, UsageError

MINIMAL = {"name": "broca", "data": {"layout": "hcp", "root": "HCP"}, "outputs": {"directory": "results"}}
SECTIONS = [name for name, field in Study.model_fields.items() if field.annotation is not str]


def study_with(**sections) -> dict:
    content = {**MINIMAL}
    for name, keys in sections.items():
        content[name] = {**content.get(name, {}), **keys}
    return content


def written(folder: Path, content: dict | str) -> Path:
    path = folder / "study.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def refused(content: dict) -> str:
    with pytest.raises(UsageError) as caught:
        parse_study(content, Path("/s/study.yaml"))
    return str(caught.value)


def test_three_lines_are_a_study_with_the_documented_defaults(tmp_path):
    study = load_study(written(tmp_path, "name: broca\ndata: {layout: hcp, root: HCP}\noutputs: {directory: out}\n"))
    assert (study.model.networks, study.model.template) == (2, "functional_parcellation")
    assert (study.region.name, study.region.hemisphere) == ("broca", "left")
    assert (study.targets.kind, study.targets.count) == ("vertices", 1483)
    assert (study.features.components, study.features.precision) == ("auto", "float16")
    assert study.data.band_pass is None
    assert study.data.confounds == "none"
    assert study.outputs.draws == 64


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_is_refused_with_the_nearest_name(section):
    for key in Study.model_fields[section].annotation.model_fields:
        message = refused(study_with(**{section: {key + "x": 1}}))
        assert f"{section}.{key}x: unknown key; did you mean {key!r}?" in message


def test_an_unknown_section_is_refused_with_the_nearest_name():
    for section in Study.model_fields:
        assert f"{section}s: unknown key; did you mean {section!r}?" in refused({**MINIMAL, section + "s": {}})


def test_an_unknown_key_like_no_other_lists_the_valid_ones():
    assert "valid keys: kind, count, label_file, seed" in refused(study_with(targets={"zzz": 1}))
    assert "unknown key; valid keys: name, data" in refused({**MINIMAL, 1: 2})


def test_every_fault_is_told_at_once():
    lines = refused(study_with(model={"networks": 1}, training={"steps": 0, "stepz": 5})).splitlines()
    assert sorted(line.split(": ")[1] for line in lines) == ["model.networks", "training.steps", "training.stepz"]
    assert all(line.startswith("/s/study.yaml: ") for line in lines)


def test_alternatives_of_one_key_are_one_line_by_its_name_in_the_file():
    message = refused(study_with(features={"components": "some"}))
    assert message.count("\n") == 0
    assert message.startswith("/s/study.yaml: features.components: ")
    assert "'auto' or 'none'" in message
    assert "integer" in message


@pytest.mark.parametrize("value", [100307, True, 1e5])
def test_a_subject_that_yaml_reads_as_a_number_is_refused_with_the_remedy(value):
    message = refused(study_with(training={"subjects": [value]}))
    assert f"training.subjects: Input should be a valid string, got {value!r} (write it in quotes)" in message


@pytest.mark.parametrize(
    ("section", "keys", "words"),
    [
        ("data", {"root": None}, "layout hcp needs `root`"),
        ("data", {"layout": "manifest"}, "needs `manifest`, a TSV"),
        ("data", {"layout": "../etc"}, "data.layout"),
        ("data", {"band_pass": [0.1, 0.01]}, "expected low < high in Hz, got [0.1, 0.01]"),
        ("targets", {"kind": "parcels"}, "need `label_file`"),
        ("model", {"names": ["a", "a"]}, "expected 2 different ones"),
        ("model", {"names": ["a", "b", "c"]}, "expected 2 different ones"),
        ("training", {"learning_rate": float("inf")}, "finite number"),
        ("data", {"root": "~nobody-has-this-name/x"}, "no home folder"),
        ("region", {"name": "../x"}, "region.name"),
        ("training", {"seed": -1}, "training.seed: Input should be greater than or equal to 0"),
        ("targets", {"seed": 2**40}, "targets.seed: Input should be less than 4294967296"),
        ("outputs", {"draws": 10**12}, "outputs.draws"),
        ("model", {"encoding_size": 10**12}, "model.encoding_size"),
    ],
)
def test_values_that_make_no_study_are_refused(section, keys, words):
    assert words in refused(study_with(**{section: keys}))


def test_relative_paths_start_at_the_file_and_absolute_ones_stay(tmp_path):
    content = study_with(region={"label_file": "labels/a.dlabel.nii"}, outputs={"work": "/scratch/w"})
    study = load_study(written(tmp_path, content))
    assert study.data.root == tmp_path.resolve() / "HCP"
    assert study.region.label_file == tmp_path.resolve() / "labels/a.dlabel.nii"
    assert study.outputs.directory == tmp_path.resolve() / "results"
    assert study.outputs.work == Path("/scratch/w")


def test_defaults_that_are_paths_are_absolute_but_not_said(tmp_path):
    study = load_study(written(tmp_path, MINIMAL))
    assert study.outputs.work == tmp_path.resolve() / "work"
    assert study.said("outputs") == {"directory"}
    assert study.said("data") == {"layout", "root"}
    assert study.said("model") == set()


def test_the_digest_is_independent_of_paths_and_of_what_is_written_out(tmp_path):
    here = parse_study(MINIMAL, tmp_path / "study.yaml")
    there = parse_study(study_with(data={"root": "/other"}, outputs={"work": "/w"}, model={"file": "m"}), Path("/x/y"))
    spelled = parse_study(study_with(model={"networks": 2}), tmp_path / "study.yaml")
    assert here.digest() == there.digest() == spelled.digest()
    assert len(here.digest()) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"networks": 3}},
        {"data": {"band_pass": [0.008, 0.1]}},
        {"targets": {"seed": 1}},
        {"training": {"subjects": ["001"]}},
    ],
)
def test_the_digest_changes_with_any_other_setting(change):
    origin = Path("/s/study.yaml")
    assert parse_study(study_with(**change), origin).digest() != parse_study(MINIMAL, origin).digest()


def test_every_path_of_a_study_is_left_out_of_the_digest():
    def paths(section: type[Section]) -> set[str]:
        found = set()
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
                found |= paths(field.annotation)
            elif "Path" in str(field.annotation):
                found.add(name)
        return found

    assert paths(Study) == PATHS


def test_a_resolved_study_is_read_back_as_itself(tmp_path):
    study = parse_study(study_with(data={"band_pass": [0.01, 0.1]}, model={"names": ["a", "b"]}), tmp_path / "s.yaml")
    again = parse_study(json.loads(json.dumps(study.resolved())), Path("/elsewhere/s.yaml"))
    assert again == study


def test_a_study_file_that_is_not_there_or_not_a_study(tmp_path):
    with pytest.raises(InputMissing, match="no such study file"):
        load_study(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="cannot be read as a text file"):
        load_study(tmp_path)
    for text, words in [
        ("a: [", "not valid YAML"),
        ("name: 2020-13-45", "not valid YAML"),
        ("- a", "expected a mapping"),
        ("", "expected a mapping"),
        ("name: a\ndata: {root: x}\nname: b", "the key 'name' twice"),
        ("name: a\ndata: {root: x, root: y}", "the key 'root' twice"),
    ]:
        with pytest.raises(UsageError, match=words):
            load_study(written(tmp_path, text))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read as a text file"):
        load_study(tmp_path / "binary.yaml")


text = st.text("aZ0_-./~:' é中\u2028\0", max_size=8)
plain = st.none() | st.booleans() | st.integers() | st.floats() | text
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner), max_leaves=5)
names = st.sampled_from([*Study.model_fields, "root", "layout", "networks", "zzz", ""])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, values | st.dictionaries(names, values, max_size=4), max_size=6))
def test_any_content_is_a_study_or_a_usage_error(content):
    try:
        study = parse_study(content, Path("/s/study.yaml"))
    except UsageError:
        return
    assert parse_study(study.resolved(), Path("/t/study.yaml")) == study


@settings(max_examples=60, deadline=None)
@given(key=text.filter(bool), section=st.sampled_from(SECTIONS))
def test_any_unknown_key_is_named_with_its_section(key, section):
    if key not in Study.model_fields[section].annotation.model_fields:
        assert f"{section}.{key}: unknown key; " in refused(study_with(**{section: {key: 1}}))


@pytest.mark.parametrize("key", ["tasks", "variants"])
def test_a_choice_of_files_is_refused_where_it_would_do_nothing(key):
    message = refused({"name": "s", "data": {"layout": "manifest", "manifest": "m.tsv", key: ["rest"]}})
    assert f"{key}: a manifest says itself which files are used" in message
    assert "at least 1 item" in refused({"name": "s", "data": {"root": "x", key: []}})


def test_cleaning_that_is_not_said_is_the_layouts():
    def data(**said):
        return parse_study({"name": "s", "data": {"root": "x", **said}}, Path("/s/study.yaml")).data

    assert (data().confounds, data(layout="fmriprep").confounds) == ("none", "simple")
    assert data(layout="fmriprep", confounds="all").band_pass == (0.008, 0.1)
    assert data(layout="fmriprep", band_pass=None).band_pass is None
    again = data(**data(layout="fmriprep", confounds="none").model_dump(mode="json"))
    assert again.confounds == "none"


def test_a_contrast_is_of_two_networks(tmp_path):
    pair = study_with(outputs={"contrasts": [["a", "b"]]})
    assert parse_study(pair, tmp_path / "study.yaml").outputs.contrasts == [("a", "b")]
    with pytest.raises(UsageError, match="'a' twice"):
        parse_study(study_with(outputs={"contrasts": [["a", "a"]]}), tmp_path / "study.yaml")
