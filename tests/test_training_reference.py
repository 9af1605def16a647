"""Training subjects are scored as new ones are: false alarms come at the stated rate, shifts are found."""

import hashlib

import numpy as np
import pytest
import torch

from parcellation import training_reference as module
from parcellation.cohort_source import CohortSource
from parcellation.family import Family
from parcellation.model_file import TrainedModel, load_model, save_model
from parcellation.novelty import Reference, cohort_shift, flag_level, summary
from parcellation.plates import Observed
from parcellation.posterior import Posterior, pooling
from parcellation.templates.functional_parcellation import FunctionalParcellation
from parcellation.training import anchor, settle_population, warm_start
from parcellation.training_reference import held_out_centres, training_reference
from pipelines.benchmarks import synthetic
from pipelines.benchmarks.make_synth import make
from tests.conftest import MemoryCohort

NEW = 40  # subjects of the same population as the training ones
V, D = 120, 12


def people(subjects: int, seed: int, noise: float = 2.0, between: float = 0.4) -> Observed:
    """Subjects of two networks, two sessions each, whose noise differs by a tenth between sessions."""
    g = np.random.default_rng(seed)
    mu = g.normal(size=(2, D)) + between * g.normal(size=(subjects, 1, 2, D)) + 0.2 * g.normal(size=(subjects, 2, 2, D))
    labels = g.random((subjects, V)) < 1 / (1 + np.exp(-np.linspace(-4, 4, V)))
    level = noise * np.exp(0.1 * g.normal(size=(subjects, 2, 1, 1)))
    x = np.where(labels[:, None, :, None], mu[:, :, None, 1], mu[:, :, None, 0]) + level * g.normal(
        size=(subjects, 2, V, D)
    )
    frames = {"frames": torch.full((subjects, 2, 1), 400.0)}
    return Observed(torch.from_numpy(x.astype(np.float32)), torch.ones(subjects, 2, V, dtype=torch.bool), frames)


class Same:
    """Features are the fingerprints."""

    def back(self, x):
        return x


class Prepared(MemoryCohort):
    """A cohort in memory whose features are its fingerprints."""

    most_sessions = 2
    feature_map = Same()

    def fingerprints(self, subject):
        position = self.subjects.index(subject)
        yield from zip(self.x[position], self.mask[position], strict=True)

    def checksums(self, subject):
        return [hashlib.sha256(x).hexdigest() for x, _ in self.fingerprints(subject)]


def part(observed: Observed, members: range) -> Observed:
    return observed.select(0, torch.tensor(list(members)))


