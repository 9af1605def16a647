"""Label probabilities of posterior draws: entropies in bits that add up, and labels drawn as they say."""

import math

import numpy as np
import pytest
import torch

from parcellation import label_summary
from parcellation.label_summary import LabelSums, draw_labels, split_entropy
from tests.conftest import generator


def test_entropies_of_known_cases_are_in_bits():
    certain = torch.tensor([[[1.0, 0, 0, 0]], [[1.0, 0, 0, 0]]])
    even = torch.full((2, 1, 4), 0.25)
    torn = torch.tensor([[[1.0, 0, 0, 0]], [[0.0, 1, 0, 0]]])  # every draw is sure, of another label
    for draws, entropy, information in ((certain, 0, 0), (even, 2, 0), (torn, 1, 1)):
        sums = LabelSums()
        sums.add(draws)
        _, got, mutual = sums.summary()
        assert got == pytest.approx([entropy], abs=1e-12)
        assert mutual == pytest.approx([information], abs=1e-12)


def test_what_is_uncertain_within_subjects_is_told_from_what_varies_between_them():
    sure, other, unsure = np.array([1.0, 0]), np.array([0.0, 1]), np.array([0.5, 0.5])
    within, between = split_entropy(np.array([[sure, sure, unsure], [sure, other, unsure]]))
    assert within == pytest.approx([0, 0, 1], abs=1e-12)
    assert between == pytest.approx([0, 1, 0], abs=1e-12)


def test_subjects_are_looked_at_one_at_a_time(monkeypatch):
    plain, held = label_summary._entropy, []
    monkeypatch.setattr(label_summary, "_entropy", lambda p: (held.append(p.numel()), plain(p))[1])
    subjects = np.random.default_rng(0).dirichlet(np.ones(3), (5, 7))
    within, between = split_entropy(subjects)
    assert max(held) == 7 * 3
    entropy = -(subjects * np.log2(subjects)).sum(-1).mean(0)
    np.testing.assert_allclose(within, entropy, rtol=1e-12)
    mean = subjects.mean(0)
    np.testing.assert_allclose(within + between, -(mean * np.log2(mean)).sum(-1), rtol=1e-12)


def test_labels_are_drawn_with_their_probabilities():
    probability = torch.tensor([[0.1, 0.9, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64).expand(4000, 2, 3)
    drawn = draw_labels(probability, generator(0))
    assert drawn.dtype == np.uint8
    share = (drawn[..., None] == np.arange(3)).mean(0)
    assert np.abs(share - probability[0].numpy()).max() < 4 * math.sqrt(0.25 / 4000)
    assert np.array_equal(drawn, draw_labels(probability, generator(0)))
    many = torch.nn.functional.one_hot(torch.tensor([[299, 3]]), 300).double()
    assert draw_labels(many, generator(1)).tolist() == [[299, 3]]
