"""Files that are whole or not there: written beside their place, then renamed.

Whoever is killed while writing leaves the old file as it was, and beside it a
`.tmp` that the next writer writes over. Nothing here is ever unpickled: tensors
are kept as safetensors and everything else as JSON.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor


class DamagedFileError(RuntimeError):
    """A file is truncated, altered, or of another kind than its name says."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Lend a temporary path whose file takes the place of `path` once it is whole.

    The content reaches the disk before the name does, so that even a power cut
    leaves the old file or the new one. If the block fails, the old one stays and
    the temporary one goes. There must be one writer at a time: see
    [`sole_writer`][transformers_hw.lab.files.sole_writer].

    Args:
        path: The file to write.

    Yields:
        Where to write meanwhile.
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


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, whole.

    Args:
        path: The file.
        content: What `json` can express; not a number and infinities are refused,
            since JSON has neither.
    """
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    with whole_file(path) as temporary:
        temporary.write_text(text + "\n", "utf-8")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Write tensors, and facts about them, into one safetensors file, whole.

    Args:
        path: The file.
        tensors: Tensors by name, on any device.
        about: What `json` can express.

    Raises:
        OSError: If there is no room; what was there before is left as it was.
    """
    kept = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    facts = json.dumps(about)
    content = safetensors.torch.save(
        kept, {"about": facts, "checksum": _checksum(kept, facts)}
    )
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what [`write_tensors`][transformers_hw.lab.files.write_tensors] wrote.

    Args:
        path: The file.

    Returns:
        The tensors and the facts about them.

    Raises:
        DamagedFileError: If the file is not what was written.
        FileNotFoundError: If there is none.
    """
    content = path.read_bytes()
    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        notes = json.loads(content[8 : 8 + length])["__metadata__"]
        if notes["checksum"] != _checksum(tensors, notes["about"]):
            raise ValueError("its content does not match its checksum")
        return tensors, json.loads(notes["about"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DamagedFileError(
            f"{path} is damaged, or was not written by this program: {error!r}."
        ) from error


@contextmanager
def sole_writer(folder: Path, *, wait: bool) -> Iterator[None]:
    """Keep other processes that ask for the same from writing into a folder.

    The system lets go of the lock when the process ends, however it ends. Where
    it has no such locks, nothing is locked.

    Args:
        folder: The folder; it is made if need be.
        wait: Whether to wait for another process to finish.

    Yields:
        Nothing.

    Raises:
        RuntimeError: If another process is writing there, and `wait` is false.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems refuse to lock folders.
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise RuntimeError(
                    f"another process is writing into {folder}: wait for it, or "
                    "choose another folder."
                ) from None
        yield
    finally:
        os.close(handle)


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    # Guards against damage, not against malice: nothing that is read is executed.
    total = zlib.crc32(facts.encode())
    for name in sorted(tensors):
        x = tensors[name]
        total = zlib.crc32(f"{name} {x.dtype} {tuple(x.shape)}".encode(), total)
        if x.numel():
            flat = x.reshape(-1).view(torch.uint8)
            total = zlib.crc32(flat.numpy().data, total)
    return f"{total:08x}"
