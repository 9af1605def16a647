"""Files appear whole or not at all; a lock ends with its process."""

import hashlib
import os
import stat
import subprocess
import sys
import threading

import pytest

from parcellation.errors import CannotWrite, FileFailure
from parcellation.files import checksum, unit_lock, whole_file, writable_folder, write_json, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "maps" / "a.dlabel.nii"
    write_text(path, "old")
    with whole_file(path) as temporary:
        assert temporary.name.endswith(".dlabel.nii")  # nibabel chooses a format by it
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(path.parent) == ["a.dlabel.nii"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_behind(tmp_path, failure):
    write_text(tmp_path / "a", "old")

    def fail():
        with whole_file(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise failure

    with pytest.raises(failure):
        fail()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_refusal_of_the_system_names_the_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileFailure, match="file/a: could not be written"):
        write_text(tmp_path / "file" / "a", "")


def test_others_may_read_it_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_equal_json_is_equal_bytes(tmp_path):
    write_json(tmp_path / "a", {"b": 1, "a": "ü"})
    write_json(tmp_path / "b", {"a": "ü", "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "c", {"a": float("nan")})
    assert names(tmp_path) == ["a", "b"]


def test_a_folder_is_tried_before_any_work(tmp_path):
    assert writable_folder(tmp_path / "a" / "b").is_dir()
    assert names(tmp_path / "a" / "b") == []
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match="file/b: cannot be written to"):
        writable_folder(tmp_path / "file" / "b")


def test_one_process_holds_a_lock_and_its_end_frees_it(tmp_path):
    path = tmp_path / "locks" / "sub-1"
    code = (
        "import sys; from pathlib import Path; from parcellation.files import unit_lock\n"
        "with unit_lock(Path(sys.argv[1])) as mine: print(mine, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout.readline().strip() == "True"
        with unit_lock(path) as mine:
            assert not mine
        other.kill()
        other.wait()
        with unit_lock(path) as mine:
            assert mine


def test_checksum_is_that_of_the_whole_file(tmp_path):
    content = bytes(range(256)) * 5
    (tmp_path / "a").write_bytes(content)
    assert checksum(tmp_path / "a", block=100) == hashlib.sha256(content).hexdigest()


def test_who_waits_for_a_lock_gets_it_once_it_is_free(tmp_path):
    path, order = tmp_path / "unit.lock", []

    def wait():
        with unit_lock(path, wait=True) as mine:
            order.append(("other", mine))

    with unit_lock(path):
        other = threading.Thread(target=wait)
        other.start()
        other.join(timeout=0.2)
        assert other.is_alive()
        order.append(("first", True))
    other.join(timeout=10)
    assert order == [("first", True), ("other", True)]
