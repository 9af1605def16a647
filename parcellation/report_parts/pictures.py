"""The report's pictures: each as a data URI, with a text for who cannot see it and a caption of what, unit and n."""

import base64
import struct
from dataclasses import dataclass, replace

import numpy as np

from parcellation import charts, figures
from parcellation.derivative import participant
from parcellation.figures import Stage
from parcellation.label_table import Networks
from parcellation.maps import contrast_names, shown_labels
from parcellation.report_parts.content import ReportContent
from parcellation.report_parts.viewer import tenth

CHART_SCALE = 112  # pixels of the page an inch of a chart
FEW = 2  # subjects shown in full size
CONTRAST_LIMIT = 8  # networks with a contrast picture each
STRIP_LIMIT = 20  # networks whose sizes are drawn


@dataclass(frozen=True)
class Picture:
    """A picture in the page: its data URI, what it shows for who cannot see it, and the text below it."""

    uri: str
    alt: str
    caption: str = ""
    width: int | None = None


def picture(png: bytes, alt: str, caption: str = "") -> Picture:
    """A PNG as a picture of the page, as wide as there is room."""
    return Picture("data:image/png;base64," + base64.b64encode(png).decode(), alt, caption)


def chart(png: bytes, alt: str, caption: str) -> Picture:
    """A chart, as wide as lets its letters be about as large as those of the text."""
    wide = struct.unpack(">I", png[16:20])[0]
    return replace(picture(png, alt, caption), width=round(wide * CHART_SCALE / charts.DPI))


def describe_shares(probability: np.ndarray, networks: Networks) -> str:
    """A map in words: the largest networks and their shares of the region."""
    keys, _ = shown_labels(probability)
    share = np.array([np.mean(keys == key) for key in range(1, len(networks) + 1)])
    largest = np.argsort(-share, kind="stable")[:4]
    return ", ".join(f"{share[k]:.0%} {networks.names[k]}" for k in largest)


def cohort_picture(content: ReportContent) -> Picture | None:
    """Data and confidence of everybody, where there are enough for a picture."""
    rows = content.participants
    if len(rows) <= FEW:
        return None
    wanted = {"frames kept": "frames", "mean confidence": "mean_confidence", "like training (p)": "novelty_p"}
    values = {
        label: np.array([float(row[name]) for row in rows if row.get(name) is not None])
        for label, name in wanted.items()
    }
    values = {label: found for label, found in values.items() if len(found)}
    said = "; ".join(f"{label} {found.min():.4g} to {found.max():.4g}" for label, found in values.items())
    caption = f"One dot a subject, {content.count}; line: median. Frames are those kept over all sessions."
    return chart(charts.quantities(values), f"Spread over subjects: {said}.", caption)


def population_pictures(content: ReportContent) -> list[Picture]:
    """The population's labels and their entropy."""
    population, networks = content.population, content.networks
    alt = f"Population map: {describe_shares(population.probability, networks)}."
    if content.stage is None:
        strip = figures.render_strip(population.probability, networks)
        return [picture(strip, alt, "Most probable network of each vertex, in the order of the files.")]
    limits = (0.0, float(np.log2(len(networks))))
    labels = figures.render_labels(content.stage, population.probability, networks)
    entropy = figures.render_scalar(content.stage.close_ups(), population.entropy, "entropy (bits)", limits)
    uncertain = f"Entropy of the population map, on average {np.mean(population.entropy):.2f} bits."
    n = f"{len(population.probability):,} vertices".replace(",", " ")
    said = f"Most probable network of each vertex of the population, {n}. Colour fades to grey at chance."
    bits = f"Uncertainty of the population’s label in bits, {n}: 0 is certain, {limits[1]:.2f} knows nothing."
    return [picture(labels, alt, said), picture(entropy, uncertain, bits)]


