"""A frozen model applied to new subjects: what others, order and missing sessions must not change."""

import math

import numpy as np
import pytest
import torch

from parcellation.errors import BadData, UsageError
from parcellation.family import Family
from parcellation.label_summary import LabelSums
from parcellation.model_file import LabelPower, TrainedModel
from parcellation.networks import heavy_tailed, session_square
from parcellation.plates import Observed
from parcellation.posterior import Posterior, contrasts, pooling, tempered_labels
from parcellation.training import Whole, settle_population, warm_start
from tests.conftest import Drawn, draw_cohort, full, generator

FIELDS = ("probability", "entropy", "mutual_information", "profile_mean", "profile_low", "profile_high")


def same(profiles: np.ndarray) -> np.ndarray:
    return profiles


def model_of(drawn: Drawn, scheme: str = "hybrid", power: LabelPower | None = None) -> TrainedModel:
    """A model that was started from the data, and whose flows are not at their start."""
    batch = drawn.batch
    with torch.random.fork_rng():
        torch.manual_seed(0)
        family = Family(drawn.template, batch.cards, scheme).double()
    if scheme == "hybrid":
        warm_start(family, Whole(drawn.template, batch), 4)
    g = generator(0)
    with torch.no_grad():
        for parameter in family.flows.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    settle_population(family, Whole(drawn.template, batch), 4)
    return TrainedModel(family, {}, {}, {}, "digest", power or LabelPower())


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    """Vertex 1 has no data in subject 0."""
    one = draw_cohort((6, 3, 10), features=4, planted={"log_kappa": 0.3})
    mask = one.observed.mask.clone()
    mask[0, :, 1] = False
    observed = Observed(one.observed.x * mask[..., None], mask, one.observed.covariates)
    return Drawn(one.template, observed, one.values, one.labels)


@pytest.fixture(scope="module")
def posterior(drawn) -> Posterior:
    return Posterior(model_of(drawn), draws=8)


SESSIONS = ("a", "b", "c")


def pick(observed: Observed, order: list[int]) -> Observed:
    return observed.select(1, torch.tensor(order))


def with_missing(observed: Observed, place: int) -> Observed:
    """The same subject with a session in which nothing was seen."""

    def insert(value, blank):
        return torch.cat([value[:, :place], blank(value[:, :1]), value[:, place:]], 1)

    frames = insert(observed.covariates["frames"], torch.zeros_like)
    return Observed(insert(observed.x, torch.zeros_like), insert(observed.mask, torch.zeros_like), {"frames": frames})


@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("power", [LabelPower(), LabelPower(0.5, 0.3, True)], ids=["whole", "tempered"])
def test_a_session_without_data_changes_no_result(scheme, place, power, drawn):
    posterior = Posterior(model_of(drawn, scheme, power), draws=8)
    observed, names = drawn.subject(2), list(SESSIONS)
    names.insert(place, "missing")
    one = posterior.subject("x", SESSIONS, observed, same)
    other = posterior.subject("x", tuple(names), with_missing(observed, place), same)
    for field in FIELDS:
        assert np.allclose(getattr(one, field), getattr(other, field), rtol=1e-6, atol=1e-9), field
    kept = [t for t, name in enumerate(names) if name != "missing"]
    draws = posterior.draw("x", SESSIONS, observed), posterior.draw("x", tuple(names), with_missing(observed, place))
    for name, value in draws[0].items():
        got = draws[1][name]
        got = got[:, :, kept] if "session" in drawn.template.site(name).plates else got
        assert torch.allclose(got, value, rtol=1e-6), name


def test_the_order_of_sessions_does_not_matter(posterior, drawn):
    observed, order = drawn.subject(1), [2, 0, 1]
    one = posterior.subject("x", SESSIONS, observed, same)
    other = posterior.subject("x", tuple(SESSIONS[t] for t in order), pick(observed, order), same)
    for field in FIELDS:
        assert np.allclose(getattr(one, field), getattr(other, field), rtol=1e-6, atol=1e-9), field


def test_a_subject_s_result_does_not_depend_on_who_came_before(drawn):
    results = []
    for others in ([], [0, 1, 4]):
        posterior = Posterior(model_of(drawn), draws=8)
        for s in others:
            posterior.subject(f"s{s}", SESSIONS, drawn.subject(s), same)
        torch.rand(5)
        results.append(posterior.subject("s3", SESSIONS, drawn.subject(3), same))
    for field in FIELDS:
        assert np.array_equal(getattr(results[0], field), getattr(results[1], field)), field


def test_draws_are_the_subject_s_and_the_session_s_own(posterior, drawn):
    observed = drawn.subject(1)
    twins = posterior.draw("x", SESSIONS, observed), posterior.draw("y", SESSIONS, observed)
    assert not torch.equal(twins[0]["mu_subject"], twins[1]["mu_subject"])
    assert torch.equal(twins[0]["mu"], twins[1]["mu"])  # the population is everyone's
    again = posterior.draw("x", SESSIONS, observed)
    assert all(torch.equal(again[name], value) for name, value in twins[0].items())
    double = pick(observed, [0, 0])
    draws = posterior.draw("x", ("a", "b"), double)["log_kappa_session"]
    assert not torch.equal(draws[:, :, 0], draws[:, :, 1])


