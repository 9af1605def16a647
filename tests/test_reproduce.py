import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from pipelines.benchmarks import gre
from pipelines.reproduce import experiments, race, rates, search
from pipelines.reproduce.claims import flatness, step_ratio, weights_ratio
from pipelines.reproduce.experiments import Run, execute
from pipelines.reproduce.methods import METHODS, data_sets
from pipelines.reproduce.plan import arguments, key_of, races, runs, searches
from pipelines.reproduce.summary import main

ROOT = Path(__file__).parents[1] / "pipelines" / "reproduce"


def config(name: str) -> dict:
    return yaml.safe_load((ROOT / f"{name}.yaml").read_text())


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """Of bounds that are looked at for other things than their precision."""
    for name, number in (("DRAWS", 4), ("UNSEEN", 2), ("TRIED", 5)):
        monkeypatch.setattr(experiments, name, number)


SMALLEST = Run(dimensions=2, groups=6, reduced=3, steps=4, points=2)


@pytest.mark.parametrize("name", ["small", "full", "bench"])
def test_every_planned_run_is_one_that_can_be_executed(name):
    plan = runs(config(name))
    assert plan
    assert {Run(**options).method for options in plan.values()} <= set(METHODS)


@pytest.mark.parametrize("name", ["small", "full"])
def test_every_run_has_rates_that_were_searched_in_its_own_setting(name):
    searched = searches(config(name))
    for run, options in runs(config(name)).items():
        same = searched[key_of(run)]
        assert (same["method"], same["setting"]) == (options["method"], options["setting"])
        assert same["seed"] != options["seed"]
        assert len(same["row_grid"]) == 1 or METHODS[same["method"]].rows


def test_the_benchmark_has_stored_rates():
    stored = yaml.safe_load((ROOT / "rates.yaml").read_text())
    assert {key_of(name) for name in runs(config("bench"))} <= set(stored)


def test_races_are_against_runs_of_the_same_size_setting_and_seed():
    planned, plan = races(config("full")), runs(config("full"))
    assert planned
    for name, (rival, ours) in planned.items():
        assert rival["method"] == plan[name]["method"] == "cf_sa"
        assert {plan[one]["method"] for one in ours} == {"pavi_f", "pavi_e"}
        assert {one.split("_")[0] for one in ours} == {"exp3", "exp3short"}
        for one in ours:
            assert all(plan[one][same] == rival[same] for same in ("groups", "setting", "seed", "dimensions"))


def test_the_largest_size_is_for_ours():
    full = runs(config("full"))
    assert max(one["groups"] for one in full.values() if METHODS[one["method"]].augmented) == 2000
    assert max(one["groups"] for one in full.values() if one["method"] == "pavi_e") == 20000


def test_options_come_back_from_the_command_line():
    options = {"method": "cf_sa", "encoding_size": 4, "grid": [0.05, 0.1]}
    assert arguments(options) == "--method cf_sa --encoding-size 4 --grid 0.05 0.1"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_reports_its_gap_and_cost(method):
    found = execute(replace(SMALLEST, method=method))
    assert [point["step"] for point in found["points"]] == [0, 1, 4]
    assert found["finished"]
    # No bound exceeds the evidence by more than its error.
    assert all(point["gap"] > -4 * point["error"] - 1e-6 for point in found["points"])
    assert found["weights"] >= found["weights_of_groups"] >= 0
    assert bool(found["weights_of_groups"]) == METHODS[method].rows


def test_the_size_of_encodings_is_that_of_a_groups_weights():
    for size in (2, 8):
        assert execute(replace(SMALLEST, encoding_size=size))["weights_of_groups"] == 6 * size


def test_the_rate_of_rows_is_part_of_the_run():
    gaps = {rate: execute(replace(SMALLEST, row_rate=rate))["gap"] for rate in (0.0, 15.0)}
    assert gaps[0.0] != gaps[15.0]


