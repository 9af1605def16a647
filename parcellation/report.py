"""The report: one HTML file with pictures inside, readable without network, on paper and by a screen reader.

The text is in `report.html.jinja`; this file computes what the text shows, from the `ReportContent` a caller fills.
"""

import base64
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import jinja2
import numpy as np
import yaml

from parcellation import charts, figures
from parcellation.derivative import participant
from parcellation.figures import Geometry, Stage
from parcellation.files import write_text
from parcellation.label_table import Networks
from parcellation.map_files import Frame
from parcellation.maps import shown_labels
from parcellation.surfaces import Targets

THUMBNAIL = 230  # pixels of a gallery picture
GALLERY_LIMIT = 100  # subjects, about 3 MB
TOP_TARGETS = 8
FEW = 2  # subjects shown in full size
CONTRAST_LIMIT = 8  # networks with a contrast picture each


@dataclass(frozen=True, eq=False)
class ReportContent:
    """What a report is made of; parts that are None are left out.

    summary: paragraphs that say what was done with what data; population and subjects: see `posterior`; participants:
    rows of `derivative.participant`; geometry and relief: see `figures.Stage.of`, None falls back to strips and says
    so; recovery: method -> score name -> number, ours first, where the truth is known; reliability: `confidence`,
    `accuracy` and `count` of each bin; retest: rows of named values, one a comparison; gaps: rows of
    diagnostics/amortization_gap.tsv; anatomy: comparisons with areas, each `areas` (with what), `result` (an
    `anatomy.Agreement`, or None and the `reason`); training_loss: of each step;
    settings: the resolved study; versions: software -> version; citation: how to cite; warnings come first on the
    page, notes last; gallery_limit: subjects shown; picture_width: of a close-up, in pixels.
    """

    title: str
    summary: Sequence[str]
    networks: Networks
    frame: Frame
    targets: Targets
    population: object
    subjects: Iterable
    participants: Sequence[Mapping]
    geometry: Geometry | None = None
    relief: Sequence | None = None
    recovery: Mapping[str, Mapping[str, float]] | None = None
    reliability: Mapping[str, np.ndarray] | None = None
    retest: Sequence[Mapping] | None = None
    gaps: Sequence[Mapping] | None = None
    anatomy: Sequence = ()
    training_loss: np.ndarray | None = None
    settings: Mapping = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    citation: str = ""
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    gallery_limit: int = GALLERY_LIMIT
    picture_width: int = 620

    @cached_property
    def stage(self) -> Stage | None:
        """The views of the large pictures, None without a surface."""
        return self.geometry and Stage.of(self.geometry, self.frame.region, self.relief, self.picture_width)

    @cached_property
    def small_stage(self) -> Stage | None:
        """The views of the gallery's pictures, None without a surface."""
        return self.geometry and Stage.of(self.geometry, self.frame.region, self.relief, width=THUMBNAIL)


@dataclass(frozen=True)
class Picture:
    """A picture in the page: its data URI, what it shows for who cannot see it, and the text below it."""

    uri: str
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Bar:
    """A target's connectivity as text and as a bar: places in percent of the table's width."""

    target: str
    mean: float
    low: float
    high: float
    left: float
    width: float
    whisker: float
    whisker_width: float


def write_report(path: Path, content: ReportContent) -> None:
    """Write report.html."""
    write_text(path, render(content))


