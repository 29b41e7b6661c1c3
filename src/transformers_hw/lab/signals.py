"""Being asked to stop: finish the step, write a checkpoint, then go."""

import os
import signal
import threading
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
def heed_signals() -> Iterator[Request]:
    """Take the first SIGINT or SIGTERM as a request, and the second as an order.

    Yields:
        What has been asked for, to be looked at between steps.
    """
    request = Request()

    def handle(number: int, _: object) -> None:
        if request.number:
            os._exit(128 + number)
        request.number = number

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
