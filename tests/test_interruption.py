"""A signal to end is obeyed also where the exception that it raises is lost."""

import contextlib
import os
import signal
import time

import pytest

from parcellation import interruption
from parcellation.errors import BadData
from parcellation.interruption import interruptible, told_to_end


def told() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)


def test_a_signal_interrupts_and_handlers_come_back():
    before = [signal.getsignal(number) for number in interruption.SIGNALS]
    with pytest.raises(KeyboardInterrupt), interruptible():
        told()
    assert [signal.getsignal(number) for number in interruption.SIGNALS] == before
    assert not told_to_end()
    with interruptible():
        assert not told_to_end()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_an_error_in_place_of_the_interruption_is_one():
    def fail() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            told()
        raise BadData("the file cannot be read")

    with pytest.raises(KeyboardInterrupt), interruptible():
        fail()


def test_an_error_without_a_signal_stays_what_it_is():
    with pytest.raises(BadData, match="the file"), interruptible():
        raise BadData("the file cannot be read")


def test_what_swallows_an_interruption_is_interrupted_again(monkeypatch):
    monkeypatch.setattr(interruption, "AGAIN", 0.1)

    def go_on() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            told()
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), interruptible():
        go_on()
