import numpy as np
import pytest
from scipy.special import softmax

from parcellation.scores import (
    calibration,
    held_out_cosine,
    match_networks,
    oracle_posterior,
    predictive_gain,
    retest,
    scaled_profiles,
    session_profiles,
    subject_gains,
    unit,
)


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def subject(generator, sessions=2, vertices=600, networks=3, features=20, noise=2.0):
    """One subject of the model: features, profiles, prior and labels."""
    prior = softmax(generator.normal(size=(vertices, networks)), -1)
    labels = np.array([generator.choice(networks, p=one) for one in prior])
    profiles = generator.normal(size=(sessions, networks, features))
    x = profiles[:, labels] + noise * generator.normal(size=(sessions, vertices, features))
    return x, np.ones((sessions, vertices), bool), profiles, prior, labels


def exact(x, mask, profiles, prior, noise):
    squares = ((x[:, :, None] - profiles[:, None]) ** 2).sum(-1) * mask[..., None]
    return softmax(np.log(prior) - 0.5 * squares.sum(0) / noise**2, -1)


def test_match_networks_undoes_a_permutation(generator):
    labels = generator.integers(0, 4, (3, 50))
    posterior = softmax(3 * np.eye(4)[labels] + generator.normal(size=(3, 50, 4)), -1)
    shuffled = posterior[..., [2, 0, 3, 1]]
    np.testing.assert_array_equal(match_networks(shuffled, labels), posterior)


def test_calibration_of_a_known_case():
    posterior = np.array([[[0.85, 0.15], [0.85, 0.15], [0.35, 0.65], [0.65, 0.35]]])
    result = calibration(posterior, np.array([[0, 1, 1, 0]]))
    assert result["accuracy"] == 0.75
    assert result["confidence"] == pytest.approx(0.75)
    assert result["ece"] == pytest.approx(0.5 * 0.35 + 0.5 * 0.35)
    assert result["nll"] == pytest.approx(-np.log([0.85, 0.15, 0.65, 0.65]).mean())


def test_calibration_tells_exact_from_overconfident_posteriors(generator):
    posterior = softmax(generator.normal(size=(1, 40000, 2)), -1)
    labels = (generator.random((1, 40000)) > posterior[..., 0]).astype(int)
    sharp = posterior**3 / (posterior**3).sum(-1, keepdims=True)
    assert calibration(posterior, labels)["ece"] < 3 * 10 / np.sqrt(40000) / 10
    assert calibration(sharp, labels)["ece"] > 0.1
    assert calibration(sharp, labels)["nll"] > calibration(posterior, labels)["nll"]


def test_held_out_cosine_is_1_for_the_truth_and_takes_both_kinds_of_profiles(generator):
    profiles = generator.normal(size=(2, 3, 10))
    labels = generator.integers(0, 3, (2, 30))
    other = unit(np.stack([profiles[s][labels[s]] for s in range(2)]))
    posterior = np.eye(3)[labels]
    assert held_out_cosine(posterior, profiles, other) == pytest.approx(1)
    assert held_out_cosine(posterior, profiles.mean(0), other) < 0.95
    assert (unit(np.zeros((2, 3))) == 0).all()


def test_predictive_gain_is_0_for_the_group_and_largest_for_the_right_posterior(generator):
    group = softmax(generator.normal(size=(300, 2)), -1)
    labels = (generator.random((40, 300)) > group[:, 0]).astype(int)
    llr = [2 * (2 * labels - 1) + 2 * generator.normal(size=labels.shape) for _ in range(2)]

    def posterior(power, half):
        evidence = np.stack([np.zeros_like(llr[half]), power * llr[half]], -1)
        return softmax(np.log(group) + evidence, -1)

    # llr has mean +-2 and variance 4: the exact log likelihood ratio, so power 1 is right
    gains = [predictive_gain(posterior(power, 0), posterior(power, 1), group) for power in (0, 0.4, 1, 4)]
    assert gains[0] == pytest.approx(0, abs=1e-12)
    assert gains[2] == max(gains)
    assert gains[2] > 0.1


def test_retest_compares_halves_and_subjects(generator):
    first = softmax(3 * generator.normal(size=(4, 200, 2)), -1)
    result = retest(first, first)
    assert result["accuracy"] == 1
    assert result["between_subjects"] == pytest.approx(0.5, abs=0.1)


def test_session_profiles_are_means_by_label(generator):
    x, mask, _, _, labels = subject(generator, vertices=40)
    mask[1] = labels != 2  # network 2 unseen in session 2
    found = session_profiles(x, mask, labels, 4)
    np.testing.assert_allclose(found[0, 1], x[0, labels == 1].mean(0))
    np.testing.assert_allclose(found[1, 2], x[0, labels == 2].mean(0))
    assert np.isnan(found[:, 3]).all()


