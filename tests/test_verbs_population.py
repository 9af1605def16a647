"""The population of the cohort itself: everybody's whoever is inferred, kept, said, not mixed with the model's."""

import json
import shutil
import threading

import pytest
import torch

from parcellation.config import load_study
from parcellation.encoding import Encoding
from parcellation.verbs import population
from parcellation.verbs.infer import Inference
from parcellation.verbs.population import read_population, write_population
from parcellation.verbs.report import _summary
from tests.studies import Folder, command, contents, copied, damage, snapshot

KIND = ("--population", "reinferred")


@pytest.fixture
def few(monkeypatch):
    """Five subjects are enough, as none of these tests is about how good the population is."""
    monkeypatch.setattr("parcellation.population.LEAST_SUBJECTS", 5)


@pytest.fixture(scope="module")
def reinferred(finished, tmp_path_factory):
    """The finished study, inferred with its own population; not to be changed."""
    folder = Folder(copied(finished.path, tmp_path_factory.mktemp("reinferred") / "study"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parcellation.population.LEAST_SUBJECTS", 5)
        folder.said["infer"] = command("infer", folder.study, *KIND)
    return folder


@pytest.fixture
def study(reinferred, tmp_path):
    return Folder(copied(reinferred.path, tmp_path / "study"))


def kept(folder):
    return folder.path / "work/population.safetensors"


def posteriors(folder):
    return {name: folder.posterior(name).read_bytes() for name in ("sim01", "sim04")}


def test_another_kind_is_64_and_those_there_are_are_named(finished):
    assert "'reinferred'" in command("infer", finished.study, "--population", "other", code=64)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_cohort_of_too_few_is_refused_and_nothing_is_written(finished, more):
    before = snapshot(finished.path)
    said = command("infer", finished.study, *KIND, *more, code=64)
    assert "at least 20 subjects" in said
    assert "got 5" in said
    assert {path: one for path, one in snapshot(finished.path).items() if not path.endswith(".lock")} == {
        path: one for path, one in before.items() if not path.endswith(".lock")
    }


def test_answers_are_others_and_what_was_used_is_said(reinferred, finished):
    assert "inferred again from all 5 subjects" in reinferred.said["infer"]
    before = posteriors(finished)
    assert all(answer != before[name] for name, answer in posteriors(reinferred).items())
    assert reinferred.model.read_bytes() == finished.model.read_bytes()
    for path in (*reinferred.results.glob("sub-*/anat/*_dseg.json"), *reinferred.results.glob("tpl-*/*_dseg.json")):
        facts = json.loads(path.read_text(encoding="utf-8"))
        assert (facts["Population"], facts["PopulationSubjects"]) == ("reinferred", 5)
    software = json.loads((reinferred.results / "dataset_description.json").read_text(encoding="utf-8"))["GeneratedBy"][
        0
    ]
    assert software["Population"] == "reinferred"
    assert "inferred again from the 5 subjects" in (reinferred.results / "CITATION.md").read_text(encoding="utf-8")


def test_a_report_is_of_the_latest_answers(reinferred, finished, few):
    run = Inference.of(load_study(reinferred.study))
    assert len(list(run.known())) == 5
    assert "inferred again from all 5 subjects" in " ".join(_summary(run, 5))
    assert Inference.of(load_study(finished.study)).origin.kind == "fixed"


def test_looking_at_the_latest_answers_finds_them_and_infers_no_population(study, few):
    run = Inference.of(load_study(study.study), look_only=True)
    assert len(list(run.known())) == 5
    kept(study).unlink()
    assert not list(Inference.of(load_study(study.study), look_only=True).known())
    assert not kept(study).exists()


def test_the_fixed_population_is_the_default_and_is_said(finished):
    software = json.loads((finished.results / "dataset_description.json").read_text(encoding="utf-8"))["GeneratedBy"][0]
    assert (software["Population"], software["PopulationSubjects"]) == ("fixed", 3)
    assert "inferred again" not in (finished.results / "CITATION.md").read_text(encoding="utf-8")
    assert "The population is the model&#39;s" in (finished.results / "report.html").read_text(encoding="utf-8")


def test_one_subject_alone_is_inferred_with_everybodys_population(study, reinferred, few):
    for name in ("work/posterior", "results"):
        shutil.rmtree(study.path / name)
    kept(study).unlink()
    command("infer", study.study, *KIND, "--participant-label", "sim04")
    assert kept(study).read_bytes() == kept(reinferred).read_bytes()
    assert study.posterior("sim04").read_bytes() == reinferred.posterior("sim04").read_bytes()
    assert contents(study.results / "sub-sim04") == contents(reinferred.results / "sub-sim04")
    assert not study.posterior("sim01").exists()


def test_a_damaged_population_is_found_again_to_the_same_bytes(study, reinferred, few):
    damage(kept(study))
    content = kept(study).read_bytes()[:300]
    kept(study).unlink()
    kept(study).write_bytes(content)
    assert "5 of them before" in command("infer", study.study, *KIND)
    assert kept(study).read_bytes() == kept(reinferred).read_bytes()


def test_back_to_the_models_population_no_answer_is_left_over(study, finished):
    assert "of them before" not in command("infer", study.study)
    assert posteriors(study) == posteriors(finished)
    same = [contents(folder.results / "sub-sim04") for folder in (study, finished)]
    assert same[0] == same[1]


def test_another_cohort_has_another_population(study, few):
    """One session less; those who are not concerned get new answers, too."""
    shutil.rmtree(study.run_file("sim04", 2).parent)
    before, population_before = posteriors(study), kept(study).read_bytes()
    command("index", study.study)
    assert "of them before" not in command("infer", study.study, *KIND)
    assert kept(study).read_bytes() != population_before
    assert posteriors(study)["sim01"] != before["sim01"]


def test_a_subject_who_cannot_be_read_is_named_and_nobody_is_inferred(study, few):
    damage(study.unit("sim03"))
    kept(study).unlink()
    before = posteriors(study)
    assert study.unit("sim03").name in command("infer", study.study, *KIND, code=65)
    assert posteriors(study) == before


def test_two_jobs_at_once_find_the_population_once(study, few, monkeypatch):
    kept(study).unlink()
    calls, found, inner = [], [], population.reinfer
    monkeypatch.setattr(population, "reinfer", lambda *a: (calls.append(1), inner(*a))[1])

    def job():
        found.append(Inference.of(load_study(study.study), "reinferred").model)

    jobs = [threading.Thread(target=job) for _ in range(2)]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join()
    assert len(calls) == 1
    one, two = (model.family.population_encodings() for model in found)
    assert found[0].digest == found[1].digest
    assert all(torch.equal(one[name].estimate, two[name].estimate) for name in one)


def test_encodings_are_kept_exactly_and_known_by_their_digest(tmp_path):
    encoding = Encoding(torch.randn(1, 1, 1, 2), torch.randn(1, 1, 1, 2), torch.randn(1, 1, 1, 2, 2))
    path = tmp_path / "population.safetensors"
    assert read_population(path, "a") is None
    write_population(path, {"mu": encoding}, "a")
    assert read_population(path, "b") is None
    found = read_population(path, "a")["mu"]
    assert all(torch.equal(getattr(found, part), value) for part, value in encoding.parts().items())
