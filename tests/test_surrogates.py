import numpy as np
import pytest

from parcellation.errors import BadData
from parcellation.surfaces import Mesh, Vertices
from parcellation.surrogates import (
    Population,
    Source,
    coloured_noise,
    correlation,
    expected_correlation,
    fisher_z,
    network_weights,
    noise_spectrum,
    ordered_clusters,
    region_clusters,
    surrogate,
    synthetic_source,
)

MESH = Mesh("fsaverage", (642, 642))


@pytest.fixture
def generator():
    return np.random.default_rng(0)


def vertices(count):
    return Vertices(MESH, np.zeros(count, np.uint8), np.arange(count, dtype=np.int32))


def two_network_source(generator, frames=200, region=40, targets=60):
    """The first half of the region follows one latent series, the second half another; each target follows both."""
    latent = generator.normal(size=(frames, 2))
    own = latent[:, np.repeat([0, 1], region // 2)] + 0.5 * generator.normal(size=(frames, region))
    other = latent @ generator.normal(size=(2, targets)) + 0.5 * generator.normal(size=(frames, targets))
    series = np.concatenate([own, other], 1).astype(np.float32)
    return Source(series, vertices(region + targets), np.arange(region), region + np.arange(targets), 2.0, "made up")


@pytest.mark.parametrize("frames", [128, 129])
def test_surrogate_keeps_spectra_and_lagged_covariances(generator, frames):
    series = np.cumsum(generator.normal(size=(frames, 5)), axis=0) @ generator.normal(size=(5, 5)) + 7
    made = surrogate(series, frames, generator)
    assert made.dtype == np.float32
    spectra = [np.abs(np.fft.rfft(one, axis=0)) for one in (series, made)]
    np.testing.assert_allclose(spectra[1], spectra[0], rtol=1e-3, atol=1e-4 * spectra[0].max())
    for lag in (0, 1, 7):
        expected, got = (np.cov(one.T, np.roll(one, lag, 0).T) for one in (series, made))
        np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())
    assert abs(np.corrcoef(series[:, 0], made[:, 0])[0, 1]) < 0.95


def test_surrogates_of_other_lengths(generator):
    series = generator.normal(size=(64, 3))
    assert surrogate(series, 20, generator).shape == (20, 3)
    longer = surrogate(series, 150, generator)
    assert longer.shape == (150, 3)
    assert np.abs(longer[:64] - longer[64:128]).max() > 0.5  # drawn anew, not repeated


@pytest.mark.parametrize("frames", [300, 301])
def test_coloured_noise_has_the_spectrum_and_variance_1(generator, frames):
    spectrum = np.linspace(3, 1, 90)
    noise = coloured_noise(spectrum, frames, 400, generator)
    # 400 x 300 values, correlated over few frames: the variance is known within about a percent.
    assert noise.var() == pytest.approx(1, abs=0.02)
    power = (np.abs(np.fft.rfft(noise, axis=0)) ** 2).mean(1)
    expected = np.interp(np.linspace(0, 1, len(power)), np.linspace(0, 1, 90), spectrum) ** 2
    ratio = power[1:-1] / expected[1:-1]
    assert ratio.std() / ratio.mean() < 3 / np.sqrt(400)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.4


def test_noise_spectrum_finds_the_colour_of_what_targets_do_not_explain(generator):
    white = generator.normal(size=(401, 60))
    slow = white[1:] + white[:-1]  # power falls off as cos^2(pi f)
    series = np.concatenate([slow, generator.normal(size=(400, 10))], 1).astype(np.float32)
    source = Source(series, vertices(70), np.arange(60), np.arange(60, 70), 1.0, "made up")
    power = noise_spectrum(source) ** 2
    expected = np.cos(np.pi * np.fft.rfftfreq(400)) ** 2
    assert np.corrcoef(power[1:], expected[1:])[0, 1] > 0.97


def test_noise_spectrum_of_a_region_explained_by_its_targets_is_flat(generator):
    targets = generator.normal(size=(100, 3))
    series = np.concatenate([targets @ generator.normal(size=(3, 5)), targets], 1).astype(np.float32)
    source = Source(series, vertices(8), np.arange(5), np.arange(5, 8), 1.0, "made up")
    assert (noise_spectrum(source) == 1).all()


def test_clusters_of_the_region_and_weights_that_reproduce_them(generator):
    source = two_network_source(generator)
    clusters = ordered_clusters(region_clusters(source, 2), -np.arange(40.0))
    np.testing.assert_array_equal(clusters, np.repeat([0, 1], 20))
    weights = network_weights(source, clusters)
    targets = source.series[:, source.targets] - source.series[:, source.targets].mean(0)
    means = np.stack([source.series[:, :40][:, clusters == one].mean(1) for one in (0, 1)], 1)
    made = correlation(targets @ weights.T, means)
    assert np.diag(made).min() > 0.95
    # ... and so have the clusters' own connectivity
    expected, got = correlation(means, targets), expected_correlation(weights, source.covariance())
    assert np.corrcoef(expected.ravel(), got.ravel())[0, 1] > 0.99


def test_expected_correlation_is_exact_in_a_surrogate(generator):
    source = two_network_source(generator)
    weights = generator.normal(size=(3, 60))
    made = surrogate(source.series, len(source.series), generator)[:, source.targets]
    np.testing.assert_allclose(
        expected_correlation(weights, source.covariance()), correlation(made @ weights.T, made), atol=1e-4
    )
    others = generator.normal(size=(2, 60))
    clean = correlation(made @ weights.T, made @ others.T)
    np.testing.assert_allclose(expected_correlation(weights, source.covariance(), others), clean, atol=1e-4)
    variance = (made @ others.T).var(0)
    noisy = expected_correlation(weights, source.covariance(), others, 3.0)
    np.testing.assert_allclose(noisy, clean * np.sqrt(variance / (variance + 3)), atol=1e-4)


def test_fisher_z_of_a_perfect_correlation_is_finite():
    assert fisher_z(np.array([0.5, 1.0]))[0] == pytest.approx(0.5493061)
    assert np.isfinite(fisher_z(np.array([1.0, -1.0]))).all()


def test_synthetic_source_falls_off_with_distance(generator):
    coordinates = generator.uniform(0, 100, (120, 3))
    source = synthetic_source(vertices(120), coordinates, np.arange(30), np.arange(30, 120), frames=400, seed=3)
    assert "no real run" in source.origin
    distance = np.linalg.norm(coordinates[:, None] - coordinates, axis=-1)
    related = np.corrcoef(source.series.T)
    assert related[(distance > 0) & (distance < 10)].mean() > 0.5
    assert abs(related[distance > 60].mean()) < 0.2
    again = synthetic_source(vertices(120), coordinates, np.arange(30), np.arange(30, 120), frames=400, seed=3)
    np.testing.assert_array_equal(again.series, source.series)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:, :-1], "for 8 vertices, got 7"),
        (lambda x: np.where(x == x.max(), np.nan, x), "finite"),
        (lambda x: np.where(np.arange(8) == 1, 0, x), "constant series in its region"),
        (lambda x: np.where(np.arange(8) == 6, 0, x), "constant series in its targets"),
    ],
)
def test_a_bad_source_is_refused(generator, change, message):
    series = change(generator.normal(size=(50, 8)))
    with pytest.raises(BadData, match=message):
        Source(series, vertices(8), np.arange(4), np.arange(4, 8), 1.0, "made up")


def test_a_population_must_fit_its_source(generator):
    source = two_network_source(generator)
    with pytest.raises(BadData, match=r"\(2, 60\)"):
        Population(source, np.ones((2, 59)), np.zeros((40, 2)))
    with pytest.raises(BadData, match="40 vertices"):
        Population(source, np.ones((2, 60)), np.zeros((39, 2)))


def test_a_mixture_by_the_unit_has_variance_1(generator):
    population = Population(two_network_source(generator), np.ones((2, 60)), np.zeros((40, 2)))
    series = population.source.series[:, population.source.targets]
    noise = population.unit * generator.normal(size=(2000, 60))
    assert (series @ noise.T).var(0).mean() == pytest.approx(1, abs=0.1)
    assert (series @ population.weights.T).std(0) == pytest.approx(population.size, rel=1e-4)
