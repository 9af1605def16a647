"""Settings files: whatever is in them, plain values or an error that names the file, in bounded time and memory."""

import contextlib
import os
import resource
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parcellation.errors import InputMissing, UsageError
from parcellation.simulation import load_simulation
from parcellation.yaml_file import MOST_BYTES, read_yaml
from tests.studies import command, process


def written(folder, content: str | bytes):
    path = folder / "study.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refused(folder, content: str | bytes) -> str:
    with pytest.raises(UsageError) as caught:
        read_yaml(written(folder, content), "study")
    return str(caught.value)


def laughs(depth: int, first: str, line: str, width: int = 9) -> str:
    """A document in which every line names the line before so many times."""
    lines = [first]
    for level in range(1, depth):
        names = ", ".join([f"*a{level - 1}"] * width)
        lines.append(line.format(level=level, names=names))
    return "\n".join(lines) + "\n"


def test_plain_values_come_back(tmp_path):
    text = "a: &one [1, 2.5, yes, null, '001']\nb: *one\nc: {d: é}\n"
    assert read_yaml(written(tmp_path, text), "study") == {
        "a": [1, 2.5, True, None, "001"],
        "b": [1, 2.5, True, None, "001"],
        "c": {"d": "é"},
    }
    assert read_yaml(written(tmp_path, ""), "study") is None


@pytest.mark.parametrize(
    "text",
    [
        laughs(30, "a0: &a0 [x, x]", "a{level}: &a{level} [{names}]"),
        laughs(30, "a0: &a0 {x: 1}", "a{level}: &a{level} {{<<: [{names}]}}"),
        laughs(30, "? &a0 [x]\n: 1", "? &a{level} [{names}]\n: 1"),
        "name: x\ndata: &b " + "{" + ", ".join(f"k{i}: &c{i} [x]" for i in range(100)) + "}\n"
        "z: [" + ", ".join(["*b"] * 2000) + "]",
    ],
    ids=["lists", "merged mappings", "keys", "wide"],
)
def test_a_few_lines_that_stand_for_billions_of_values_are_refused(tmp_path, text):
    started = time.monotonic()
    assert "expected at most 200000 values, got" in refused(tmp_path, text)
    assert time.monotonic() - started < 5


def test_a_bomb_is_refused_by_the_command_in_little_memory(tmp_path):
    """Where the error repeats what it got, and in every part of a study that is validated."""
    path = written(tmp_path, laughs(30, "name: &a0 [x, x]", "data{level}: &a{level} [{names}]"))
    assert "expected at most 200000 values" in command("index", path, code=64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="values"):
        load_simulation(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "&a ? *a\n: 1"])
def test_a_part_that_holds_itself_is_refused(tmp_path, text):
    assert "not valid YAML" in refused(tmp_path, text)


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_is_refused(tmp_path, opening):
    limit = sys.getrecursionlimit()
    assert "too deeply nested for a study file" in refused(tmp_path, opening * 50_000)
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['touch {folder}/made']",
        "a: !!python/object/new:os.system ['touch {folder}/made']",
        "a: !!python/name:os.system",
        "!!python/module:os",
        "a: !own tag",
    ],
)
def test_tags_call_nothing(tmp_path, text):
    message = refused(tmp_path, text.replace("{folder}", str(tmp_path)))
    assert "could not determine a constructor for the tag" in message
    assert os.listdir(tmp_path) == ["study.yaml"]


@pytest.mark.parametrize("number", ["1" * 5000, "0x" + "f" * 100_000, ":".join(["1"] * 100_000), "1" * 5000 + ".0"])
def test_numbers_that_nothing_can_hold_are_refused(tmp_path, number):
    started = time.monotonic()
    assert "a number of" in refused(tmp_path, f"a: {number}")
    assert time.monotonic() - started < 5


def test_a_huge_file_is_not_read(tmp_path):
    path = written(tmp_path, "a: b")
    os.truncate(path, 1 << 40)
    with pytest.raises(UsageError, match="expected a study file of at most 1 MiB, got more"):
        read_yaml(path, "study")
    assert len(read_yaml(written(tmp_path, "a" * MOST_BYTES), "study")) == MOST_BYTES


def test_what_is_no_file_of_text(tmp_path):
    with pytest.raises(InputMissing, match="no such simulation file"):
        read_yaml(tmp_path / "none", "simulation")
    with pytest.raises(UsageError, match="cannot be read as a text file"):
        read_yaml(tmp_path, "study")
    assert "cannot be read as a text file" in refused(tmp_path, b"\xff\xfe\0")
    assert "the key 'a' twice" in refused(tmp_path, "a: 1\nb: 2\na: 3")
    assert "not valid YAML" in refused(tmp_path, "a: 2020-13-45")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("ab01.:-?[]{}&*!|>'\"%@#, \n<~", max_size=60) | st.binary(max_size=40))
def test_any_content_is_plain_values_or_a_usage_error(tmp_path, content):
    with contextlib.suppress(UsageError):
        assert len(repr(read_yaml(written(tmp_path, content), "study"))) < 1000


@pytest.mark.parametrize("path", ["a\\0b", "a\\nb", "a\\tb", "a\\x1bb"])
@pytest.mark.parametrize("key", ["root: {}", "root: x, surfaces: {{midthickness: {}}}"])
def test_a_path_with_control_characters_is_64_and_named(tmp_path, path, key):
    text = "name: a\ndata: {" + key.format(f'"{path}"') + "}\n"
    said = command("index", written(tmp_path, text), code=64)
    assert "expected a path without control characters, got 'a" in said
    assert said.startswith(f"parcellation: {tmp_path}")
    with pytest.raises(UsageError, match="without control characters"):
        load_simulation(written(tmp_path, f'source: {{bold: "{path}"}}'))


def test_a_home_that_is_nobodys_is_64_in_a_simulation_too(tmp_path):
    path = written(tmp_path, "source: {bold: ~nobody-has-this-name/x.nii}")
    assert "no home folder" in command("simulate", path, tmp_path / "out", code=64)


def test_hundreds_of_faults_are_counted(tmp_path):
    said = command("index", written(tmp_path, "\n".join(f"key{i}: 1" for i in range(5000))), code=64)
    assert len(said.splitlines()) == 21
    assert said.splitlines()[-1].endswith("more")


def test_a_bomb_ends_a_process_of_little_memory(tmp_path):
    """With 400 MB of address space beyond what Python itself takes, in seconds."""
    path = written(tmp_path, laughs(30, "a0: &a0 {x: 1}", "a{level}: &a{level} {{<<: [{names}]}}"))
    code = f"""
import resource, sys
from parcellation.cli import main
import parcellation.verbs.workspace, parcellation.config
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20),) * 2)
sys.exit(main(["index", {str(path)!r}]))
"""
    one = process(code=code)
    text, _ = one.communicate(timeout=60)
    assert one.returncode == 64, text
    assert "expected at most" in text