def trained(observed: Observed, scheme: str = "hybrid") -> tuple[TrainedModel, Prepared, CohortSource]:
    """A model that coordinate ascent has brought near its answer, and its training subjects."""
    cohort = Prepared(observed)
    source = CohortSource(None, cohort, torch.device("cpu"))
    reference = anchor(source, FunctionalParcellation.plates, 2, 0, 8)
    template = FunctionalParcellation(reference.float(), 400.0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        family = Family(template, source.cards, scheme)
    settle_population(family, source, 8, warm_start(family, source, 8))
    return TrainedModel(family, {}, {}, {}, "digest"), cohort, source


def sessions_of(observed: Observed, s: int) -> list:
    return list(zip(observed.x[s].numpy(), observed.mask[s].numpy(), strict=True))


def scored(reference: Reference, observed: Observed, change=lambda x: x) -> tuple[np.ndarray, np.ndarray]:
    """Scores (subject, session, 2) and summaries of subjects whose fingerprints were changed."""
    changed = [[(change(x), mask) for x, mask in sessions_of(observed, s)] for s in range(len(observed.x))]
    scores = np.array([[reference.population.score(*one) for one in subject] for subject in changed])
    return scores, np.stack([summary(subject) for subject in changed])


@pytest.fixture(scope="module")
def everybody() -> Observed:
    return people(60 + NEW, 1)


@pytest.fixture(scope="module")
def model(everybody):
    return trained(part(everybody, range(60)))


@pytest.fixture(scope="module")
def reference(model) -> Reference:
    return training_reference(*model)


@pytest.fixture(scope="module")
def new(everybody) -> Observed:
    return part(everybody, range(60, 60 + NEW))


def test_a_population_without_subjects_is_the_one_refitted_without_them():
    model, _, source = trained(people(10, 2, noise=1.0, between=1.0))
    encoder = pooling(model.family)
    centre, blank = model.family.centre(model.blank()), model.blank()
    names = [site.name for site in model.family.template.population_sites()]
    everybody = encoder.centre(encoder.population_of([source.batch(torch.arange(10))], source.cards, names), blank)
    found = held_out_centres(model, encoder, source, [np.array([s]) for s in range(10)])
    for left, held_out in list(enumerate(found))[::3]:
        others = [source.batch(torch.tensor([s for s in range(10) if s != left]))]
        refitted = encoder.centre(encoder.population_of(others, {**source.cards, "subject": 9}, names), blank)
        for name in ("mu", "logits_group"):
            true, got = refitted[name] - everybody[name], held_out[name] - centre[name]
            assert (got - true).norm() < 0.15 * true.norm(), name


def test_of_many_vertices_some_tell_the_variance(model, reference, monkeypatch):
    monkeypatch.setattr(module, "VERTICES", V // 4)
    found = training_reference(*model).population.variance
    assert found == pytest.approx(reference.population.variance, rel=0.05)  # an error of a hundredth, by chance
    assert found != reference.population.variance


def test_one_in_twenty_of_the_same_population_is_flagged_with_nineteen_training_subjects():
    """Conformal p-values: in a cohort the rate is Beta(1, 19), of sd .048, over cohorts .05."""
    rates = []
    for seed in range(4):
        observed = people(19 + NEW, seed, between=1.0)
        reference = training_reference(*trained(part(observed, range(19))))
        scores, _ = scored(reference, part(observed, range(19, 19 + NEW)))
        p = np.array([reference.p(one) for one in scores])
        assert p.min() >= 1 / 20 - 1e-12
        rates.append(np.mean(p <= flag_level(19) + 1e-12))
    assert flag_level(19) == 0.05
    assert 0 < np.mean(rates) < 0.05 + 3 * 0.05 / np.sqrt(4)


def test_subjects_of_the_same_population_are_not_called_another_cohort(reference, new):
    scores, summaries = scored(reference, new)
    shift = cohort_shift(reference, scores, summaries, [str(t) for t in range(D)])
    assert not shift.found
    assert shift.p > 0.05
    assert np.mean([reference.p(one) for one in scores]) == pytest.approx(0.5, abs=0.15)


CHANGES = {
    "scaled features": lambda x: 1.5 * x,
    "permuted targets": lambda x: x[:, np.roll(np.arange(D), 5)],
    "more noise": lambda x: x + np.random.default_rng(0).normal(0, 1.5, x.shape).astype(np.float32),
    "less noise": lambda x: 0.6 * x,
}


@pytest.mark.parametrize("kind", CHANGES)
def test_planted_shifts_are_found(kind, reference, new):
    scores, summaries = scored(reference, new, CHANGES[kind])
    shift = cohort_shift(reference, scores, summaries, [str(t) for t in range(D)])
    assert shift.found
    assert shift.beyond
    before = np.mean([reference.p(one) for one in scored(reference, new)[0]])
    assert np.mean([reference.p(one) for one in scores]) < before / 2


def test_a_shift_of_one_target_is_named(reference, new):
    scores, summaries = scored(reference, new, lambda x: x + np.float32(2) * (np.arange(D) == 7))
    shift = cohort_shift(reference, scores, summaries, [f"target {t}" for t in range(D)])
    assert shift.found
    assert "mean of target 7" in shift.beyond[:2]


def test_pure_noise_is_flagged_and_has_the_population_s_map(model, reference, new):
    """Twenty subjects without any network: confidence within .02 of the group map's, all flagged.

    A little more confidence is right given the model: it takes every vertex to be of some network.
    """
    posterior = Posterior(model[0], draws=16)
    group = posterior.of_population(None, lambda x: x).probability.max(-1).mean()
    sd = float(new.x[new.mask].std())
    noise = torch.randn(20, 2, V, D, generator=torch.Generator().manual_seed(5)) * sd
    frames = {"frames": torch.full((20, 2, 1), 400.0)}
    silent = Observed(noise, torch.ones(20, 2, V, dtype=torch.bool), frames)
    answers = [
        posterior.subject(f"n{s}", ("1", "2"), silent.select(0, torch.tensor([s])), lambda x: x) for s in range(20)
    ]
    confidence = np.mean([answer.probability.max(-1).mean() for answer in answers])
    assert confidence == pytest.approx(group, abs=0.02)
    scores, summaries = scored(reference, silent)
    assert all(reference.p(one) <= flag_level(len(reference)) for one in scores)
    assert cohort_shift(reference, scores, summaries, [str(t) for t in range(D)]).found


@pytest.mark.slow
def test_confidence_about_pure_noise_is_the_exact_posterior_s():
    """What there is more of it than in the population's map is in the model, not in its approximation."""
    cohort = make(S=45, seed=0, **synthetic.COHORTS["hard"][1])
    frames = {"frames": torch.full((40, 2, 1), 1200.0)}
    x = torch.from_numpy(cohort["X"])
    model, _, _ = trained(Observed(x[:40], torch.ones(x[:40].shape[:3], dtype=torch.bool), frames))
    noise = torch.randn(5, *x.shape[1:], generator=torch.Generator().manual_seed(1)) * x.std()
    exact = synthetic.attainable({**cohort, "X": noise.numpy()}).max(-1).mean()
    true_map = synthetic._prior(cohort).max(-1).mean()
    posterior, confidence = Posterior(model), []
    for s in range(5):
        one = Observed(
            noise[s : s + 1], torch.ones(1, *x.shape[1:3], dtype=torch.bool), {"frames": frames["frames"][:1]}
        )
        confidence.append(posterior.subject(f"n{s}", ("1", "2"), one, lambda x: x).probability.max(-1).mean())
    group = posterior.of_population(None, lambda x: x).probability.max(-1).mean()
    assert np.mean(confidence) - group == pytest.approx(exact - true_map, abs=0.005)


def test_large_cohorts_are_sampled(new, monkeypatch):
    monkeypatch.setattr("parcellation.training_reference.SUBJECTS", 15)
    model, cohort, source = trained(new)
    sampled = training_reference(model, cohort, source)
    assert len(sampled) == 15
    assert sampled.position(cohort.checksums("s0")[0]) == 0
    assert sampled.position(cohort.checksums("s39")[0]) == 14
    assert sampled.position(cohort.checksums("s1")[0]) >= 15  # trained on, not scored
    assert sampled.position("0" * 64) is None
    assert 0 < sampled.p(sampled.scores[2], member=20) < 1


def test_a_training_subject_is_compared_by_its_held_out_score(reference):
    own = np.full((2, 2), 1e6)  # whatever is said of it now
    assert reference.p(own, member=3) == reference.p(reference.scores[3] * np.nan, member=3)
    assert reference.p(own) == pytest.approx(1 / 61)


def test_a_model_of_its_training_subjects_only_has_none(new):
    assert training_reference(*trained(part(new, range(10)), "free")) is None


def test_it_is_kept_with_the_model_and_may_be_missing(model, reference, tmp_path):
    with_it = TrainedModel(model[0].family, {}, {}, {}, novelty=reference)
    loaded = save_model(tmp_path / "new", with_it).novelty
    for name, value in reference.to_arrays().items():
        np.testing.assert_array_equal(loaded.to_arrays()[name], value)
    save_model(tmp_path / "old", model[0])
    assert load_model(tmp_path / "old").novelty is None
