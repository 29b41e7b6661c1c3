"""Stopping on a signal: finish the step, save a checkpoint, then exit."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Sent when a terminal is closed. Windows has no such signal.
HANGUP = getattr(signal, "SIGHUP", None)


class Stopped(SystemExit):
    """Training stopped on a signal, after saving a checkpoint.

    The exit code is the one that shells use for the signal: 129 after SIGHUP, 130 after
    SIGINT, 143 after SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class StopRequest:
    """Whether the process received a signal: its `number`, or 0."""

    def __init__(self) -> None:
        self.number = 0


@contextmanager
def handle_signals() -> Iterator[StopRequest]:
    """Record the first SIGINT, SIGTERM or SIGHUP as a request; exit on the second.

    Under `nohup`, SIGHUP stays ignored.

    Yields:
        The request, to be checked between steps.

    Raises:
        Stopped: In the end, if there was a request and nothing else was raised.
    """
    request = StopRequest()

    def handle(number: int, _: object) -> None:
        # A closed terminal may send several, none of which is impatience.
        if request.number and number != HANGUP:
            os._exit(128 + number)
        request.number = request.number or number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if HANGUP is not None and signal.getsignal(HANGUP) != signal.SIG_IGN:
        numbers.append(HANGUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if request.number:
        raise Stopped(request.number)
