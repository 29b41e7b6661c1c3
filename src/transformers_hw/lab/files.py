"""Files that are written whole or not at all, and never unpickled.

A file is written under a temporary name beside its place and then renamed. A process
that is killed while writing leaves the old file as it was, and a `.tmp` that the next
writer overwrites. Tensors are stored as safetensors, everything else as JSON.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from transformers_hw._engine.files import atomic_write


class DamagedFileError(RuntimeError):
    """A file is truncated, altered, or of another kind than its name says."""


class FolderInUseError(RuntimeError):
    """Another process is writing into the same folder."""


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; NaN and infinities are refused, as in JSON."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", "utf-8")


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> None:
    """Write tensors and metadata atomically into one safetensors file.

    Args:
        path: The file.
        tensors: Tensors by name, on any device.
        metadata: Anything that JSON can express.

    Raises:
        OSError: The file cannot be written; the previous one is left as it was.
    """
    on_cpu = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    text = json.dumps(metadata)
    header = {"metadata": text, "checksum": _checksum(on_cpu, text)}
    content = safetensors.torch.save(on_cpu, header)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and metadata of a file written by `write_tensors`.

    Raises:
        DamagedFileError: The content is not what was written.
        FileNotFoundError: There is no such file.
    """
    content = path.read_bytes()
    try:
        tensors = safetensors.torch.load(content)
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])["__metadata__"]
        if header["checksum"] != _checksum(tensors, header["metadata"]):
            raise ValueError("its content does not match its checksum")
        metadata = json.loads(header["metadata"])
        if not isinstance(metadata, dict):
            raise TypeError("its metadata must be a JSON object")
        return tensors, metadata
    # Deep JSON is a RecursionError, an odd shape another RuntimeError.
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise DamagedFileError(
            f"{path} is damaged, or was not written by this program: {error!r}."
        ) from error


@contextmanager
def file_lock(folder: Path, *, wait: bool) -> Iterator[None]:
    """Lock a folder against other processes that lock it too.

    The system releases the lock when the process ends, however it ends.

    Args:
        folder: The folder; it is created if need be.
        wait: Whether to wait for another process to finish.

    Raises:
        FolderInUseError: Another process holds the lock, and `wait` is false.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUseError(
            f"another process is writing into {folder}: wait for it, or choose "
            "another folder."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    # Guards against damage, not malice: nothing that is read is executed.
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        x = tensors[name]
        total = zlib.crc32(f"{name} {x.dtype} {tuple(x.shape)}".encode(), total)
        if x.numel():
            total = zlib.crc32(x.reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"