def test_scaled_profiles_find_factor_and_offset(generator):
    x, mask, profiles, _, labels = subject(generator, noise=0.1)
    shift = generator.normal(size=(2, 1, 20))
    factor = np.array([0.3, 0.6])[:, None, None]
    found = scaled_profiles(factor * x + shift, mask, profiles, labels)
    np.testing.assert_allclose(found, factor * profiles + shift, atol=0.02)


@pytest.mark.parametrize("networks", [2, 3, 5])
def test_oracle_is_the_exact_posterior_for_independent_noise(generator, networks):
    x, mask, profiles, prior, labels = subject(generator, networks=networks, vertices=2000)
    mask[1, :900] = False
    found = oracle_posterior(x, mask, profiles, prior, labels)
    expected = exact(x, mask, profiles, prior, 2.0)
    # Variances measured at about 1800 vertices are off by sqrt(2/1800) = 3 %, and so are log odds of up to about 10: by
    # .3, which moves a probability of one half by .07.
    assert np.abs(found - expected).mean() < 0.01
    assert np.quantile(np.abs(found - expected), 0.99) < 0.1


def test_oracle_with_measured_profiles_is_nearly_as_good_and_not_better(generator):
    x, mask, profiles, prior, labels = subject(generator, vertices=2000, noise=3.0)
    true = calibration(oracle_posterior(x, mask, profiles, prior, labels), labels)
    measured = calibration(oracle_posterior(x, mask, None, prior, labels), labels)
    assert true["nll"] - 0.01 < measured["nll"] < true["nll"] + 0.03
    assert measured["ece"] < 0.03


def test_oracle_is_not_drawn_to_the_true_label_when_data_say_nothing(generator):
    x, mask, _, _, labels = subject(generator, vertices=100, noise=1.0)
    x = generator.normal(size=x.shape)
    prior = np.full((100, 3), 1 / 3)
    accuracy = calibration(oracle_posterior(x, mask, None, prior, labels), labels)["accuracy"]
    assert accuracy < 1 / 3 + 4 * np.sqrt(2 / 9 / 100)


def test_oracle_counts_a_repeated_session_once(generator):
    x, mask, profiles, prior, labels = subject(generator, sessions=1)
    once = oracle_posterior(x, mask, profiles, prior, labels)
    twice = np.concatenate([x, x + 1e-4 * generator.normal(size=x.shape)])
    both = oracle_posterior(twice, np.repeat(mask, 2, 0), np.repeat(profiles, 2, 0), prior, labels)
    assert np.abs(both - once).mean() < 0.01
    assert np.abs(exact(twice, np.repeat(mask, 2, 0), np.repeat(profiles, 2, 0), prior, 2.0) - once).mean() > 0.03


def test_oracle_without_data_answers_with_the_prior(generator):
    x, mask, profiles, prior, labels = subject(generator)
    full = oracle_posterior(x, mask, profiles, prior, labels)
    mask[:, 7] = False
    x[:, 7] = 0
    np.testing.assert_allclose(oracle_posterior(x, mask, profiles, prior, labels)[7], prior[7])
    more = oracle_posterior(
        np.concatenate([x, x[:1] * 0]), np.concatenate([mask, mask[:1] & False]), None, prior, labels
    )
    np.testing.assert_allclose(more, oracle_posterior(x, mask, None, prior, labels), atol=1e-5)
    assert full.shape == prior.shape


def test_oracle_never_answers_with_a_network_that_has_no_vertex(generator):
    x, mask, _, _, labels = subject(generator, networks=2)
    prior = np.full((len(labels), 3), 1 / 3)
    found = oracle_posterior(x, mask, None, prior, labels)
    assert (found[:, 2] == 0).all()
    assert calibration(found, labels)["accuracy"] > 0.8


def test_gains_of_subjects_are_what_the_predictive_gain_is_the_mean_of():
    g = np.random.default_rng(5)
    first, second = g.dirichlet(np.ones(3), (2, 4, 6))
    group = g.dirichlet(np.ones(3), 6)
    pairs = [(first[i] * second[j] / group).sum(-1).mean() for i in range(4) for j in range(4) if i != j]
    expected = np.log((first * second / group).sum(-1)).mean(-1) - np.log(np.mean(pairs))
    np.testing.assert_allclose(subject_gains(first, second, group), expected, rtol=1e-12)
    assert predictive_gain(first, second, group) == pytest.approx(expected.mean())
