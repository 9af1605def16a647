"""A cohort's batches are those of the same data in memory, however much of it is kept."""

import threading
from dataclasses import replace

import pytest
import torch

from parcellation import cohort_source
from parcellation.cohort_source import CohortSource
from parcellation.errors import BadData
from parcellation.family import Family
from parcellation.training import Plan, Whole, fit, in_parts
from tests.conftest import MemoryCohort


def test_a_cohort_on_disk_gives_the_batches_of_one_in_memory(ragged):
    cohort = MemoryCohort(ragged.observed)
    source = CohortSource(ragged.template, cohort, torch.device("cpu"))
    assert source.cards == dict(subject=5, session=3, vertex=8)
    index = torch.tensor([3, 0])
    one_subject = ragged.subject(0).x.nbytes // 4  # float16 takes a quarter of float64
    for memory in (0, one_subject, 3 * one_subject):
        one = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=memory)
        for _ in range(2):
            batch, expected = one.batch(index), Whole(ragged.template, ragged.batch).batch(index)
            assert torch.equal(batch.seen.x, expected.seen.x.half().float())
            assert torch.equal(batch.seen.mask, expected.seen.mask)
            assert torch.equal(batch.seen.covariates["frames"], expected.seen.covariates["frames"].float())
            assert torch.equal(batch.index["subject"], index)


def test_a_cohort_that_fits_is_read_once(ragged):
    cohort, reads = MemoryCohort(ragged.observed), []
    plain = cohort.read
    cohort.read = lambda index: (reads.extend(index), plain(index))[1]
    source = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=2 * ragged.subject(0).x.nbytes // 4)
    for _ in range(3):
        source.batch(torch.arange(5))
    assert sorted(reads) == [0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]  # float16 takes a quarter of float64: two subjects fit


class Reading:
    """A cohort that notes which subjects are read, and in which thread."""

    def __init__(self, cohort: MemoryCohort):
        self.cohort, self.subjects, self.vertices, self.reads = cohort, cohort.subjects, cohort.vertices, []

    def sessions(self, subject):
        return self.cohort.sessions(subject)

    def read(self, index):
        self.reads.append((list(index), threading.current_thread().name.startswith("read-ahead")))
        return self.cohort.read(index)


def test_what_is_expected_is_read_in_the_background_and_only_once(ragged):
    cohort = Reading(MemoryCohort(ragged.observed))
    source = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=0)
    whole = Whole(ragged.template, ragged.batch)
    parts = [torch.tensor(part) for part in ([0, 1], [4, 2], [3])]
    for part, then in zip(parts, [*parts[1:], None], strict=True):
        assert torch.equal(source.batch(part).seen.x, whole.batch(part).seen.x.half().float())
        if then is not None:
            source.expect(then)
    assert cohort.reads == [([0], False), ([1], False), ([4], True), ([2], True), ([3], True)]


def test_what_comes_instead_of_the_expected_is_read_then(ragged):
    cohort = Reading(MemoryCohort(ragged.observed))
    source = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=0)
    source.expect(torch.tensor([0]))
    batch = source.batch(torch.tensor([1]))
    assert torch.equal(batch.seen.x[0], ragged.observed.x[1].half().float())
    assert ([1], False) in cohort.reads


def test_what_is_kept_is_not_read_ahead(ragged):
    cohort = Reading(MemoryCohort(ragged.observed))
    source = CohortSource(ragged.template, cohort, torch.device("cpu"))
    source.batch(torch.arange(5))
    source.expect(torch.arange(5))
    source.batch(torch.arange(5))
    assert len(cohort.reads) == 5


def test_a_fault_in_the_background_is_the_batch_s_own(ragged):
    cohort = Reading(MemoryCohort(ragged.observed))
    source = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=0)

    def damaged(index):
        raise BadData("damaged")

    cohort.read = damaged
    source.expect(torch.tensor([0]))
    with pytest.raises(BadData, match="damaged"):
        source.batch(torch.tensor([0]))


def test_a_cohort_that_does_not_fit_is_kept_in_part(ragged, monkeypatch):
    one = ragged.subject(0).x.nbytes // 4
    monkeypatch.setattr(cohort_source, "PARTLY", 2 * one)
    for limit, kept in ((5 * one, 5), (5 * one - 1, 2)):
        monkeypatch.setattr(cohort_source, "KEPT", limit)
        cohort = Reading(MemoryCohort(ragged.observed))
        source = CohortSource(ragged.template, cohort, torch.device("cpu"))
        for _ in range(2):
            source.batch(torch.arange(5))
        assert len(cohort.reads) == 10 - kept


def test_training_reads_ahead_and_is_the_same(ragged):
    losses = []
    for memory in (0, None):
        cohort = Reading(MemoryCohort(ragged.observed))
        source = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=memory)
        torch.manual_seed(0)
        family = Family(ragged.template, source.cards)
        losses.append(fit(family, source, Plan(6, 2, 0.01, 0, {})))
        if memory == 0:
            first = len(cohort.reads[0][0])
            assert not any(ahead for _, ahead in cohort.reads[:first])
            assert sum(ahead for _, ahead in cohort.reads) >= len(cohort.reads) - 2
    assert (losses[0] == losses[1]).all()


def test_large_subjects_come_in_smaller_parts_and_are_all_read_ahead(ragged, monkeypatch):
    one = ragged.subject(0).x.nbytes // 4
    monkeypatch.setattr(cohort_source, "TOGETHER", 2 * one)
    cohort = Reading(MemoryCohort(ragged.observed))
    source = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=0)
    assert source.at_most(1) == 1
    parts = list(in_parts(source, torch.tensor([4, 0, 2, 1, 3]), 4))
    assert [len(part.seen.x) for part in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([part.index["subject"] for part in parts]), torch.tensor([4, 0, 2, 1, 3]))
    assert [ahead for _, ahead in cohort.reads] == [False] * 3 + [True] * 3


def test_features_beyond_what_float16_holds_are_named(ragged):
    huge = replace(ragged.observed, x=1e6 * torch.ones_like(ragged.observed.x))
    source = CohortSource(ragged.template, MemoryCohort(huge), torch.device("cpu"))
    with pytest.raises(BadData, match=r"features of .*: expected finite numbers up to 65504, got 1e\+06"):
        source.batch(torch.tensor([0]))
