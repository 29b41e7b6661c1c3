"""Being asked to stop: finish the step, write a checkpoint, then go."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(SystemExit):
    """A run was asked to stop, and has written a checkpoint.

    Its exit code is what a shell reports of a program that the signal ended: 130 after
    an interrupt, 143 after a request to terminate.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class Request:
    """Whether this process was asked to stop.

    Attributes:
        number: The signal that asked, or 0.
    """

    def __init__(self) -> None:
        self.number = 0


@contextmanager
def heed_signals(*, patience: float = 0.0) -> Iterator[Request]:
    """Take the first SIGINT or SIGTERM as a request, and the second as an order.

    Args:
        patience: For how many seconds after the first signal another one counts as the
            same. `torchrun` passes on to its processes what a terminal has sent to
            all of them already.

    Yields:
        What has been asked for, to be looked at between steps.
    """
    request, first = Request(), 0.0

    def handle(number: int, _: object) -> None:
        nonlocal first
        if request.number and time.monotonic() - first >= patience:
            os._exit(128 + number)
        if not request.number:
            request.number, first = number, time.monotonic()

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {
        number: signal.signal(number, handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
