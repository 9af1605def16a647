"""A model on disk: the same numbers again, or a clear refusal."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from parcellation.encoders import Encoding
from parcellation.errors import BadData, InputMissing
from parcellation.family import Family
from parcellation.files import checksum
from parcellation.model_file import LabelPower, TrainedModel, load_model, save_model
from parcellation.plates import Batch
from parcellation.retest_link import RetestLink
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Whole, settle_population
from tests.conftest import draw_cohort, full, generator, noise

IDENTITY = {"vertices": "abc", "features.centre": True}


def shaken(family: Family) -> Family:
    g = generator(0)
    with torch.no_grad():
        for parameter in family.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=g, dtype=torch.float64).to(parameter))
    return family


def model_of(template, batch: Batch, scheme: str, dtype: torch.dtype = torch.float32, **settings) -> TrainedModel:
    family = shaken(Family(template, batch.cards, scheme, **settings).to(dtype))
    settle_population(family, Whole(template, batch), 2)
    return TrainedModel(family, IDENTITY, {"study": {"a": [1, 2]}}, {"mean": np.arange(3, dtype=np.float32)})


@pytest.fixture
def drawn():
    return draw_cohort((3, 2, 6))


def draws(family: Family, batch: Batch, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    batch = full(family.template, batch.seen.to("cpu", dtype))
    with torch.no_grad():
        return family.draw(batch, lambda name, shape: noise(3)(name, shape).to(dtype), draws=(4,)).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scheme", ["hybrid", "free", "encoded"])
def test_a_loaded_model_draws_the_same_numbers(scheme, dtype, drawn, tmp_path):
    template = type(drawn.template)(drawn.template.reference.to(dtype), 400.0)
    batch = full(template, drawn.observed.to("cpu", dtype))
    model = model_of(template, batch, scheme, dtype)
    expected = draws(model.family, batch, dtype)
    for again in (save_model(tmp_path, model), load_model(tmp_path)):
        got = draws(again.family, batch, dtype)
        assert all(torch.equal(got[name], value) for name, value in expected.items())
        assert again.identity == IDENTITY
        assert again.details == model.details
        assert np.array_equal(again.arrays["mean"], model.arrays["mean"])


@pytest.mark.parametrize("flow", ["affine", {"population": "affine", "group": "precision"}], ids=str)
def test_another_template_and_other_flows_are_rebuilt(flow, effects, tmp_path):
    template, observed = effects
    batch = full(template, observed)
    model = model_of(template, batch, "encoded", torch.float64, flow=flow, hidden=5)
    again = save_model(tmp_path, model).family
    assert again.template.hyperparameters() == template.hyperparameters()
    got, expected = draws(again, batch, torch.float64), draws(model.family, batch, torch.float64)
    assert all(torch.equal(got[name], value) for name, value in expected.items())


def test_settled_populations_survive(drawn, tmp_path):
    batch = full(drawn.template, drawn.observed.to("cpu", torch.float32))
    model = model_of(drawn.template, batch, "encoded")
    again = save_model(tmp_path, model)
    assert again.family.fixed.keys() == model.family.fixed.keys() == {s.name for s in drawn.template.population_sites()}
    for name, encoding in model.family.fixed.items():
        for part in ("estimate", "log_precision", "extra"):
            assert torch.equal(getattr(again.family.fixed[name], part), getattr(encoding, part))


def test_the_label_power_travels(drawn, tmp_path):
    batch = full(drawn.template, drawn.observed.to("cpu", torch.float32))
    model = model_of(drawn.template, batch, "hybrid")
    power = LabelPower(0.3, 0.4, True, 20.0, "subject")
    again = save_model(
        tmp_path, TrainedModel(model.family, model.identity, model.details, model.arrays, label_power=power)
    )
    assert again.label_power == power
    assert not again.retest_link.checked
    assert [power.at(t) for t in (0, 1, 3)] == pytest.approx([0.3, 0.3, 0.3 / 1.8])


def test_models_that_differ_have_different_digests(drawn, tmp_path):
    # Digests seed draws: they are the same for the same model only, what is not a tensor included.
    batch = full(drawn.template, drawn.observed.to("cpu", torch.float32))
    family = model_of(drawn.template, batch, "hybrid").family
    other = Family(type(drawn.template)(drawn.template.reference, 200.0), batch.cards, "hybrid")
    other.load_state_dict(family.state_dict())
    models = [TrainedModel(f, IDENTITY, {}, {}) for f in (family, family, other)]
    digests = [save_model(tmp_path / str(n), model).digest for n, model in enumerate(models)]
    assert digests[0] == digests[1] != digests[2]


def test_no_model_is_missing_input(tmp_path):
    with pytest.raises(InputMissing, match="no trained model there"):
        load_model(tmp_path)


@pytest.fixture
def saved(drawn, tmp_path):
    batch = full(drawn.template, drawn.observed.to("cpu", torch.float32))
    save_model(tmp_path, model_of(drawn.template, batch, "hybrid"))
    return tmp_path


def test_a_flipped_bit_is_found(saved):
    path = saved / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"damaged: expected checksum \w{64}, got \w{64}"):
        load_model(saved)


def without(header: dict, key: str) -> dict:
    return {k: v for k, v in header.items() if k != key}


@pytest.mark.parametrize(
    "change",
    [
        lambda header: "{",
        lambda header: "[]",
        lambda header: "{}",
        lambda header: json.dumps(without(header, "family")),
        lambda header: json.dumps(without(header, "identity")),
        lambda header: json.dumps(without(header, "label_power")),
        lambda header: json.dumps(header | {"family": header["family"] | {"scheme": "free"}}),
        lambda header: json.dumps(header | {"hyperparameters": {}}),
    ],
)
def test_a_damaged_header_is_bad_data(change, saved):
    path = saved / "model.json"
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(BadData, match="not a readable model"):
        load_model(saved)


def test_numbers_that_are_gone_are_bad_data(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(BadData, match="not a readable model"):
        load_model(saved)


def test_numbers_of_another_shape_are_bad_data(saved):
    path, header = saved / "model.safetensors", json.loads((saved / "model.json").read_text())
    arrays = load_file(path)
    arrays["family.free.mu.rows.weight"] = arrays["family.free.mu.rows.weight"][:, :-1].copy()
    save_file(arrays, path)
    (saved / "model.json").write_text(json.dumps(header | {"numbers": checksum(path)}))
    with pytest.raises(BadData, match="not a readable model"):
        load_model(saved)


def test_another_format_is_refused_with_its_number(saved):
    path = saved / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(BadData, match="expected model format 1, got 99"):
        load_model(saved)


def test_a_cohort_of_another_identity_is_refused_with_what_differs(drawn):
    model = TrainedModel(Family(drawn.template, drawn.batch.cards), IDENTITY, {}, {})
    model.check(dict(IDENTITY))
    with pytest.raises(BadData, match='vertices: expected "abc", got "xyz"'):
        model.check(IDENTITY | {"vertices": "xyz"})
    with pytest.raises(BadData, match=r"features\.centre: expected true, got null"):
        model.check({"vertices": "abc"})


def test_a_blank_has_one_member_and_no_data(drawn, effects):
    blank = TrainedModel(Family(drawn.template, drawn.batch.cards), {}, {}, {}).blank()
    assert blank.mask.shape == (1, 2, 6)
    assert not blank.mask.any()
    template, observed = effects
    blank = TrainedModel(Family(template, full(template, observed).cards), {}, {}, {}).blank()
    assert blank.mask.shape == (1, 5)
    assert template.shape(template.site("group"), blank) == (1, 1, 3)


def test_hyperparameters_of_random_effects_are_plain(effects, tmp_path):
    template, observed = effects
    model = TrainedModel(Family(template, full(template, observed).cards), {}, {}, {})
    again = save_model(tmp_path, model).family.template
    assert isinstance(again, GaussianRandomEffects)
    assert again.sd_group == template.sd_group
    assert isinstance(model.family.encodings(full(template, observed.to("cpu", torch.float32)))["group"], Encoding)


def test_the_retest_link_travels(drawn, tmp_path):
    batch = full(drawn.template, drawn.observed.to("cpu", torch.float32))
    model = replace(model_of(drawn.template, batch, "hybrid"), retest_link=RetestLink(0.6, 0.3, True))
    assert save_model(tmp_path, model).retest_link == RetestLink(0.6, 0.3, True)