def render(content: ReportContent) -> str:
    """The page as text. Equal content gives equal text; names and texts are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("parcellation", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    return environment.get_template("report.html.jinja").render(
        content=content,
        facts=facts(content),
        population=population_pictures(content),
        shares=network_shares(content),
        few=subject_pictures(content),
        gallery=gallery(content),
        differences=difference_pictures(content),
        contrasts=contrast_pictures(content),
        profiles=profile_bars(content),
        scores=list(dict.fromkeys(name for row in (content.recovery or {}).values() for name in row)),
        reliability=reliability_picture(content),
        training=training_picture(content),
        settings=yaml.safe_dump(dict(content.settings), sort_keys=False, allow_unicode=True),
    )


def shown(value: object) -> str:
    """A value as readers expect it: three decimals at most, an en dash for what is missing, yes and no."""
    if value is None or value == "" or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:.3f}".replace("-", "−")
    return f"{value:,}".replace(",", " ") if isinstance(value, int | np.integer) else str(value)


def facts(content: ReportContent) -> dict[str, str]:
    """The numbers at the top of the page."""
    confidence = [row["mean_confidence"] for row in content.participants if row["mean_confidence"] is not None]
    mesh = content.frame.region.mesh
    return {
        "subjects": shown(len(content.participants)),
        "sessions": shown(sum(int(row["sessions"]) for row in content.participants)),
        "networks": shown(len(content.networks)),
        f"vertices, {mesh.space} {mesh.density}": shown(len(content.frame.region)),
        "targets": shown(len(content.targets.names)),
        "mean confidence": shown(float(np.mean(confidence)) if confidence else None),
    }


def population_pictures(content: ReportContent) -> list[Picture]:
    """The population's labels and their entropy."""
    population, networks = content.population, content.networks
    alt = f"Population map: {describe_shares(population.probability, networks)}."
    if content.stage is None:
        strip = figures.render_strip(population.probability, networks)
        return [_picture(strip, alt, "Most probable network of each vertex, in the order of the files.")]
    labels = figures.render_labels(content.stage, population.probability, networks)
    limits = (0.0, float(np.log2(len(networks))))
    entropy = figures.render_scalar(content.stage.close_ups(), population.entropy, "entropy (bits)", limits)
    uncertain = f"Entropy of the population map, on average {np.mean(population.entropy):.2f} bits."
    return [
        _picture(
            labels, alt, "Most probable network of each vertex. Colour fades to grey where it is no better than chance."
        ),
        _picture(
            entropy, uncertain, f"Uncertainty: 0 bits is certain, {limits[1]:.2f} bits means that nothing is known."
        ),
    ]


def subject_pictures(content: ReportContent) -> list[Picture]:
    """Labels and entropy of each subject in full size, where there are few enough for that."""
    if content.stage is None or len(content.participants) > FEW:
        return []
    stage, pictures, networks = content.stage.close_ups(), [], content.networks
    for row, one in zip(content.participants, content.subjects, strict=True):
        name, missing = row["participant_id"], ~one.mask
        labels = figures.render_labels(stage, one.probability, networks, missing=missing)
        entropy = figures.render_scalar(stage, one.entropy, "entropy (bits)", (0.0, float(np.log2(len(networks)))))
        mean = f"on average {np.mean(one.entropy):.2f} bits"
        pictures += [
            _picture(
                labels, f"{name}: {describe_shares(one.probability, networks)}.", f"{name}: most probable network."
            ),
            _picture(entropy, f"{name}: entropy, {mean}.", f"{name}: uncertainty, {mean}."),
        ]
    return pictures


def difference_pictures(content: ReportContent) -> list[Picture]:
    """Where subjects differ: the consensus with the population's label, and the spread of probabilities."""
    population = content.population
    consensus = f"Consensus: on average {np.mean(population.consensus):.0%} of subjects have the population's label."
    if content.stage is None or len(content.participants) < 2:
        return []
    stage, spread = content.stage.close_ups(), np.max(population.betweensd, axis=1)
    top = max(0.1, float(np.ceil(10 * spread.max()) / 10))
    return [
        _picture(
            figures.render_scalar(stage, population.consensus, "share of subjects", (0.0, 1.0)),
            consensus,
            "Share of subjects whose label is the population's.",
        ),
        _picture(
            figures.render_scalar(stage, spread, "standard deviation", (0.0, top)),
            f"Standard deviation of network probabilities over subjects, at most {spread.max():.2f}.",
            "Standard deviation over subjects of a network's probability; the network in which they differ most.",
        ),
    ]


def network_shares(content: ReportContent) -> list[dict]:
    """Each network's share of the region in the population map."""
    keys, _ = shown_labels(content.population.probability)
    return [
        {
            "name": name,
            "colour": _css(colour),
            "vertices": int(np.sum(keys == key)),
            "share": float(np.mean(keys == key)),
        }
        for key, (name, colour) in enumerate(zip(content.networks.names, content.networks.colours, strict=True), 1)
    ]


def gallery(content: ReportContent) -> list[dict]:
    """A card for each of the first subjects: picture, and the numbers below it."""
    return [_card(content, posterior) for posterior in itertools.islice(content.subjects, content.gallery_limit)]


