"""Simulation-based calibration of the product's posteriors: a small version, and the long proof."""

from functools import cache

import pytest
import torch

from parcellation.data_sets import PriorDataSets
from parcellation.elbo import training_loss
from parcellation.family import Family
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, fit
from pipelines.benchmarks import side_by_side
from pipelines.benchmarks.sbc import (
    GRE,
    GRE_METHODS,
    NARROW,
    PARCELLATION_METHODS,
    SIZES,
    calibrations,
    exact,
    from_the_prior,
    hybrid,
    parcellation_source,
    swapped,
    table,
)


def effects(setting: str = "unit", dtype: torch.dtype = torch.float32) -> PriorDataSets:
    return PriorDataSets(GaussianRandomEffects(2, *GRE[setting]), SIZES, 1, dtype=dtype)


def test_the_closed_form_is_calibrated_in_every_quantity():
    found = calibrations(effects(), exact(effects(), 100), 100, draws=99)
    assert set(found) == {"population", "group", "log_likelihood"}
    assert {one.verdict for one in found.values()} == {"calibrated"}
    assert "calibrated" in table(found)


def test_a_posterior_that_ignores_the_data_is_seen_by_the_likelihood_alone():
    source = effects()
    found = calibrations(source, from_the_prior(source, 60), 60, draws=99)
    assert found["population"].uniform
    assert found["group"].uniform
    assert "too low" in found["log_likelihood"].verdict


def test_profiles_of_subjects_and_sessions_are_calibrated():
    source = parcellation_source(NARROW, 1)
    found = calibrations(source, hybrid(source, 32, steps=5), 32, draws=99)
    for name in ("mu", "mu_subject", "mu_session", "log_kappa_session"):
        assert found[name].uniform, name
        assert found[name].width.factor == pytest.approx(1, abs=0.1), name
    assert found["mu_session"].elements == 8 * 2 * 2 * 8


def test_networks_keep_their_names():
    assert swapped(parcellation_source(NARROW, 1), 200) == 0


def test_side_by_side_is_training_one_by_one():
    """Two data sets at once, against the product's own loop on each with the same noise."""
    source = effects(dtype=torch.float64)
    sources, plan = [source.at(0), source.at(1)], Plan(4, 20, 0.02, 0, {})

    def made() -> Family:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return Family(source.template, source.cards, "hybrid").double()

    together = [made(), made()]
    side_by_side.fit_all(together, sources, plan)
    for place, (one, whole) in enumerate(zip(together, sources, strict=True)):
        alone = made()
        fit(alone, whole, plan, estimator=_with_noise_of(place, plan))
        for name, value in alone.state_dict().items():
            assert torch.allclose(one.state_dict()[name], value, rtol=1e-9, atol=1e-12), name
    assert not torch.equal(together[0].free["population"].rows.weight, together[1].free["population"].rows.weight)


def _with_noise_of(place: int, plan: Plan):
    """The product's estimator, with the noise that the data set at this place of two is given, step after step."""
    steps = iter(range(plan.steps))

    def estimator(family, batch, _):
        noise = side_by_side._noise(family.template, batch.seen, 2, plan, next(steps))
        return training_loss(family, batch, lambda name, shape: noise[name][place])

    return estimator


def test_what_cannot_be_trained_side_by_side_is_refused():
    source = effects()
    with pytest.raises(ValueError, match="without sparse rows"):
        side_by_side.fit_all([Family(source.template, source.cards, "free")], [source.at(0)], Plan(1, 20, 0.02, 0, {}))


# The long proof


@cache
def proof(name: str) -> dict:
    kind, setting, method = name.split(".")
    if kind == "gre":
        return calibrations(effects(setting), GRE_METHODS[method](effects(setting), 500), 500)
    source = parcellation_source(NARROW if setting == "narrow" else {}, 1)
    return calibrations(source, PARCELLATION_METHODS[method](source, 200), 200)


RIGHT = ("exact", "pavi_e_sa", "hybrid")


@pytest.mark.slow
@pytest.mark.parametrize("method", RIGHT)
@pytest.mark.parametrize("setting", GRE)
def test_random_effects_are_calibrated(setting, method):
    """One proof of all settings and methods, so one level for the whole of it."""
    found = proof(f"gre.{setting}.{method}")
    verdicts = {name: one.verdict_among(len(GRE) * len(RIGHT) * len(found)) for name, one in found.items()}
    assert verdicts == dict.fromkeys(found, "calibrated")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "word"), [("narrow", "too narrow"), ("wide", "too wide"), ("shifted", "too high")])
@pytest.mark.parametrize("setting", GRE)
def test_wrong_random_effects_are_refused(setting, method, word):
    found = proof(f"gre.{setting}.{method}")
    assert {found[name].verdict for name in ("population", "group")} == {word}


CALIBRATED = ("log_kappa", "slope", "mu", "mu_subject", "mu_session", "log_kappa_session", "log_likelihood")


@pytest.mark.slow
@pytest.mark.parametrize("site", CALIBRATED)
def test_the_parcellation_is_calibrated_where_the_prior_is_narrow(site):
    assert proof("parcellation.narrow.hybrid")[site].verdict == "calibrated"


# What calibration asks is not yet true of these sites: their posteriors are skewed, the flow is Gaussian.
# Strict, so that the proof says so on the day that it is mended.
@pytest.mark.slow
@pytest.mark.parametrize("site", ["log_epsilon", "log_sigma", "logits_group"])
@pytest.mark.xfail(strict=True, reason="too narrow by what docs/method.md says")
def test_the_parcellation_is_calibrated_in_all_else(site):
    assert proof("parcellation.narrow.hybrid")[site].verdict == "calibrated"
