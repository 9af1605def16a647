"""`train`: one model from the prepared fingerprints of the training subjects; resumes where it was interrupted."""

import contextlib
import hashlib
import json
import logging
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from parcellation.cohort import Cohort, fit_features, open_cohort
from parcellation.cohort_source import CohortSource
from parcellation.config import Study
from parcellation.distributed import Team, team_of
from parcellation.elbo import training_loss
from parcellation.errors import BadData, InputMissing, Stopped, UsageError
from parcellation.family import Family
from parcellation.files import checksum, unit_lock, writable_folder, write_text
from parcellation.label_power import choose_label_power, fit_retest_link
from parcellation.model_file import TrainedModel, load_model, save_model
from parcellation.networks import close_anchors, separation
from parcellation.plates import Template, template_class
from parcellation.refitted_map import refit_map
from parcellation.semi_amortized import check_refinable, semi_amortized
from parcellation.store import Store
from parcellation.training import Plan, anchor, fit, settle_population, warm_start
from parcellation.training_reference import training_reference
from parcellation.verbs.index import cohort_units, manifest_of
from parcellation.verbs.results import find_colours, find_orientation
from parcellation.verbs.topography import check_topography, study_basis
from parcellation.verbs.warned import TRAINED, Warned, into, keep
from parcellation.verbs.workspace import Selection, Workspace, model_header, training_subjects

log = logging.getLogger(__name__)

COLLAPSED = 0.05  # share of the anchors' differences between networks
CHUNK = 8  # subjects in memory at a time outside training steps
FREE_PASSES, SMOOTH_PASSES = 8, 24  # towards the first answer: scales of smooth maps take longer to find
SMOOTHNESS = 1.0  # nu of the Matern field that a smooth map is
ROW_RATE = 0.1  # free subjects start near their answers: larger steps only blur them, and what is learned of the scales


def train(study: Study, selection: Selection, device: str | None = None) -> str:
    """Train the study's model; returns the lines to print. A finished model of the same inputs is left as it is.

    Raises UsageError for a study that applies a trained model, which training would overwrite.
    """
    if study.model.file is not None:
        raise UsageError(
            f"train: this study applies the model {study.model.file}; without model.file it trains its own"
        )
    workspace = Workspace(study)
    ground = workspace.ground()
    check_topography(study, ground.parcels)
    store = workspace.store(ground, cohort_units(study, workspace))
    subjects = whom_to_train_on(study, workspace, store)
    key = _key(study, ground.digest, store, subjects)
    if _is_finished(workspace.model, key):
        return f"the model in {workspace.model} is trained on these inputs already"
    if selection.dry_run:
        return f"would train on {len(subjects)} subjects for {study.training.steps} steps"
    writable_folder(workspace.model)
    torch.set_num_threads(study.training.threads)
    device = device or _device(study)
    torch.set_float32_matmul_precision(matmul_precision(study.training.precision, device))
    with team_of(torch.device(device)) as team, _only_one(workspace, team):
        _check_team(study, team)
        log.info("training on %d subjects, device %s, %d threads", len(subjects), team.device, torch.get_num_threads())
        cohort = open_cohort(store, team.first(lambda: fit_features(store, subjects, study.features)), subjects)
        warned: list[Warned] = []
        with into(warned):
            family, source = _family(study, cohort, team)
        # What the steps say is of how they run, and when they are continued only of some of them.
        losses = _fit(study, family, source, workspace, key, team)
        if team.rank:
            return "trained; the first process saves the model"
        with into(warned):
            model = _finished(study, key, cohort, family, source, ground)
        keep(workspace.model / TRAINED, warned)
        _write_losses(workspace.model / "training_loss.tsv", losses)
        save_model(workspace.model, model)  # last, since a model that is there is not trained again
        return f"trained on {len(subjects)} subjects: {workspace.model}\n{_scales(model, cohort)}"


@contextlib.contextmanager
def _only_one(workspace: Workspace, team: Team) -> Iterator[None]:
    """Raises Stopped when another training of this model is under way."""
    with contextlib.ExitStack() as stack:
        lock = workspace.model / "train.lock"
        if not team.first(lambda: stack.enter_context(unit_lock(lock))):
            raise Stopped(f"{workspace.model}: another process is training this model; the same command continues then")
        yield


def _check_team(study: Study, team: Team) -> None:
    """Raises UsageError, before any work, for what one process alone can train."""
    if study.training.inner_steps and team.size > 1:
        raise UsageError(
            f"training.inner_steps: expected a training in one process, got one in {team.size}; start it without "
            "torchrun, or leave inner_steps out"
        )


