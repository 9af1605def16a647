"""What steps warned of reaches the report: counted, each kind once, as text, and gone when it occurs no more."""

import html
import logging
import re
import shutil

import pytest

from parcellation.config import load_study
from parcellation.report import render
from parcellation.verbs import prepare, results, train
from parcellation.verbs.index import cohort_units
from parcellation.verbs.warned import LONGEST, Warned, alike, keep, keeping, kept, of_result, plain, unit_file
from parcellation.verbs.workspace import Workspace
from tests.studies import command
from tests.test_report import content_of

log = logging.getLogger("parcellation.somewhere")


ENDLESS = b'{"warnings": [{"kind": "k", "text": "t", "count": Infinity}]}'


def warn(*names: str) -> None:
    for name in names:
        log.warning("%s is odd", name)


# --- what is kept ---


def test_warnings_of_one_line_of_code_are_one_kind_with_a_count(tmp_path):
    with keeping(tmp_path / "a.json"):
        warn("b.nii", "a.nii")
        log.info("no warning")
        log.warning("another")
    warn("later")
    expected = [Warned("%s is odd", "b.nii is odd", 2, "infer"), Warned("another", "another", 1, "infer")]
    assert kept(tmp_path / "a.json", "infer") == expected
    again = [*expected, Warned("another", "another", 4, "train"), *expected]
    assert [(one.step, one.count) for one in alike(again)] == [("infer", 4), ("infer", 2), ("train", 4)]


def test_what_is_made_anew_without_a_warning_has_no_file(tmp_path):
    with keeping(tmp_path / "a.json"):
        warn("a")
    with pytest.raises(KeyError), keeping(tmp_path / "a.json"):
        raise KeyError
    assert kept(tmp_path / "a.json", "")  # what was not made has not changed what is said
    keep(tmp_path / "a.json", [])
    assert not (tmp_path / "a.json").exists()
    assert kept(tmp_path / "a.json", "") == []


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"warnings": [{"kind": 1}]}', b"\xff", b'{"warnings": 3}', ENDLESS, b"[" * 10**5]
)
def test_a_damaged_file_is_said(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    (one,) = kept(tmp_path / "a.json", "infer")
    assert one.text.startswith("a.json: what was warned of cannot be read")


def test_a_count_beyond_all_sense_can_still_be_added_up_and_shown(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{"warnings": [{"kind": "k", "text": "t", "count": %s}]}' % (b"9" * 4300))
    found = alike(kept(tmp_path / "a.json", "train") * 2)
    assert found[0].count == 2 * 10**9
    assert "2\u202f000\u202f000\u202f000" in render(content_of(warned=found)).replace(" ", "\u202f")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one\n two\t", "one two"),
        ("\x1b[31mred\x00", "?[31mred?"),
        ("\udcff name", "? name"),
        ("\u202egpj", "?gpj"),
        ("a" * 9999, "a" * LONGEST + " ..."),
        ("gr\u00fcn <b>", "gr\u00fcn <b>"),
    ],
)
def test_any_text_is_one_line_that_can_be_shown(text, shown):
    assert plain(text) == shown


def test_a_page_shows_them_escaped_and_without_any_has_no_section():
    hostile = Warned("k", '<script>alert(1)</script> & "more"', 1234, "prepare")
    page = render(content_of(warned=[hostile]))
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in page
    assert "<script>alert" not in page
    assert "1\u202f234" in page or "1\u2009234" in page or "1\u00a0234" in page or "1 234" in page
    assert page.count('href="#warned"') == 1
    assert "#warned" not in render(content_of())


# --- of a study ---


