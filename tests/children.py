"""A command in a child of the test's process: no start of Python, and it can be killed or be somebody else."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from parcellation.cli import main


def child_of(arguments: list[object], out: Path, before: Callable[[], None] = lambda: None) -> int:
    """Start a command in a child of this process; what it prints goes to a file. Returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 70  # an exception that nobody expects
    try:
        with open(out, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        before()
        code = main([str(one) for one in arguments])
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(child: int) -> int:
    """Its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