def _finished(study: Study, key: str, cohort: Cohort, family: Family, source: CohortSource, ground) -> TrainedModel:
    """A fitted family as the study's model, calibrated and with what travels with it."""
    subjects = cohort.subjects
    details = {
        "key": key,
        "study": study.resolved(),
        "ground": ground.to_json(),
        "subjects": subjects,
        "sessions": sum(len(cohort.sessions(subject)) for subject in subjects),
        "feature_targets": cohort.feature_map.targets,
    }
    arrays = cohort.feature_map.to_arrays()
    model = TrainedModel(family, cohort.identity, details, arrays)
    check_networks(model)
    model = _calibrate(model, source, study.model.label_power)
    model = replace(model, novelty=training_reference(model, cohort, source))
    details["orientation"] = find_orientation(study, ground, model)
    details["colours"] = find_colours(study, ground, model)
    return model


def whom_to_train_on(study: Study, workspace: Workspace, store: Store) -> list[str]:
    """The study's training subjects, of those with fingerprints; raises NothingSelected when nobody is left."""
    groups = {}
    if study.training.group is not None:
        frame = manifest_of(study, workspace, Selection())
        groups = dict(zip(frame["subject"], frame["group"], strict=True))
    there = list(dict.fromkeys(subject for subject, _ in store.units()))
    return training_subjects(study, there, groups)


def fitted(study: Study, cohort: Cohort, device: torch.device) -> TrainedModel:
    """A model as its training begins: from coordinate ascent, checked, with label power and map; no gradient steps.

    Raises BadData where networks have collapsed into one.
    """
    family, source = _family(study, cohort, Team(device=device))
    model = TrainedModel(family, cohort.identity, {}, cohort.feature_map.to_arrays())
    check_networks(model)
    return _calibrate(model, source, study.model.label_power)


def _key(study: Study, ground: str, store, subjects: list[str]) -> str:
    """What a model depends on: settings, ground, and the content of every training unit."""
    wanted = set(subjects)
    units = [[*unit, store.header(*unit)["checksum"]] for unit in store.units() if unit[0] in wanted]
    content = study.resolved()
    if (graph := study.model.topography.graph) is not None:
        if not graph.is_file():
            raise InputMissing(f"{graph}: no such file, which model.topography.graph names")
        content["model"]["topography"]["graph"] = checksum(graph)
    training = {k: v for k, v in content["training"].items() if k not in ("subjects", "group", "checkpoint_every")}
    # So that models of before there were such settings stay what they are.
    if not study.model.topography.modes:
        content["model"].pop("topography")
    if training["precision"] == "auto":
        training.pop("precision")
    if not training["inner_steps"]:
        training = {k: v for k, v in training.items() if not k.startswith("inner_")}
    model = {k: v for k, v in content["model"].items() if k not in ("file", "names")}
    settings = [content["features"], model, training, ground, units]
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _is_finished(folder: Path, key: str) -> bool:
    try:
        return model_header(folder)["details"]["key"] == key and load_model(folder).digest != ""
    except (InputMissing, BadData):
        return False


def _device(study: Study) -> str:
    if study.training.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return study.training.device


def matmul_precision(precision: str, device: str) -> str:
    """PyTorch's name for the precision of products: unless asked for, only a GPU rounds their factors (to 10 bits).

    Stored fingerprints are float16, of 10 bits too. Products are a small part of a step, so that the 8 bits of bfloat16
    would gain nothing.
    """
    rounded = precision == "tf32" or (precision == "auto" and device.startswith("cuda"))
    return "high" if rounded else "highest"


def _family(study: Study, cohort: Cohort, team: Team) -> tuple[Family, CohortSource]:
    """The family grounded at the cohort's cardinalities, started near an answer.

    Encoded population sites are settled before the first step, which is as good as after the last: the encoder has no
    weights. Every step then sees the population of the whole cohort.
    """
    cls = _template(study)
    source = CohortSource(None, cohort, team.device)
    smooth = _smooth(study, cohort)
    reference = team.first(lambda: anchor(source, cls.plates, study.model.networks, study.training.seed, CHUNK))
    template = cls(reference.float().to(team.device), cohort.reference_frames(), **smooth)
    source.template = template  # what is kept of the cohort stays
    with torch.random.fork_rng(devices=[]):
        # The only use of the global generator: zuko's layers draw their first weights from it.
        torch.manual_seed(study.training.seed)
        model = study.model
        settings = dict(flow=model.flows, encoding_size=model.encoding_size, passes=model.encoder_passes)
        family = Family(template, source.cards, model.scheme, **settings).to(team.device)
    passes = SMOOTH_PASSES if smooth else FREE_PASSES
    if team.rank == 0:
        settle_population(family, source, CHUNK, warm_start(family, source, CHUNK, passes))
    team.follow(family)
    return family, source


