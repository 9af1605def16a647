"""A population read off another cohort: the exact posterior where it is known, and nothing of the rows it replaces."""

import math
from dataclasses import replace

import pytest
import torch

from parcellation.errors import UsageError
from parcellation.family import Family
from parcellation.model_file import LabelPower, TrainedModel
from parcellation.network_pooling import NetworkPooling
from parcellation.population import identity, nearest, permuted, reinfer, with_population
from parcellation.refitted_map import refit_map
from parcellation.training import Whole
from tests.conftest import Drawn, draw_cohort, generator, noise

CLEAR = {"log_kappa": -2.0, "log_epsilon": -1.0, "log_sigma": -2.0}


def model_of(drawn: Drawn, scheme: str = "hybrid") -> TrainedModel:
    """A model whose flows and rows are anything but an answer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        family = Family(drawn.template, drawn.batch.cards, scheme).double()
    g = generator(1)
    with torch.no_grad():
        for parameter in family.parameters():
            parameter.copy_(parameter + 0.2 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    if scheme == "encoded":
        names = [site.name for site in drawn.template.population_sites()]
        family.fixed = family.encoder.population_of([drawn.batch], drawn.batch.cards, names)
    return TrainedModel(family, {}, {}, {}, "digest")


def source(drawn: Drawn) -> Whole:
    return Whole(drawn.template, drawn.batch)


def drawn_population(model: TrainedModel, count: int = 1):
    return model.family.draw_population(model.blank(), noise(5), count)


@pytest.fixture(scope="module")
def clear() -> Drawn:
    """Twenty-four subjects whose labels are nearly certain, given the data."""
    return draw_cohort((24, 2, 60), networks=3, features=8, planted=CLEAR)


def test_fewer_than_twenty_subjects_are_refused():
    drawn = draw_cohort((19, 1, 4))
    with pytest.raises(UsageError, match=r"at least 20 subjects.*got 19"):
        reinfer(model_of(drawn), source(drawn), "x")


def test_rows_and_flows_of_free_sites_have_no_say(clear):
    """What the flow has learned was learned with the rows: the new population is that of the data and the prior."""
    found = reinfer(model_of(clear), source(clear), "x")
    encoder = NetworkPooling(clear.template, clear.template.sites)
    read = {name: encoding.map(torch.clone) for name, encoding in found.family.fixed.items()}
    expected = encoder.centre(read, clear.observed)
    centre = found.family.centre(found.blank())
    for name, value in centre.items():
        assert torch.allclose(value, expected[name], atol=1e-10), name
    mean, sd = clear.template.site("mu").prior({}, clear.observed)
    precision = read["mu"].log_precision.exp() + 1 / sd**2
    draws = drawn_population(found, 4000)["mu"]
    # 96 numbers are compared; the error of an sd from n draws is 1 / sqrt(2 n).
    assert torch.allclose(draws.std(0) * precision.sqrt()[0], torch.ones_like(mean), atol=5 / (2 * 4000) ** 0.5)


def test_encoded_sites_keep_their_flows(clear):
    model = model_of(clear, "encoded")
    found = reinfer(model, source(clear), "x")
    for name in found.family.fixed:
        for one, two in zip(model.family.flows[name].parameters(), found.family.flows[name].parameters(), strict=True):
            assert torch.equal(one, two), name


@pytest.mark.parametrize("scheme", ["hybrid", "encoded"])
def test_the_model_itself_is_left_as_it_is(clear, scheme):
    model = model_of(clear, scheme)
    before, state = drawn_population(model), {k: v.clone() for k, v in model.family.state_dict().items()}
    another = draw_cohort((24, 2, 60), networks=3, features=8, planted=CLEAR, seed=1)
    found = reinfer(model, Whole(clear.template, another.batch), "x")
    assert (found.digest, model.digest) == ("x", "digest")
    assert all(torch.equal(state[name], value) for name, value in model.family.state_dict().items())
    assert all(torch.equal(before[name], value) for name, value in drawn_population(model).items())
    assert not torch.allclose(drawn_population(found)["mu"], before["mu"], atol=0.1)


def test_the_posterior_of_mu_is_the_exact_one_where_labels_and_scales_are_known(clear):
    """Given labels, scales and noise, subjects' averages are Normal about mu: a conjugate posterior."""
    found = reinfer(model_of(clear), source(clear), "x")
    values, observed = clear.values, clear.observed
    count = torch.nn.functional.one_hot(clear.labels, 3).sum(1)[:, None].double()  # (S, 1, K)
    variance = values["log_kappa_session"].exp() ** 2 / count + (2 * values["log_sigma"][0, 0]).exp()
    precision = (1 / variance).sum(1)  # (S, K) of a subject's average; sessions have all vertices
    weight = 1 / ((2 * values["log_epsilon"][0, 0]).exp() + 1 / precision)
    member = torch.nn.functional.one_hot(clear.labels, 3).double()[:, None]
    average = member.mT @ observed.x / count[..., None]  # (S, T, K, D)
    average = (average / variance[..., None]).sum(1) / precision[..., None]
    prior_mean, prior_sd = (one[0, 0, 0] for one in clear.template.site("mu").prior({}, observed))
    total = weight.sum(0)[:, None] + 1 / prior_sd**2
    mean = ((weight[..., None] * average).sum(0) + prior_mean / prior_sd**2) / total
    draws = drawn_population(found, 2000)["mu"][:, 0, 0, 0]
    # Scales are estimated from 24 subjects x 8 features: their sd is off by about 1 / sqrt(2 x 192) = .05.
    assert torch.allclose(draws.std(0) * total.sqrt(), torch.ones_like(mean), atol=0.2)
    assert ((draws.mean(0) - mean) * total.sqrt()).square().mean().sqrt() < 0.15


