"""Adam as PyTorch has it; for rows: one row's moves depend neither on the others nor on how rarely it is visited."""

import subprocess
import sys

import pytest
import torch

from parcellation.optimisers import Adam, RowAdam
from tests.conftest import generator


def visit(optimiser: RowAdam, rows: torch.nn.Embedding, index: list[int], target: torch.Tensor) -> None:
    """One step down the squared distance of these rows from theirs of the target."""
    optimiser.zero_grad()
    (rows(torch.tensor(index)) - target[index]).square().sum().backward()
    optimiser.step()


@pytest.fixture
def rows() -> torch.nn.Embedding:
    table = torch.nn.Embedding(4, 3, sparse=True, dtype=torch.float64)
    with torch.no_grad():
        table.weight.copy_(torch.randn(4, 3, generator=generator(0), dtype=torch.float64))
    return table


def test_one_row_is_dense_adam_without_momentum(rows):
    target = torch.zeros(4, 3, dtype=torch.float64)
    alone = torch.nn.Parameter(rows.weight.detach()[2:3].clone())
    dense = torch.optim.Adam([alone], lr=0.1, betas=(0.0, 0.9))
    optimiser = RowAdam([rows.weight], rate=0.1, beta=0.9)
    for step in range(12):
        visit(optimiser, rows, [2] if step % 3 == 0 else [0, 3], target)  # others come between
        if step % 3 == 0:
            dense.zero_grad()
            alone.square().sum().backward()
            dense.step()
    assert torch.allclose(rows.weight[2], alone[0], atol=1e-12)


def test_unvisited_rows_stay(rows):
    before = rows.weight.detach().clone()
    visit(RowAdam([rows.weight], rate=0.1), rows, [1, 3], torch.zeros(4, 3).double())
    assert torch.equal(rows.weight[[0, 2]], before[[0, 2]])
    assert not torch.equal(rows.weight[[1, 3]], before[[1, 3]])


def test_a_first_step_has_the_length_of_the_rate_whatever_the_scale(rows):
    before = rows.weight.detach().clone()
    optimiser = RowAdam([rows.weight], rate=0.01)
    for number, scale in enumerate((1e-3, 1.0, 1e3)):
        optimiser.zero_grad()
        (scale * rows(torch.tensor([number]))).sum().backward()
        optimiser.step()
        assert torch.allclose(before[number] - rows.weight[number], torch.tensor(0.01).double(), rtol=1e-4)


def test_a_row_that_is_visited_twice_in_a_step_moves_by_the_sum(rows):
    other = torch.nn.Embedding.from_pretrained(rows.weight.detach().clone(), freeze=False, sparse=True)
    target = torch.zeros(4, 3, dtype=torch.float64)
    visit(RowAdam([rows.weight], rate=0.1), rows, [1, 1], target)
    visit(RowAdam([other.weight], rate=0.1), other, [1], target)
    assert torch.allclose(rows.weight, other.weight, atol=1e-6)  # Adam: twice the gradient, the same step


def test_dense_adam_is_that_of_pytorch_bit_for_bit_and_goes_on_from_its_tensors():
    start = [torch.randn(5, 3, generator=generator(1)), torch.randn(4, generator=generator(2))]
    theirs, ours = ([torch.nn.Parameter(p.clone()) for p in start] for _ in range(2))
    theirs_optimiser = torch.optim.Adam(theirs, lr=0.03, betas=(0.9, 0.99), fused=True)
    optimiser = Adam(ours, 0.03, (0.9, 0.99))
    for step in range(10):
        if step == 5:
            stored = optimiser.tensors()
            optimiser = Adam(ours, 0.03, (0.9, 0.99))
            optimiser.restore(stored)
        for each, parameters in ((theirs_optimiser, theirs), (optimiser, ours)):
            each.zero_grad()
            used = parameters if step % 2 else parameters[:1]  # the other has no gradient, and counts no step
            sum((p - 1).square().sum() * (1 + step) for p in used).backward()
            each.step()
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))
    assert not torch.equal(ours[1], start[1])


def test_training_does_not_import_the_compiler():
    code = """
import sys, torch
from parcellation.optimisers import Adam
parameter = torch.nn.Parameter(torch.ones(2))
optimiser = Adam([parameter], 0.1, (0.9, 0.99))
optimiser.zero_grad()
parameter.sum().backward()
optimiser.step()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
