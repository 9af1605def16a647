"""Training over many data sets: sizes, reproducibility, and what it is for: data sets of sizes not trained on."""

import numpy as np
import pytest
import torch

from parcellation.data_sets import Cohort, PriorDataSets, ResampledCohorts
from parcellation.elbo import elbo
from parcellation.errors import Stopped, UsageError
from parcellation.family import Family
from parcellation.plates import Observed
from parcellation.templates.auto_encoder import AutoEncoder
from parcellation.templates.functional_parcellation import FunctionalParcellation
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import DataSets, Plan, Source, Whole, fit
from tests.conftest import full, generator, noise
from tests.test_training import family_of, moments, same, state, stop_after

SETTINGS = {"unit": (1.0, 1.0, 1.0), "paper": (1.0, 0.2, 0.05)}
GROUPS, SAMPLES = (2, 50), (10, 100)


def prior_data_sets(template, seed: int = 0, groups=GROUPS, samples=SAMPLES, ragged=("sample",), **settings):
    return PriorDataSets(template, {"group": groups, "sample": samples}, seed, ragged, **settings)


def whole_plan(source, steps: int, rate: float = 0.02, seed: int = 0) -> Plan:
    """All groups of a data set in every step, so that the objective is an evidence lower bound."""
    return Plan(steps, source.cards["group"], rate, seed, {}, checkpoint_every=4)


# Data sets from the prior


def test_a_data_set_is_a_function_of_seed_and_step():
    template = GaussianRandomEffects(2)
    one, again, other = (prior_data_sets(template, seed) for seed in (3, 3, 4))
    assert isinstance(one, DataSets)
    for step in (7, 0, 7):
        assert torch.equal(one.at(step).full.seen.x, again.at(step).full.seen.x)
        assert one.at(step).full.seen.x.shape != other.at(step).full.seen.x.shape
    assert one.at(0).full.seen.x.shape != one.at(1).full.seen.x.shape
    assert one.identity != other.identity


def test_sizes_are_log_uniform_and_groups_ragged():
    source = prior_data_sets(GaussianRandomEffects(1), groups=(2, 31), samples=(1, 63))
    masks = [source.at(step).full.seen.mask for step in range(400)]
    groups, counts = np.array([len(mask) for mask in masks]), torch.cat([mask.sum(1) for mask in masks])
    assert (groups.min(), groups.max()) == (2, 31)
    assert 1 == int(counts.min()) < 50 < int(counts.max()) <= 63
    # Halves on either side of 8 = sqrt(2 x 32), within 4 sd of a share of 400.
    assert (groups < 8).mean() == pytest.approx(0.5, abs=4 * 0.5 / 400**0.5)
    assert any(len(set(mask.sum(1).tolist())) > 1 for mask in masks)
    even = prior_data_sets(GaussianRandomEffects(1), ragged=())
    assert all(bool(even.at(step).full.seen.mask.all()) for step in range(20))


def test_data_sets_have_the_moments_of_the_prior():
    template = GaussianRandomEffects(2, 1.5, 0.8, 0.5)
    source = prior_data_sets(template, groups=(2, 2), samples=(2, 2), ragged=(), dtype=torch.float64)
    x = torch.stack([source.at(step).full.seen.x for step in range(500)])  # (data set, group, sample, D)
    one, sample, group = x[:, 0, 0], x[:, 0, 1], x[:, 1, 0]
    error = 4 * 2**0.5 * 3.14 / 1000**0.5  # of a variance of 3.14 from 2 x 500 numbers
    assert float(one.square().mean()) == pytest.approx(1.5**2 + 0.8**2 + 0.5**2, abs=error)
    assert float((one * sample).mean()) == pytest.approx(1.5**2 + 0.8**2, abs=error)
    assert float((one * group).mean()) == pytest.approx(1.5**2, abs=error)


def test_what_is_masked_is_zero():
    observed = prior_data_sets(GaussianRandomEffects(3), groups=(20, 20)).at(0).full.seen
    assert not bool(observed.mask.all())
    assert not bool(observed.x[~observed.mask].any())


