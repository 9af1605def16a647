"""The repository's own promises: versions, contracts, what the wheel holds, and what no file may hold."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from parcellation import __version__
from tests.readme import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
# Where conda-forge calls a package otherwise than PyPI does.
PYPI_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
PACKAGES = ("parcellation", "data_manifest", "pipelines")
# No tests of its own: what is a list of names, or is run by the tests of all the others.
UNTESTED = {"__init__", "__main__", "errors"}
# A name goes from here when its tests come.
AWAITED = set()


def pins(lines: list[str]) -> dict[str, str]:
    """Version by name, of lines such as `PyYAML==6.0.4`."""
    pairs = [line.split("==") for line in lines]
    return {PYPI_NAMES.get(name.lower(), name.lower()): version for name, version in pairs}


def run(*command: str, cwd: Path = ROOT, **options) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python(code: str, cwd: Path = ROOT, **options) -> list[str]:
    """Words that a fresh Python prints."""
    return run(sys.executable, "-c", code, cwd=cwd, **options).split()


def tracked() -> list[Path]:
    # In an unpacked archive nothing says which files are the project's, and others may lie beside them.
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a clone")
    paths = [ROOT / name for name in run("git", "ls-files", "-z").split("\0") if name]
    return [path for path in paths if path.is_file()]


class TestVersions:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]

    def test_everything_is_pinned(self):
        lines = self.project["dependencies"] + [line for extra in self.extras.values() for line in extra]
        assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9.]+", line)] == []

    def test_conda_and_pip_agree(self):
        *named, pip = CONDA["dependencies"]
        assert named[:2] == ["python=3.11", "pip"]
        assert self.project["requires-python"] == ">=3.11,<3.12"
        wanted = self.project["dependencies"] + self.extras["test"] + self.extras["fslr"]
        assert pins(named[2:] + pip["pip"]) == pins(wanted)

    def test_installed_without_dependencies(self):
        makefile, conda = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "environment.yml"))
        (pin,) = set(re.findall(r"--no-deps (brainspace==\S+)", makefile + conda))
        assert pin in makefile
        assert pin in conda
        assert (
            pins(re.findall(r"torch==\S+", makefile.split("$(INSTALLED):")[-1])).items()
            <= pins(self.project["dependencies"]).items()
        )

    def test_the_workflow_engine(self):
        """One list for pip, and the same for conda; the Makefile takes the first."""
        lines = (ROOT / "pipelines/requirements.txt").read_text(encoding="utf-8").splitlines()
        wanted = pins([line for line in lines if not line.startswith("#")])
        *_, pip = yaml.safe_load((ROOT / "pipelines/environment.yml").read_text(encoding="utf-8"))["dependencies"]
        assert set(wanted) == {"snakemake", "snakemake-executor-plugin-slurm"}
        assert pins(pip["pip"]) == wanted
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert "$(ENGINE): pipelines/requirements.txt" in makefile
        assert "snakemake==" not in makefile

    def test_build_tool(self):
        assert pins(PROJECT["build-system"]["requires"]).items() <= pins(self.extras["test"]).items()

    def test_citation(self):
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        assert citation["cff-version"] == "1.2.0"
        assert citation["version"] == __version__
        assert citation["license"] == self.project["license"]

    def test_changelog(self):
        text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
        assert __version__ in text


class TestImports:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]

    def test_contracts_hold(self):
        """Among them: every module is in the list of layers."""
        assert self.contracts[0]["exhaustive"]
        assert " 0 broken" in run(str(Path(sys.executable).parent / "lint-imports"), "--no-logo", "--no-cache")

    def test_every_module_is_on_a_side(self):
        """Each room is of the data side or of the model side; only what joins them, and what both need, is of none."""
        _, data, model, _ = (contract.get("source_modules", []) for contract in self.contracts)
        assert not set(data) & set(model)
        names = {path.stem for path in (ROOT / "parcellation").iterdir() if path.suffix == ".py" or _is_package(path)}
        neither = names - {name.removeprefix("parcellation.") for name in [*data, *model]}
        assert neither == {"__init__", "__main__", "cli", "verbs", "errors", "files", "interruption"}

    @pytest.mark.parametrize(
        ("module", "heavy"),
        [
            ("parcellation.cli", {"torch", "nibabel", "nilearn", "numpy", "pandas"}),
            ("parcellation.verbs.index", {"torch", "zuko"}),
            ("parcellation.verbs.prepare", {"torch", "zuko"}),
            ("parcellation.verbs.train", {"nilearn", "matplotlib"}),
        ],
    )
    def test_what_a_verb_does_not_load(self, module, heavy):
        loaded = python(f"import sys, {module}; print(*sys.modules)")
        assert module in loaded
        assert heavy & set(loaded) == set()


def _is_package(path: Path) -> bool:
    return (path / "__init__.py").exists()


class TestWheel:
    @pytest.fixture(scope="class")
    @staticmethod
    def wheel(tmp_path_factory):
        """Built from a copy, since building leaves files in the source's folder."""
        source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
        for name in PACKAGES:
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, source)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out), ".",
            cwd=source)  # fmt: skip
        (path,) = out.glob("*.whl")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(out / "unpacked")
        return out / "unpacked"

    def test_holds_every_file_of_the_packages(self, wheel):
        for name in PACKAGES:
            wanted = {path.relative_to(ROOT) for path in (ROOT / name).rglob("*") if path.is_file()}
            wanted = {path for path in wanted if "__pycache__" not in path.parts}
            assert {path for path in wanted if not (wheel / path).is_file()} == set()

    def test_runs_from_any_folder(self, wheel, tmp_path):
        (tmp_path / "study.yaml").write_text("{name: a, data: {layout: hpc, root: .}}")
        done = subprocess.run(
            [sys.executable, "-m", "parcellation", "index", "study.yaml"],
            cwd=tmp_path, env={"PYTHONPATH": str(wheel)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 64
        assert "hcp" in done.stderr  # the nearest layout, by the descriptions in the wheel
        places = python("import parcellation, data_manifest as d; print(parcellation.__file__, d.__file__)",
                        cwd=tmp_path, env={"PYTHONPATH": str(wheel)})  # fmt: skip
        assert [Path(place).parents[1] for place in places] == [wheel, wheel]


class TestFiles:
    def test_no_path_of_one_machine(self):
        # Written in parts, so that this file does not hold them.
        foreign = [b"/" + name for name in (b"work/", b"tmp/", b"root/", b"home/")]
        found = [path for path in tracked() if any(part in path.read_bytes() for part in foreign)]
        assert found == []

    def test_every_module_has_its_tests(self):
        modules = {path.stem for path in (ROOT / "parcellation").glob("*.py")} - UNTESTED
        tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_*.py")}
        assert modules - tested - AWAITED == set()

    def test_no_room_is_crowded(self):
        counts = {path: len(path.read_bytes().splitlines()) for path in (ROOT / "parcellation").rglob("*.py")}
        assert {path.name: count for path, count in counts.items() if count > 400} == {}
