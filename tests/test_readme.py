"""README.md and docs/ say what is so: studies are valid, commands exist, every setting is there with its default."""

import json
import re
from typing import Any

import pytest
import yaml

from parcellation.cli import VERBS, _parser
from parcellation.config import Data, Section, Study, parse_study
from parcellation.descriptions import described_layouts
from tests.readme import ROOT, blocks, cohort_commands, cohort_yaml, study_commands, study_yaml

SECTIONS = {name: field.annotation for name, field in Study.model_fields.items() if name != "name"}


def test_the_five_commands():
    verbs = ["index", "prepare", "train", "infer", "report"]
    assert study_commands() == [f"parcellation {verb} study.yaml" for verb in verbs]
    assert cohort_commands() == [f"parcellation {verb} patients.yaml" for verb in verbs if verb != "train"]
    for line in study_commands() + cohort_commands():
        assert _parser().parse_args(line.split()[1:]).verb in VERBS


def test_the_two_studies(tmp_path):
    study = parse_study(yaml.safe_load(study_yaml()), tmp_path / "study.yaml")
    assert (study.data.layout, study.data.root) == ("hcp", tmp_path / "HCP")
    cohort = parse_study(yaml.safe_load(cohort_yaml()), tmp_path / "patients.yaml")
    assert cohort.model_fields_set == {"name", "data", "model", "outputs"}
    assert cohort.model.file == study.outputs.work / "model"
    assert not {cohort.outputs.work, cohort.outputs.directory} & {study.outputs.work, study.outputs.directory}


def test_studies_of_the_settings_page(tmp_path):
    whole, *others = (yaml.safe_load(text) for text in blocks("yaml", "docs/study.md"))
    parse_study(whole, tmp_path / "study.yaml")
    assert [parse_study({"name": "s"} | one, tmp_path / "study.yaml").data.layout for one in others] == [
        "fmriprep",
        "manifest",
    ]


def test_the_table_of_usual_cleaning():
    page = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `layout: (\w+)` \| `(\w+)` \| (?:`(.*?)`|unset) \| `(\w+)` \|", page, flags=re.MULTILINE)
    assert {layout for layout, *_ in rows} == {"manifest", *described_layouts()}
    for layout, confounds, band, detrend in rows:
        data = Data(layout=layout, root="x", manifest="x")
        assert [confounds, detrend] == [data.confounds, written(data.detrend)]
        assert (json.loads(band) if band else None) == (data.band_pass and list(data.band_pass))


def test_the_study_of_the_cluster_page(tmp_path):
    (text,) = blocks("yaml", "docs/cluster.md")
    study = parse_study(yaml.safe_load(text), tmp_path / "study.yaml")
    assert study.cluster.train.gpus == 1
    assert study.cluster.train.memory == type(study.cluster.train)().memory  # what is left out keeps its default


def tables(page: str) -> dict[str, dict[str, str]]:
    """The default of each key in the tables of docs/study.md, by heading."""
    parts = re.split(r"^## (\w+)\n", page, flags=re.MULTILINE)[1:]
    row = re.compile(r"^\| `(\w+)` \| (?:`(.*?)`|(unset)) \|", re.MULTILINE)
    return {
        heading: {key: default or unset for key, default, unset in row.findall(text)}
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
        if heading in SECTIONS
    }


def written(default: Any) -> str:
    if isinstance(default, Section) and str(default) != "none":
        own = {key: value for key, value in default.model_dump().items() if value is not None}
        return f"{{{', '.join(f'{key}: {value}' for key, value in own.items())}}}"
    if default is None:
        return "unset"
    return str(default).lower() if isinstance(default, bool) else str(default)


@pytest.mark.parametrize(("name", "section"), SECTIONS.items())
def test_every_setting_and_its_default(name: str, section: type[Section]):
    page = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    assert tables(page)[name] == {key: written(field.default) for key, field in section.model_fields.items()}


@pytest.mark.parametrize(
    "page", ["README.md", "docs/study.md", "docs/method.md", "docs/cluster.md", "data_manifest/README.md"]
)
def test_links_to_pages(page: str):
    links = re.findall(r"\]\(([^):#]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []
