"""Descriptions of layouts are found by the name they give themselves, and nothing else in the folder is one."""

import pytest

from parcellation import descriptions
from parcellation.descriptions import described_layouts, usual_cleaning


def test_every_description_and_no_other_file():
    assert {"hcp", "fmriprep", "xcpd"} <= set(described_layouts())
    assert all(one["layout"] == name for name, one in described_layouts().items())


def test_usual_cleaning_is_a_copy():
    usual = usual_cleaning("fmriprep")
    assert usual == {"confounds": "simple", "band_pass": [0.008, 0.1], "detrend": True}
    usual.clear()
    assert usual_cleaning("fmriprep")


@pytest.mark.parametrize("layout", ["hcp", "xcpd", "manifest", "no such", None, 3, ["hcp"]])
def test_others_are_used_as_they_are(layout):
    assert usual_cleaning(layout) == {}


def test_a_file_of_the_users_own_kind_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text("layout: mine\n")
    (tmp_path / "b.yaml").write_text("- layout\n")
    (tmp_path / "c.json").write_text("{}")
    monkeypatch.setattr(descriptions, "files", lambda _: tmp_path)
    assert described_layouts.__wrapped__() == {"mine": {"layout": "mine"}}