def pictures_of(content: ReportContent, name: str, one) -> list[Picture]:
    """Labels and entropy of one subject in full size; nothing but a strip without a surface."""
    networks, mean = content.networks, f"on average {np.mean(one.entropy):.2f} bits"
    alt = f"{name}: {describe_shares(one.probability, networks)}."
    label = f"{name}: most probable network, opacity is certainty; {_amount(one)}."
    if content.stage is None:
        return [picture(figures.render_strip(one.probability, networks), alt, label)]
    stage, limits = content.stage.close_ups(), (0.0, float(np.log2(len(networks))))
    labels = figures.render_labels(stage, one.probability, networks, missing=~np.asarray(one.mask))
    entropy = figures.render_scalar(stage, one.entropy, "entropy (bits)", limits)
    uncertain = picture(entropy, f"{name}: entropy, {mean}.", f"{name}: uncertainty of the label, {mean}.")
    return [picture(labels, alt, label), uncertain]


def _amount(one) -> str:
    sessions = len(one.sessions)
    frames = f"{round(sum(one.frames)):,}".replace(",", " ")
    return f"{sessions} session{'' if sessions == 1 else 's'}, {frames} frames"


def few_pictures(content: ReportContent) -> list[Picture]:
    """Every subject in full size, where there are few enough for that."""
    if content.stage is None or len(content.participants) > FEW:
        return []
    pairs = zip(content.participants, content.subjects, strict=True)
    return [one for row, posterior in pairs for one in pictures_of(content, row["participant_id"], posterior)]


def gallery(content: ReportContent) -> list[dict]:
    """A card for each subject: picture, and the numbers below it; none where each has a page of its own."""
    if content.paged:
        return []
    return [_card(content, row, one) for row, one in zip(content.participants, content.subjects, strict=True)]


def _card(content: ReportContent, row: dict, posterior) -> dict:
    networks = content.networks
    if content.small_stage is None:
        png = figures.strip_thumbnail(posterior.probability, networks)
    else:
        png = figures.thumbnail(content.small_stage, posterior.probability, networks, ~np.asarray(posterior.mask))
    alt = f"Map of {row['participant_id']}: {describe_shares(posterior.probability, networks)}."
    same = np.mean(shown_labels(posterior.probability)[0] == shown_labels(content.population.probability)[0])
    own = {"picture": picture(png, alt), "same": float(same), "flags": row.get("flags")}
    return participant(posterior) | own


def difference_pictures(content: ReportContent) -> list[Picture]:
    """Where subjects differ: consensus, spread, and the split of bits between subjects and within them."""
    population, n = content.population, content.count
    if content.stage is None or len(content.participants) <= 1:
        return []
    stage, spread = content.stage.close_ups(), np.max(population.betweensd, axis=1)
    limit = tenth(max(population.between.max(), population.within.max()))
    chosen = (
        (population.consensus, "share of subjects", 1.0, "Consensus: share of {n} whose label is the population’s"),
        (spread, "standard deviation", tenth(spread.max()),
         "Spread: standard deviation over {n} of a network’s probability, of the network in which they differ most"),
        (population.between, "bits", limit,
         "Between subjects: bits by which {n} differ in their label (mutual information of label and subject)"),
        (population.within, "bits", limit,
         "Within a subject: bits by which a subject’s own label is uncertain, mean over {n}"),
    )  # fmt: skip
    return [
        picture(
            figures.render_scalar(stage, values, label, (0.0, top)),
            f"{said.format(n=n)}; on average {np.mean(values):.2f}, at most {np.max(values):.2f}.",
            f"{said.format(n=n)}. Mean over vertices {np.mean(values):.2f}.",
        )
        for values, label, top, said in chosen
    ]


def sizes_picture(content: ReportContent) -> Picture | None:
    """How large each network is in every subject."""
    networks = content.networks
    if not len(content.participants) > FEW or len(networks) > STRIP_LIMIT:
        return None
    keys = np.stack([shown_labels(one.probability)[0] for one in content.subjects])
    share = {name: 100 * np.mean(keys == key, axis=1) for key, name in enumerate(networks.names, 1)}
    said = "; ".join(f"{name} {values.min():.0f} to {values.max():.0f} %" for name, values in share.items())
    png = charts.strips(share, "share of the region (%)", np.asarray(networks.colours) / 255)
    return chart(
        png,
        f"Sizes of networks over subjects: {said}.",
        f"Size of each network in the label maps of {content.count}, percent of the region’s vertices; line: median.",
    )


