"""Two hundred runs of which three are bad: every verb finishes, says which, and ends with 0, or with 65 when strict."""

import pytest
import yaml

from tests.studies import SIMULATION, Folder, change_run, command, replace

BAD = (("sim007", 1), ("sim042", 2), ("sim100", 1))


def truncated(path):
    replace(path, path.read_bytes()[:-5000])


def without_signal(path):
    change_run(path, lambda series: series * 0)


def another_file(path):
    replace(path, b"not a series at all")


@pytest.mark.slow
def test_three_bad_runs_of_two_hundred_are_named_and_the_rest_is_finished(tmp_path):
    folder = Folder(tmp_path / "study")
    names = [f"sim{number:03d}" for number in range(1, 101)]
    simulation = SIMULATION | {"subjects": 100, "train": 12, "frames": 60, "missing": {}}
    replace(folder.path / "simulation.yaml", yaml.safe_dump(simulation).encode())
    command("simulate", folder.path / "simulation.yaml", folder.path / "HCP")
    folder.write_study(training={"subjects": names[:12]})
    for (subject, session), spoil in zip(BAD, (truncated, without_signal, another_file), strict=True):
        spoil(folder.run_file(subject, session))

    said = command("index", folder.study)
    assert "200 runs" in said
    assert "unreadable: 2" in said  # that a series has no signal is known when it is read
    assert "2 of 200 runs cannot be used" in command("index", folder.study, "--strict", code=65)
    said = command("prepare", folder.study)
    assert "197 of 200 sessions prepared" in said
    assert "3 runs left out" in said
    for subject, session in BAD:
        assert f"subject {subject}, session {session}, run LR: {folder.run_file(subject, session)}" in said
    assert "3 runs left out" in command("prepare", folder.study, "--strict", code=65)
    command("train", folder.study)
    assert "100 subjects inferred" in command("infer", folder.study)
    command("report", folder.study)
    page = (folder.results / "report.html").read_text(encoding="utf-8")
    for subject, session in BAD:
        assert f"subject {subject}, session {session}, run LR" in page
    assert not folder.half_written()
