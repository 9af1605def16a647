"""The report's tables: numbers at the top of the page, what was checked, sizes of networks, bars of profiles."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from parcellation.label_table import Networks
from parcellation.maps import shown_labels
from parcellation.report_parts.content import ReportContent

TOP_TARGETS = 8
CHECKED, UNCHECKED = "checked", "not checked"


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


@dataclass(frozen=True)
class Check:
    """One thing that a reader would ask about: its section, whether it was checked, and what was found or lacks."""

    name: str
    section: str
    state: str
    found: str


def shown(value: object) -> str:
    """A value as readers expect it: three decimals at most, an en dash for what is missing, yes and no."""
    if value is None or value == "" or (isinstance(value, float) and np.isnan(value)):
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:.3f}".replace("-", "−")
    return f"{value:,}".replace(",", " ") if isinstance(value, int | np.integer) else str(value)


def css(colour: np.ndarray) -> str:
    """A colour (0..255) as style sheets have it."""
    return "#{:02x}{:02x}{:02x}".format(*map(int, colour))


def facts(content: ReportContent) -> dict[str, str]:
    """The numbers at the top of the page."""
    confidence = [row["mean_confidence"] for row in content.participants if row["mean_confidence"] is not None]
    mesh, many = content.frame.region.mesh, "vertices" if content.frame.parcels is None else "parcels"
    subjects, sessions = len(content.participants), sum(int(row["sessions"]) for row in content.participants)
    return {
        "subjects" if subjects != 1 else "subject": shown(subjects),
        "sessions" if sessions != 1 else "session": shown(sessions),
        "networks": shown(len(content.networks)),
        f"{many}, {mesh.space} {mesh.density}": shown(len(content.frame.region)),
        "targets": shown(len(content.targets.names)),
        "mean confidence": shown(float(np.mean(confidence)) if confidence else None),
    }


def checks(content: ReportContent) -> list[Check]:
    """What was checked of this result, and what was not and how to check it."""
    return [
        _flags(content),
        _retest(content),
        *_calibration(content),
        _held_out(content),
        _gap(content),
        *_anatomy(content),
    ]


def _flags(content: ReportContent) -> Check:
    flagged = sum(bool(row.get("flags")) for row in content.participants)
    return Check("Data quality", "cohort", CHECKED, f"{flagged} of {content.count} flagged")


def _retest(content: ReportContent) -> Check:
    if not content.retest:
        return Check("Test-retest", "checks", UNCHECKED, "nobody has two sessions")
    found = "; ".join(f"{name} {shown(value)}" for name, value in content.retest[0].items())
    return Check("Test-retest", "checks", CHECKED, found)


def _calibration(content: ReportContent) -> list[Check]:
    if not content.reliability:
        missing = "neither a known truth nor a second session to compare with"
        return [Check("Calibration", "checks", UNCHECKED, missing)]
    return [
        Check("Calibration", "checks", CHECKED, f"expected calibration error {one.error:.3f}. {one.said}")
        for one in content.reliability
    ]


def _held_out(content: ReportContent) -> Check:
    held = content.held_out
    groups = {} if held is None else {name: values for name, values in held.densities.items() if len(values)}
    if not groups:
        return Check("Held-out likelihood", "checks", UNCHECKED, "the model has no record of its training cohort")
    found = "; ".join(f"{name}: {np.mean(values):.3f}" for name, values in groups.items())
    return Check("Held-out likelihood", "checks", CHECKED, f"nats a value, {found}".replace("-", "−"))


def _gap(content: ReportContent) -> Check:
    if not content.gaps:
        return Check("Amortization gap", "gaps", UNCHECKED, "not measured; the command diagnose does")
    flagged = sum(bool(row.get("flags")) for row in content.gaps)
    median = np.median([row["amortization_gap"] for row in content.gaps if row["amortization_gap"] is not None])
    found = f"measured for {len(content.gaps)} of {content.count}, median {median:.1f} nats, {flagged} flagged"
    return Check("Amortization gap", "gaps", CHECKED, found)


def _anatomy(content: ReportContent) -> list[Check]:
    if not content.anatomy:
        return [Check("Anatomy", "anatomy", UNCHECKED, "not compared; the setting outputs.atlas names areas")]
    rows = []
    for one in content.anatomy:
        if one.result is None:
            rows.append(Check("Anatomy", "anatomy", UNCHECKED, f"{one.areas}: {one.reason}"))
            continue
        better = "better than 95 % of random cuts" if one.result.significant else "no better than random cuts"
        found = f"{better}: Dice {one.result.mean:.2f}, chance {one.result.null_mean:.2f}, p = {one.result.p:.4f}"
        rows.append(Check("Anatomy", "anatomy", CHECKED, f"{found}; {one.areas}"))
    return rows


def network_shares(probability: np.ndarray, networks: Networks) -> list[dict]:
    """Each network's share of the region in a map."""
    keys, _ = shown_labels(probability)
    return [
        {
            "name": name,
            "colour": css(colour),
            "vertices": int(np.sum(keys == key)),
            "share": float(np.mean(keys == key)),
        }
        for key, (name, colour) in enumerate(zip(networks.names, networks.colours, strict=True), 1)
    ]


def profile_bars(posterior, networks: Networks, targets: Sequence[str]) -> list[dict]:
    """For each network, the targets by which it differs most from the mean of the others, with 90 % intervals."""
    mean, low, high = (np.asarray(getattr(posterior, f"profile_{part}")) for part in ("mean", "low", "high"))
    lists = []
    for k, (name, colour) in enumerate(zip(networks.names, networks.colours, strict=True)):
        distinct = mean[k] - np.delete(mean, k, axis=0).mean(0)
        top = np.argsort(-distinct, kind="stable")[:TOP_TARGETS]
        start, end = min(0.0, float(low[k, top].min())), max(0.0, float(high[k, top].max()))
        scale = 100 / ((end - start) or 1.0)
        bars = [_bar(targets[t], *(float(part[k, t]) for part in (mean, low, high)), start, scale) for t in top]
        lists.append({"name": name, "colour": css(colour), "bars": bars})
    return lists


def _bar(target: str, mean: float, low: float, high: float, start: float, scale: float) -> Bar:
    left = (min(mean, 0.0) - start) * scale
    return Bar(target, mean, low, high, left, abs(mean) * scale, (low - start) * scale, (high - low) * scale)
