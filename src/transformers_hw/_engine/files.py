"""Write files whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Lend a temporary path whose file replaces `path` once it is complete.

    The content reaches the disk before the name does, so that even a power cut leaves
    the old file or the new one. If the block raises, the old file stays and the
    temporary one is removed. There must be one writer at a time.

    Args:
        path: File to write; missing folders are made.

    Yields:
        Where to write meanwhile, in the same folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
