"""Finished runs are kept in one file, and gone on from."""

import gzip
import os

import pytest

from parcellation.files import write_json
from pipelines.reproduce.archive import PARTS, pack, unpack


@pytest.fixture
def finished(tmp_path):
    for name in ("search/a.json", "search/b.json", "runs/c.json", "races/d.json"):
        write_json(tmp_path / "one" / name, {"gap": 0.1, "name": name})
    (tmp_path / "one/rates.yaml").write_text("a: {rate: 0.02}\n")
    (tmp_path / "one/table.md").write_text("not a run\n")
    return tmp_path / "one"


def contents(folder) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for part in PARTS for p in folder.glob(part)}


def test_what_is_packed_comes_back_and_nothing_else(finished, tmp_path):
    assert pack(finished, tmp_path / "kept.json.gz") == 5
    assert unpack(tmp_path / "kept.json.gz", tmp_path / "other") == 5
    assert contents(tmp_path / "other") == contents(finished)
    assert not (tmp_path / "other/table.md").exists()


def test_equal_runs_are_equal_archives(finished, tmp_path):
    pack(finished, tmp_path / "one.json.gz")
    os.utime(finished / "runs/c.json", (5, 5))
    pack(finished, tmp_path / "other.json.gz")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "other.json.gz").read_bytes()


def test_what_is_made_from_others_is_younger_than_they(finished, tmp_path):
    pack(finished, tmp_path / "kept.json.gz")
    unpack(tmp_path / "kept.json.gz", tmp_path / "other")
    ages = [(tmp_path / "other" / name).stat().st_mtime for name in ("search/b.json", "rates.yaml", "runs/c.json")]
    assert ages == sorted(set(ages))


def test_runs_that_are_there_are_kept(finished, tmp_path):
    pack(finished, tmp_path / "kept.json.gz")
    (finished / "runs/c.json").write_text("newer")
    (finished / "races/d.json").unlink()
    assert unpack(tmp_path / "kept.json.gz", finished) == 1
    assert (finished / "runs/c.json").read_text() == "newer"


def test_nothing_is_written_outside_the_folder(tmp_path):
    (tmp_path / "bad.json.gz").write_bytes(gzip.compress(b'{"../runs/x.json": "1"}'))
    with pytest.raises(ValueError, match="expected files inside the folder"):
        unpack(tmp_path / "bad.json.gz", tmp_path / "folder")
    assert not (tmp_path / "runs").exists()
