"""How unlike the training cohort the subjects of a study are, kept once found; the flag, and the cohort's warning."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parcellation.cohort import Cohort
from parcellation.errors import BadData, InputMissing
from parcellation.interruption import told_to_end
from parcellation.novelty import SHIFT_LEVEL, Reference, Shift, cohort_shift, flag_level, session_mean, summary
from parcellation.tensor_file import keep_arrays, kept_arrays

log = logging.getLogger(__name__)

Answers = Sequence[tuple[str, tuple[str, ...]]]  # subject and its sessions
LEAST_COHORT = 2  # new subjects that are compared with the training cohort as a whole
TOLD = 3  # quantities that a warning names


@dataclass(frozen=True, eq=False)
class Found:
    """One subject: scores (session, 2) and summary as in `novelty`, p-value, and whether the subject was trained on."""

    scores: np.ndarray
    summary: np.ndarray
    p: float
    trained_on: bool

    @property
    def density(self) -> float:
        """Log predictive density of a value of the fingerprints, in nats."""
        return float(session_mean(self.scores)[0])


class Novelty:
    """The subjects of a cohort beside a model's training cohort; reference None for a model that has none."""

    def __init__(self, reference: Reference | None, model: str, cohort: Cohort, folder: Path):
        self.reference, self.model, self.cohort, self.folder = reference, model, cohort, folder
        self._found: dict[tuple, Found | None] = {}
        self._shifts: dict[tuple, Shift] = {}

    def of(self, subject: str, sessions: tuple[str, ...]) -> Found | None:
        """A subject from these sessions; None without a reference, or where its fingerprints cannot be read."""
        if self.reference is None:
            return None
        if (subject, sessions) not in self._found:
            try:
                self._found[subject, sessions] = self._find(subject, sessions)
            except BadData as error:
                if told_to_end():
                    raise
                log.warning("subject %s is not compared with the training cohort: %s", subject, error)
                self._found[subject, sessions] = None
        return self._found[subject, sessions]

    def _find(self, subject: str, sessions: tuple[str, ...]) -> Found | None:
        checksums = self.cohort.checksums(subject, sessions)
        key = hashlib.sha256(json.dumps([self.model, checksums]).encode()).hexdigest()
        path = self.folder / f"sub-{subject}_novelty.safetensors"
        arrays = _kept(path, key)
        if arrays is None:
            read = list(self.cohort.fingerprints(subject, sessions))
            if not any(mask.any() for _, mask in read):
                return None
            scores = np.stack([self.reference.population.score(*one) for one in read])
            arrays = {"scores": scores, "summary": summary(read)}
            keep_arrays(path, arrays, "key", key)
        first = self.cohort.checksums(subject)[0]
        member = self.reference.position(first)
        p = self.reference.p(arrays["scores"], member)
        return Found(arrays["scores"], arrays["summary"], p, member is not None)

    @property
    def level(self) -> float | None:
        """The p at which a subject is flagged; None where nobody is."""
        return None if self.reference is None else flag_level(len(self.reference))

    def flags(self, subject: str, sessions: tuple[str, ...]) -> list[str]:
        """What participants.tsv says of an unusual subject."""
        found = self.of(subject, sessions)
        if found is None or self.level is None or found.p > self.level:
            return []
        return [f"unlike the training cohort (p = {found.p:.3f})"]

    def columns(self, subject: str, sessions: tuple[str, ...]) -> dict[str, float | None]:
        """The columns of participants.tsv that are about it."""
        found = self.of(subject, sessions)
        if found is None:
            return {"log_density": None, "novelty_p": None}
        return {"log_density": round(found.density, 5), "novelty_p": round(found.p, 4)}

    def warnings(self, answers: Answers) -> list[str]:
        """What is to be known before these answers are used: who is flagged, and that the cohort is another."""
        flagged = [subject for subject, sessions in answers if self.flags(subject, sessions)]
        lines, shift = [], self.shift(answers)
        if flagged:
            more = f" and {len(flagged) - TOLD} more" if len(flagged) > TOLD else ""
            lines.append(f"Unlike the training cohort: {', '.join(flagged[:TOLD])}{more}, of {len(answers)} subjects")
        return lines + ([shift_sentence(shift)] if shift is not None and shift.found else [])

    def notes(self, answers: Answers) -> list[str]:
        """What the p-values mean, and that the cohort is not found to be another."""
        shift = self.shift(answers)
        return [self.sentence(), *([shift_sentence(shift)] if shift is not None and not shift.found else [])]

    def shift(self, answers: Answers) -> Shift | None:
        """The subjects who were not trained on, as a cohort; None where there are fewer than two of them."""
        new = [one for answer in answers if (one := self.of(*answer)) is not None and not one.trained_on]
        if len(new) < LEAST_COHORT or len(self.reference) < LEAST_COHORT:
            return None
        key = tuple(answers)
        if key not in self._shifts:
            scores = np.full((len(new), max(len(one.scores) for one in new), 2), np.nan)
            for row, one in zip(scores, new, strict=True):
                row[: len(one.scores)] = one.scores
            summaries = np.stack([one.summary for one in new])
            self._shifts[key] = cohort_shift(self.reference, scores, summaries, self.cohort.targets.names)
        return self._shifts[key]

    def sentence(self) -> str:
        """What p-values and flags mean with this model."""
        if self.reference is None:
            return (
                "How unlike the training cohort a subject is: not available, the model was trained before it was kept."
            )
        n = len(self.reference)
        if self.level is None:
            return (
                f"How unlike the training cohort a subject is was found with {n} training subjects, with which p "
                f"cannot be below {1 / (n + 1):.3f}: too few to flag anybody."
            )
        return (
            f"A subject is flagged as unlike the training cohort at p = {self.level:.3f}: of subjects who are like its "
            f"{n}, one in {round(1 / self.level)} is flagged. With so many, p cannot be below {1 / (n + 1):.3f}."
        )


def shift_sentence(shift: Shift) -> str:
    """What is said of a cohort that has been compared with the training cohort."""
    tested = f"permutation test over {shift.quantities} quantities, {shift.subjects} new subjects"
    if not shift.found:
        few = f"; with so few it cannot be below {shift.smallest:.2g}" if shift.smallest > SHIFT_LEVEL else ""
        return f"As a cohort they are not found to differ from the training cohort (p = {shift.p:.4f}, {tested}{few})."
    most = ", ".join(shift.beyond[:TOLD])
    return (
        f"As a cohort these subjects differ from the training cohort (p = {shift.p:.4f}, {tested}): "
        f"{len(shift.beyond)} are beyond chance, most of all {most}. Another scanner, other preprocessing or other "
        f"people may be the reason; the model's networks, map and scales may not be theirs."
    )


def _kept(path: Path, key: str) -> dict[str, np.ndarray] | None:
    try:
        found = kept_arrays(path, "key", key)
        return None if found is None else {name: found[0][name] for name in ("scores", "summary")}
    except (BadData, InputMissing, KeyError):
        return None
