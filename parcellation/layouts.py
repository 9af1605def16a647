"""Trees of files as pipelines leave them: which files are runs, of whom, and which variant of a run is used.

A layout is a description in `data_manifest/`; nothing in here knows one by its name. What is not said there or in the
study is not guessed: two files that claim to be one run, and variants that are as good as each other, are an error.
"""

import difflib
import fnmatch
import json
import os
import re
import string
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from parcellation.config import Data, Section
from parcellation.descriptions import described_layouts
from parcellation.errors import BadData, InputMissing, NotADataset, NothingSelected, UsageError
from parcellation.findings import Finding, natural

HEMISPHERES = {"L": "bold_left", "R": "bold_right"}


class Layout(Section):
    """How a tree of files is read; `data_manifest/README.md` explains the keys."""

    layout: str
    subjects: str
    runs: list[str]
    run_file: str
    session: str
    run: str = "{run}"
    variant: str = "{variant}"
    tasks: list[str] = Field(default=[])
    combined: list[str] = Field(default=[])
    not_runs: list[dict[str, str]] = Field(default=[])
    preference: list[str]
    cleaned: str
    beside: dict[str, list[str]] = Field(default={})
    complete: list[dict[str, list[str]]] = Field(default=[])
    cleaning: dict = Field(default={})


