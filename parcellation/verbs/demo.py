"""`demo`: the whole way on real input, in minutes.

One real resting-state run of one person (the package `brainspace`, fsaverage5) is cut into four windows. From windows 1
and 2 a cohort is simulated whose truth is known; a model is trained on part of it. The unseen rest is inferred and
scored against the truth, and the real person is inferred from windows 3 and 4 alone, without retraining.
"""

import importlib.util
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import nibabel
import numpy as np
import yaml

from parcellation.config import Study, load_study
from parcellation.errors import InputMissing
from parcellation.files import whole_file, writable_folder, write_text
from parcellation.verbs.checks import Recovery, recovery, retest, truth_folder
from parcellation.verbs.infer import Inference, infer
from parcellation.verbs.prepare import prepare
from parcellation.verbs.report import report
from parcellation.verbs.simulate import simulate
from parcellation.verbs.train import train
from parcellation.verbs.workspace import Selection, resolve

log = logging.getLogger(__name__)

RUN = "sub-010188_ses-02_task-rest_acq-AP_run-01"
SUBJECT = "010188"
# The file's header says 1 s; 1.4 s is the repetition time of the protocol that this data set was acquired with.
REPETITION_TIME = 1.4
WINDOWS, FRAMES = 4, 163
SUBJECTS, TRAIN = 24, 16
HONESTY = (
    "This population is simulated from this very person, so that the demo demonstrates and finds nothing.",
    "Windows of one run are not sessions: their agreement says less than that of two scans on different days.",
)


def demo(out: Path, selection: Selection) -> str:
    """Run the demo in a folder, continuing what is finished there; returns the table to print.

    Raises InputMissing without the package that has the real run.
    """
    run = _real_run()
    out = Path(out).resolve()
    if selection.dry_run:
        return f"would simulate, train and infer in {out}, from {run.parent}"
    writable_folder(out)
    clock = _Clock()
    cohort = _simulated_cohort(run, out)
    clock.lap("simulate")
    for verb, function in (("prepare", prepare), ("train", train), ("infer", infer)):
        log.info("%s: %s", verb, function(cohort, Selection()))
        clock.lap(verb)
    person = resolve(_windows(run, out, cohort))
    prepare(person, Selection())
    infer(person, Selection())
    clock.lap("real person")
    report(cohort, Selection(), HONESTY)
    report(person, Selection(), HONESTY)
    clock.lap("reports")
    return _table(cohort, person, clock)


def _real_run() -> Path:
    """The run's files without their endings."""
    found = importlib.util.find_spec("brainspace")
    if found is None:
        hint = "pip install --no-deps brainspace==0.3.0"
        raise InputMissing(f"the demo's real run comes with the package brainspace, which is not installed; {hint}")
    return Path(found.submodule_search_locations[0]) / "datasets" / "preprocessing" / RUN


def _files(run: Path) -> tuple[Path, Path, Path]:
    """Left and right series, and confounds."""
    return tuple(run.with_name(run.name + end) for end in (".fsa5.lh.mgz", ".fsa5.rh.mgz", "_confounds.txt"))


def _simulated_cohort(run: Path, out: Path) -> Study:
    left, right, confounds = map(str, _files(run))
    source = {
        "bold_left": left,
        "bold_right": right,
        "confounds": confounds,
        "space": "fsaverage",
        "repetition_time": REPETITION_TIME,
        "frames": [0, 2 * FRAMES],
    }
    labels = {"noise": "smooth", "steps": 3}  # people differ in patches of a few vertices
    settings = {"subjects": SUBJECTS, "train": TRAIN, "sessions": 2, "networks": 2, "labels": labels, "source": source}
    write_text(out / "simulation.yaml", yaml.safe_dump(settings, sort_keys=False))
    log.info(simulate(out / "simulation.yaml", out / "cohort", Selection()))
    content = {
        "name": "demo",
        "data": {"layout": "manifest", "manifest": "cohort/manifest.tsv", "space": "fsaverage"},
        "training": {"group": "train"},
        "outputs": {"directory": "results", "work": "work"},
    }
    return _study(out / "study.yaml", content)


def _windows(run: Path, out: Path, cohort: Study) -> Study:
    """Write windows 3 and 4 of the real run as files of their own, and the study that infers them."""
    left, right, confounds = _files(run)
    rows = [("subject", "session", "run", "bold_left", "bold_right", "confounds", "tr")]
    table = np.loadtxt(confounds)
    for window in (3, 4):
        frames = slice((window - 1) * FRAMES, window * FRAMES)
        start = f"sub-{SUBJECT}_ses-window{window}_task-rest"
        names = [f"{start}_hemi-L_bold.mgh", f"{start}_hemi-R_bold.mgh", f"{start}_desc-confounds_timeseries.tsv"]
        for source, name in zip((left, right), names, strict=False):
            _cut(source, frames, out / "person" / name)
        text = "\n".join("\t".join(f"{value:.10g}" for value in row) for row in table[frames])
        header = "\t".join(f"confound_{number}" for number in range(1, table.shape[1] + 1))
        write_text(out / "person" / names[2], f"{header}\n{text}\n")
        rows.append((SUBJECT, f"window{window}", "1", *names, str(REPETITION_TIME)))
    write_text(out / "person" / "manifest.tsv", "".join("\t".join(row) + "\n" for row in rows))
    content = {
        "name": "person",
        "data": {
            "layout": "manifest",
            "manifest": "person/manifest.tsv",
            "space": "fsaverage",
            "confounds": "all",
        },
        "model": {"file": "work/model"},
        "outputs": {"directory": "results-person", "work": "work-person"},
    }
    return _study(out / "person.yaml", content)


def _cut(source: Path, frames: slice, path: Path) -> None:
    """Some frames of a series, as an uncompressed file."""
    if path.exists():
        return
    image = nibabel.load(source)
    series = np.asarray(image.dataobj[..., frames], np.float32)
    with whole_file(path) as temporary:
        nibabel.MGHImage(series, image.affine, image.header).to_filename(temporary)


def _study(path: Path, content: dict) -> Study:
    write_text(path, yaml.safe_dump(content, sort_keys=False))
    return load_study(path)


class _Clock:
    def __init__(self):
        self.started, self.laps = time.monotonic(), {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = now - self.started - sum(self.laps.values())


@dataclass(frozen=True)
class _Line:
    name: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"  {self.name:<22}" + "".join(f"{value:>10}" for value in self.values)


def _table(cohort: Study, person: Study, clock: _Clock) -> str:
    run = Inference.of(cohort)
    found = recovery(run, truth_folder(cohort))
    windows = retest(Inference.of(person))
    lines = [
        f"{found.subjects} unseen simulated subjects, against the known truth",
        *_scores(found),
        f"the real person ({SUBJECT}), windows 3 and 4 of one run, each inferred alone",
        _Line("agreement", (f"{windows.within[0]:.3f}",)),
        _Line("stated confidence", (f"{windows.confidence:.3f}",)),
        "seconds: " + ", ".join(f"{name} {seconds:.0f}" for name, seconds in clock.laps.items()),
        *HONESTY,
        "look at:",
        f"  {cohort.outputs.directory / 'report.html'}",
        f"  {person.outputs.directory / 'report.html'}",
    ]
    return "\n".join(map(str, lines))


def _scores(found: Recovery) -> list[_Line]:
    names = next(iter(found.scores.values()))
    lines = [_Line("", tuple(names))]
    return lines + [_Line(m, tuple(f"{v:.3f}" for v in scores.values())) for m, scores in found.scores.items()]
