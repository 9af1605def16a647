"""The report in Chromium, driven as a reader would: what it shows, answers to a click, and asks of no network."""

import re

import numpy as np
import pytest

from parcellation.label_table import named_networks
from parcellation.report import render
from tests.browser import browser, needs_chromium
from tests.readme import ROOT
from tests.test_report import NUMBERS, content_of, posterior_of

pytestmark = needs_chromium

# A script in a name would set `owned`.
NAMES = ("front", "</script><script>owned = 1</script>", "<img src=x onerror='owned = 1'>")
ARTEFACTS = ROOT / "build" / "report"
NO_WEBGL = "HTMLCanvasElement.prototype.getContext = () => null"
DRAWN = "document.getElementById('viewer').dataset.drawn"
# A number that stands for the picture.
PICTURE = (
    "[...document.querySelector('canvas').toDataURL()].reduce((sum, one) => (31 * sum + one.charCodeAt(0)) | 0, 0)"
)


@pytest.fixture(scope="module")
def content():
    return content_of(
        title=NAMES[1],
        networks=named_networks(3, NAMES),
        population=posterior_of(networks=3),
        subjects=[posterior_of(f"{number:02d}", number, 3) for number in range(1, 4)],
        settings={"name": NAMES[1]},
    )


@pytest.fixture(scope="module")
def path(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(content), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(chromium, path):
    """The page at a desk's size, its surface drawn."""
    chromium.show(path)
    chromium.until(f"{DRAWN} !== undefined")
    yield chromium
    assert chromium.problems == []
    assert chromium.evaluate("window.owned === undefined")


def drawn(page, expected):
    page.until(f"{DRAWN} === {expected!r}")
    return page.evaluate(PICTURE)


def vertex_in_the_middle(page):
    page.mouse("mouseMoved", *page.place("canvas"))
    page.until("/^Vertex \\d+/.test(document.querySelector('[data-part=readout]').textContent)")
    text = page.evaluate("document.querySelector('[data-part=readout]').innerText")
    return int(re.match(r"Vertex (\d+), left hemisphere", text)[1]), text


@pytest.mark.parametrize(("width", "height"), [(1400, 1000), (420, 900)])
def test_it_opens_at_two_sizes_and_asks_for_nothing(chromium, path, width, height):
    chromium.show(path, width, height)
    chromium.until(f"{DRAWN} !== undefined")
    chromium.place("#viewer")
    picture = chromium.screenshot(ARTEFACTS / f"report_{width}.png")
    assert picture.stat().st_size > 10_000
    assert chromium.problems == []
    assert [one for one in chromium.requests if not one.startswith("data:image/png")] == [path.as_uri()]
    assert chromium.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert chromium.evaluate("getComputedStyle(document.querySelector('.still')).display") == "none"


def test_a_click_changes_the_map_and_back(page):
    labels = drawn(page, "population|labels|left")
    page.click("[data-map=entropy]")
    entropy = drawn(page, "population|entropy|left")
    assert entropy != labels
    assert page.evaluate("document.querySelector('[data-map=entropy]').getAttribute('aria-pressed')") == "true"
    assert page.evaluate("document.querySelector('[data-part=bar-high]').textContent") == "1.58"
    page.click("[data-map=network-2]")
    assert drawn(page, "population|network-2|left") not in (labels, entropy)
    page.click("[data-map=labels]")
    assert drawn(page, "population|labels|left") == labels


def test_the_vertex_under_the_pointer_is_read_with_its_probabilities(page, content):
    vertex, text = vertex_in_the_middle(page)
    (row,) = np.flatnonzero(vertex == NUMBERS)
    probability = content.population.probability[row]
    order = np.argsort(-probability)
    lines = [line for line in text.splitlines() if line]
    assert lines[1:7:2] == [NAMES[k] for k in order]
    assert [float(value) for value in lines[2:7:2]] == pytest.approx(probability[order], abs=6e-4)
    assert f"entropy {content.population.entropy[row]:.2f} bits" in text
    assert "share of subjects with this label 0.75" in text


def test_the_colour_at_a_vertex_is_its_network_s_faded_by_its_certainty(page, content):
    vertex, _ = vertex_in_the_middle(page)
    probability = content.population.probability[np.flatnonzero(vertex == NUMBERS)[0]]
    colour = page.evaluate("""(() => {
        const mark = document.querySelector('[data-part=mark]'), copy = document.createElement('canvas');
        copy.width = 1; copy.height = 1;
        const [x, y] = [parseFloat(mark.style.left), parseFloat(mark.style.top)];
        copy.getContext('2d').drawImage(document.querySelector('canvas'), -x, -y);
        return [...copy.getContext('2d').getImageData(0, 0, 1, 1).data];
    })()""")  # fmt: skip
    certain = (probability.max() - 1 / 3) / (2 / 3)
    expected = certain * content.networks.colours[probability.argmax()] / 255 + (1 - certain) * 0.84
    light = np.array(colour[:3]) / 255 / expected
    # One light on all three channels; half a pixel beside the vertex, interpolated probabilities differ a little.
    assert light == pytest.approx(np.full(3, light.mean()), rel=0.1)
    assert 0.85 < light.mean() < 1.05


def test_dragging_and_keys_turn_it(page):
    before = drawn(page, "population|labels|left")
    x, y = page.place("canvas")
    page.mouse("mousePressed", x, y)
    page.mouse("mouseMoved", x + 80, y)
    page.mouse("mouseReleased", x + 80, y)
    page.until(f"{PICTURE} !== {before!r}")
    page.evaluate("document.querySelector('canvas').focus()")
    turned = page.evaluate(PICTURE)
    page.press("ArrowUp")
    page.until(f"{PICTURE} !== {turned!r}")
    assert page.evaluate("document.querySelector('[data-part=spoken]').textContent").startswith("Vertex")
    page.press("0")
    page.until(f"{PICTURE} === {before!r}")


def test_a_subject_of_the_gallery_is_put_on_the_surface(page):
    page.click("a[data-person='2']")
    drawn(page, "sub-02|labels|left")
    assert page.evaluate("document.querySelector('[data-part=person]').value") == "2"
    # Where subjects differ is the population's to say.
    assert page.evaluate("document.querySelector('[data-map=consensus]').disabled")


def test_every_control_can_be_reached_by_keyboard(page):
    count = "#viewer button, #viewer select, #viewer canvas"
    assert page.evaluate(f"[...document.querySelectorAll('{count}')].every((one) => one.tabIndex === 0)")


def test_names_are_text(page):
    shown = page.evaluate("[...document.querySelectorAll('[data-map^=network]')].map((one) => one.textContent)")
    assert shown == list(NAMES)
    assert page.evaluate("document.querySelector('h1').textContent") == NAMES[1]


def test_on_paper_the_still_picture_is_shown(page):
    page.print_view()
    display = "getComputedStyle(document.querySelector('{}')).display"
    assert page.evaluate(display.format("#viewer")) == "none"
    assert page.evaluate(display.format(".still")) == "block"
    assert page.evaluate("getComputedStyle(document.querySelector('.gallery')).overflow") == "visible"


@pytest.mark.parametrize("how", [{"scripts": False}, {"before": NO_WEBGL}])
def test_without_scripts_or_webgl_the_still_picture_stays(chromium, path, how):
    chromium.show(path, **how)
    chromium.screenshot(ARTEFACTS / "report_still.png")
    display = "getComputedStyle(document.querySelector('{}')).display"
    assert chromium.evaluate(display.format("#viewer")) == "none"
    assert chromium.evaluate(display.format(".still")) == "block"
    assert chromium.problems == []
