"""Training: bit-equality, resumption, and recovery of what is known."""

import itertools
import logging

import numpy as np
import pytest
import torch

from parcellation.elbo import elbo, path_gradient, sgvb_a, sgvb_b
from parcellation.errors import BadData, Stopped, UsageError
from parcellation.family import Family
from parcellation.plates import Batch, Observed
from parcellation.templates.gaussian_random_effects import GaussianRandomEffects
from parcellation.training import Plan, Whole, anchor, chunks, fit, settle_population, warm_start
from tests.conftest import draw_cohort, full, generator, noise


def family_of(template, batch: Batch, scheme: str, seed: int = 0, shake: float = 0.0, **settings) -> Family:
    """A float64 family whose first weights depend on the seed; `shake` takes it away from a start that is too good."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        family = Family(template, batch.cards, scheme, **settings).double()
    with torch.no_grad():
        for parameter in family.parameters():
            parameter.add_(shake * torch.randn(parameter.shape, generator=generator(seed), dtype=torch.float64))
    return family


def plan(steps: int, batch: int = 2, rate: float = 0.03, seed: int = 0, subsample=None, every: int = 100) -> Plan:
    return Plan(steps, batch, rate, seed, subsample or {}, every)


# Order of visits


@pytest.mark.parametrize(("count", "batch"), [(12, 4), (10, 4), (7, 7), (3, 8), (5, 1)])
def test_every_epoch_visits_each_member_once_in_a_new_order(count, batch):
    one = plan(100, batch)
    step, epochs = 0, []
    for _ in range(3):
        visited = []
        while len(visited) < count:
            members = one.members(step, count).tolist()
            assert 1 <= len(members) <= batch
            assert members == sorted(members)
            visited, step = visited + members, step + 1
        assert sorted(visited) == list(range(count))
        epochs.append(visited)
    assert batch >= count or count == 5 or epochs[0] != epochs[1]


def test_other_plates_are_subsampled_anew_each_step(ragged):
    one = plan(10, subsample={"vertex": 3})
    picked = [one.reduce(ragged.batch, step, ragged.template).index["vertex"].tolist() for step in range(20)]
    assert all(len(set(p)) == 3 for p in picked)
    assert set(itertools.chain(*picked)) == set(range(8))
    assert "vertex" not in plan(10, subsample={"vertex": 8}).reduce(ragged.batch, 0, ragged.template).index


def test_subsampling_sessions_of_enumerated_labels_is_refused(ragged):
    family, source = family_of(ragged.template, ragged.batch, "hybrid"), Whole(ragged.template, ragged.batch)
    with pytest.raises(UsageError, match="'session' may not be reduced"):
        fit(family, source, plan(5, subsample={"session": 1}))


def test_the_learning_rate_rises_and_falls_to_nothing():
    rates = [plan(200, rate=0.1).rate(step) for step in range(200)]
    assert rates[0] < 0.01
    assert max(rates) == pytest.approx(0.1, rel=0.05)
    assert rates[-1] < 1e-4
    assert np.all(np.diff(rates[20:]) < 0)


# Bit-equality


def cases(scheme: str, ragged, effects):
    """A nested and an enumerated model."""
    template, observed = effects
    yield template, full(template, observed), plan(14, every=4)
    yield ragged.template, ragged.batch, plan(14, subsample={"vertex": 4}, every=4)


def state(family: Family) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in family.state_dict().items()}


def same(one: dict, other: dict) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one) and one.keys() == other.keys()


@pytest.mark.parametrize("scheme", ["hybrid", "free", "encoded"])
def test_the_same_seed_gives_the_same_weights(scheme, ragged, effects):
    for template, batch, how in cases(scheme, ragged, effects):
        families = [family_of(template, batch, scheme) for _ in range(3)]
        start = state(families[0])
        fit(families[0], Whole(template, batch), how)
        torch.rand(7)  # the global generator plays no part
        fit(families[1], Whole(template, batch), how)
        fit(families[2], Whole(template, batch), Plan(how.steps, how.batch, how.learning_rate, 1, how.subsample))
        assert same(state(families[0]), state(families[1]))
        assert not same(state(families[0]), state(families[2]))
        end = state(families[0])
        assert all((value != start[name]).any() for name, value in end.items())  # everything is trained


def stop_after(steps: int):
    asked = itertools.count(1)
    return lambda: next(asked) == steps


@pytest.mark.parametrize("scheme", ["hybrid", "free", "encoded"])
def test_an_interrupted_training_ends_where_an_uninterrupted_one_does(scheme, ragged, effects, tmp_path):
    for number, (template, batch, how) in enumerate(cases(scheme, ragged, effects)):
        whole = family_of(template, batch, scheme)
        losses = fit(whole, Whole(template, batch), how)
        path, seen = tmp_path / f"{number}.safetensors", []
        for steps in (3, 6):  # interrupted twice, by a signal between checkpoints
            with pytest.raises(Stopped, match="the same command continues"):
                fit(family_of(template, batch, scheme), Whole(template, batch), how, path, "id", stop=stop_after(steps))
        again = family_of(template, batch, scheme, seed=9)  # what it holds before does not matter
        got = fit(again, Whole(template, batch), how, path, "id", lambda step, loss, seen=seen: seen.append(step))
        assert seen == list(range(10, 15))
        assert np.array_equal(got, losses)
        assert same(state(again), state(whole))


def test_a_finished_training_takes_no_further_step(effects, tmp_path):
    template, observed = effects
    batch, path, seen = full(template, observed), tmp_path / "c.safetensors", []
    one, other = family_of(template, batch, "hybrid"), family_of(template, batch, "hybrid", seed=3)
    losses = fit(one, Whole(template, batch), plan(6), path)
    assert np.array_equal(fit(other, Whole(template, batch), plan(6), path, progress=lambda *a: seen.append(a)), losses)
    assert seen == []
    assert same(state(one), state(other))


@pytest.mark.parametrize(
    ("how", "identity", "scheme"), [(plan(7), "a", "hybrid"), (plan(6), "b", "hybrid"), (plan(6), "a", "free")], ids=str
)
def test_a_checkpoint_of_another_training_is_left_alone_and_said_so(how, identity, scheme, effects, tmp_path, caplog):
    template, observed = effects
    batch, path = full(template, observed), tmp_path / "c.safetensors"
    fit(family_of(template, batch, "hybrid"), Whole(template, batch), plan(6), path, "a")
    fresh, again = (family_of(template, batch, scheme) for _ in range(2))
    fit(fresh, Whole(template, batch), how)
    with caplog.at_level(logging.INFO):
        fit(again, Whole(template, batch), how, path, identity)
    assert "is of another training; starting from the beginning" in caplog.text
    assert same(state(fresh), state(again))


def test_other_settings_of_the_encoder_are_another_training(ragged, tmp_path, caplog):
    path, source = tmp_path / "c.safetensors", Whole(ragged.template, ragged.batch)
    families = [family_of(ragged.template, ragged.batch, "hybrid", passes=passes) for passes in (2, 3, 3)]
    fit(families[0], source, plan(3), path, "a")
    with caplog.at_level(logging.INFO):
        fit(families[1], source, plan(3), path, "a")
    assert "is of another training" in caplog.text
    fit(families[2], source, plan(3))
    assert same(state(families[1]), state(families[2]))


def test_estimators_are_trainings_of_their_own(effects, tmp_path):
    template, observed = effects
    batch, path = full(template, observed), tmp_path / "c.safetensors"
    source, results = Whole(template, batch), []
    for estimator in (path_gradient, sgvb_a, sgvb_b):
        family = family_of(template, batch, "hybrid")
        fit(family, source, plan(4), path, estimator=estimator)  # the checkpoint there is the last one's
        results.append(state(family))
    assert not any(same(one, other) for one, other in itertools.combinations(results, 2))
    default = family_of(template, batch, "hybrid")
    fit(default, source, plan(4))
    assert same(state(default), results[0])


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"not safetensors" * 100])
def test_a_damaged_checkpoint_is_bad_data_and_names_the_file(damage, effects, tmp_path):
    template, observed = effects
    batch, path = full(template, observed), tmp_path / "c.safetensors"
    fit(family_of(template, batch, "hybrid"), Whole(template, batch), plan(6), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadData, match=r"c\.safetensors: not a readable checkpoint"):
        fit(family_of(template, batch, "hybrid"), Whole(template, batch), plan(6), path)


def test_data_that_are_not_numbers_are_bad_data_at_a_named_step(effects):
    template, observed = effects
    x = observed.x.clone()
    x[2, 1, 0] = torch.nan
    batch = full(template, Observed(x, observed.mask))
    with pytest.raises(BadData, match=r"the loss at step [12] is nan; expected a finite number of nats"):
        fit(family_of(template, batch, "hybrid"), Whole(template, batch), plan(5))


# Sources


def test_chunks_cover_the_outermost_plate_once_and_samples_are_spread_over_it(ragged):
    source = Whole(ragged.template, ragged.batch)
    assert [c.index["subject"].tolist() for c in chunks(source, ragged.template, 2)] == [[0, 1], [2, 3], [4]]
    assert [c.index["subject"].tolist() for c in chunks(source, ragged.template, 2, 3)] == [[0, 2], [4]]


# Starts


def clusters(order: list[int]) -> Batch:
    """Two subjects of noisy copies of three centres."""
    centres = torch.tensor([[-2.0, 0, 1], [0, 3, 0], [2, 0, -1]]).double()
    g = generator(0)
    x = centres[torch.tensor(order)].repeat(2, 1, 5, 1) + 0.05 * torch.randn(2, 1, 15, 3, generator=g).double()
    mask = torch.ones(2, 1, 15, dtype=torch.bool)
    mask[0, 0, 0] = False
    frames = torch.ones(2, 1, 1).double()
    template = draw_cohort((1, 1, 1), 3, 3).template
    return Batch.full(template.plates, Observed(x * mask[..., None], mask, {"frames": frames}))


def test_anchors_are_the_networks_centres_in_an_order_of_their_own():
    template = draw_cohort((1, 1, 1), 3, 3).template
    expected = torch.tensor([[-2.0, 0, 1], [0, 3, 0], [2, 0, -1]]).double()
    for seed, order in ((0, [0, 1, 2]), (1, [2, 0, 1])):
        got = anchor(Whole(template, clusters(order)), template.plates, 3, seed, batch=1)
        assert torch.allclose(got, expected, atol=0.1)


def test_anchors_tell_directions_and_not_lengths():
    # Two directions, each with vertices of length 1 and 5: by length there would be a network of all short ones.
    g = generator(1)
    along = torch.tensor([[1.0, 0, 0], [0, 1, 0]]).double()
    x = torch.cat([length * along[k] + 0.05 * torch.randn(10, 3, generator=g) for k in (0, 1) for length in (1, 5)])
    template = draw_cohort((1, 1, 1), 2, 3).template
    observed = Observed(x[None, None], torch.ones(1, 1, 40, dtype=torch.bool), {"frames": torch.ones(1, 1, 1)})
    got = anchor(Whole(template, full(template, observed)), template.plates, 2, 0, batch=1)
    assert torch.allclose(got, 3 * along.flip(0), atol=0.1)


def test_anchors_need_a_vertex_each():
    template = draw_cohort((1, 1, 1), 3, 3).template
    batch = clusters([0, 1, 2])
    few = full(template, batch.seen.select(2, torch.tensor([1, 2])))
    with pytest.raises(BadData, match="at least 3 vertices with signal, one a network, got 2"):
        anchor(Whole(template, few), template.plates, 3, 0, 1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_anchors_of_data_that_are_not_numbers_name_the_vertex(value):
    batch, template = clusters([0, 1, 2]), draw_cohort((1, 1, 1), 3, 3).template
    x, mask = batch.seen.x.clone(), batch.seen.mask.clone()
    mask[..., 2], x[..., 2, :] = False, 0  # a vertex that nobody has is not among those that are averaged
    x[1, 0, 7, 1] = value
    with pytest.raises(BadData, match="vertex 7 of the region are not finite"):
        anchor(Whole(template, full(template, Observed(x, mask))), template.plates, 3, 0, 1)


def test_an_encoded_population_settles_to_the_same_from_a_warm_start():
    drawn = draw_cohort((12, 2, 40), planted={"log_kappa": -1.5})
    source, families, passes = Whole(drawn.template, drawn.batch), [], []
    for warm in (False, True):
        family = family_of(drawn.template, drawn.batch, "encoded")
        start = warm_start(family, source, 5) if warm else None
        count = family.encoder.statistics
        family.encoder.statistics = lambda *a, count=count, warm=warm: (passes.append(warm), count(*a))[1]
        settle_population(family, source, 12, start)
        families.append(family)
    assert 0 < passes.count(True) < passes.count(False)
    for name, cold in families[0].fixed.items():
        moved = (families[1].fixed[name].estimate - cold.estimate) * (0.5 * cold.log_precision).exp()
        assert float(moved.square().mean().sqrt()) < 0.1, name  # each is settled within .03 a pass


@pytest.mark.parametrize("scheme", ["hybrid", "free"])
def test_a_warm_start_is_worth_many_steps(scheme):
    drawn = draw_cohort((12, 2, 40), planted={"log_kappa": -1.5})
    cold, warm = (family_of(drawn.template, drawn.batch, scheme) for _ in range(2))
    warm_start(warm, Whole(drawn.template, drawn.batch), batch=5)
    bounds = [elbo(family, drawn.batch, noise(0), draws=5).mean for family in (cold, warm)]
    assert bounds[1] > bounds[0] + 1000
    scales = warm.centre(drawn.observed)
    assert float(scales["log_kappa"]) == pytest.approx(-1.5, abs=0.2)
    # The size of the chunks is a matter of memory only.
    other = family_of(drawn.template, drawn.batch, scheme)
    warm_start(other, Whole(drawn.template, drawn.batch), batch=12)
    assert torch.allclose(other.free["mu"].rows.weight, warm.free["mu"].rows.weight, atol=1e-9)


def test_a_settled_population_is_the_encoding_of_all_members(effects):
    template, observed = effects
    batch = full(template, observed)
    family = family_of(template, batch, "encoded", shake=0.2)
    expected = family.encodings(batch)["population"]
    settle_population(family, Whole(template, batch), batch=3)
    assert set(family.fixed) == {"population"}
    assert torch.allclose(family.fixed["population"].estimate, expected.estimate, atol=1e-12)
    assert torch.allclose(family.fixed["population"].log_precision, expected.log_precision, atol=1e-12)
    assert not family.fixed["population"].estimate.requires_grad
    one = full(template, observed.select(0, torch.tensor([0])))
    assert torch.equal(family.encodings(one)["population"].estimate, family.fixed["population"].estimate)


def test_a_free_population_needs_no_settling(effects):
    template, observed = effects
    family = family_of(template, full(template, observed), "hybrid")
    settle_population(family, Whole(template, full(template, observed)), 2)
    assert family.fixed == {}


# Known answers: Gaussian random effects


@torch.no_grad()
def moments(family: Family, batch: Batch) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Exact mean and sd of q, groups marginal over the population: both flows are affine, so q is Gaussian."""
    template, encodings = family.template, family.encodings(batch)
    zero = torch.zeros(1, 1, template.dimensions, dtype=torch.float64)
    sd = torch.full_like(zero, template.sd_population), torch.full_like(zero, template.sd_group)
    population = family.flows["population"](encodings["population"], zero, sd[0])
    mean, width = population(zero), (population.scale * sd[0]).expand_as(zero)

    def group(parent):
        transform = family.flows["group"](encodings["group"], parent, sd[1])
        return transform(parent), transform.scale * sd[1]

    centre, scale = group(mean)
    slope = group(mean + 1)[0] - centre
    return {"population": (mean, width), "group": (centre, (scale**2 + (slope * width) ** 2).sqrt())}


