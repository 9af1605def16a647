"""Plates: weights, reduction and presence of ground variables."""

import itertools

import pytest
import torch

from parcellation.errors import UsageError
from parcellation.plates import Observed, template_class
from tests.conftest import draw_cohort, full, noise


def test_an_observation_keeps_only_the_chosen_members_of_a_plate(ragged):
    index = torch.tensor([3, 1])
    part = ragged.observed.select(0, index)
    assert torch.equal(part.x, ragged.observed.x[index])
    assert torch.equal(part.mask, ragged.observed.mask[index])
    assert torch.equal(part.covariates["frames"], ragged.observed.covariates["frames"][index])
    vertices = ragged.observed.select(2, index)
    assert torch.equal(vertices.x, ragged.observed.x[:, :, index])
    assert vertices.covariates["frames"] is ragged.observed.covariates["frames"]  # constant over vertices


def test_shapes_are_checked_by_machine():
    with pytest.raises(Exception, match="plates"):
        Observed(torch.zeros(3, 2, 4), torch.ones(3, 3, dtype=torch.bool))


def test_squares_are_squared_norms(ragged):
    assert torch.allclose(ragged.observed.squares, (ragged.observed.x**2).sum(-1))


def test_a_weight_is_the_product_of_full_over_reduced(ragged):
    template = ragged.template
    index = {"subject": torch.tensor([0, 2]), "vertex": torch.tensor([1, 5, 6])}
    batch = template.reduce(ragged.batch, index)
    assert template.weight((), batch) == 1
    assert template.weight(("session",), batch) == 1  # all of a subject's sessions enter
    assert template.weight(("subject", "session"), batch) == 5 / 2
    assert template.weight(template.plates, batch) == pytest.approx(5 / 2 * 8 / 3, rel=1e-15)


def test_encoders_see_all_vertices_of_the_chosen_subjects(ragged):
    index = {"subject": torch.tensor([0, 2]), "vertex": torch.tensor([1, 5, 6])}
    batch = ragged.template.reduce(ragged.batch, index)
    assert batch.seen.x.shape[:3] == (2, 3, 8)
    assert torch.equal(batch.scored.x, ragged.observed.x[[0, 2]][:, :, [1, 5, 6]])
    assert set(batch.index) == {"subject", "vertex"}


def test_a_plate_that_may_not_be_reduced_is_refused_by_name(ragged):
    with pytest.raises(UsageError, match="'session' may not be reduced; expected one of: subject, vertex"):
        ragged.template.reduce(ragged.batch, {"session": torch.tensor([0])})


def test_presence_asks_for_data_below_a_variable(ragged):
    template, mask = ragged.template, ragged.observed.mask
    for subject, session in itertools.product(range(5), range(3)):
        expected = bool(mask[subject, session].any())
        assert bool(template.present(template.site("mu_session"), ragged.batch)[subject, session, 0]) == expected
    assert template.present(template.site("mu_subject"), ragged.batch).all()
    assert template.present(template.site("logits_group"), ragged.batch).shape == (1, 1, 8)


def test_presence_does_not_depend_on_what_a_batch_happens_to_score(ragged):
    # Vertex 4 of subject 2 has no data, but the subject has: its sites count when only that vertex is scored.
    template = ragged.template
    batch = template.reduce(ragged.batch, {"subject": torch.tensor([2]), "vertex": torch.tensor([4])})
    assert template.present(template.site("mu_subject"), batch).all()


def test_presence_of_a_group_whose_only_samples_are_not_in_the_batch(effects):
    template, observed = effects
    batch = template.reduce(full(template, observed), {"group": torch.tensor([1, 3]), "sample": torch.tensor([4])})
    assert not batch.scored.mask.any()
    assert template.present(template.site("group"), batch).all()


def test_prior_draws_have_the_moments_of_the_prior():
    template = draw_cohort((2, 1, 1)).template
    subjects = 4000
    blank = Observed(
        torch.zeros(subjects, 2, 1, 5, dtype=torch.float64),
        torch.ones(subjects, 2, 1, dtype=torch.bool),
        {"frames": torch.full((subjects, 2, 1), 400.0, dtype=torch.float64)},
    )
    values = template.draw(blank, noise(0))
    assert values["mu_session"].shape == (subjects, 2, 1, 3, 5)
    assert values["mu"].shape == (1, 1, 1, 3, 5)
    sd = (values["mu_session"] - values["mu_subject"]).flatten(0, 2).std((0, 2))
    # A standard deviation of n normal draws has relative error 1 / sqrt(2 n).
    assert torch.allclose(sd, values["log_sigma"][0, 0, 0].exp(), rtol=4 / (2 * subjects * 2 * 5) ** 0.5)


def test_a_template_is_found_by_its_file():
    assert template_class("gaussian_random_effects").__name__ == "GaussianRandomEffects"
    with pytest.raises(UsageError, match=r"functional_parcellation, .*gaussian_random_effects.*got 'nothing'"):
        template_class("nothing")