def _smooth(study: Study, cohort: Cohort) -> dict:
    """What a template with a smooth map is made with besides; nothing where it is off.

    Raises UsageError for a template without smooth maps.
    """
    settings = study.model.topography
    if settings.modes and study.model.template != "functional_parcellation":
        raise UsageError(
            "model.topography: expected the model.template functional_parcellation, which alone has smooth maps, "
            f"got {study.model.template!r}"
        )
    basis = study_basis(study, cohort.vertices)
    if basis is None:
        return {}
    phi, eigenvalues = (torch.from_numpy(part).float() for part in (basis.phi, basis.eigenvalues))
    decay = (SMOOTHNESS + settings.dimensions / 2) / 2
    return dict(phi=phi, eigenvalues=eigenvalues, decay=decay, deviations=settings.subjects)


def _template(study: Study) -> type[Template]:
    """The study's template; raises UsageError for one that is not of networks and their fingerprints."""
    cls = template_class(study.model.template)
    if cls.encoder != "network_pooling":
        raise UsageError(
            f"model.template: expected a model of networks, got {study.model.template!r}; see docs/method.md"
        )
    return cls


def _fit(study: Study, family: Family, source: CohortSource, workspace, key: str, team: Team) -> np.ndarray:
    training = study.training
    subsample = {"vertex": training.batch_vertices} if training.batch_vertices else {}
    plan = Plan(
        training.steps,
        training.batch_subjects,
        training.learning_rate,
        training.seed,
        subsample,
        training.checkpoint_every,
        ROW_RATE,
    )
    estimator = training_loss
    if training.inner_steps:
        check_refinable(family)
        estimator = semi_amortized(training.inner_steps, training.inner_gradient == "first_order")
    with tqdm(total=training.steps, desc="train", unit="step", disable=team.rank > 0 or None) as bar:

        def progress(step: int, loss: float) -> None:
            bar.update(step - bar.n)
            if step % 100 == 0:
                log.info("step %d of %d: training loss %.1f nats (not an ELBO)", step, training.steps, loss)

        with stop_signal() as stop:
            losses = fit(family, source, plan, workspace.checkpoint, key, progress, stop, estimator, team)
            if stop():
                raise Stopped("training stopped after its last step; the same command continues")
        return losses


@contextlib.contextmanager
def stop_signal() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGTERM or SIGINT has come; within this context the first of them ends nothing."""
    came: list[int] = []

    def remember(number: int, frame) -> None:
        # A second one does what it would have done outside.
        signal.signal(number, before[number])
        came.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _calibrate(model: TrainedModel, source: CohortSource, unchecked: float) -> TrainedModel:
    """The model with its label power, the population map that goes with it, and its retest link.

    unchecked: the power where nothing can be compared.
    """
    if model.family.encoder is None:
        return model
    model = replace(model, label_power=choose_label_power(model, source, unchecked))
    if not model.label_power.plain:
        refit_map(model, source)
    return replace(model, retest_link=fit_retest_link(model, source))


def check_networks(model: TrainedModel) -> None:
    """Warn of networks that may change places; raises BadData where all have become one."""
    family = model.family
    reference = family.template.reference.cpu().double()
    for i, j in close_anchors(reference):
        log.warning("networks %d and %d are so alike that they may change places between cohorts", i + 1, j + 1)
    left = separation(family.centre(model.blank())["mu"][0, 0, 0].cpu().double(), reference)
    if left < COLLAPSED:
        raise BadData(
            f"training: the networks' profiles have collapsed into one: {left:.1%} of the anchors' differences are "
            "left; fewer networks or more data may help"
        )


def _write_losses(path: Path, losses: np.ndarray) -> None:
    rows = "".join(f"{step}\t{loss:.6f}\n" for step, loss in enumerate(losses, 1))
    write_text(path, "step\ttraining_loss\n" + rows)


def _scales(model: TrainedModel, cohort: Cohort) -> str:
    """The recovered scales in the units of the fingerprints' features before scaling, in one line."""
    centre = model.family.centre(model.blank().to(next(model.family.parameters()).device, torch.float32))
    parts = []
    for name, label in (("log_kappa", "noise"), ("log_epsilon", "between subjects"), ("log_sigma", "between sessions")):
        if name in centre:
            values = (centre[name].exp() / cohort.feature_map.scale).flatten().tolist()
            parts.append(f"{label} {' '.join(f'{value:.4g}' for value in values)}")
    return f"standard deviations: {'; '.join(parts)}; label power {model.label_power.at(1):.3g} for one session"
