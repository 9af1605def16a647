"""Free encodings: rows are found by index, vectors are decoded, and both can be set."""

import pytest
import torch

from parcellation.encoding import Encoding
from parcellation.free_encoding import FreeEncoding
from parcellation.plates import Site
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from tests.conftest import draw_cohort, generator

CARDS = dict(group=6, sample=3)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(0), dtype=torch.float64)


def made(size: int | None) -> FreeEncoding:
    template = GaussianRandomEffects(2)
    return FreeEncoding(template, template.site("group"), CARDS, extra=1, size=size).double()


def test_a_row_of_crossed_plates_is_the_one_of_its_subject_and_vertex():
    template = draw_cohort((2, 2, 2)).template
    site = Site("logits", ("subject", "vertex"), (3,), lambda v, o: None)
    cards = dict(subject=4, session=2, vertex=5)
    free = FreeEncoding(template, site, cards, extra=2)
    number = 10.0 * torch.arange(4)[:, None] + torch.arange(5)  # subject s, vertex v -> 10 s + v
    estimate = (number[:, None, :, None] + torch.tensor([0.0, 0.1, 0.2])).expand(4, 1, 5, 3)
    free.set(Encoding(estimate, -estimate, estimate.new_zeros(4, 1, 5, 3, 2)))
    got = free({"subject": torch.tensor([3, 1]), "vertex": torch.tensor([0, 4, 2])})
    assert got.estimate.shape == (2, 1, 3, 3)
    assert got.extra.shape == (2, 1, 3, 3, 2)
    assert torch.equal(got.estimate[:, 0, :, 0], torch.tensor([[30.0, 34, 32], [10, 14, 12]]))
    assert torch.equal(got.log_precision, -got.estimate)
    assert torch.equal(free({}).estimate, estimate)
    assert torch.equal(free({"session": torch.tensor([1])}).estimate, estimate)  # the site is not on that plate


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_vector_s_encoding_is_decoded_from_it(size):
    free = made(size)
    got = free({"group": torch.tensor([4, 0])})
    assert got.vector.shape == (2, 1, size)
    assert torch.equal(got.vector[:, 0], free.rows.weight[[4, 0]])
    expected = got.vector @ free.decoder.linear.weight.T + free.decoder.linear.bias
    assert torch.allclose(torch.cat([got.estimate, got.log_precision], -1), expected)


@pytest.mark.parametrize("size", [None, 4, 7])
def test_encodings_are_as_they_were_set_when_there_are_numbers_enough(size):
    free, wanted = made(size), Encoding(random(6, 1, 2), random(6, 1, 2) - 1, torch.zeros(6, 1, 2, 1).double())
    free.set(wanted)
    got = free({})
    assert torch.allclose(got.estimate, wanted.estimate)
    assert torch.allclose(got.log_precision, wanted.log_precision)


def test_one_row_is_as_it_was_set_whatever_its_size():
    template = GaussianRandomEffects(8)
    free = FreeEncoding(template, template.site("population"), CARDS, size=2).double()
    wanted = Encoding(random(1, 1, 8), torch.ones(1, 1, 8).double(), torch.zeros(1, 1, 8, 0).double())
    free.set(wanted)
    assert torch.allclose(free({}).estimate, wanted.estimate)


def test_too_few_numbers_hold_the_principal_components():
    free, estimate = made(1), random(6, 1, 2)
    free.set(Encoding(estimate, torch.zeros(6, 1, 2).double(), torch.zeros(6, 1, 2, 1).double()))
    rest = torch.linalg.svdvals((estimate - estimate.mean(0))[:, 0])[1:]
    assert float((free({}).estimate - estimate).square().sum().detach()) == pytest.approx(float(rest.square().sum()))


def test_rows_of_the_outermost_plate_have_a_sparse_gradient_and_the_decoder_a_dense_one():
    free = made(3)
    free({"group": torch.tensor([5])}).estimate.sum().backward()
    assert free.rows.weight.grad.coalesce().indices().flatten().tolist() == [5]
    assert not free.decoder.linear.weight.grad.is_sparse