def test_methods_trained_over_data_sets_are_judged_on_others():
    template, rows = SMALLEST.template, METHODS["cf_sa"]
    source, again = (data_sets(rows, template, 6, 0) for _ in range(2))
    drawn = [source.batch(torch.arange(6)).seen.x for _ in range(3)]
    assert all((one == again.batch(torch.arange(6)).seen.x).all() for one in drawn)
    assert (drawn[0] != drawn[1]).all()
    unseen = [SMALLEST.data(1 + k).seen.x for k in range(2)]
    assert all((one != other).all() for one in drawn for other in unseen)


def test_what_has_no_size_is_trained_on_many_and_on_no_more_than_200_groups():
    sizes = [data_sets(METHODS["pavi_e_sa"], SMALLEST.template, 20000, 0).at(step).cards["group"] for step in range(99)]
    assert 2 <= min(sizes) < 10
    assert 100 < max(sizes) <= 200
    assert data_sets(METHODS["adavi_sa"], SMALLEST.template, 300, 0).at(1).cards["group"] == 300


def test_a_run_that_has_less_time_is_planned_with_fewer_steps():
    found = execute(replace(SMALLEST, method="pavi_e", steps=100000, points=1, limit_s=0.4))
    assert found["steps_done"] < 1000
    assert found["train_s"] < 0.6
    assert found["points"][-1]["step"] == found["steps_done"]


def test_a_run_that_fails_says_so():
    found = execute(replace(SMALLEST, method="cf", rate=1e6, steps=50))
    assert found["gap"] is None
    assert "finite" in found["failed"]


def written(folder: Path, name: str, run: dict) -> None:
    (folder / "runs").mkdir(exist_ok=True)
    (folder / "runs" / f"{name}.json").write_text(json.dumps(run))


def test_a_bound_above_the_evidence_is_a_failure():
    assert experiments.is_gap(-0.01, 0.02)
    assert experiments.is_gap(1e9, 1e8)
    assert not experiments.is_gap(-2e11, 1e11)
    assert not experiments.is_gap(float("nan"), 0.1)


def test_a_run_whose_bound_is_no_gap_is_failed(monkeypatch):
    monkeypatch.setattr(experiments, "bound", lambda *_: (-2e11, 1e11))
    found = execute(SMALLEST)
    assert found["gap"] is None
    assert "above the evidence" in found["failed"]


def test_the_table_has_means_over_repetitions(tmp_path):
    run = execute(replace(SMALLEST, method="pavi_e"))
    for seed in (0, 1):
        one = run | {"gap": 1.0 + 2 * seed, "seed": seed}
        written(tmp_path, f"exp1_unit_pavi_e_groups-6_size-8_steps-4_seed-{seed}", one)
    main(tmp_path)
    header, row = (line.split("\t") for line in (tmp_path / "table.tsv").read_text().splitlines())
    found = dict(zip(header, row, strict=True))
    assert float(found["gap_mean"]) == 2.0
    assert float(found["gap_std"]) == pytest.approx(2**0.5, rel=1e-5)
    assert "2 ± 1.4" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure1_unit.png").stat().st_size > 1000


def test_a_search_tries_every_pair_of_rates():
    tries = search.search(replace(SMALLEST, method="cf", steps=50), [0.01, 1e6], [1.0, 15.0])
    assert [(one["rate"], one["row_rate"]) for one in tries] == [(0.01, 1), (0.01, 15), (1e6, 1), (1e6, 15)]
    assert [one["gap"] is None for one in tries] == [False, False, True, True]


def test_the_best_rates_have_the_smallest_gap_and_failures_are_worst(tmp_path):
    (tmp_path / "search").mkdir()
    gaps = {0.1: None, 0.2: 3.0, 0.3: -0.01, 0.4: 0.5}
    tries = [dict(rate=rate, row_rate=15.0, gap=gap, steps_done=5, train_s=1.0) for rate, gap in gaps.items()]
    (tmp_path / "search" / "exp1_unit_cf.json").write_text(json.dumps({"tries": tries}))
    rates.main(tmp_path)
    assert yaml.safe_load((tmp_path / "rates.yaml").read_text()) == {"exp1_unit_cf": {"rate": 0.3, "row_rate": 15.0}}
    with pytest.raises(ValueError, match="exp1_unit_cf: no rate of the grid trains it"):
        rates.best("exp1_unit_cf", tries[:1])