def compare(q, p) -> dict[str, float]:
    """Distance of means in posterior sd's, rms and largest over all latents; ratio of sd's, mean of each site."""
    off = torch.cat([((q[name][0] - p[name][0]) / p[name][1]).flatten() for name in p])
    ratio = {name: float((q[name][1] / p[name][1]).mean()) for name in p}
    return dict(rms=float(off.square().mean().sqrt()), most=float(off.abs().max()), **ratio)


def unseen(template, trained: Observed, new: Observed) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact posterior of new groups, the population being what the training groups say and no more."""
    mean, sd = template.posterior(trained)["population"]
    average, spread = template._averages(new)
    share = template.sd_group**-2 / (template.sd_group**-2 + 1 / spread)
    variance = 1 / (template.sd_group**-2 + 1 / spread) + (share * sd) ** 2
    return share * mean + (1 - share) * average, variance.sqrt()


def trained_effects(scheme: str, groups: int, how: Plan, shake: float, sds=(1.0, 1.0, 1.0), samples: int = 50):
    template = GaussianRandomEffects(8, *sds)
    observed = template.simulate(groups, samples, generator(0))
    batch = full(template, observed)
    family = family_of(template, batch, scheme, shake=shake)
    fit(family, Whole(template, batch), how)
    settle_population(family, Whole(template, batch), 10)
    bound = elbo(family, batch, noise(1), draws=50)
    gap = float(template.log_evidence(observed)) - bound.mean
    return template, observed, family, gap, bound.standard_error


def check_unseen(template, observed, family, rms: float) -> None:
    new = template.simulate(20, 50, generator(7))
    q, p = moments(family, full(template, new))["group"], unseen(template, observed, new)
    off = (q[0] - p[0]) / p[1]
    assert float(off.square().mean().sqrt()) < rms
    assert float((q[1] / p[1]).mean()) == pytest.approx(1, abs=rms)


@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
def test_a_short_training_finds_the_posterior_of_random_effects(scheme):
    # The start is shaken: 30 nats and more from the truth (the encoders' own start is nearly exact in this model).
    template, observed, family, gap, error = trained_effects(scheme, 20, plan(450), shake=0.15)
    assert -4 * error < gap < 0.5
    got = compare(moments(family, full(template, observed)), template.posterior(observed))
    assert got["rms"] < 0.1
    assert got["most"] < 0.3
    assert got["group"] == pytest.approx(1, abs=0.05)
    assert got["population"] == pytest.approx(1, abs=0.15)
    check_unseen(template, observed, family, 0.1)


def test_the_shaken_start_is_far_from_the_posterior():
    *_, gap, _ = trained_effects("hybrid", 20, plan(1, rate=1e-9), shake=0.15)
    assert gap > 30


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
def test_the_posterior_of_random_effects_at_the_papers_size(scheme):
    how = plan(4000, rate=0.02)
    template, observed, family, gap, error = trained_effects(scheme, 100, how, shake=0.0)
    assert -4 * error < gap < 0.5
    got = compare(moments(family, full(template, observed)), template.posterior(observed))
    assert got["rms"] < 0.05
    assert got["most"] < 0.15
    assert got["group"] == pytest.approx(1, abs=0.02)
    assert got["population"] == pytest.approx(1, abs=0.02)
    check_unseen(template, observed, family, 0.1)


# Recovery


def test_scales_and_labels_are_recovered_and_new_subjects_need_no_training():
    planted = {"log_kappa": 0.3, "log_epsilon": -1.0, "log_sigma": -1.6}
    drawn = draw_cohort((60, 2, 60), networks=3, features=8, planted=planted)
    template, train = drawn.template, full(drawn.template, drawn.observed.select(0, torch.arange(48)))
    family = family_of(template, train, "hybrid")
    source = Whole(template, train)
    warm_start(family, source, 16)
    fit(family, source, plan(120, batch=8))
    found = family.centre(train.seen)
    # Two sources of error: 48 subjects x 8 features leave a scale within 1 / sqrt(2 x 384 x 3 networks), 2 %; and q.
    assert float((found["log_epsilon"].mean() + 1.0).abs()) < 0.08
    assert float((found["log_kappa"] - 0.3).abs()) < 0.1  # sessions' own sd of .3 over 96 sessions: .03
    assert float((found["log_sigma"].mean() + 1.6).abs()) < 0.15

    new = full(template, drawn.observed.select(0, torch.arange(48, 60)))
    with torch.no_grad():
        values = family.draw(new, noise(0), path=False, draws=(16,)).values
    probability = template.log_joint(values, new.seen).softmax(-1).mean(0)[:, 0]
    truth = {name: value[48:] if value.shape[0] > 1 else value for name, value in drawn.values.items()}
    oracle = template.log_joint(truth, new.seen).softmax(-1)[:, 0]
    labels = drawn.labels[48:]

    def scores(p):
        own = p.gather(-1, labels[..., None])
        return float((p.argmax(-1) == labels).double().mean()), float(-own.clamp_min(1e-12).log().mean())

    print(
        "FIG",
        {n: found[n].flatten().tolist() for n in ("log_kappa", "log_epsilon", "log_sigma", "slope")},
        scores(probability),
        scores(oracle),
        float(drawn.values["slope"]),
    )
    (accuracy, nll), (best, least) = scores(probability), scores(oracle)
    assert 0.6 < best < 0.99  # neither hopeless nor trivial
    assert accuracy > best - 0.02
    assert nll < least + 0.05