def contrast_pictures(content: ReportContent) -> list[Picture]:
    """What a network is connected with more than another is, or than the others are, on the whole cortex."""
    population, networks, targets = content.population, content.networks, content.targets
    if content.geometry is None:
        return []
    stage = Stage.cortex(content.geometry, content.relief, content.picture_width * 2 // 3)
    pictures = []
    for at, name in enumerate(contrast_names(networks.names, content.pairs)):
        ends = contrast_ends(networks, content.pairs, at)
        if ends is None:
            continue
        values, low, high = (
            np.asarray(getattr(population, f"contrast_{part}")[at]) for part in ("mean", "low", "high")
        )
        clear = int(np.count_nonzero((low > 0) | (high < 0)))
        png = figures.render_targets(stage, targets.members, values[targets.target], name, ends)
        caption = (
            f"Connectivity of {name} in the population, in the units of the study’s features; a dot a target. "
            f"{clear} of {len(values)} targets have a 90 % interval that excludes 0."
        )
        pictures.append(picture(png, f"Connectivity contrast on the cortex: {name}.", caption))
    return pictures


def contrast_ends(networks: Networks, pairs, at: int) -> tuple | None:
    """Colours of the negative and of the positive end of a contrast's picture; None for one that is not drawn."""
    K, colours = len(networks), networks.colours
    standard = 1 if K == 2 else K
    if at >= standard:
        first, second = pairs[at - standard]
        return colours[second], colours[first]
    if K == 2:
        return colours[1], colours[0]
    return ((90, 90, 95), colours[at]) if K <= CONTRAST_LIMIT else None


def reliability_pictures(content: ReportContent) -> list[Picture]:
    """Reliability diagrams: against a known truth, and between sessions."""
    pictures = []
    for one in content.reliability:
        confidence, accuracy, count = (
            np.asarray(values, float) for values in (one.confidence, one.accuracy, one.count)
        )
        full = count > 0
        worst = float(np.abs(confidence[full] - accuracy[full]).max()) if full.any() else 0.0
        alt = f"Reliability diagram: stated and true accuracy differ by at most {worst:.3f} in any bin."
        n = f"{int(count.sum()):,}".replace(",", " ")
        caption = f"{one.said} Larger dots hold more of the {n} labels. Expected calibration error {one.error:.3f}."
        pictures.append(chart(charts.reliability_diagram(confidence, accuracy, count, one.hit), alt, caption))
    return pictures


def held_out_pictures(content: ReportContent) -> list[Picture]:
    """How well people are predicted, and by how many networks."""
    held = content.held_out
    if held is None:
        return []
    pictures = []
    groups = {f"{name} ({len(values)})": values for name, values in held.densities.items() if len(values)}
    if groups:
        said = "; ".join(f"{name}: {np.mean(values):.3f}" for name, values in groups.items())
        png = charts.strips(groups, "log predictive density (nats a value)")
        caption = (
            "Log predictive density of a value of the fingerprints given the population, nats, higher is better; a dot "
            "a person, number of people in brackets; line: median."
        )
        pictures.append(chart(png, f"Held-out likelihood by group of people: {said}.", caption))
    if held.by_networks is not None:
        table = held.by_networks
        best = int(table["networks"][np.argmax(table["density"])])
        png = charts.density_curve(table["networks"], table["density"], table["less_error"])
        caption = (
            "Log predictive density of people who were left out, nats a value, by number of networks; bars: standard "
            "error of the difference from the best."
        )
        pictures.append(chart(png, f"Held-out likelihood by number of networks: best with {best}.", caption))
    return pictures


def training_picture(content: ReportContent) -> Picture | None:
    """The training curve."""
    if content.training_loss is None or not len(content.training_loss):
        return None
    loss = np.asarray(content.training_loss, float)
    alt = f"Training loss over {len(loss)} steps, from {loss[0]:.4g} to {loss[-1]:.4g}."
    caption = (
        "Training loss of each step, in nats, with its running median. It is not an ELBO, since encoders see batches, "
        "and it says nothing about people who were not trained on."
    )
    return chart(charts.training_curve(loss), alt, caption)