def test_of_rates_that_are_as_good_the_rows_move_least():
    pairs = {(0.05, 40.0): 0.008, (0.02, 15.0): 0.013, (0.05, 15.0): 0.02, (0.005, 5.0): 2e6, (0.02, 40.0): None}
    tries = [{"rate": rate, "row_rate": rows, "gap": gap} for (rate, rows), gap in pairs.items()]
    assert rates.best("exp1_paper_pavi_f", tries) == {"rate": 0.02, "row_rate": 15.0}


def curve(*gaps: float | None, method: str = "pavi_f") -> dict:
    points = [{"step": 10 * k, "seconds": k / 2, "gap": gap, "error": 0.1} for k, gap in enumerate(gaps)]
    return {"points": points, "steps_done": 10 * (len(gaps) - 1), "train_s": 77.0, "gap": gaps[-1], "method": method}


def test_the_step_ratio_is_that_of_the_slowest():
    baseline = curve(9.0, 5.0, 3.0, 2.0, 1.0)
    quick = curve(9, 1.1, 0.5, method="pavi_e")
    assert step_ratio([quick, curve(9, 4.0, 1.15, 0.1)], baseline) == 2.0
    assert step_ratio([quick, curve(9, 4.0, 3.0)], baseline) is None
    # Of a method's schedules the one that is there first counts.
    assert step_ratio([quick, curve(9, 4.0, 1.15, 0.1), curve(9, 1.0)], baseline) == 4.0
    assert flatness({"step_ms": 2.0, "peak_mib": 10}, {"step_ms": 3.0, "peak_mib": 11}) == pytest.approx(
        {"step_ms": 1.5, "peak_mib": 1.1}
    )
    assert weights_ratio({"weights": 30}, {"weights": 10}) == 3.0


@pytest.mark.parametrize(
    ("gaps", "times", "end"),
    [
        ([9.0, 5.0, 0.4], 10, "there"),
        ([9.0, 5.0, 4.9], None, "plateau"),
        ([9.0, None, 5.0, 4.0, 3.0], None, "100 times"),
        ([9.0, 5.0, 2.0, 1.0, 0.5], 100, "there"),
    ],
)
def test_a_race_ends_at_half_a_nat_or_at_the_plateau(gaps, times, end, monkeypatch):
    left = iter(gaps)
    monkeypatch.setattr(race, "execute", lambda run: curve(50.0, next(left)))
    found = race.race(Run("cf_sa"), ours=0.2)
    assert (found["times"], found["end"], len(found["tries"])) == (times, end, len(gaps))
    assert race.seconds_to(curve(9.0, None, 0.5)) == 1.0
    quick = curve(9.0, 0.4, method="pavi_e")
    assert race.slowest([curve(9.0, 2.0, 1.0, 0.5), curve(9.0, 1.0, 0.5), curve(9.0, 8.0), quick]) == 1.0
    assert race.slowest([curve(9.0, 2.0), quick]) == 77.0
    assert race.seconds_to(curve(0.1, 0.6)) == 77.0  # before training does not count


def test_the_benchmark_names_its_figures_and_what_could_not_run():
    planned = runs(config("bench"))
    run = curve(9.0, 2.0, 1.0) | {"weights": 5, "step_ms": 1.0, "peak_mib": 300.0}
    done = {name: None if options["method"] == "cf_sa" else run for name, options in planned.items()}
    found = gre.figures(planned, done)
    assert found["unit.exp1.step_ratio"] == 1.0
    assert found["paper.exp1.baseline.gap"] == 1.0
    assert found["unit.exp3.20000.pavi_e_sa.peak_mib"] == 300.0
    assert found["unit.exp3.2.cf_sa.gap"] is None
    assert len(found) == 2 * 4 + 1 + 5 * 5 * 5
