"""A step has all its tensors on one device: run on PyTorch's device without memory, which refuses others' beside it."""

import pytest
import torch

from parcellation.elbo import training_loss
from parcellation.family import Family
from parcellation.model_file import TrainedModel
from parcellation.networks import contrast_basis
from parcellation.plates import Batch, Observed
from parcellation.templates.functional_parcellation import FunctionalParcellation

ELSEWHERE = torch.device("meta")
CARDS = dict(subject=6, session=2, vertex=20)


def elsewhere(scheme: str, **smooth) -> tuple[Family, Batch]:
    template = FunctionalParcellation(torch.randn(3, 5), 400.0, **smooth)
    family = Family(template, CARDS, scheme).to(ELSEWHERE)
    sizes = (3, 2, 20)
    x, mask = torch.empty(*sizes, 5, device=ELSEWHERE), torch.ones(sizes, dtype=torch.bool, device=ELSEWHERE)
    seen = Observed(x, mask, {"frames": torch.ones(3, 2, 1, device=ELSEWHERE)})
    return family, Batch(seen, seen, {"subject": torch.arange(3, device=ELSEWHERE)}, CARDS)


@pytest.mark.parametrize("vertices", [None, 7])
@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
def test_a_step(scheme, vertices):
    family, batch = elsewhere(scheme)
    if vertices is not None:
        batch = family.template.reduce(batch, {"vertex": torch.arange(vertices, device=ELSEWHERE)})
    loss = training_loss(family, batch, lambda name, shape: torch.randn(shape).to(ELSEWHERE)).tensor
    assert loss.device.type == ELSEWHERE.type
    loss.backward()
    assert all(p.grad is None or p.grad.device.type == ELSEWHERE.type for p in family.parameters())


def test_a_step_with_a_smooth_map():
    phi = torch.linalg.qr(torch.randn(20, 4)).Q
    smooth = dict(phi=phi, eigenvalues=torch.arange(4.0), decay=1.0, deviations=True)
    family, batch = elsewhere("hybrid", **smooth)
    loss = training_loss(family, batch, lambda name, shape: torch.randn(shape).to(ELSEWHERE)).tensor
    loss.backward()
    assert loss.device.type == ELSEWHERE.type


def test_the_population_s_values_are_where_the_model_is():
    family, _ = elsewhere("hybrid")
    model = TrainedModel(family, {}, {}, {})
    assert all(value.device.type == ELSEWHERE.type for value in family.centre(model.blank()).values())


def test_what_is_on_another_device_is_refused_there():
    # Else these tests would show nothing.
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device=ELSEWHERE) + contrast_basis(3)[0]