def load_layout(name: str) -> Layout:
    """The description called `name` in `data_manifest/`; raises UsageError with the nearest name when there is none."""
    described = described_layouts()
    if name not in described:
        near = difflib.get_close_matches(name, described, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: manifest, {', '.join(sorted(described))}"
        raise UsageError(f"data.layout: no layout is called {name!r}; {hint}")
    return Layout.model_validate(described[name])


Key = tuple[str, str, str]  # subject, session, run


class _File(NamedTuple):
    """A file that is (a hemisphere of) a variant of a run: its path relative to the root, and the named groups."""

    path: str
    groups: dict[str, str]


class _Variant(NamedTuple):
    """One variant of a run, with its file, or its files by hemisphere."""

    name: str
    files: dict[str, _File]

    @property
    def path(self) -> str:
        return " + ".join(file.path for _, file in sorted(self.files.items()))


def tree_runs(data: Data) -> tuple[list[dict[str, str]], list[Finding]]:
    """The runs of a tree, a row with the given columns of a manifest for each, in natural order; and what is odd.

    Raises InputMissing without the folder, NotADataset when no run is in it, NothingSelected when none is of the
    study's tasks or variants, BadData when files contradict each other about a run, UsageError for an unknown layout.
    """
    root, layout = Path(data.root), load_layout(data.layout)
    if not root.exists():
        raise InputMissing(f"{root}: no such folder")
    if not root.is_dir():
        raise NotADataset(f"{root}: expected the folder that holds the subjects' folders, got a file")
    files, findings = _scan(root, layout)
    if not files:
        raise NotADataset(
            f"{root}: not a tree of layout {layout.layout}: no run like {layout.runs[0]} in it{_hint(root, layout)}"
        )
    files, others = _of_tasks(files, layout, data.tasks)
    files, combined = _without_combined(files, layout)
    runs = _by_run(files, layout, root)
    chosen, left = _chosen(runs, layout, data.variants, root)
    rows = [_row(root, layout, key, chosen[key]) for key in sorted(chosen, key=lambda k: [natural(n) for n in k])]
    findings += others + combined + left + _otherwise(chosen, layout, data.confounds == "none")
    findings += _incomplete(set(chosen), layout) + _without_runs(root, layout, chosen)
    return rows, findings


def _hint(root: Path, layout: Layout) -> str:
    """Whether the folder above or one below is what was meant."""
    if (root / layout.subjects.rpartition("/")[2]).exists():
        return f"; this looks like one subject's folder, give {root.parent}"
    for child in sorted(root.iterdir()):
        if child.is_dir() and any(next(child.glob(pattern), None) for pattern in layout.runs):
            return f"; there are some in {child}, give that folder"
    return ""


def _scan(root: Path, layout: Layout) -> tuple[list[_File], list[Finding]]:
    """Every file that may be a run; those that look like runs and are none are findings."""
    pattern = re.compile(layout.run_file, re.VERBOSE)
    files, findings = [], []
    for path in sorted({path for glob in layout.runs for path in root.glob(glob)}):
        name = path.relative_to(root).as_posix()
        reasons = [one["reason"] for one in layout.not_runs if re.fullmatch(one["pattern"], name)]
        match = pattern.fullmatch(name)
        if reasons or match is None:
            findings.append(Finding("not a run", f"{name}: {(reasons or ['not named like a run'])[0]}"))
        else:
            files.append(_File(name, {key: value or "" for key, value in match.groupdict().items()}))
    return files, findings


def _of_tasks(files: list[_File], layout: Layout, tasks: list[str] | None) -> tuple[list[_File], list[Finding]]:
    """The files of the tasks asked for. Where a pattern allows several, the task becomes part of a run's name."""
    if not layout.tasks:
        if tasks is not None:
            raise UsageError(f"data.tasks: files of layout {layout.layout} do not name a task")
        return files, []
    wanted = [re.compile(fnmatch.translate(task), re.IGNORECASE) for task in tasks or layout.tasks]
    one = len(wanted) == 1 and not re.search(r"[*?\[]", (tasks or layout.tasks)[0])
    kept, others = [], Counter()
    for file in files:
        if any(pattern.match(file.groups["task"]) for pattern in wanted):
            kept.append(_File(file.path, file.groups | {"task": "" if one else file.groups["task"]}))
        else:
            others[file.groups["task"]] += 1
    if not kept:
        there = ", ".join(sorted(others, key=natural))
        raise NothingSelected(
            f"no run is of task {' or '.join(tasks or layout.tasks)}; tasks there are {there}: data.tasks"
        )
    return kept, [
        Finding("other task", f"{task}: {count} files; to use it, name it in data.tasks")
        for task, count in others.items()
    ]


def _without_combined(files: list[_File], layout: Layout) -> tuple[list[_File], list[Finding]]:
    """Files without those that put several runs into one: they lack a part of the name that the single runs have."""

    def rest(file: _File) -> tuple:
        return tuple(file.groups[name] for name in ("subject", *_names(layout.session)))

    def parts(file: _File) -> set[tuple[str, str]]:
        return {(name, file.groups[name]) for name in _names(layout.run) if file.groups[name]}

    if not layout.combined:
        return files, []
    single = defaultdict(list)
    for file in files:
        single[rest(file)].append(parts(file))
    kept, findings = [], []
    for file in files:
        own = parts(file)
        more = [other - own for other in single[rest(file)] if own < other]
        if any({name for name, _ in extra} <= set(layout.combined) for extra in more):
            findings.append(Finding("not a run", f"{file.path}: several runs of one subject in one file"))
        else:
            kept.append(file)
    return kept, findings


def _names(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def _label(template: str, groups: dict[str, str]) -> str:
    """A name of letters and digits; where the file says nothing, it is the first."""
    return re.sub("[^A-Za-z0-9]", "", template.format(**groups)) or "1"


def _by_run(files: list[_File], layout: Layout, root: Path) -> dict[Key, list[_Variant]]:
    """The variants of every run. Raises BadData when two files claim to be the same thing."""
    processing = {"hemisphere", *_names(layout.variant)}
    runs: dict[Key, dict[str, dict[str, _File]]] = defaultdict(lambda: defaultdict(dict))
    first, faults = {}, []
    for file in files:
        key = (file.groups["subject"], _label(layout.session, file.groups), _label(layout.run, file.groups))
        identity = {name: value for name, value in file.groups.items() if name not in processing}
        other = first.setdefault(key, file)
        alike = runs[key][layout.variant.format(**file.groups)]
        side = file.groups.get("hemisphere", "")
        if any(identity[name] != other.groups[name] for name in identity):
            faults.append((key, other.path, file.path))
        elif side in alike:
            faults.append((key, alike[side].path, file.path))
        else:
            alike[side] = file
    _refuse(root, faults, "leave one of them out of the tree, or list the runs in a manifest")
    return {key: [_Variant(name, by_side) for name, by_side in variants.items()] for key, variants in runs.items()}


def _refuse(root: Path, faults: list[tuple[Key, str, str]], remedy: str) -> None:
    if not faults:
        return
    lines = [f"{root}: sub-{s} ses-{t} run-{r} doubled: {one} and {two}" for (s, t, r), one, two in faults[:10]]
    lines += [f"and {len(faults) - 10} more"] if len(faults) > 10 else []
    raise BadData("\n".join([*lines, remedy]))


def _chosen(
    runs: dict[Key, list[_Variant]], layout: Layout, asked: list[str] | None, root: Path
) -> tuple[dict[Key, _Variant], list[Finding]]:
    """The variant of each run that is used: the first that is there, of those asked for or in the layout's order."""
    order = [re.compile(one) for one in ([fnmatch.translate(name) for name in asked] if asked else layout.preference)]
    chosen, findings, faults = {}, [], []
    for key, variants in runs.items():
        whole = [one for one in variants if set(one.files) in ({""}, set(HEMISPHERES))]
        findings += [
            Finding("missing hemisphere", f"{one.path}: the other one is not there", *key)
            for one in variants
            if one not in whole
        ]
        ranked = sorted((rank, one) for one in whole if (rank := _rank(one.name, order)) is not None)
        if not ranked:
            names = ", ".join(sorted(one.name for one in whole)) or "none whole"
            findings.append(
                Finding("no usable variant", f"there are {names}; to use one, name it in data.variants", *key)
            )
            continue
        chosen[key] = ranked[0][1]
        faults += [(key, chosen[key].path, one.path) for rank, one in ranked[1:] if rank == ranked[0][0]]
        passed = [one.path for one in whole if one != chosen[key]]
        findings += [
            Finding("variant passed over", f"{path}; used: {_used(chosen[key])}", *key) for path in sorted(passed)
        ]
    _refuse(root, faults, "both are as good by the layout's order; name the one to use in data.variants")
    if not chosen:
        raise NothingSelected(f"{root}: no run has a variant to use\n" + "\n".join(map(str, sorted(findings)[:5])))
    return chosen, findings


def _rank(name: str, order: list[re.Pattern]) -> int | None:
    return next((rank for rank, pattern in enumerate(order) if pattern.fullmatch(name)), None)


def _used(variant: _Variant) -> str:
    return " + ".join(Path(file.path).name for _, file in sorted(variant.files.items()))


def _otherwise(chosen: dict[Key, _Variant], layout: Layout, as_they_are: bool) -> list[Finding]:
    """Runs that were processed otherwise than most, or not cleaned though they are used as they are."""
    names = [one.name for one in chosen.values()]
    most = max(sorted(set(names)), key=names.count)
    findings = []
    for key, one in chosen.items():
        if one.name != most:
            findings.append(
                Finding("processed otherwise", f"{_used(one)}; most runs are {most or 'without a variant'}", *key)
            )
        if as_they_are and not re.fullmatch(layout.cleaned, one.name):
            findings.append(Finding("not cleaned", f"{_used(one)}: set data.confounds, or use a cleaned variant", *key))
    return findings


def _row(root: Path, layout: Layout, key: Key, variant: _Variant) -> dict[str, str]:
    """What the manifest says of a run: its files, and the files that belong to it by their exact names."""
    row = dict(zip(("subject", "session", "run"), key, strict=True))
    for side, file in variant.files.items():
        row[HEMISPHERES.get(side, "bold")] = os.path.abspath(root / file.path)
    for column, templates in layout.beside.items():
        names = [root / one.format(**next(iter(variant.files.values())).groups) for one in templates]
        found = next((path for path in names if os.path.lexists(path)), None)
        if found is not None and column != "sidecar":
            row[column] = os.path.abspath(found)
        elif found is not None and "bold" not in row:  # a CIFTI file says its repetition time itself
            row["tr"] = _repetition_time(found)
    return row


def _repetition_time(sidecar: Path) -> str:
    """Seconds as written in a JSON sidecar; empty when it does not say."""
    try:
        value = json.loads(sidecar.read_text(encoding="utf-8"))["RepetitionTime"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return str(value) if isinstance(value, int | float) and 0 < value < 60 else ""


def _incomplete(there: set[Key], layout: Layout) -> list[Finding]:
    """Sessions and runs that a subject lacks: of the layout's sets or, where it has none, that most subjects have."""
    subjects: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for subject, session, run in there:
        subjects[subject].add((session, run))
    counts = Counter(one for runs in subjects.values() for one in runs)
    usual = {one for one, count in counts.items() if 2 * count > len(subjects) > 1}
    sets = [
        {session: {(session, run) for run in names} for session, names in whole.items()} for whole in layout.complete
    ]
    if not sets:
        sets = [{session: {one for one in usual if one[0] == session} for session, _ in usual}]
    findings = []
    for subject, runs in subjects.items():
        for wanted in sets:
            if not layout.complete or runs & set().union(*wanted.values()):
                findings += _lacking(subject, runs, wanted)
    return findings


def _lacking(subject: str, there: set[tuple[str, str]], wanted: dict[str, set[tuple[str, str]]]) -> Iterator[Finding]:
    for session, names in wanted.items():
        if not names & there and not any(one == session for one, _ in there):
            yield Finding("missing session", "no run of it", subject, session)
        else:
            yield from (Finding("missing run", "not there", subject, *one) for one in names - there)


def _without_runs(root: Path, layout: Layout, chosen: dict[Key, _Variant]) -> list[Finding]:
    """Folders of subjects in which no run was found, and folders that may not be looked into."""
    folders = {path.relative_to(root).parts[0] for path in root.glob(layout.subjects) if path.is_dir()}
    used = {Path(file.path).parts[0] for one in chosen.values() for file in one.files.values()}
    findings = [Finding("no run", f"{name}: a subject's folder without any run") for name in folders - used]
    closed = [path for path in root.iterdir() if path.is_dir() and not os.access(path, os.R_OK | os.X_OK)]
    return findings + [Finding("unreadable", f"{path.name}: no permission to look into this folder") for path in closed]