def test_a_vertex_without_data_has_the_population_s_probability(posterior, drawn):
    got = posterior.subject("x", SESSIONS, drawn.subject(0), same)
    population = posterior.of_population(None, same)
    assert np.allclose(got.probability[1], population.probability[1], rtol=1e-12)
    assert got.mask.tolist() == [v != 1 for v in range(10)]
    assert not np.allclose(got.probability[0], population.probability[0], rtol=1e-2)


def test_a_subject_without_data_has_the_population_s_map(posterior, drawn):
    observed = drawn.subject(0)
    nothing = Observed(torch.zeros_like(observed.x), torch.zeros_like(observed.mask), observed.covariates)
    got = posterior.subject("x", SESSIONS, nothing, same)
    assert np.allclose(got.probability, posterior.of_population(None, same).probability, rtol=1e-12)
    assert np.isfinite(got.profile_mean).all()
    assert not got.mask.any()


def test_one_session_of_one_subject_is_enough(posterior, drawn):
    got = posterior.subject("x", ("a",), pick(drawn.subject(3), [1]), same)
    assert got.probability.shape == (10, 3)
    assert np.allclose(got.probability.sum(1), 1)
    assert got.frames == (float(drawn.observed.covariates["frames"][3, 1, 0]),)
    assert (got.profile_low <= got.profile_high).all()


def test_probabilities_are_averages_of_exact_label_posteriors(posterior, drawn):
    observed = drawn.subject(4)
    values = posterior.draw("x", SESSIONS, observed)
    expected = torch.zeros(10, 3, dtype=torch.float64)
    for d in range(8):
        one = {name: value[d] for name, value in values.items()}
        joint = drawn.template.log_joint(one, observed)[0, 0]
        expected += (joint - joint.logsumexp(-1, keepdim=True)).exp() / 8
    got = posterior.subject("x", SESSIONS, observed, same).probability
    assert np.allclose(got, expected.numpy(), rtol=1e-10)


def test_label_power_tempers_the_evidence_only(drawn):
    none, observed = Posterior(model_of(drawn, power=LabelPower(0.0, 0.0)), draws=8), drawn.subject(4)
    blind = none.subject("x", SESSIONS, observed, same)
    assert np.allclose(blind.probability, none.of_population(None, same).probability, rtol=1e-12)


def test_profiles_are_pooled_by_the_labels_as_they_are_believed(drawn):
    # Without evidence every network's members are the map's, so a subject's networks have nearly one mean fingerprint.
    observed = drawn.subject(0)
    full, none = (
        Posterior(model_of(drawn, power=p), draws=8).subject("x", SESSIONS, observed, same).profile_mean
        for p in (LabelPower(), LabelPower(1e-9, 0.0))
    )
    assert np.ptp(none, axis=0).mean() < np.ptp(full, axis=0).mean()


def test_the_map_enters_tempered_labels_by_its_mean(drawn):
    model = model_of(drawn, power=LabelPower(0.5, 0.2, True, 20.0, "population"))
    posterior, observed = Posterior(model, draws=8), drawn.subject(4)
    values = posterior.draw("x", SESSIONS, observed)
    power = model.label_power.at(observed.mask.sum(1, keepdim=True).double())[..., None]
    evidence = sum(
        heavy_tailed(session_square(values["mu"], values["log_kappa_session"], observed, t), power, 20.0)
        for t in range(len(SESSIONS))
    )
    mean = posterior.template.log_map(posterior.population).exp().mean(0)
    expected = (mean.log() + evidence).softmax(-1)[:, 0, 0]
    assert torch.allclose(posterior.labels(values, observed), expected, rtol=1e-8)


def test_tempered_labels_without_evidence_are_the_map(drawn):
    model = model_of(drawn, power=LabelPower(0.0, 0.0))
    expected = drawn.template.log_map(model.family.centre(drawn.observed)).exp()
    got = tempered_labels(model, drawn.observed)
    assert torch.allclose(got, expected.expand(got.shape), rtol=1e-10)


def test_entropy_is_mean_entropy_and_mutual_information_within_bounds(posterior, drawn):
    observed = drawn.subject(4)
    draws = posterior.labels(posterior.draw("x", SESSIONS, observed), observed)
    sums = LabelSums()
    sums.add(draws)
    mean, entropy, information = sums.summary()
    within = (-(draws * draws.clamp_min(1e-300).log2()).sum(-1)).mean(0).numpy()
    assert np.allclose(entropy, within + information, atol=1e-10)
    assert (information >= 0).all()
    assert (information <= entropy + 1e-12).all()
    assert (entropy <= math.log2(3) + 1e-12).all()
    assert np.allclose(mean, draws.mean(0).numpy(), rtol=1e-12)