def _card(content: ReportContent, posterior) -> dict:
    row, networks = participant(posterior), content.networks
    flags = {p["participant_id"]: p.get("flags") for p in content.participants}
    missing = ~np.asarray(posterior.mask)
    if content.small_stage is None:
        png = figures.strip_thumbnail(posterior.probability, networks)
    else:
        png = figures.thumbnail(content.small_stage, posterior.probability, networks, missing)
    alt = f"Map of {row['participant_id']}: {describe_shares(posterior.probability, networks)}."
    return row | {"picture": _picture(png, alt), "flags": flags.get(row["participant_id"])}


def describe_shares(probability: np.ndarray, networks: Networks) -> str:
    """A map in words: the largest networks and their shares of the region."""
    keys, _ = shown_labels(probability)
    share = np.array([np.mean(keys == key) for key in range(1, len(networks) + 1)])
    largest = np.argsort(-share, kind="stable")[:4]
    return ", ".join(f"{share[k]:.0%} {networks.names[k]}" for k in largest)


def contrast_pictures(content: ReportContent) -> list[Picture]:
    """What a network is connected with more than the others are, on the whole cortex."""
    profile, networks, targets = np.asarray(content.population.profile_mean, float), content.networks, content.targets
    if content.geometry is None or len(networks) > CONTRAST_LIMIT:
        return []
    stage = Stage.cortex(content.geometry, content.relief, content.picture_width * 2 // 3)
    pictures = []
    for k in range(len(networks) if len(networks) > 2 else 1):
        others = [other for other in range(len(networks)) if other != k]
        against = networks.names[others[0]] if len(others) == 1 else "the mean of the others"
        ends = (networks.colours[others[0]] if len(others) == 1 else (90, 90, 95)), networks.colours[k]
        values = (profile[k] - profile[others].mean(0))[targets.target]
        label = f"{networks.names[k]} minus {against}"
        png = figures.render_targets(stage, targets.members, values, label, ends)
        pictures.append(_picture(png, f"Connectivity contrast on the cortex: {label}.", f"Connectivity of {label}."))
    return pictures


def profile_bars(content: ReportContent) -> list[dict]:
    """For each network, the targets by which it differs most from the mean of the others, with 90 % intervals."""
    mean, low, high = (np.asarray(getattr(content.population, f"profile_{part}")) for part in ("mean", "low", "high"))
    lists = []
    for k, (name, colour) in enumerate(zip(content.networks.names, content.networks.colours, strict=True)):
        distinct = mean[k] - np.delete(mean, k, axis=0).mean(0)
        top = np.argsort(-distinct, kind="stable")[:TOP_TARGETS]
        start, end = min(0.0, float(low[k, top].min())), max(0.0, float(high[k, top].max()))
        scale = 100 / ((end - start) or 1.0)
        bars = [
            _bar(content.targets.names[t], *(float(part[k, t]) for part in (mean, low, high)), start, scale)
            for t in top
        ]
        lists.append({"name": name, "colour": _css(colour), "bars": bars})
    return lists


def _bar(target: str, mean: float, low: float, high: float, start: float, scale: float) -> Bar:
    left = (min(mean, 0.0) - start) * scale
    return Bar(target, mean, low, high, left, abs(mean) * scale, (low - start) * scale, (high - low) * scale)


def reliability_picture(content: ReportContent) -> Picture | None:
    """The reliability diagram, where the truth is known."""
    if content.reliability is None:
        return None
    confidence, accuracy, count = (
        np.asarray(content.reliability[name]) for name in ("confidence", "accuracy", "count")
    )
    full = count > 0
    worst = float(np.abs(confidence[full] - accuracy[full]).max()) if full.any() else 0.0
    alt = f"Reliability diagram: stated and true accuracy differ by at most {worst:.3f} in any bin."
    png = charts.reliability_diagram(confidence, accuracy, count)
    return _picture(png, alt, "Stated probability against the share of right labels; larger dots hold more vertices.")


def training_picture(content: ReportContent) -> Picture | None:
    """The training curve."""
    if content.training_loss is None or not len(content.training_loss):
        return None
    loss = np.asarray(content.training_loss, float)
    alt = f"Training loss over {len(loss)} steps, from {loss[0]:.4g} to {loss[-1]:.4g}."
    return _picture(charts.training_curve(loss), alt, "Training loss per step (not an ELBO).")


def _picture(png: bytes, alt: str, caption: str = "") -> Picture:
    return Picture("data:image/png;base64," + base64.b64encode(png).decode(), alt, caption)


def _css(colour: np.ndarray) -> str:
    return "#{:02x}{:02x}{:02x}".format(*map(int, colour))
