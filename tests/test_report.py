"""The report holds everything in one file, escapes what it is given, and leaves out what is not known."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parcellation.anatomy import Agreement, Match
from parcellation.derivative import participant
from parcellation.label_table import named_networks
from parcellation.map_files import Frame
from parcellation.report import HeldOut, Reliability, ReportContent, render, render_subject, write_report
from parcellation.report_parts.tables import facts, profile_bars, shown
from parcellation.report_parts.viewer import script, script_hash
from parcellation.surfaces import Mesh, Targets, Vertices
from parcellation.verbs.anatomy import Anatomy
from tests.spheres import sphere


class NamedMesh(Mesh):
    density = "640"


MESH = NamedMesh("fsaverage", (642, 642))
COORDINATES, TRIANGLES = sphere()
NUMBERS = np.flatnonzero(COORDINATES[:, 0] < -45)


def vertices(numbers):
    return Vertices(MESH, np.zeros(len(numbers), np.uint8), np.asarray(numbers, np.int32))


def posterior_of(subject="01", seed=0, networks=2):
    rng = np.random.default_rng(seed)
    V = len(NUMBERS)
    probability = rng.dirichlet(np.ones(networks), V)
    mean = np.arange(networks * 20, dtype=float).reshape(networks, 20) / 40
    mean[0] = mean[0, ::-1]
    contrast = mean[:1] - mean[1:] if networks == 2 else mean - mean.mean(0)
    return SimpleNamespace(
        subject=subject,
        sessions=("1",),
        frames=(1200.0,),
        probability=probability,
        entropy=-(probability * np.log2(probability)).sum(1),
        mutual_information=np.zeros(V),
        mask=np.arange(V) > 0,
        consensus=np.full(V, 0.75),
        betweensd=np.full((V, networks), 0.2),
        within=np.full(V, 0.3),
        between=np.full(V, 0.1),
        profile_mean=mean,
        profile_low=mean - 0.1,
        profile_high=mean + 0.1,
        contrast_mean=contrast,
        contrast_low=contrast - 0.1,
        contrast_high=contrast + 0.1,
    )


def content_of(**changes):
    subjects = [posterior_of(f"{number:02d}", number) for number in range(1, 4)]
    content = ReportContent(
        title="Broca & more",
        summary=["What was done."],
        networks=named_networks(2, ("front", "<back>")),
        frame=Frame(vertices(range(642)), vertices(NUMBERS)),
        targets=Targets(tuple(f"L_{n:03d}" for n in range(20)), vertices(range(20)), np.arange(20)),
        population=posterior_of(),
        subjects=subjects,
        participants=[participant(p, ["noisy"] if p.subject == "02" else []) for p in subjects],
        geometry=((COORDINATES, TRIANGLES), None),
        picture_width=150,
        settings={"name": "broca", "model": {"networks": 2}},
        versions={"parcellation": "0.1.0"},
        citation="Cite this.",
    )
    return replace(content, **changes)


@pytest.fixture(scope="module")
def page():
    return render(content_of())


def pictures(page):
    return re.findall(r'<img src="([^"]*)" alt="([^"]*)"', page)


def test_nothing_is_loaded_from_elsewhere(page):
    assert "http" not in re.sub(r'http-equiv="Content-Security-Policy"', "", page)
    assert "url(" not in page
    assert all(uri.startswith("data:image/png;base64,iVBOR") for uri, _ in pictures(page))


def test_one_script_may_run_and_no_other(page):
    assert re.findall(r"<script[^>]*>", page) == ['<script type="application/json" id="viewer-data">', "<script>"]
    assert f"<script>{script()}</script>" in page
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{script_hash(script())}'" in page
    strip = render(content_of(geometry=None))
    assert "script-src" not in strip
    assert "<script" not in strip


def test_every_picture_says_what_it_shows(page):
    texts = [alt for _, alt in pictures(page)]
    # Cohort, population labels and entropy, three subjects, four of differences, sizes, one contrast.
    assert len(texts) == 12
    assert all(len(text) > 20 for text in texts)
    share = np.mean(posterior_of().probability.argmax(1) == 0)
    assert f"{share:.0%} front" in texts[1]


def test_the_page_is_well_formed(page):
    body = re.sub(r"(<script>).*?(</script>)", r"\1\2", page.split("<!DOCTYPE html>")[1], flags=re.S)
    body = re.sub(r"<(meta|img|br|col)\b([^>]*)>", r"<\1\2/>", body)
    ElementTree.fromstring(body.replace("<!DOCTYPE html>", ""))


def test_names_and_warnings_are_escaped():
    page = render(content_of(warnings=["<script>alert(1)</script>"], geometry=None))
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;back&gt;" in page
    assert "<back>" not in page
    assert "Broca &amp; more" in page


def test_the_cohort_table_lists_everybody_with_flags(page):
    table = page[page.index('id="cohort"') : page.index('id="population"')]
    assert re.findall(r"sub-\d+", table) == ["sub-01", "sub-02", "sub-03"]
    assert table.count("noisy") == 1
    assert "1 200" in table


def test_one_of_something_is_said_in_the_singular():
    several = content_of()
    assert list(facts(several))[:2] == ["subjects", "sessions"]
    alone = content_of(participants=[several.participants[0] | {"sessions": "1"}])
    assert list(facts(alone).items())[:2] == [("subject", "1"), ("session", "1")]


def test_what_is_unknown_is_left_out(page):
    for section in ("training",):
        assert f'id="{section}"' not in page
        assert f'href="#{section}"' not in page


def test_what_was_not_checked_is_said_with_how_to_check_it(page):
    rows = re.findall(r'<a href="#(\w+)">([^<]*)</a></th><td class="state[^>]*>. ([^<]*)</td>', page)
    assert rows == [
        ("cohort", "Data quality", "checked"),
        ("checks", "Test-retest", "not checked"),
        ("checks", "Calibration", "not checked"),
        ("checks", "Held-out likelihood", "not checked"),
        ("gaps", "Amortization gap", "not checked"),
        ("anatomy", "Anatomy", "not checked"),
    ]
    assert "parcellation diagnose" in page
    assert "outputs.atlas" in page
    for section, _, _ in rows:
        assert f'id="{section}"' in page


def test_what_is_known_is_shown():
    recovery = {"ours": {"accuracy": 0.948, "NLL": 0.135}, "group map": {"accuracy": 0.87}}
    reliability = [Reliability(np.array([0.6, 0.9]), np.array([0.5, 0.9]), np.array([3, 1]), "Of the truth.")]
    held_out = HeldOut({"left out": np.array([1.0, 2.0]), "nobody": np.zeros(0)})
    known = {"recovery": recovery, "reliability": reliability, "held_out": held_out, "training_loss": [3.0, 2.0]}
    page = render(content_of(retest=[{"subject": "real", "agreement": 0.8765}], geometry=None, **known))
    assert re.search(r'class="ours"><th scope="row">ours</th><td>0.948</td><td>0.135</td>', page)
    assert re.search(r"group map</th><td>0.870</td><td>–</td>", page)
    assert "differ by at most 0.100" in page
    assert "Of the truth. Larger dots hold more of the 4 labels. Expected calibration error 0.075." in page
    assert "0.876" in page or "0.877" in page
    assert "left out: 1.500" in page
    assert "nobody:" not in page
    assert "It is not an ELBO" in page
    assert page.count("○ not checked") == 2  # gap and anatomy


def test_agreement_with_anatomy_is_shown_with_its_chance_level_or_why_not():
    matches = (Match(0, "45", 0.71), Match(1, "44", 0.69))
    chance = Agreement(matches, 0.7, 0.65, 0.8, 0.2505, 1999)
    shown = [
        Anatomy("areas", chance),
        Anatomy("others", replace(chance, mean=0.9, p=0.0005)),
        Anatomy("x", None, "No."),
    ]
    page = render(content_of(anatomy=shown, geometry=None))
    section = page[page.index('id="anatomy"') : page.index('id="methods"')]
    assert section.count("cannot be claimed") == 1
    assert section.count("better than 95 % of random cuts") == 1
    assert re.search(r"front</th><td class=\"text\">45</td><td>0.710</td>", section)
    assert "p = 0.2505" in section
    assert "No comparison: No." in section


def test_without_a_surface_maps_are_strips_and_the_page_says_so():
    page = render(content_of(geometry=None))
    assert "No surface is known" in page
    assert "Hatched" not in page
    assert len(pictures(page)) == 6  # cohort, population, three subjects, sizes


def test_subjects_of_a_large_cohort_have_pages_of_their_own(tmp_path):
    content, folder = content_of(geometry=None, gallery_limit=2), tmp_path / "report"
    folder.mkdir()
    (folder / "sub-gone.html").write_text("of an earlier report")
    write_report(tmp_path / "report.html", content)
    index = (tmp_path / "report.html").read_text(encoding="utf-8")
    pages = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert sorted(pages) == ["sub-01.html", "sub-02.html", "sub-03.html"]
    assert index.count('href="report/sub-02.html"') == 2
    assert len(pictures(index)) == 3  # cohort, population, sizes
    assert "noisy" in pages["sub-02.html"]
    assert "noisy" not in pages["sub-01.html"]
    assert re.findall(r'href="([^"]*)"', pages["sub-02.html"]) == ["../report.html", "sub-01.html", "sub-03.html"]
    assert len(pictures(pages["sub-02.html"])) == 1
    assert "&lt;back&gt;" in pages["sub-02.html"]
    assert "<script" not in pages["sub-02.html"]


def test_pages_go_when_everybody_fits_on_one(tmp_path):
    write_report(tmp_path / "report.html", content_of(geometry=None, gallery_limit=2))
    write_report(tmp_path / "report.html", content_of(geometry=None))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_subject_s_page_shows_its_maps_and_gap():
    gap = {"participant_id": "sub-03", "amortization_gap": 1.5, "amortization_gap_error": 0.1, "encoder_gap": None,
           "sharing_gap": None, "approximation_gap": None, "log_evidence_by": "annealing", "near_prior": None,
           "flags": None}  # fmt: skip
    content = content_of(gaps=[gap])
    page = render_subject(content, 2)
    assert len(pictures(page)) == 2
    assert "1.500 ± 0.100" in page
    assert "1.500 ± 0.100" not in render_subject(content, 0)
    assert "measured for 1 of 3 subjects, median 1.5 nats, 0 flagged" in render(replace(content, geometry=None))


def test_targets_that_set_a_network_apart_come_first():
    content = content_of()
    front, back = profile_bars(content.population, content.networks, content.targets.names)
    assert [bar.target for bar in front["bars"][:2]] == ["L_000", "L_001"]
    assert [bar.target for bar in back["bars"][:2]] == ["L_019", "L_018"]
    for bar in front["bars"] + back["bars"]:
        assert 0 <= bar.left <= bar.left + bar.width <= 100 + 1e-6
        assert bar.whisker + bar.whisker_width <= 100 + 1e-6
    longest = back["bars"][0]
    assert longest.width / (longest.whisker + longest.whisker_width) == pytest.approx(longest.mean / longest.high)


def test_more_networks_have_a_contrast_each_and_chosen_pairs_one_more():
    population = posterior_of(networks=3)
    for part in ("mean", "low", "high"):
        values = getattr(population, f"contrast_{part}")
        setattr(
            population,
            f"contrast_{part}",
            np.concatenate([values, values[:1] * 0 + {"mean": 1, "low": -1, "high": 3}[part]]),
        )
    three = content_of(networks=named_networks(3), population=population, subjects=[], participants=[], pairs=((2, 0),))
    page = render(three)
    names = re.findall(r"Connectivity contrast on the cortex: ([^.]*)\.", page)
    assert names == [*(f"network-0{k} minus the others" for k in (1, 2, 3)), "network-03 minus network-01"]
    assert "0 of 20 targets have a 90 % interval that excludes 0" in page
    assert "No subject was inferred" in page


def test_equal_content_gives_equal_bytes(page, tmp_path):
    write_report(tmp_path / "report.html", content_of())
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (True, "yes"),
        (0.12345, "0.123"),
        (-2.0, "−2.000"),
        (12345, "12 345"),
        ("x", "x"),
    ],
)
def test_values_are_shown_as_readers_expect(value, text):
    assert shown(value).replace("\u2009", " ").replace("\u202f", " ").replace("\xa0", " ") == text
