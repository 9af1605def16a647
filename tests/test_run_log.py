"""The log of a results folder: what was typed, what was warned of, what was said; nothing without a folder."""

import logging
import re

from parcellation.run_log import NAME, TOLD, counted_warnings, repeated, run_log


def test_a_command_is_appended_with_its_warnings_and_what_it_said(tmp_path):
    for subject in ("one", "two words"):
        with run_log(["infer", "study.yaml", "--participant-label", subject]) as log:
            logging.getLogger("parcellation.somewhere").warning("left out: %s\nfor a reason", subject)
        log.write(tmp_path, "1 subjects inferred\nfine")
    logging.getLogger("parcellation.somewhere").warning("not any more")
    lines = (tmp_path / NAME).read_text(encoding="utf-8").splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ parcellation infer study.yaml --participant-label one \(0 s\)", lines[0]
    )
    assert lines[1:5] == [
        "  WARNING parcellation.somewhere: left out: one",
        "  for a reason",
        "  1 subjects inferred",
        "  fine",
    ]
    assert lines[5].endswith("--participant-label 'two words' (0 s)")
    assert len(lines) == 10


def test_no_folder_is_made_for_it(tmp_path):
    with run_log(["report"]) as log:
        pass
    log.write(tmp_path / "nowhere", "said")
    assert not (tmp_path / "nowhere").exists()


def test_warnings_are_counted_and_those_not_said_are_repeated_once():
    assert repeated([], "fine") == []
    with counted_warnings() as warnings:
        log = logging.getLogger("parcellation.somewhere")
        log.info("no warning")
        for _ in range(2):
            log.warning("%s is odd", "a.nii")
        log.warning("left out: subject 1: no data")
    log.warning("not any more")
    assert repeated(warnings, "1 runs left out:\n  subject 1: no data") == ["3 warnings:", "  a.nii is odd"]
    assert repeated(["left out: b"], "  b\n") == ["1 warning, as told above"]
    many = repeated([str(number) for number in range(50)], "")
    assert len(many) == TOLD + 2
    assert many[-1] == "  and 30 more"
