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
from parcellation.report import ReportContent, profile_bars, render, shown, write_report
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
        profile_mean=mean,
        profile_low=mean - 0.1,
        profile_high=mean + 0.1,
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
    assert "<script" not in page
    assert "url(" not in page
    assert all(uri.startswith("data:image/png;base64,iVBOR") for uri, _ in pictures(page))


def test_every_picture_says_what_it_shows(page):
    texts = [alt for _, alt in pictures(page)]
    # Population labels and entropy, three subjects, consensus and spread, one contrast.
    assert len(texts) == 8
    assert all(len(text) > 20 for text in texts)
    share = np.mean(posterior_of().probability.argmax(1) == 0)
    assert f"{share:.0%} front" in texts[0]


def test_the_page_is_well_formed(page):
    body = re.sub(r"<(meta|img|br|col)\b([^>]*)>", r"<\1\2/>", page.split("<!DOCTYPE html>")[1])
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


def test_what_is_unknown_is_left_out(page):
    for section in ("truth", "retest", "anatomy", "training"):
        assert f'id="{section}"' not in page
        assert f'href="#{section}"' not in page


def test_what_is_known_is_shown():
    recovery = {"ours": {"accuracy": 0.948, "NLL": 0.135}, "group map": {"accuracy": 0.87}}
    reliability = {"confidence": np.array([0.6, 0.9]), "accuracy": np.array([0.5, 0.9]), "count": np.array([3, 4])}
    retest = [{"subject": "real", "agreement": 0.8765}]
    page = render(
        content_of(recovery=recovery, reliability=reliability, retest=retest, training_loss=[3.0, 2.0], geometry=None)
    )
    assert re.search(r'class="ours"><th scope="row">ours</th><td>0.948</td><td>0.135</td>', page)
    assert re.search(r"group map</th><td>0.870</td><td>–</td>", page)
    assert "differ by at most 0.100" in page
    assert "0.876" in page or "0.877" in page
    assert "training loss per step (not an ELBO)" in page.lower().replace("elbo", "ELBO")


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
    assert len(pictures(page)) == 4  # population and three subjects


def test_a_large_cohort_is_shown_in_part_and_the_page_says_so():
    page = render(content_of(geometry=None, subjects=iter(content_of().subjects), gallery_limit=2))
    assert "The first 2 of 3 subjects are shown" in page
    assert len(pictures(page)) == 3


def test_targets_that_set_a_network_apart_come_first():
    front, back = profile_bars(content_of())
    assert [bar.target for bar in front["bars"][:2]] == ["L_000", "L_001"]
    assert [bar.target for bar in back["bars"][:2]] == ["L_019", "L_018"]
    for bar in front["bars"] + back["bars"]:
        assert 0 <= bar.left <= bar.left + bar.width <= 100 + 1e-6
        assert bar.whisker + bar.whisker_width <= 100 + 1e-6
    longest = back["bars"][0]
    assert longest.width / (longest.whisker + longest.whisker_width) == pytest.approx(longest.mean / longest.high)


def test_more_networks_have_a_contrast_each():
    three = content_of(networks=named_networks(3), population=posterior_of(networks=3), subjects=[])
    page = render(three)
    assert page.count("minus the mean of the others.") == 6  # picture texts and captions
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