def test_the_map_s_width_is_the_observed_information(clear):
    """Of the likelihood with the labels summed out, given the evidence, by automatic differentiation."""
    drawn = draw_cohort((40, 1, 6), networks=3, features=8, planted={"log_kappa": 0.3})
    encoder = NetworkPooling(drawn.template, drawn.template.sites)
    centre = {site.name: drawn.values[site.name] for site in drawn.template.population_sites()}
    for _ in range(60):  # to the mode, everything else as planted
        summaries = encoder.summarise(drawn.observed, centre)
        sums = encoder.statistics(summaries, drawn.observed)
        found = encoder.population(sums, 40)["logits_group"]
        shrunk = 1 / (1 + 1 / (found.log_precision.exp() * drawn.template.map_sd**2))
        centre = centre | {"logits_group": shrunk * found.estimate}
    log_map = drawn.template.log_map(centre)[:, 0]  # (1, V, K)
    evidence = summaries.assignment[:, 0].log() - log_map  # what the data say, up to a constant
    basis = drawn.template.basis

    def likelihood(logits):
        return ((logits @ basis).log_softmax(-1) + evidence).logsumexp(-1).sum()

    hessian = torch.autograd.functional.hessian(likelihood, centre["logits_group"][0, 0]).reshape(12, 12)
    information = -hessian.diagonal().reshape(6, 2)
    got = found.log_precision.exp()[0, 0]
    clear_enough = information > 0.5  # where next to nothing is known, a share of the certain information is assumed
    assert clear_enough.sum() >= 6
    assert torch.allclose(got[clear_enough], information[clear_enough], rtol=0.02)


def test_the_population_is_known_better_the_more_subjects_there_are():
    drawn = draw_cohort((80, 2, 20), networks=2, features=6, planted=CLEAR)
    sd = []
    for subjects in (20, 80):
        part = Drawn(drawn.template, drawn.observed.select(0, torch.arange(subjects)), drawn.values, drawn.labels)
        found = reinfer(with_population(model_of(drawn), _population(part), "near"), source(part), "x")
        sd.append(drawn_population(found, 1000)["mu"].std(0).mean())
    # As the root of their number, but for the prior, and for scales that are estimated anew (some 6 %).
    assert math.isclose(sd[0] / sd[1], 2, rel_tol=0.2)


def test_another_map_is_found_from_the_trained_one():
    """The trained map has the networks the other way round at every vertex."""
    drawn = draw_cohort((24, 2, 40), networks=2, features=6, planted=CLEAR)
    trained = _population(drawn)
    turned = trained | {"logits_group": replace(trained["logits_group"], estimate=-trained["logits_group"].estimate)}
    model = with_population(model_of(drawn), turned, "model")
    found = reinfer(model, source(drawn), "x")
    labels = [
        drawn.template.log_map(one.family.centre(one.blank()))[0, 0].argmax(-1)
        for one in (model, found, with_population(model, trained, "right"))
    ]
    assert (labels[1] == labels[2]).all()
    assert (labels[1] == labels[0]).double().mean() < 0.1  # equal counts are a tie


