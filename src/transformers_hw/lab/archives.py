"""Reading images from folders, zips and CIFAR-10's own archive.

Archives are read, never unpacked. Still, an archive with links, or with names that
lead out of their folder, is refused.
"""

import io
import stat
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
import torch
from einops import rearrange
from PIL import Image, UnidentifiedImageError

from transformers_hw.lab.dataset import Dataset, Split
from transformers_hw.lab.progress_bar import progress_bar

SPLITS = ("train", "test")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".webp")


def read_folder(path: Path) -> Dataset:
    """Read images from files called `train/<class>/*` and `test/<class>/*`.

    Returns:
        The images, in RGB, in the order of their names.

    Raises:
        ValueError: There are no such files, one is not an image, or sizes differ.
    """
    files = (file for file in path.rglob("*") if file.is_file())
    names = {file.relative_to(path).as_posix(): file for file in files}
    return _decode(path, names, lambda name: names[name].read_bytes())


def read_zip(path: Path) -> Dataset:
    """Read images from a zip of `train/<class>/*` and `test/<class>/*`.

    Raises:
        ValueError: As for `read_folder`, or an entry is a link or leaves the folder.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                # The upper half holds the file's mode, where the zip is from Unix.
                link = stat.S_ISLNK(entry.external_attr >> 16)
                _check_entry(path, entry.filename, link=link)
            return _decode(path, archive.namelist(), archive.read)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not a zip, or damaged: {error}.") from error


def read_cifar10(path: Path) -> Dataset:
    """Read CIFAR-10 from its archive for C programs, `cifar-10-binary.tar.gz`.

    Unlike the archive for Python it is not a pickle, but plain bytes: a label, then
    the image, channel by channel.

    Raises:
        ValueError: The archive is not CIFAR-10.
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
        test = files["test_batch.bin"]
        return Dataset("CIFAR-10", _records(train), _records(test), classes)
    except (tarfile.TarError, EOFError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is not CIFAR-10, or damaged: {error!r}.") from error


def _records(content: bytes) -> Split:
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    rows = rearrange(rows, "(n bytes) -> n bytes", bytes=1 + 3 * 32 * 32)
    images = rearrange(rows[:, 1:], "n (c h w) -> n c h w", c=3, h=32)
    return Split(images.contiguous(), rows[:, 0].long())


def _check_entry(path: Path, name: str, *, link: bool) -> None:
    parts = (PurePosixPath(name), PureWindowsPath(name))
    leaves = any(part.is_absolute() or ".." in part.parts for part in parts)
    if leaves or parts[1].drive or link:
        what = "is a link" if link else "leaves its folder"
        raise ValueError(f"{path} is refused: its entry {name!r} {what}.")


def _decode(path: Path, names: Iterable[str], read: Callable[[str], bytes]) -> Dataset:
    found = _by_split_and_class(names)
    for split in SPLITS:
        if not found[split]:
            raise ValueError(
                f"{path} must hold images named train/<class>/* and test/<class>/*; "
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
    size: tuple[int, ...] | None = None
    for split, label, name in progress_bar(entries, desc=path.name, unit=" images"):
        image = _image(f"{path}: {name}", read(name))
        size = size or image.shape[:2]
        if image.shape[:2] != size:
            raise ValueError(
                f"{path}: images must all have one size: the first are {size}, "
                f"{name} is {image.shape[:2]}."
            )
        labels[split].append(label)
        pixels[split].append(image)

    def stacked(split: str) -> Split:
        images = torch.from_numpy(np.stack(pixels.pop(split)))
        images = rearrange(images, "n h w c -> n c h w").contiguous()
        return Split(images, torch.tensor(labels[split]))

    return Dataset(path.name, stacked("train"), stacked("test"), tuple(classes))


def _by_split_and_class(names: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {
        split: defaultdict(list) for split in SPLITS
    }
    for name in names:
        # Hidden files are leftovers of systems, such as ._0000.jpg.
        match PurePosixPath(name).parts:
            case (*_, split, kind, file) if split in SPLITS:
                if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                    found[split][kind].append(name)
    return found


def _image(name: str, content: bytes) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(content)) as opened:
            return np.asarray(opened.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{name} is not an image, or damaged: {error}.") from error
