"""Prepared fingerprints as a source of batches: kept where training runs if they fit, else read ahead of the steps.

Features are kept as float16, of the same 10 bits as the stored fingerprints that they are made of, and batches have
them as float32: half the memory and traffic, whether much is kept or nothing.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from parcellation.errors import BadData
from parcellation.plates import Batch, Observed

KEPT = 320 << 20  # bytes of features in main memory, if that is all of them: a thousand subjects of Broca's area
PARTLY = 64 << 20  # bytes of those of which most are read again and again anyhow
TOGETHER = 32 << 20  # bytes of features that are looked at together, and as many again that are read meanwhile
LARGEST = torch.finfo(torch.float16).max
SHARE = 0.5  # of what memory is free on a GPU; batches, and what they are computed with, need the rest


class CohortSource:
    """A source over prepared fingerprints: reads what a step needs, and keeps it while `memory` bytes allow.

    Projection to features costs more than a step's gradient, so a cohort that fits is read once. What is kept lies in
    one piece: pieces by subject, between what is read and forgotten, would leave gaps as large again. What does not fit
    is read in the background while the step before it runs (`expect`), into pinned memory if it goes to a GPU.
    """

    def __init__(self, template, cohort, device: torch.device, memory: int | None = None):
        self.template, self.cohort, self.device = template, cohort, device
        sessions = max(len(cohort.sessions(subject)) for subject in cohort.subjects)
        self.cards = dict(subject=len(cohort.subjects), session=sessions, vertex=len(cohort.vertices))
        self._memory, self._slots, self._kept, self._one = memory, {}, None, None
        self._ahead: tuple[list[int], Future] | None = None

    def batch(self, index: Tensor) -> Batch:
        """The batch of these subjects, with all their sessions and vertices."""
        positions = index.tolist()
        missing = self._missing(positions)
        fresh = self._fresh(missing) if missing else None
        if len(missing) == len(positions):
            observed = fresh
        elif fresh is None:
            observed = self._placed(positions)
        else:
            observed = self._mixed(positions, missing, fresh)
        observed = replace(observed, x=observed.x.float())
        return Batch(observed, observed, {"subject": index.to(self.device)}, self.cards)

    def expect(self, index: Tensor) -> None:
        """Begin to read these subjects, as far as they are not kept: the next batch will be of them.

        Nobody of a cohort that is kept whole: it is read once, and what a thread has read leaves gaps in memory.
        """
        whole = self._kept is not None and len(self._kept.x) == self.cards["subject"]
        missing = [] if whole else self._missing(index.tolist())
        self._ahead = (missing, self._reader.submit(self._load, missing)) if missing else None

    def at_most(self, count: int) -> int:
        """So many subjects, or as many as have `TOGETHER` bytes of features, one at least."""
        if self._one is None:
            self.batch(torch.tensor([0]))
        return max(1, min(count, TOGETHER // max(self._one, 1)))

    @cached_property
    def _reader(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "read-ahead")

    def _missing(self, positions: list[int]) -> list[int]:
        return [position for position in positions if position not in self._slots]

    def _placed(self, positions: list[int]) -> Observed:
        return self._kept.select(0, torch.tensor([self._slots[one] for one in positions], device=self.device))

    def _mixed(self, positions: list[int], missing: list[int], fresh: Observed) -> Observed:
        """Subjects of which some are kept and the others just read."""
        observed = places(fresh, len(positions))
        for place, position in enumerate(positions):
            if position in missing:
                put(observed, place, fresh, missing.index(position))
            else:
                put(observed, place, self._kept, self._slots[position])
        return observed

    def _fresh(self, missing: list[int]) -> Observed:
        """These subjects, read ahead or now, on the device; and copied to places that are left."""
        (ahead, reading), self._ahead = self._ahead or ([], None), None
        loaded = reading.result() if ahead == missing else self._load(missing)
        observed = _moved(loaded, self.device)
        if self._kept is None:
            self._one = one = observed.x.nbytes // len(missing)
            self._kept = places(observed, min(self._bytes(one) // max(one, 1), self.cards["subject"]))
        for row, position in enumerate(missing):
            if position not in self._slots and len(self._slots) < len(self._kept.x):
                put(self._kept, len(self._slots), observed, row)
                self._slots[position] = len(self._slots)
        return observed

    def _bytes(self, one: int) -> int:
        """Bytes that may be kept, of subjects of so many each."""
        if self._memory is not None:
            return self._memory
        if self.device.type == "cuda":
            return int(SHARE * torch.cuda.mem_get_info(self.device)[0])
        return KEPT if one * self.cards["subject"] <= KEPT else PARTLY

    def _load(self, positions: list[int]) -> Observed:
        """These subjects in main memory, one after the other into their places."""
        observed = None
        for place, position in enumerate(positions):
            one = _rounded(observe(self.cohort.read([position])), self.cohort.subjects[position])
            if len(positions) == 1:
                observed = one
            else:
                observed = places(one, len(positions)) if observed is None else observed
                put(observed, place, one, 0)
        return _pinned(observed) if self.device.type == "cuda" else observed


def places(like: Observed, count: int) -> Observed:
    """Empty places for so many members of the outermost plate."""
    known = {name: value.new_empty((count, *value.shape[1:])) for name, value in like.covariates.items()}
    x, mask = (value.new_empty((count, *value.shape[1:])) for value in (like.x, like.mask))
    return Observed(x, mask, known)


def _rounded(observed: Observed, subject: str) -> Observed:
    """A subject as it is kept: features as float16, what else is known as float32. Raises BadData beyond float16."""
    x = observed.x.half()
    if not x.isfinite().all():
        raise BadData(
            f"features of {subject}: expected finite numbers up to {LARGEST:g}, got {observed.x.abs().max():g}"
        )
    return Observed(x, observed.mask, {name: value.float() for name, value in observed.covariates.items()})


def put(kept: Observed, slot: int, source: Observed, row: int) -> None:
    """Copy one member of another to its place."""
    kept.x[slot], kept.mask[slot] = source.x[row], source.mask[row]
    for name, value in source.covariates.items():
        kept.covariates[name][slot] = value[row]


def _pinned(observed: Observed) -> Observed:
    known = {name: value.pin_memory() for name, value in observed.covariates.items()}
    return Observed(observed.x.pin_memory(), observed.mask.pin_memory(), known)


def _moved(observed: Observed, device: torch.device) -> Observed:
    """The same on a device, which goes on with what it was doing meanwhile where memory is pinned."""
    if observed.x.device.type == device.type:
        return observed
    known = {name: value.to(device, non_blocking=True) for name, value in observed.covariates.items()}
    return Observed(observed.x.to(device, non_blocking=True), observed.mask.to(device, non_blocking=True), known)


def observe(read) -> Observed:
    """Tensors of what a cohort reads: x (S, T, V, D), mask (S, T, V), frames (S, T)."""
    frames = torch.from_numpy(read.frames)[..., None]
    return Observed(torch.from_numpy(read.x), torch.from_numpy(read.mask), {"frames": frames})
