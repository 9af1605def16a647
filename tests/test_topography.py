"""Smooth layouts: their spectrum, their fields on all vertices and on some, and means over subjects."""

import pytest
import torch

from parcellation.networks import contrast_basis
from parcellation.plates import Observed
from parcellation.topography import Topography
from tests.conftest import generator


def layout(vertices: int = 12, modes: int = 4, decay: float = 1.0, subjects: bool = True) -> Topography:
    """Cosines along a row of vertices."""
    at = (torch.arange(vertices, dtype=torch.float64) + 0.5) / vertices
    phi = torch.stack([torch.ones_like(at), *(2**0.5 * (torch.pi * j * at).cos() for j in range(1, modes))], 1)
    return Topography(phi, torch.arange(modes, dtype=torch.float64) ** 2 * 0.01, decay, subjects)


@pytest.mark.parametrize("decay", [1.0, 1.25])
def test_sd_s_are_those_of_the_formula_and_the_constant_s_is_its_own(decay):
    spectrum = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)
    sd = layout(decay=decay).log_sd(spectrum).exp()
    cutoff = 0.01 * torch.tensor(1.1, dtype=torch.float64).exp()
    expected = [float((0.01 * j**2 / cutoff + 1) ** -decay * torch.tensor(-0.4).double().exp()) for j in (1, 2, 3)]
    assert sd.tolist() == pytest.approx([float(torch.tensor(0.7).double().exp()), *expected])


def test_slopes_are_those_of_autograd():
    spectrum = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)
    one = layout(decay=1.25)
    assert torch.allclose(one.slopes(spectrum), torch.autograd.functional.jacobian(one.log_sd, spectrum), atol=1e-12)


def test_some_vertices_have_the_values_that_they_have_among_all():
    one, weights = layout(), torch.randn(2, 3, 1, 1, 2, 4, generator=generator(0), dtype=torch.float64)
    whole = one.field(weights)
    assert whole.shape == (2, 3, 1, 12, 2)
    place = torch.tensor([7, 2])
    few = Observed(torch.zeros(3, 1, 2, 1), torch.ones(3, 1, 2, dtype=torch.bool), {"vertex": place[None, None]})
    assert torch.allclose(one.field(weights, few), whole[..., place, :], atol=1e-12)


@pytest.mark.parametrize(("networks", "error"), [(2, 0.002), (4, 0.006)])
def test_the_population_s_map_is_the_mean_over_subjects(networks, error):
    one, basis, g = layout(), contrast_basis(networks), generator(1)
    logits = 2 * torch.randn(1, 1, 12, networks - 1, generator=g, dtype=torch.float64)
    spectrum = torch.tensor([0.5, 0.8, 1.0], dtype=torch.float64)[None, None, None]
    sd = one.log_sd(spectrum).exp()[..., None, :]
    weights = sd * torch.randn(40_000, 1, 1, 1, networks - 1, 4, generator=g, dtype=torch.float64)
    expected = ((logits + one.field(weights)) @ basis).softmax(-1).mean(0)
    found = one.mean_log_map(logits, spectrum, basis).exp()
    assert torch.allclose(found.sum(-1), torch.ones(1, 1, 12, dtype=torch.float64))
    assert float((found - expected).abs().max()) < error + 4 * 0.5 / 40_000**0.5


def test_without_a_deviation_it_is_the_map_of_everybody():
    one, basis = layout(), contrast_basis(3)
    logits = torch.randn(1, 1, 12, 2, generator=generator(2), dtype=torch.float64)
    none = torch.tensor([-20.0, -20.0, 1.0], dtype=torch.float64)[None, None, None]
    assert torch.allclose(one.mean_log_map(logits, none, basis), (logits @ basis).log_softmax(-1), atol=1e-6)


def test_subjects_have_sites_only_where_they_deviate():
    assert not layout(subjects=False).subject_sites(1) + layout(subjects=False).subject_spectrum()
    (site,) = layout().subject_sites(2)
    assert (site.plates, site.event, site.joint) == (("subject",), (2, 4), True)