ROW = re.compile(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td><td class="text">(.*?)</td></tr>')


def shown(folder) -> list[tuple[str, str, str]]:
    """Step, count and text of each warning on the page."""
    page = (folder.results / "report.html").read_text(encoding="utf-8")
    section = page.split('<section id="warned"')[1].split("</section>")[0]
    return [(step, count, html.unescape(text)) for step, count, text in ROW.findall(section)]


def test_the_warnings_of_every_step_are_on_the_page_and_of_a_rerun_the_same(prepared, finished, monkeypatch):
    """Sessions of which some files do not say their time, a missing run, networks alike, and a surface not read."""
    monkeypatch.setattr(prepare, "_open", _odd(prepare._open, ("sim01", "sim02")))
    monkeypatch.setattr(train, "close_anchors", lambda reference: [(0, 1)])
    monkeypatch.setattr(results, "own_midthickness", _unreadable)
    shutil.rmtree(prepared.run_file("sim03", 2).parent)
    study = prepared.without("work/fingerprints").write_study(training={"subjects": ["sim01", "sim02"]})
    for verb in ("index", "prepare", "train", "infer", "report"):
        command(verb, study)
    found = shown(prepared)
    expected = [("index", "8"), ("index", "2"), ("prepare", "4"), ("train", "1"), ("infer", "5")]
    assert [(step, count) for step, count, _ in found] == expected
    texts = [text for *_, text in found]
    assert texts[:2] == [
        "missing run: sub-sim01 ses-1 run-RL: not there",
        "missing session: sub-sim03 ses-2: no run of it",
    ]
    assert "REST1" in texts[2]
    assert texts[3].startswith("networks 1 and 2 are so alike that they may change places")
    assert texts[4] == "subject sim01: areas are measured on the group's surface: no.gii"
    page = (prepared.results / "report.html").read_bytes()
    for verb in ("index", "prepare", "train", "infer", "report"):
        command(verb, study)
    assert (prepared.results / "report.html").read_bytes() == page


def _odd(opened, subjects):
    """Open a run, and warn of it where it is one of these subjects'."""

    def odd(study, row):
        if row["subject"] in subjects:
            log.warning("%s: odd", row["bold"])
        return opened(study, row)

    return odd


def _unreadable(study, mesh, subject):
    raise results.BadData("no.gii")


def test_what_occurs_no_more_is_said_no_more(study, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "_open", _odd(prepare._open, ("sim04",)))
        for session in (1, 2):
            study.unit("sim04", session).unlink()
        command("prepare", study.study)

    def said() -> list[tuple[str, int]]:
        loaded = load_study(study.study)
        found = of_result(Workspace(loaded), cohort_units(loaded, Workspace(loaded)), False)
        return [(one.step, one.count) for one in found if one.step != "index"]

    assert said() == [("prepare", 2)]
    command("prepare", study.study)  # what is finished is not done again
    assert said() == [("prepare", 2)]
    # Nor while its files are not there, on a disk that is not mounted, say.
    away = study.run_file("sim04", 2).parent
    away.rename(away.with_name("away"))
    command("prepare", study.study)
    away.with_name("away").rename(away)
    assert "before" in command("prepare", study.study)
    assert said() == [("prepare", 2)]
    # Of a session that is not in the cohort any more nothing is said.
    shutil.rmtree(study.run_file("sim04", 2).parent)
    command("index", study.study)
    assert said() == [("prepare", 1)]
    study.unit("sim04", 1).unlink()
    command("prepare", study.study)
    assert said() == []


def test_a_model_s_warnings_travel_with_it(finished, tmp_path):
    found = [Warned("k", "networks are alike")]
    study = load_study(finished.study)
    outputs = study.outputs.model_copy(update={"work": tmp_path})
    applied = study.model_copy(update={"outputs": outputs, "model": study.model.model_copy(update={"file": tmp_path})})
    keep(tmp_path / "warnings.json", found)
    keep(tmp_path / "warnings/population.json", [Warned("p", "of the population")])
    workspace = Workspace(applied)
    assert [(one.step, one.text) for one in of_result(workspace, None, False)] == [("train", "networks are alike")]
    more = of_result(workspace, set(), True, [Warned("r", "left out of the scores")])
    assert [one.step for one in more] == ["train", "infer", "report"]
    many = [Warned(str(number), "hostile") for number in range(1000)]
    *first, last = of_result(workspace, set(), False, many)
    assert (len(first), last.text, last.count) == (50, "warnings of more kinds", 951)
    keep(unit_file(workspace, "a", "1"), found)
    assert [one.step for one in of_result(workspace, {("a", "1")}, False)] == ["prepare", "train"]
    assert [one.step for one in of_result(workspace, {("a", "2")}, False)] == ["train"]
