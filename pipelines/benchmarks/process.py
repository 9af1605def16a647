"""What a benchmark's process took of the machine."""

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_mib() -> float:
    """Peak of this process's memory in MiB, imports and all.

    Where the system tells it of the program itself: `ru_maxrss` of a child begins with what its parent had.
    """
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
