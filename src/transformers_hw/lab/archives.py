"""Reading pictures from folders, zips and CIFAR-10's own archive.

Archives are read, never unpacked. Still, one whose names try to leave their folder
is not to be trusted with anything, and is refused.
"""

import io
import stat
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64, UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from transformers_hw.lab.bars import bar

SPLITS = ("train", "test")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".webp")


class Labelled(NamedTuple):
    """Pictures with the numbers of their classes."""

    pictures: UInt8[Tensor, "n channels height width"]
    labels: Int64[Tensor, " n"]


class Archive(NamedTuple):
    """What an archive holds."""

    train: Labelled
    test: Labelled
    classes: tuple[str, ...]


def read_folder(path: Path, *, size: tuple[int, int] | None) -> Archive:
    """Read pictures from files called `train/<class>/*` and `test/<class>/*`.

    Args:
        path: The folder.
        size: Height and width to bring all pictures to, or `None` to leave them.

    Returns:
        The pictures, in RGB, in the order of their names.

    Raises:
        ValueError: If there are no such files, one is no picture, or sizes differ.
    """
    files = (file for file in path.rglob("*") if file.is_file())
    names = {file.relative_to(path).as_posix(): file for file in files}
    return _decode(path, names, lambda name: names[name].read_bytes(), size)


def read_zip(path: Path, *, size: tuple[int, int] | None) -> Archive:
    """Read pictures from a zip of `train/<class>/*` and `test/<class>/*`.

    Arguments, results and errors are those of
    [`read_folder`][transformers_hw.lab.archives.read_folder]. Besides, a zip with a
    name that leaves its folder, or a link, is a `ValueError`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                # The upper half holds the file's mode, where the zip is from Unix.
                link = stat.S_ISLNK(entry.external_attr >> 16)
                _check_entry(path, entry.filename, link=link)
            return _decode(path, archive.namelist(), archive.read, size)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no zip, or damaged: {error}.") from error


def read_cifar10(path: Path) -> Archive:
    """Read CIFAR-10 from its archive for C programs.

    Unlike the one for Python it is no pickle, but plain bytes: a label, then the
    picture, channel by channel.

    Args:
        path: The file `cifar-10-binary.tar.gz`.

    Returns:
        The pictures.

    Raises:
        ValueError: If the archive is not CIFAR-10.
    """
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for entry in archive:
                linked = not (entry.isreg() or entry.isdir())
                _check_entry(path, entry.name, link=linked)
                if file := archive.extractfile(entry):
                    files[PurePosixPath(entry.name).name] = file.read()
        train = b"".join(files[f"data_batch_{number}.bin"] for number in range(1, 6))
        classes = tuple(files["batches.meta.txt"].decode().split())
        return Archive(_records(train), _records(files["test_batch.bin"]), classes)
    except (tarfile.TarError, EOFError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is not CIFAR-10, or damaged: {error!r}.") from error


def _records(content: bytes) -> Labelled:
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    rows = rearrange(rows, "(n bytes) -> n bytes", bytes=1 + 3 * 32 * 32)
    pictures = rearrange(rows[:, 1:], "n (c h w) -> n c h w", c=3, h=32)
    return Labelled(pictures.contiguous(), rows[:, 0].long())


def _check_entry(path: Path, name: str, *, link: bool) -> None:
    parts = (PurePosixPath(name), PureWindowsPath(name))
    leaves = any(part.is_absolute() or ".." in part.parts for part in parts)
    if leaves or parts[1].drive or link:
        what = "is a link" if link else "leaves its folder"
        raise ValueError(f"{path} is refused: its entry {name!r} {what}.")


def _decode(
    path: Path,
    names: Iterable[str],
    read: Callable[[str], bytes],
    size: tuple[int, int] | None,
) -> Archive:
    found = _by_split_and_class(names)
    for split in SPLITS:
        if not found[split]:
            raise ValueError(
                f"{path} must hold pictures named train/<class>/* and test/<class>/*; "
                f"there are none of {split}."
            )
    train, test = (set(found[split]) for split in SPLITS)
    if train != test:
        raise ValueError(
            f"{path} must have the same classes in train and test; only one has "
            f"{sorted(train ^ test)}."
        )
    classes = sorted(train)
    entries = [
        (split, label, name)
        for split in SPLITS
        for label, kind in enumerate(classes)
        for name in sorted(found[split][kind])
    ]
    labels: dict[str, list[int]] = {split: [] for split in SPLITS}
    pixels: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    wanted = size
    for split, label, name in bar(entries, desc=path.name, unit=" pictures"):
        picture = _picture(f"{path}: {name}", read(name), size)
        wanted = wanted or picture.shape[:2]
        if picture.shape[:2] != wanted:
            raise ValueError(
                f"{path}: pictures must all have one size, or be resized (size=...): "
                f"the first are {wanted}, {name} is {picture.shape[:2]}."
            )
        labels[split].append(label)
        pixels[split].append(picture)

    def labelled(split: str) -> Labelled:
        stacked = torch.from_numpy(np.stack(pixels.pop(split)))
        pictures = rearrange(stacked, "n h w c -> n c h w").contiguous()
        return Labelled(pictures, torch.tensor(labels[split]))

    return Archive(labelled("train"), labelled("test"), tuple(classes))


def _by_split_and_class(names: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {
        split: defaultdict(list) for split in SPLITS
    }
    for name, (split, kind, file) in _last_three(names):
        # Hidden files are what systems leave behind, such as ._0000.jpg.
        shown = not file.startswith(".") and file.lower().endswith(SUFFIXES)
        if split in SPLITS and shown:
            found[split][kind].append(name)
    return found


def _last_three(names: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in names:
        parts = PurePosixPath(name).parts
        if len(parts) >= 3:
            yield name, parts[-3:]


def _picture(name: str, content: bytes, size: tuple[int, int] | None) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(content)) as opened:
            picture = opened.convert("RGB")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{name} is no picture, or damaged: {error}.") from error
    if size is not None:
        height, width = size
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture)
