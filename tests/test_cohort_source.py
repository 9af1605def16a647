"""A cohort's batches are those of the same data in memory, however much of it is kept."""

import torch

from parcellation.cohort_source import CohortSource
from parcellation.training import Whole
from tests.conftest import MemoryCohort


def test_a_cohort_on_disk_gives_the_batches_of_one_in_memory(ragged):
    cohort = MemoryCohort(ragged.observed)
    source = CohortSource(ragged.template, cohort, torch.device("cpu"))
    assert source.cards == dict(subject=5, session=3, vertex=8)
    index = torch.tensor([3, 0])
    one_subject = ragged.subject(0).x.nbytes // 2  # float32 takes half of float64
    for memory in (0, one_subject, 3 * one_subject):
        one = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=memory)
        for _ in range(2):
            batch, expected = one.batch(index), Whole(ragged.template, ragged.batch).batch(index)
            assert torch.equal(batch.seen.x, expected.seen.x.float())
            assert torch.equal(batch.seen.mask, expected.seen.mask)
            assert torch.equal(batch.seen.covariates["frames"], expected.seen.covariates["frames"].float())
            assert torch.equal(batch.index["subject"], index)


def test_a_cohort_that_fits_is_read_once(ragged):
    cohort, reads = MemoryCohort(ragged.observed), []
    plain = cohort.read
    cohort.read = lambda index: (reads.extend(index), plain(index))[1]
    source = CohortSource(ragged.template, cohort, torch.device("cpu"), memory=2 * ragged.subject(0).x.nbytes // 2)
    for _ in range(3):
        source.batch(torch.arange(5))
    assert sorted(reads) == [0, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]  # float32 takes half of float64: two subjects fit
