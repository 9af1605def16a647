"""SIGTERM, by which a cluster ends a job, acts as Ctrl-C does: half-written files are removed on the way out.

An exception that a signal raises can be lost: destructors swallow it, and code in other languages may put an error of
its own in its place. Who catches errors and goes on asks `told_to_end` first; what goes on regardless is interrupted
again.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
AGAIN = 3.0  # seconds: cleaning up takes far less

_came: list[int] = []


def told_to_end() -> bool:
    """Whether a signal to end has come to the command at work."""
    return bool(_came)


def heard() -> None:
    """No further interruption: what has been told is ending, and may take its time."""
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Within, signals to end raise KeyboardInterrupt, and again when it was lost."""
    _came.clear()
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may receive signals
        return
    before = {number: signal.signal(number, _interrupt) for number in SIGNALS}
    try:
        yield
        if told_to_end():
            raise KeyboardInterrupt  # it was lost, and the end has come before the next
    except Exception as error:
        if told_to_end():
            raise KeyboardInterrupt from error  # what it says is no fault of the data
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        _came.clear()  # what comes after, in the same process, was told nothing


def _interrupt(number: int, frame) -> None:
    _came.append(number)
    signal.setitimer(signal.ITIMER_REAL, AGAIN)
    raise KeyboardInterrupt
