"""Progress bars for terminals, and for logs."""

import sys
from typing import Any

from tqdm import tqdm


def bar(*args: Any, **options: Any) -> tqdm:
    """Make a progress bar that moves in a terminal, and is brief in a log.

    Args:
        *args: As for `tqdm`.
        **options: As for `tqdm`.
    """
    # A terminal is watched; a log is read afterwards.
    seconds = 0.1 if sys.stderr.isatty() else 30.0
    return tqdm(*args, mininterval=seconds, maxinterval=max(10.0, seconds), **options)
