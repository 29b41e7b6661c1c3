"""Progress bars for terminals and logs."""

import sys
from typing import Any

from tqdm import tqdm


def progress_bar(*args: Any, **options: Any) -> tqdm:
    """Return a `tqdm` bar that moves in a terminal and is brief in a log file."""
    seconds = 0.1 if sys.stderr.isatty() else 30.0
    return tqdm(*args, mininterval=seconds, maxinterval=max(10.0, seconds), **options)