def test_the_population_is_compared_with_its_subjects(posterior):
    maps = posterior.of_population(None, same).probability
    assert np.array_equal(posterior.of_population(None, same).consensus, np.zeros(10))
    shifted = np.roll(maps, 1, axis=-1)
    got = posterior.of_population(np.stack([maps, maps, maps, shifted]), same)
    assert np.allclose(got.consensus, 0.75)
    assert np.allclose(got.betweensd, np.stack([maps, maps, maps, shifted]).std(0))
    mean = np.mean([maps, maps, maps, shifted], 0)
    assert np.allclose(got.within + got.between, -(mean * np.log2(mean)).sum(-1))


def test_a_model_that_knows_its_training_subjects_only_is_refused(drawn):
    with pytest.raises(UsageError, match="mu_subject, mu_session are known for training subjects only"):
        Posterior(model_of(drawn, "free"))


def test_data_that_are_not_numbers_are_bad_data_of_a_named_subject(posterior, drawn):
    observed = drawn.subject(0)
    x = observed.x.clone()
    x[0, 0, 3, 0] = torch.inf
    with pytest.raises(BadData, match="subject s0: the posterior is not finite at vertex"):
        posterior.subject("s0", SESSIONS, Observed(x, observed.mask, observed.covariates), same)


def test_a_subject_s_drawn_labels_have_the_map_s_probabilities(posterior, drawn):
    answer = Posterior(model_of(drawn), draws=400).subject("x", SESSIONS, drawn.subject(2), same)
    share = (answer.label_draws[..., None] == np.arange(answer.probability.shape[1])).mean(0)
    # Labels are drawn given each draw, so a vertex's are independent over draws, with the map's probability on average.
    assert np.abs(share - answer.probability).max() < 4 * math.sqrt(0.25 / 400)


def test_contrasts_of_two_and_of_more():
    profiles = np.random.default_rng(0).normal(size=(5, 3, 4))
    np.testing.assert_allclose(contrasts(profiles[:, :2])[:, 0], profiles[:, 0] - profiles[:, 1])
    pair = contrasts(profiles, [(2, 0)])
    np.testing.assert_array_equal(pair[:, :3], contrasts(profiles))
    np.testing.assert_allclose(pair[:, 3], profiles[:, 2] - profiles[:, 0])
    against = contrasts(profiles)
    np.testing.assert_allclose(against[:, 1], profiles[:, 1] - profiles[:, [0, 2]].mean(1))


def test_a_chosen_pair_changes_nothing_else_of_an_answer(posterior, drawn):
    one = posterior.subject("x", SESSIONS, drawn.subject(2), same)
    other = Posterior(posterior.model, posterior.draws, pairs=((2, 1),)).subject("x", SESSIONS, drawn.subject(2), same)
    np.testing.assert_array_equal(other.probability, one.probability)
    np.testing.assert_array_equal(other.contrast_low[:-1], one.contrast_low)
    np.testing.assert_allclose(other.contrast_mean[-1], one.profile_mean[2] - one.profile_mean[1], rtol=1e-5, atol=1e-8)
    assert (other.contrast_low[-1] <= other.contrast_high[-1]).all()


def test_a_contrast_s_interval_is_that_of_the_difference(posterior, drawn):
    """Two networks that vary together differ less than their own intervals say."""
    answer = posterior.subject("x", SESSIONS, drawn.subject(2), same)
    values = posterior.draw("x", SESSIONS, drawn.subject(2))["mu_subject"][:, 0, 0, 0].numpy()
    difference = values[:, 0] - values[:, [1, 2]].mean(1)
    np.testing.assert_allclose(answer.contrast_mean[0], difference.mean(0), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(answer.contrast_high[0], np.quantile(difference, 0.95, axis=0), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("power", [LabelPower(), LabelPower(0.5, 0.2, True, 20.0, "population")])
def test_answers_do_not_depend_on_how_many_draws_are_held_at_a_time(drawn, power, monkeypatch):
    posterior, observed = Posterior(model_of(drawn, power=power), draws=7), drawn.subject(4)
    values = posterior.draw("x", SESSIONS, observed)
    expected, answer = posterior.labels(values, observed), posterior.subject("x", SESSIONS, observed, same)
    monkeypatch.setattr("parcellation.posterior.PART", 2 * expected[0].numel())
    assert [len(part) for part in posterior.label_parts(values, observed)] == [2, 2, 2, 1]
    torch.testing.assert_close(posterior.labels(values, observed), expected)
    again = posterior.subject("x", SESSIONS, observed, same)
    assert np.array_equal(answer.label_draws, again.label_draws)
    for name in FIELDS:
        assert np.allclose(getattr(answer, name), getattr(again, name), atol=1e-12)


def test_a_model_without_networks_is_refused(effects):
    template, observed = effects
    family = Family(template, full(template, observed).cards)
    with pytest.raises(UsageError, match="model: expected a model of networks, got GaussianRandomEffects; see docs"):
        pooling(family)
