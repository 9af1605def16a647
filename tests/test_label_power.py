import numpy as np
import pytest
import torch

from parcellation.label_power import (
    Gain,
    _crossed_gain,
    _preferred,
    choose_label_power,
    fit_retest_link,
)
from parcellation.model_file import LabelPower, TrainedModel
from parcellation.plates import Observed
from parcellation.training import Whole
from tests.conftest import Drawn, full
from tests.tempered import cohort, started


class TestPower:
    def test_one_session_has_the_single_power(self):
        assert LabelPower(0.4, 0.5).at(1) == 0.4

    def test_lasting_deviations_make_further_sessions_worth_less(self):
        assert LabelPower(0.4, 0.5).at(3) == pytest.approx(0.4 / 2)
        assert LabelPower(0.4, 0.0).at(3) == 0.4

    def test_each_vertex_has_the_power_of_its_own_sessions(self):
        power = LabelPower(0.6, 1.0).at(torch.tensor([0.0, 1.0, 2.0, 3.0]))
        assert power.tolist() == pytest.approx([0.6, 0.6, 0.3, 0.2])


class TestChoice:
    def test_independent_features_are_believed(self):
        power = choose_label_power(*started(cohort()))
        assert power.checked
        assert power.single >= 0.8

    def test_eightfold_copies_are_believed_an_eighth(self):
        # Eight copies of a feature say what one says: the right power is 1/8, and the grid's steps are factors of 1.4.
        power = choose_label_power(*started(cohort(copies=8)))
        assert 1 / 16 <= power.single <= 1 / 4

    def test_persistence_is_the_share_of_noise_that_lasts(self):
        power = choose_label_power(*started(cohort(copies=8, lasting=0.5)))
        assert 0.3 < power.persistence < 0.65
        assert choose_label_power(*started(cohort(copies=8))).persistence < 0.15

    def test_one_session_a_subject_leaves_it_unchecked(self, caplog):
        power = choose_label_power(*started(cohort(sessions=1)))
        assert power == LabelPower(1.0, 0.0, False)
        assert "not checked" in caplog.text

    def test_it_is_known_from_any_number_of_sessions(self):
        # Halves of two sessions each correlate more than single ones do, by the formula of Spearman and Brown.
        power = choose_label_power(*started(cohort(copies=8, lasting=0.5, sessions=4)))
        assert 0.3 < power.persistence < 0.65

    def test_the_model_s_own_way_is_kept_where_it_is_right(self):
        assert choose_label_power(*started(cohort())).plain

    def test_noise_that_vertices_share_is_not_taken_for_a_session_s_own_profile(self):
        power = choose_label_power(*started(shared_noise()))
        assert power.profiles != "session"


def shared_noise() -> Drawn:
    """A cohort of which each vertex is there eight times with nearly the same noise: profiles pool that noise."""
    drawn = cohort(copies=2)
    x = drawn.observed.x
    blurred = x.unflatten(2, (-1, 10)).mean(3, keepdim=True).expand(-1, -1, -1, 10, -1).flatten(2, 3)
    observed = Observed(0.3 * x + 0.9 * blurred, drawn.observed.mask, drawn.observed.covariates)
    return Drawn(drawn.template, observed, drawn.values, drawn.labels)


def test_gain_is_beyond_the_map_of_other_subjects():
    # Labels that are each subject's own and no more: what a map learned of the very subjects would look like knowledge.
    generator = np.random.default_rng(0)
    scores = torch.from_numpy(3 * generator.standard_normal((2, 12, 300, 2)))
    even = torch.full((300, 2), 0.5).log()
    assert _crossed_gain(scores, even).mean() < 0


def test_another_scan_agrees_less_than_the_data_say():
    model, source = started(cohort())
    link = fit_retest_link(model, source)
    assert link.checked
    # At the right power p is what the data say of a label: its noisy repeat is to be believed less.
    assert 0.2 < link.own < 1
    assert not fit_retest_link(*started(cohort(sessions=1))).checked


def test_whole_source_is_a_source_too():
    drawn = cohort()
    source = Whole(drawn.template, full(drawn.template, drawn.observed))
    model, _ = started(drawn)
    assert choose_label_power(TrainedModel(model.family.double(), {}, {}, {}), source).checked


def gain(profiles: str, power: float, mean: float, seed: int, untempered: float = 0.0) -> Gain:
    subjects = 0.01 * np.random.default_rng(seed).standard_normal(40)
    subjects -= subjects.mean()
    return Gain(profiles, None, power, mean + subjects, untempered + 1.1 * subjects)


def test_a_model_that_is_nearly_right_is_left_only_for_what_surely_gains_more():
    # Differences have a standard error of about .0022.
    right, tempered = gain("session", 1.0, 0.100, 1, 0.100), gain("session", 0.03, 0.100, 1)
    alike, better = gain("subject", 0.03, 0.103, 2), gain("subject", 0.03, 0.110, 2)
    assert _preferred([right, alike]).profiles == "session"
    assert _preferred([tempered, alike]) is alike
    assert _preferred([right, better]) is better


def test_a_model_is_tempered_only_where_that_gains_surely_and_clearly_more():
    # Here the difference has an error of .00016, so .0002 may be chance; .002 is sure, but two of a hundred.
    other = gain("subject", 0.8, 0.099, 2)
    for untempered, power in ((0.0998, 1.0), (0.098, 1.0), (0.096, 0.8)):
        assert _preferred([gain("session", 0.8, 0.100, 1, untempered), other]).power == power


def test_of_the_other_ways_the_first_within_half_an_error_of_the_best_is_taken():
    tempered, best = gain("session", 0.03, 0.103, 1), gain("subject", 0.03, 0.103, 2)
    near, far = gain("population", 0.03, 0.1025, 3), gain("population", 0.03, 0.100, 3)
    assert _preferred([tempered, near, best]) is near
    assert _preferred([tempered, far, best]) is best
    assert _preferred([best, far]) is best
