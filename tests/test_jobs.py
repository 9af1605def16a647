"""What jobs ask for is a setting that no result depends on."""

from pathlib import Path

import pytest

from parcellation.config import parse_study
from parcellation.errors import UsageError

STUDY = {"name": "a", "data": {"root": "HCP"}}


def test_jobs_have_defaults_and_do_not_change_a_study():
    plain = parse_study(STUDY, Path("study.yaml"))
    more = parse_study(STUDY | {"cluster": {"subjects_per_job": 7, "train": {"memory": 9000}}}, Path("study.yaml"))
    assert more.cluster.subjects_per_job == 7
    assert more.cluster.train.memory == 9000
    assert more.digest() == plain.digest()


@pytest.mark.parametrize("wrong", [{"subjects_per_job": 0}, {"train": {"memory": 0}}, {"gpus": 1}])
def test_impossible_jobs_are_refused(wrong):
    with pytest.raises(UsageError, match="cluster"):
        parse_study(STUDY | {"cluster": wrong}, Path("study.yaml"))
