"""The console command: parses, sets up logging, and calls one verb; imports a verb's rooms only when it runs."""

import argparse
import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from parcellation import __version__
from parcellation.errors import FileFailure, ParcellationError, UsageError
from parcellation.interruption import interruptible
from parcellation.run_log import counted_warnings, repeated, run_log

log = logging.getLogger(__name__)

VERBS = {
    "index": "list the runs of a study's data and what is missing, before anything is computed",
    "prepare": "compute the fingerprints of every session",
    "train": "train the model",
    "networks": "how well unseen people are predicted with 2 to 10 networks, and what that supports",
    "infer": "label maps and uncertainty of every subject, without training",
    "diagnose": "amortization gap of every subject, or of a sample of many",
    "report": "write report.html",
    "run": "all of it as jobs, on this machine or a cluster; starts them or goes on",
    "compare": "overlap of two results' networks, or of a result and an atlas, beside chance",
    "show": "a picture of a subject's map, or the population's, as PNG",
    "simulate": "write a cohort with known truth",
    "demo": "the whole way on one real subject and a cohort simulated from it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    code = _main(arguments)
    log.info("exit code %d", code)  # the last line of a job's log
    return code


def _main(arguments: Sequence[str] | None) -> int:
    try:
        _one_thread_each()
        options = _parser().parse_args(arguments)
        _start_logging(options.verbose)
        with interruptible(), counted_warnings() as warnings:
            said = _run(options, sys.argv[1:] if arguments is None else arguments)
        print("\n".join([said, *repeated(warnings, said)]), flush=True)
        return 0
    except ParcellationError as error:
        print(f"parcellation: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of a pipe went away; Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FileFailure.exit_code
    except MemoryError:
        print("parcellation: out of memory; see docs/cluster.md for what a step needs", file=sys.stderr)
        return ParcellationError.exit_code
    except OSError as error:
        print(f"parcellation: {error.filename or 'input/output'}: {error.strerror or error}", file=sys.stderr)
        return FileFailure.exit_code
    except KeyboardInterrupt:
        print("parcellation: interrupted; what was finished is kept, the same command continues", file=sys.stderr)
        return 75


def _one_thread_each() -> None:
    """Numerical libraries sum in an order that depends on their threads, so results would depend on the machine.

    They read this when they are loaded, which is later. Whoever sets it knows better; training has its own setting.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


class _Parser(argparse.ArgumentParser):
    """argparse ends with code 2; ours is 64."""

    def error(self, message: str):
        raise UsageError(f"{message}\n{self.format_usage().strip()}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="parcellation", description="Individual functional parcellation with calibrated uncertainty.")
    parser.add_argument("--version", action="version", version=f"parcellation {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text)
        _ARGUMENTS.get(name, _study_argument)(verb)
        _common_arguments(verb, name)
    return parser


# Options of one verb alone.
MORE = {
    "prepare": ("level", "part"),
    "infer": ("population", "refinement", "level"),
    "diagnose": ("everybody",),
    "networks": ("numbers",),
}
# The verbs that a filter narrows; the others refuse it, since what is ignored in silence is believed to act.
BY_SUBJECT = ("index", "prepare", "infer", "diagnose", "compare", "show", "simulate")
BY_SESSION = ("index", "prepare", "infer")
MOST_STEPS = 10_000  # of refinement: a hundred are enough


def _common_arguments(verb: argparse.ArgumentParser, name: str) -> None:
    verb.set_defaults(participant_label=None, session_label=None)
    if name in BY_SUBJECT:
        verb.add_argument("--participant-label", nargs="+", metavar="SUBJECT", help="only these subjects")
    if name in BY_SESSION:
        verb.add_argument("--session-label", nargs="+", metavar="SESSION", help="only these sessions")
    if name not in ("compare", "show"):
        verb.add_argument("-w", "--work-dir", type=Path, help="in place of the study's outputs.work")
    verb.add_argument("-v", "--verbose", action="count", default=0, help="say more")
    verb.add_argument("--dry-run", action="store_true", help="say what would be done")
    verb.add_argument("--strict", action="store_true", help="end with an error when any run is unusable")


def _study_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", type=Path, metavar="STUDY", help="the study file")
    verb.add_argument("--model", type=Path, help="a trained model to apply, in place of the study's")


def _level_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--level",
        choices=("participant", "group"),
        help="as in a BIDS App: only what belongs to each subject, or only what is made of all; both by default",
    )


def _prepare_arguments(verb: argparse.ArgumentParser) -> None:
    _study_argument(verb)
    _level_argument(verb)
    verb.add_argument(
        "--part",
        type=_part,
        metavar="K/N",
        help="only the K-th of N parts of the subjects, as a task of a job array does; implies --level participant",
    )


def _part(text: str) -> tuple[int, int]:
    numbers = text.split("/")
    if len(numbers) != 2 or not all(map(str.isdecimal, numbers)) or not 1 <= int(numbers[0]) <= int(numbers[1]):
        raise argparse.ArgumentTypeError(f"expected K/N with K from 1 to N, such as 3/20, got {text!r}")
    return int(numbers[0]), int(numbers[1])


def _run_arguments(verb: argparse.ArgumentParser) -> None:
    _study_argument(verb)
    verb.add_argument("--profile", default="local", help="`local` (default), `slurm`, or a folder with one of your own")
    verb.add_argument("--jobs", type=int, metavar="N", help="at most N at a time")
    _population_argument(verb)


def _infer_arguments(verb: argparse.ArgumentParser) -> None:
    _study_argument(verb)
    _level_argument(verb)
    _population_argument(verb)


def _population_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--population",
        choices=("fixed", "reinferred"),
        default="fixed",
        help="the model's (default), or inferred again from the whole cohort, 20 subjects or more",
    )
    verb.add_argument(
        "--refine",
        dest="refinement",
        type=_steps,
        metavar="N",
        help="improve each answer by N steps for this subject alone; default: its training.inner_steps, mostly 0",
    )


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_STEPS:
        raise argparse.ArgumentTypeError(f"expected a number of steps from 0 to {MOST_STEPS}, got {text!r}")
    return int(text)


def _diagnose_arguments(verb: argparse.ArgumentParser) -> None:
    _study_argument(verb)
    verb.add_argument("--all", action="store_true", dest="everybody", help="everybody, in place of a sample")


def _networks_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", type=Path, metavar="STUDY", help="the study file")
    verb.add_argument("--numbers", type=int, nargs="+", metavar="K", help="numbers of networks, default: 2 to 10")


def _index_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("study", type=Path, nargs="?", metavar="STUDY", help="the study file")
    verb.add_argument("--manifest", type=Path, metavar="FILE", help="check this manifest by itself")


def _compare_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("result", type=Path, metavar="RESULT", help="the folder of a result")
    verb.add_argument("other", type=Path, metavar="OTHER", help="that of another, or a label file on the same mesh")
    verb.add_argument("--out", type=Path, metavar="FILE", help="a TSV with every number")


def _show_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("result", type=Path, metavar="RESULT", help="the folder of a result")
    verb.add_argument("--map", choices=MAPS, default="labels", help="what is shown (default: labels)")
    verb.add_argument("--out", type=Path, metavar="FILE", help="the PNG; default: in the result's folder `figures`")


MAPS = ("labels", "entropy", "confidence", "consensus", "betweensd", "profile")


def _simulate_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("config", type=Path, metavar="CONFIG", help="settings of the simulation")
    verb.add_argument("out", type=Path, metavar="OUT", help="the folder to write the cohort to")
    verb.add_argument("--fingerprints", action="store_true", help="draw fingerprints from the model, into a store")


def _demo_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "out", type=Path, nargs="?", default=Path("build/demo"), metavar="OUT", help="default: build/demo"
    )


_ARGUMENTS: dict[str, Callable[[argparse.ArgumentParser], None]] = {
    "index": _index_arguments,
    "prepare": _prepare_arguments,
    "infer": _infer_arguments,
    "run": _run_arguments,
    "diagnose": _diagnose_arguments,
    "compare": _compare_arguments,
    "show": _show_arguments,
    "networks": _networks_arguments,
    "simulate": _simulate_arguments,
    "demo": _demo_arguments,
}


def _start_logging(verbose: int) -> None:
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", force=True)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    from parcellation.verbs.workspace import Selection, at_work

    selection = Selection(options.participant_label, options.session_label, options.strict, options.dry_run)
    if options.verb == "simulate":
        return _verb(options)(options.config, options.out, selection, options.fingerprints)
    if options.verb == "demo":
        return _verb(options)(options.out, selection)
    if options.verb == "show":
        return _verb(options)(options.result, selection, options.map, options.out)
    if options.verb == "compare":
        return _verb(options)(options.result, options.other, selection, options.out)
    if options.verb == "index" and (options.manifest is None) == (options.study is None):
        raise UsageError("index: expected a study file, or --manifest FILE\nusage: parcellation index STUDY")
    if options.verb == "index" and options.manifest is not None:
        return _verb(options, "check_manifest")(options.manifest, options.strict)
    # A wrong study is found before a verb's libraries are loaded, which takes seconds.
    study = _study(options)
    if options.verb == "run":
        how = options.profile, options.jobs, options.population, options.refinement
        return _verb(options)(options.study.resolve(), study, selection, *how)
    more = {name: getattr(options, name) for name in MORE.get(options.verb, ())}
    if not (options.dry_run or more.get("part") or more.get("level") == "participant"):
        _tidy([study.outputs.work, *([study.outputs.directory] if options.verb == "infer" else [])])
    with contextlib.nullcontext() if selection.dry_run else at_work(study.outputs.work), run_log(arguments) as log:
        said = _verb(options)(study, selection, **more)
        # Of a part of a cohort nothing is written that other parts write too, at the same time.
        if options.verb in ON_RESULTS and not options.dry_run and more.get("level") != "participant":
            log.write(study.outputs.directory, said)
    return said


def _tidy(folders: Sequence[Path]) -> None:
    """Remove what killed processes have left; parts of a cohort, of which there are many, leave it to the others."""
    from parcellation.files import remove_left

    if count := sum(remove_left(folder) for folder in folders):
        log.info("%d files removed that killed processes have left half written", count)


# The verbs that write into a results folder, which has a log of them.
ON_RESULTS = ("infer", "diagnose", "report", "networks")


def _verb(options: argparse.Namespace, function: str | None = None) -> Callable[..., str]:
    """The function of a verb has its name, if not another."""
    return getattr(importlib.import_module(f"parcellation.verbs.{options.verb}"), function or options.verb)


def _study(options: argparse.Namespace):
    from parcellation.config import load_study
    from parcellation.verbs.workspace import resolve

    study = load_study(options.study)
    if options.work_dir is not None:
        outputs = study.outputs.model_copy(update={"work": options.work_dir.resolve()})
        study = study.model_copy(update={"outputs": outputs})
    return resolve(study, getattr(options, "model", None))
