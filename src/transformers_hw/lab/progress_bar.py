"""Progress bars and messages, which never stop a run.

There may be nobody to read them: standard output and error can be closed from the
start, be a pipe whose reader has gone, or a terminal that was closed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

# What a stream raises that is None, broken, or closed.
GONE = (AttributeError, OSError, ValueError)


class LenientStream:
    """A text stream that takes everything, whether or not the one below can.

    Args:
        stream: The stream below; `None` if it was closed when Python started.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write and flush text, or lose it."""
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(text.encode("ascii", "backslashreplace").decode())
            self._stream.flush()
        except GONE:
            self._give_up()
        return len(text)

    def flush(self) -> None:
        """Do nothing: `write` has flushed."""

    def isatty(self) -> bool:
        """Whether this is a terminal."""
        try:
            return self._stream.isatty()
        except GONE:
            return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        # Else Python would fail to write the rest when it exits.
        with suppress(*GONE):
            number = self._stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


@contextmanager
def lenient_output() -> Iterator[None]:
    """Let `sys.stdout` and `sys.stderr` fail without an error."""
    before = sys.stdout, sys.stderr
    # A file must not get the number of a closed stream, and what libraries write to it.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    sys.stdout, sys.stderr = (LenientStream(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def progress_bar(*args: Any, **options: Any) -> tqdm:
    """Return a `tqdm` bar that moves in a terminal and is brief in a log file."""
    stream = LenientStream(sys.stderr)
    seconds = 0.1 if stream.isatty() else 30.0
    intervals = {"mininterval": seconds, "maxinterval": max(10.0, seconds)}
    return tqdm(*args, file=stream, dynamic_ncols=True, **intervals, **options)
