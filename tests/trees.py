"""Trees of empty files, and what a layout makes of them."""

from pathlib import Path

from parcellation.config import parse_study
from parcellation.findings import Finding
from parcellation.manifest import bold_paths, discover

BEST = "_MSMAll_hp2000_clean"


def study_of(root: Path, **data):
    return parse_study({"name": "s", "data": {"root": str(root), **data}}, root / "study.yaml")


def tree(root: Path, *names: str) -> Path:
    """A tree of files without any content."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def found(root: Path, **data) -> tuple[dict[str, str], list[Finding]]:
    """The file of each run by `subject/session/run`, and the findings but that the files are empty."""
    frame, findings = discover(study_of(root, **data))
    files = {
        f"{row['subject']}/{row['session']}/{row['run']}": " ".join(path.name for path in bold_paths(row))
        for row in frame.to_dict("records")
    }
    return files, [one for one in findings if not one.detail.endswith(": empty")]


def add_run(root: Path, subject: str, run: str, variant: str = BEST, content: bytes = b"data") -> Path:
    path = root / subject / "MNINonLinear" / "Results" / run / f"{run}_Atlas{variant}.dtseries.nii"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def whole_subject(root: Path, subject: str) -> None:
    for number in "12":
        for phase in ("LR", "RL"):
            add_run(root, subject, f"rfMRI_REST{number}_{phase}")


def kinds(findings: list[Finding]) -> dict[str, int]:
    return {kind: sum(one.kind == kind for one in findings) for kind in sorted({one.kind for one in findings})}
