"""Prepared fingerprints as a source of batches: what a step needs is read, and kept where there is room."""

import torch
from torch import Tensor

from parcellation.plates import Batch, Observed

KEPT = 128 << 20  # bytes of features


class CohortSource:
    """A source over prepared fingerprints: reads what a step needs, and keeps it while `memory` bytes allow.

    Projection to features costs more than a step's gradient, so a cohort that fits is read once. What is kept lies in
    one piece: pieces by subject, between what is read and forgotten, would leave gaps as large again.
    """

    def __init__(self, template, cohort, device: torch.device, memory: int = KEPT):
        self.template, self.cohort, self.device = template, cohort, device
        sessions = max(len(cohort.sessions(subject)) for subject in cohort.subjects)
        self.cards = dict(subject=len(cohort.subjects), session=sessions, vertex=len(cohort.vertices))
        self._memory, self._slots, self._kept = memory, {}, None

    def batch(self, index: Tensor) -> Batch:
        """The batch of these subjects, with all their sessions and vertices."""
        positions = index.tolist()
        read = {position: self._read(position) for position in positions if position not in self._slots}
        if all(position in self._slots for position in positions):
            observed = self._placed(positions)
        else:
            observed = join([read[one] if one in read else self._placed([one]) for one in positions])
        return Batch(observed, observed, {"subject": index.to(self.device)}, self.cards)

    def _placed(self, positions: list[int]) -> Observed:
        return self._kept.select(0, torch.tensor([self._slots[one] for one in positions], device=self.device))

    def _read(self, position: int) -> Observed:
        """Read a subject, and copy it to a place where there is one left."""
        observed = observe(self.cohort.read([position])).to(self.device, torch.float32)
        if self._kept is None:
            self._kept = places(observed, min(self._memory // observed.x.nbytes, self.cards["subject"]))
        if len(self._slots) < len(self._kept.x):
            put(self._kept, len(self._slots), observed)
            self._slots[position] = len(self._slots)
        return observed


def places(like: Observed, count: int) -> Observed:
    """Empty places for so many members of the outermost plate."""
    known = {name: value.new_empty((count, *value.shape[1:])) for name, value in like.covariates.items()}
    empty = [value.new_empty((count, *value.shape[1:])) for value in (like.x, like.mask)]
    return Observed(*empty, known)


def put(kept: Observed, slot: int, one: Observed) -> None:
    """Copy one member to its place."""
    kept.x[slot], kept.mask[slot] = one.x[0], one.mask[0]
    for name, value in one.covariates.items():
        kept.covariates[name][slot] = value[0]


def join(parts: list[Observed]) -> Observed:
    """Successive members of the outermost plate, as one."""
    names = parts[0].covariates
    covariates = {name: torch.cat([part.covariates[name] for part in parts]) for name in names}
    return Observed(torch.cat([part.x for part in parts]), torch.cat([part.mask for part in parts]), covariates)


def observe(read) -> Observed:
    """Tensors of what a cohort reads: x (S, T, V, D), mask (S, T, V), frames (S, T)."""
    frames = torch.from_numpy(read.frames)[..., None]
    return Observed(torch.from_numpy(read.x), torch.from_numpy(read.mask), {"frames": frames})
