"""Encodings are put together and compared part by part; streamed batches can be gone through again."""

import torch

from parcellation.encoding import Encoding, Streamed, concatenate
from parcellation.network_pooling import NetworkPooling
from parcellation.plates import Observed
from tests.conftest import full, generator

PARTS = ("estimate", "log_precision", "extra")


def close(one: Encoding, other: Encoding, atol: float = 1e-12) -> bool:
    return all(torch.allclose(getattr(one, p), getattr(other, p), rtol=0, atol=atol) for p in PARTS)


def along(encoding: Encoding, dimension: int, order: torch.Tensor) -> Encoding:
    parts = (getattr(encoding, p) for p in PARTS)
    return Encoding(*(p.index_select(dimension, order) if p.shape[dimension] > 1 else p for p in parts))


def reorder(observed: Observed, dimension: int, order: torch.Tensor) -> Observed:
    return observed.select(dimension, order)


def centre_of(drawn) -> dict:
    return {site.name: drawn.values[site.name] for site in drawn.template.population_sites()}


def test_encodings_of_successive_members_are_put_together(ragged):
    encoder, centre = NetworkPooling(ragged.template, ragged.template.sites), centre_of(ragged)
    whole = encoder.subject_encodings(encoder.summarise(ragged.observed, centre))
    parts = [encoder.subject_encodings(encoder.summarise(ragged.subject(s), centre)) for s in range(5)]
    for name in whole:
        assert close(concatenate([part[name] for part in parts]), whole[name]), name


def test_no_gradient_is_left_and_no_number_changes():
    parts = torch.randn(3, 4, 2, generator=generator(0), requires_grad=True)
    detached = Encoding(parts, parts, parts).detach()
    assert close(detached, Encoding(parts, parts, parts))
    assert not detached.estimate.requires_grad


def test_streamed_batches_are_made_anew_each_time(ragged):
    made = []

    def source():
        made.append(1)
        yield full(ragged.template, ragged.observed)

    batches = Streamed(source)
    assert len(list(batches)) == len(list(batches)) == 1
    assert len(made) == 2
