"""Amortization gaps of subjects, as they are kept: a file a subject, and the tables that people open."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas

from parcellation.files import write_json
from parcellation.maps import bids_label, write_table
from parcellation.verbs.workspace import Workspace

FOLDER = "diagnostics"
NOT_ESTIMABLE = "not estimable"

COLUMNS = {
    "participant_id": "Subject, as in the file names",
    "observations": "Fingerprints with data: vertices times sessions",
    "elbo": "Evidence lower bound of the answer that is used, given the population, mean over population draws, nats",
    "amortization_gap": "Lower bound of the amortization gap: what refinement for this subject alone gains, nats",
    "amortization_gap_error": "Its Monte-Carlo standard error, nats",
    "amortization_gap_per_observation": "The same, in nats an observation",
    "encoder_gap": "The part gained by better encodings, flows as they are, nats",
    "encoder_gap_error": "Its Monte-Carlo standard error, nats",
    "sharing_gap": "The part gained by flows of this subject's own, nats",
    "sharing_gap_error": "Its Monte-Carlo standard error, nats",
    "approximation_gap": "Estimate (no bound) of what the family cannot reach: log evidence less the best bound, nats",
    "approximation_gap_error": "Its Monte-Carlo standard error, nats",
    "approximation_gap_per_observation": "The same, in nats an observation",
    "log_evidence": "Log evidence given the population, mean over population draws, nats",
    "log_evidence_error": "Its Monte-Carlo standard error, nats",
    "log_evidence_by": "Importance weighting, annealing where that is refused at a population draw, or not estimable",
    "effective_draws": "Draws that the importance weights are worth, at the worst population draw",
    "pareto_k": "Pareto shape of the weights' tail, at the worst population draw; above 0.7 they are refused",
    "weights_sd": "Standard deviation of the log weights, at the worst population draw, nats",
    "best_start": "Where the best answers began: encoder, prior, coordinate ascent",
    "labels_flipped": "Vertices whose label refinement changes",
    "share_flipped": "Their share of the region",
    "mean_change": "Mean over vertices of the change in label probabilities, total variation",
    "largest_change": "The largest of these changes",
    "near_prior": "Sites whose posterior is near the prior, and whether data say nothing or the encoder missed it",
    "flags": "What to look at before this subject is used, separated by semicolons",
}


def gap_file(workspace: Workspace, subject: str) -> Path:
    """Where a subject's diagnosis is kept."""
    return workspace.work / "diagnosis" / f"sub-{subject}_diagnosis.json"


def keep_gap(workspace: Workspace, subject: str, key: str, budget: str, diagnosis: Mapping) -> None:
    """Keep a diagnosis (`Diagnosis.to_json`) of the answer with this key, found with this budget."""
    content = {"key": key, "budget": budget, "diagnosis": diagnosis}
    write_json(gap_file(workspace, subject), content)


def kept_gap(workspace: Workspace, subject: str, key: str, budget: str | None = None) -> dict | None:
    """The diagnosis that is kept, if it is of this answer and this budget (any, if None); None when damaged."""
    try:
        content = json.loads(gap_file(workspace, subject).read_text(encoding="utf-8"))
        same = content["key"] == key and budget in (None, content["budget"])
        return content["diagnosis"] if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def gap_row(subject: str, diagnosis: Mapping) -> dict:
    """The table's row of one subject; None is written as n/a."""
    draws, averages = diagnosis["draws"], diagnosis["averages"]
    evidence = [draw["evidence"] for draw in draws]
    row = {"participant_id": f"sub-{bids_label(subject)}", "observations": diagnosis["observations"]}
    # As text: their six digits would not tell gaps apart.
    row["elbo"] = f"{sum(draw['elbo']['encoder']['value'] for draw in draws) / len(draws):.3f}"
    for name, found in averages.items():
        row[name] = round(found["value"], 3) if found else None
        row[f"{name}_error"] = round(found["error"], 3) if found else None
        if found and name in ("amortization_gap", "approximation_gap"):
            row[f"{name}_per_observation"] = round(found["value"] / max(1, diagnosis["observations"]), 6)
    row["log_evidence"] = averages["log_evidence"] and f"{averages['log_evidence']['value']:.3f}"
    row["log_evidence_by"] = _evidence_by(evidence)
    row["effective_draws"] = _worst(evidence, "effective_draws", min)
    row["pareto_k"] = _worst(evidence, "pareto_k", max)
    row["weights_sd"] = _worst(evidence, "spread", max)
    row["best_start"] = "; ".join(sorted({draw["start"] for draw in draws}))
    if diagnosis["changes"]:
        names = ("labels_flipped", "share_flipped", "mean_change", "largest_change")
        values = [diagnosis["changes"][name] for name in ("flips", "share", "mean_change", "largest_change")]
        row |= {name: round(value, 5) for name, value in zip(names, values, strict=True)}
    row["near_prior"] = "; ".join(f"{name}: {verdict}" for name, verdict in diagnosis["near_prior"].items()) or None
    row["flags"] = "; ".join(diagnosis["flags"]) or None
    return row


def _evidence_by(evidence: Sequence[Mapping]) -> str:
    if any(one["log_evidence"] is None for one in evidence):
        return NOT_ESTIMABLE
    refused = sum(bool(one["refused"]) for one in evidence)
    if not refused:
        return "importance"
    return "annealing" if refused == len(evidence) else f"annealing at {refused} of {len(evidence)} draws"


def _worst(evidence: Sequence[Mapping], name: str, which) -> float | None:
    there = [one[name] for one in evidence if one[name] is not None]
    return round(which(there), 2) if there else None


def write_gaps(out: Path, diagnoses: Mapping[str, Mapping], settings: Mapping) -> None:
    """The table of all diagnoses, with a sidecar, and everything that was found, a population draw at a time."""
    folder = out / FOLDER
    rows = [gap_row(subject, diagnosis) for subject, diagnosis in diagnoses.items()]
    write_table(folder / "amortization_gap.tsv", pandas.DataFrame(rows, columns=list(COLUMNS)))
    columns = {name: {"Description": text} for name, text in COLUMNS.items()}
    details = {f"sub-{bids_label(subject)}": diagnosis for subject, diagnosis in diagnoses.items()}
    write_json(folder / "amortization_gap.json", {"Settings": dict(settings), "Columns": columns, "Subjects": details})