@pytest.mark.parametrize(
    ("ranges", "ragged"),
    [({"group": (2, 5)}, ()), ({"group": (0, 5), "sample": (1, 2)}, ()), ({"group": (2, 5), "sample": (3, 2)}, ()),
     ({"group": (2, 5), "sample": (1, 2)}, ("group",))],
    ids=str,
)  # fmt: skip
def test_ranges_that_cannot_be_are_refused(ranges, ragged):
    with pytest.raises(UsageError, match="data sets: expected"):
        PriorDataSets(GaussianRandomEffects(2), ranges, 0, ragged)


def test_a_template_that_cannot_draw_observations_says_so():
    with pytest.raises(UsageError, match="AutoEncoder: does not say how observations are drawn"):
        PriorDataSets(AutoEncoder(3, 1), {"datum": (2, 3)}, 0).at(0)


def test_a_data_set_comes_with_the_values_it_was_drawn_from():
    source = prior_data_sets(GaussianRandomEffects(2, 1.0, 1.0, 1e-4), dtype=torch.float64)
    values, whole = source.drawn(3)
    seen = whole.full.seen
    assert torch.equal(seen.x, source.at(3).full.seen.x)
    assert torch.allclose(seen.x, values["group"].expand_as(seen.x) * seen.mask[..., None], atol=1e-3)


def test_a_template_gets_the_covariates_that_it_needs():
    def frames(mask, generator):
        return {"frames": 100.0 + torch.rand(*mask.shape[:2], 1, generator=generator, dtype=torch.float64)}

    template = FunctionalParcellation(torch.eye(2, 4), 100.0)
    source = PriorDataSets(
        template, dict(subject=(2, 2), session=(2, 3), vertex=(5, 5)), 0, ("session",), covariates=frames
    )
    one, again, other = source.at(0).full.seen, source.at(0).full.seen, source.at(1).full.seen
    assert one.x.shape == (*one.mask.shape, 4)
    assert torch.equal(one.covariates["frames"], again.covariates["frames"])
    assert not torch.equal(one.covariates["frames"][:1, :1], other.covariates["frames"][:1, :1])
    assert "frames" in source.identity


# Resampled cohorts


def test_resampled_cohorts_are_of_members_of_the_source(ragged):
    source = Whole(ragged.template, ragged.batch)
    cohorts = ResampledCohorts(source, ragged.template, (2, 4), seed=0)
    assert isinstance(cohorts, DataSets)
    assert cohorts.cards == dict(subject=4, session=3, vertex=8)
    chosen = []
    for step in range(30):
        cohort = cohorts.at(step)
        assert isinstance(cohort, Source)
        count = cohort.cards["subject"]
        batch = cohort.batch(torch.arange(count))
        assert len(set(cohort.members.tolist())) == count  # nobody twice
        assert torch.equal(batch.seen.x, ragged.observed.x[cohort.members])
        assert batch.cards == dict(subject=count, session=3, vertex=8)
        assert torch.equal(cohort.members, cohorts.at(step).members)
        chosen.append(tuple(cohort.members.tolist()))
    assert {len(c) for c in chosen} == {2, 3, 4}
    assert len(set(chosen)) > 10


def test_a_member_of_a_cohort_is_known_by_its_position_in_it(ragged):
    cohort = Cohort(Whole(ragged.template, ragged.batch), "subject", torch.tensor([1, 3, 4]))
    batch = cohort.batch(torch.tensor([2, 0]))
    assert batch.index["subject"].tolist() == [2, 0]
    assert torch.equal(batch.seen.mask, ragged.observed.mask[[4, 1]])


@pytest.mark.parametrize("sizes", [(0, 2), (3, 2), (2, 6)], ids=str)
def test_more_members_than_there_are_are_refused(sizes, ragged):
    with pytest.raises(UsageError, match=r"resampled cohorts: expected 1 <= least <= greatest <= 5, got"):
        ResampledCohorts(Whole(ragged.template, ragged.batch), ragged.template, sizes, 0)


def test_resampled_cohorts_train_an_encoded_model(ragged):
    cohorts = ResampledCohorts(Whole(ragged.template, ragged.batch), ragged.template, (2, 4), seed=0)
    family = Family(ragged.template, cohorts.cards, "encoded").double()
    start = state(family)
    losses = fit(family, cohorts, Plan(3, 4, 0.01, 0, {"vertex": 4}))
    assert np.isfinite(losses).all()
    assert any((value != start[name]).any() for name, value in state(family).items())


