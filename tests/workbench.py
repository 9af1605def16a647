"""Connectome Workbench for tests, which are skipped where it is not installed, and the BIDS validator."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

needs_workbench = pytest.mark.skipif(shutil.which("wb_command") is None, reason="wb_command is not installed")


def workbench(*arguments) -> str:
    """What `wb_command` printed, once it ended with 0."""
    return _run("wb_command", *arguments)


def validate_bids(folder: Path) -> str:
    """What the BIDS validator printed, once it ended with 0."""
    beside = Path(sys.executable).with_name("bids-validator-deno")
    return _run(beside if beside.exists() else "bids-validator-deno", folder, "--ignoreWarnings")


def _run(*command) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
