"""Files appear whole or not at all; a lock ends with its process."""

import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parcellation.errors import CannotWrite, FileFailure
from parcellation.files import (
    _locked_part,
    checksum,
    remove_left,
    unit_lock,
    whole_file,
    writable_folder,
    write_json,
    write_text,
)


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


HALF = """
import sys
from pathlib import Path
from parcellation.files import whole_file
with whole_file(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    print(temporary, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_process_has_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    (tmp_path / "maps").mkdir()
    (tmp_path / ".part-of-a-user's").touch()
    command = [sys.executable, "-c", HALF, str(tmp_path / "maps" / "a.dlabel.nii")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        left = Path(other.stdout.readline().strip())
        assert remove_left(tmp_path) == 0
        assert left.read_text() == "half"
        other.kill()
        other.wait()
    with whole_file(tmp_path / "maps" / "b") as mine:
        assert remove_left(tmp_path) == 1
        assert names(tmp_path / "maps") == [mine.name]
    assert names(tmp_path / "maps") == ["b"]
    assert remove_left(tmp_path) == 0
    assert names(tmp_path) == [".part-of-a-user's", "maps"]
    assert remove_left(tmp_path / "nowhere") == 0


def test_what_was_begun_on_another_node_stays_for_a_day(tmp_path, monkeypatch):
    """Its writer may live, where the file system does not show its lock."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("parcellation.files._kernel", lambda: "0123abcd")
        handle, part = _locked_part(tmp_path / "a")
        os.close(handle)
    assert remove_left(tmp_path) == 0
    now = part.stat().st_mtime
    os.utime(part, (now, now - 25 * 3600))
    assert remove_left(tmp_path) == 1
    assert names(tmp_path) == []


def test_a_file_that_is_taken_for_left_before_it_is_locked_is_begun_again(tmp_path, monkeypatch):
    write_text(tmp_path / "a", "before")  # after which it is known how locks are here
    lock, taken = fcntl.flock, []

    def late(handle, how):
        if not taken:
            taken.append(list(tmp_path.glob(".part-*")))
            taken[0][0].unlink()
        return lock(handle, how)

    monkeypatch.setattr("parcellation.files.fcntl.flock", late)
    write_text(tmp_path / "a", "whole")
    assert (tmp_path / "a").read_text() == "whole"
    assert names(tmp_path) == ["a"]


def test_without_locks_files_are_written_and_none_is_removed(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("parcellation.files.fcntl.flock", none)
    with whole_file(tmp_path / "a") as temporary:
        temporary.write_text("whole")
        assert remove_left(tmp_path) == 0
    assert names(tmp_path) == ["a"]


def test_where_a_lock_keeps_the_writer_out_there_is_none(tmp_path, monkeypatch):
    """As over SMB: any other descriptor of a locked file is refused, to read and to write."""
    locked, lock, opened = set(), fcntl.flock, open

    def mandatory(handle, how):
        lock(handle, how)
        locked.add(os.readlink(f"/proc/self/fd/{handle if isinstance(handle, int) else handle.fileno()}"))

    def refusing(path, *more, **settings):
        if str(path) in locked:
            raise PermissionError(13, "Permission denied")
        return opened(path, *more, **settings)

    monkeypatch.setattr("parcellation.files.ADVISORY", {})
    monkeypatch.setattr("parcellation.files.fcntl.flock", mandatory)
    monkeypatch.setattr("builtins.open", refusing)
    with whole_file(tmp_path / "a") as temporary:
        with open(temporary, "w") as file:
            file.write("whole")
        assert remove_left(tmp_path) == 0  # it is locked by nobody, but for a day it may have a writer
    monkeypatch.undo()
    assert (tmp_path / "a").read_text() == "whole"
    assert names(tmp_path) == ["a"]


def test_no_more_files_are_open_after_writing_than_before(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        write_text(tmp_path / "a", "content")
        with contextlib.suppress(ValueError), whole_file(tmp_path / "b"):
            raise ValueError
    assert len(os.listdir("/proc/self/fd")) == before


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