# Training


def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    template = GaussianRandomEffects(2)
    source = prior_data_sets(template, groups=(2, 6), samples=(2, 5), dtype=torch.float64)
    how, path = whole_plan(source, 10), tmp_path / "c.safetensors"

    def family(seed: int) -> Family:
        return family_of(template, source.at(0).full, "encoded", seed)

    one, other = family(0), family(0)
    losses = fit(one, source, how)
    with pytest.raises(Stopped):
        fit(other, source, how, path, stop=stop_after(7))
    again = family(9)
    assert np.array_equal(fit(again, source, how, path), losses)
    assert same(state(again), state(one))
    others = prior_data_sets(template, 1, groups=(2, 6), samples=(2, 5), dtype=torch.float64)
    assert not np.array_equal(fit(family(0), others, how, path), losses)  # over other data sets nothing is continued


@pytest.mark.parametrize("scheme", ["free", "hybrid"])
def test_encodings_of_one_data_set_cannot_serve_many(scheme):
    source = prior_data_sets(GaussianRandomEffects(2))
    with pytest.raises(UsageError, match="have encodings of one data set's own"):
        fit(Family(source.template, source.cards, scheme), source, whole_plan(source, 2))


def test_a_bank_is_of_one_data_set():
    source = prior_data_sets(GaussianRandomEffects(2))
    with pytest.raises(UsageError, match="a bank of summaries is of one data set"):
        fit(Family(source.template, source.cards, "encoded", bank=True), source, whole_plan(source, 2))


def unseen(template, groups: int, samples: int, seed: int, ragged: bool = False) -> Observed:
    observed = template.simulate(groups, samples, generator(1000 + seed))
    if not ragged:
        return observed
    mask = torch.arange(samples) < torch.randint(1, samples + 1, (groups, 1), generator=generator(seed))
    return Observed(observed.x * mask[..., None], mask)


def gap(family: Family, observed: Observed, draws: int = 20) -> float:
    bound = elbo(family, full(family.template, observed), noise(1), draws)
    return float(family.template.log_evidence(observed)) - bound.mean


def width_ratio(family: Family, observed: Observed) -> float:
    """Posterior sd of the population, in units of the exact one, mean over dimensions."""
    got, exact = moments(family, full(family.template, observed)), family.template.posterior(observed)
    return float((got["population"][1] / exact["population"][1]).mean())


def amortized(setting: str, steps: int) -> Family:
    source = prior_data_sets(GaussianRandomEffects(2, *SETTINGS[setting]))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        family = Family(source.template, source.cards, "encoded")
    fit(family, source, whole_plan(source, steps))
    return family.double()


def test_a_short_training_serves_data_sets_of_sizes_it_has_not_seen():
    family = amortized("unit", 120)
    sizes = [(2, 50), (200, 50), (200, 5), (2000, 20)]
    gaps = [gap(family, unseen(family.template, *size, seed=0)) for size in sizes]
    assert max(gaps) < 1
    assert gap(family, unseen(family.template, 200, 50, 0, ragged=True)) < 1
    # The population's posterior narrows 30 times from 2 groups to 2000, as the exact one does.
    ratios = [width_ratio(family, unseen(family.template, groups, 50, 1)) for groups in (2, 200, 2000)]
    assert ratios == pytest.approx([1] * 3, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "most"), [("unit", 0.1), ("paper", 0.5)])
def test_unseen_data_sets_of_other_sizes_are_served_within_half_a_nat(setting, most):
    family = amortized(setting, 2000 if setting == "unit" else 4000)
    for groups, samples in [(2, 50), (20, 50), (200, 50), (200, 5), (200, 200), (2000, 50), (2000, 20)]:
        for seed in range(3):
            assert gap(family, unseen(family.template, groups, samples, seed)) < most
            assert gap(family, unseen(family.template, groups, samples, seed, ragged=True)) < most
            assert width_ratio(family, unseen(family.template, groups, samples, seed)) == pytest.approx(1, abs=0.05)
