"""The descriptions of layouts that come with the package, as plain values: any YAML file in `data_manifest/` with the
key `layout` is one."""

import functools
from importlib.resources import files

import yaml


@functools.cache
def described_layouts() -> dict[str, dict]:
    """Every description by the name of its layout."""
    described = {}
    for file in files("data_manifest").iterdir():
        content = yaml.safe_load(file.read_text(encoding="utf-8")) if file.name.endswith(".yaml") else None
        if isinstance(content, dict) and "layout" in content:
            described[content["layout"]] = content
    return described


def usual_cleaning(layout: object) -> dict:
    """The settings of `data` that a study of this layout has unless it says otherwise."""
    return dict(described_layouts().get(layout, {}).get("cleaning", {})) if isinstance(layout, str) else {}