def _population(drawn: Drawn):
    encoder = NetworkPooling(drawn.template, drawn.template.sites)
    return encoder.population_of([drawn.batch], drawn.batch.cards, list(encoder.start(drawn.observed)))


def test_the_map_is_that_of_the_models_label_power():
    """Evidence that is believed less leaves labels less certain, and the map less known."""
    drawn = draw_cohort((24, 2, 12), networks=2, features=6, planted=CLEAR | {"log_kappa": 0.0})
    plain = model_of(drawn)
    tempered = replace(plain, label_power=LabelPower(0.2, 0.0, True))
    one, other = (reinfer(model, source(drawn), "x") for model in (plain, tempered))
    known = [found.family.fixed["logits_group"].log_precision for found in (one, other)]
    assert (known[1] < known[0]).double().mean() > 0.8
    assert torch.equal(one.family.fixed["mu"].estimate, other.family.fixed["mu"].estimate)
    before = other.family.centre(other.blank())["logits_group"]
    refit_map(other, source(drawn))
    assert torch.allclose(other.family.centre(other.blank())["logits_group"], before, atol=0.2)  # settled


def test_networks_keep_their_places_where_the_map_is_turned():
    """Noise hides the label of a vertex, so that a wrong map tells more of it at first than the right profiles."""
    drawn = draw_cohort((24, 2, 60), networks=2, features=6, planted=CLEAR | {"log_kappa": 1.2})
    trained = _population(drawn)
    turned = trained | {"logits_group": replace(trained["logits_group"], estimate=-trained["logits_group"].estimate)}
    model = with_population(model_of(drawn), turned, "model")
    encoder, start = NetworkPooling(drawn.template, drawn.template.sites), model.family.centre(model.blank())
    swapped = encoder.centre(
        encoder.population_of([drawn.batch], drawn.batch.cards, list(trained), start), drawn.observed
    )
    assert nearest(start["mu"], swapped["mu"]) == [1, 0]  # what would have happened
    found = reinfer(model, source(drawn), "x").family
    centre, right = found.centre(model.blank()), encoder.centre(trained, drawn.observed)
    assert nearest(start["mu"], centre["mu"]) == [0, 1]
    assert torch.allclose(centre["mu"], right["mu"], atol=0.1)
    agree = (centre["logits_group"] > 0) == (right["logits_group"] > 0)
    assert agree.double().mean() > 0.9


def test_another_order_of_the_networks_changes_no_label_but_its_number():
    drawn = draw_cohort((4, 2, 10))
    encoder, order = NetworkPooling(drawn.template, drawn.template.sites), [2, 0, 1]
    centre = {site.name: drawn.values[site.name] for site in drawn.template.population_sites()}
    one = encoder.summarise(drawn.observed, centre)
    other = encoder.summarise(drawn.observed, permuted(centre, order, drawn.template.basis))
    assert torch.allclose(other.assignment, one.assignment[..., order], atol=1e-10)
    assert nearest(centre["mu"], permuted(centre, order, drawn.template.basis)["mu"]) == [1, 2, 0]


def test_networks_unlike_any_trained_one_are_named(caplog):
    drawn = draw_cohort((20, 1, 30), networks=3, features=6, planted=CLEAR)
    model = with_population(model_of(drawn), _population(drawn), "model")
    reinfer(model, source(drawn), "x")
    assert not caplog.records
    other = draw_cohort((20, 1, 30), networks=3, features=6, planted=CLEAR, seed=1)
    reinfer(model, Whole(drawn.template, other.batch), "x")
    assert "unlike any network of the model" in caplog.text


def test_the_answer_is_known_by_model_and_content():
    model = model_of(draw_cohort((2, 1, 4)))
    units = [("a", "1", "x"), ("b", "1", "y")]
    names = {identity(model, units), identity(model, units[:1]), identity(model, [("a", "1", "z"), units[1]])}
    assert len(names | {model.digest}) == 4
    assert identity(model, units) == identity(model, [list(unit) for unit in units])


def test_chunks_are_the_whole(clear):
    """A cohort is streamed: its population is that of all of it at once."""
    found = reinfer(model_of(clear), source(clear), "x").family.fixed
    encoder = NetworkPooling(clear.template, clear.template.sites)
    start = model_of(clear).family.centre(clear.observed)
    at_once = encoder.population_of([clear.batch], clear.batch.cards, list(found), start)
    for name, encoding in at_once.items():
        assert torch.allclose(found[name].estimate, encoding.estimate, atol=1e-8), name
