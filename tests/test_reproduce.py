import json
from pathlib import Path

import pytest
import yaml

from pipelines.reproduce.experiments import METHODS, Run, execute
from pipelines.reproduce.plan import arguments, runs
from pipelines.reproduce.summary import main

ROOT = Path(__file__).parents[1] / "pipelines" / "reproduce"
RATES = yaml.safe_load((ROOT / "rates.yaml").read_text())


@pytest.fixture(params=["small", "full"])
def plan(request) -> dict:
    return runs(yaml.safe_load((ROOT / f"{request.param}.yaml").read_text()), RATES)


def test_every_planned_run_is_one_that_can_be_executed(plan):
    assert plan
    assert {Run(**options).method for options in plan.values()} <= set(METHODS)


def test_rivals_are_not_asked_for_sizes_they_cannot_run():
    full = runs(yaml.safe_load((ROOT / "full.yaml").read_text()), RATES)
    assert max(one["groups"] for one in full.values() if one["method"] == "cf_sa") == 200
    assert max(one["groups"] for one in full.values() if one["method"] == "pavi_e") == 20000


def test_options_come_back_from_the_command_line():
    options = {"method": "cf_sa", "encoding_size": 4, "rate": 0.05}
    assert arguments(options) == "--method cf_sa --encoding-size 4 --rate 0.05"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_reports_its_gap_and_cost(method):
    found = execute(Run(method, dimensions=2, groups=6, reduced=3, steps=4, points=2))
    assert [point["step"] for point in found["points"]] == [0, 2, 4]
    assert found["finished"]
    # No bound exceeds the evidence by more than its error.
    assert all(point["gap"] > -4 * point["error"] - 1e-9 for point in found["points"])
    assert found["weights"] >= found["weights_of_groups"] >= 0


def test_a_run_ends_at_its_time_limit():
    found = execute(Run("pavi_e", dimensions=2, groups=6, reduced=3, steps=100000, points=1, limit_s=0.5))
    assert not found["finished"]
    assert found["steps_done"] < 100000


def test_the_table_has_means_over_repetitions(tmp_path):
    for seed in (0, 1):
        run = execute(Run("pavi_e", dimensions=2, groups=6, reduced=3, steps=4, points=2, seed=seed))
        path = tmp_path / "runs" / f"exp1_unit_pavi_e_groups-6_size-8_seed-{seed}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(run | {"gap": 1.0 + 2 * seed}))
    main(tmp_path)
    header, row = (line.split("\t") for line in (tmp_path / "table.tsv").read_text().splitlines())
    found = dict(zip(header, row, strict=True))
    assert float(found["gap_mean"]) == 2.0
    assert float(found["gap_std"]) == pytest.approx(2**0.5, rel=1e-5)
    assert "2 ± 1.4" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure1_unit.png").stat().st_size > 1000
