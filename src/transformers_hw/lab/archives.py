"""Reading images from folders, zips and CIFAR-10's own archive.

Archives are read, never unpacked. Still, an archive with links, or with names that
lead out of their folder, is refused. So is one that asks for more than its limits,
before it gets it: sizes are read before pixels.
"""

import io
import math
import os
import stat
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch
from einops import rearrange, repeat
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from transformers_hw._engine.images import is_opaque
from transformers_hw.lab.dataset import Dataset, Split
from transformers_hw.lab.progress_bar import progress_bar

SPLITS = ("train", "test")
SUFFIXES = (
    ".bmp",
    ".gif",
    ".jpeg",
    ".jpg",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
# Whatever a file is called, Pillow looks for these formats only. It would read others,
# such as EPS, by starting another program.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
PHOTOMETRIC, BITS, SAMPLE_FORMAT = 262, 258, 339  # tags of TIFF
DAMAGE = (
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Limits:
    """The most that a folder or zip of images may ask for.

    Attributes:
        entries: Number of files.
        file_bytes: Bytes of one file, uncompressed.
        pixels: Pixels of one image.
        total_pixels: Pixels of all images; each takes three bytes of memory.
        ratio: Bytes of all images, uncompressed, for each byte of a zip.
    """

    entries: int = 2_000_000
    file_bytes: int = 2**26
    pixels: int = 2**24
    total_pixels: int = 2**31
    ratio: float = 100.0


LIMITS = Limits()


def read_folder(path: Path, limits: Limits = LIMITS) -> Dataset:
    """Read images from files called `train/<class>/*` and `test/<class>/*`.

    Each channel of a pixel becomes a byte. Channels of 16 bits are scaled: 65535
    becomes 255. Floating-point numbers, as in some gray TIFFs, must be from 0 to 1;
    they are multiplied by 255 and rounded. Other numbers are refused, because their
    range is unknown.

    Images are turned upright, as their EXIF or XMP orientation says. Of an animation
    or a file of several pages, only the first is read. Images that are not opaque are
    refused, because what they show depends on the background. So are images whose
    alpha has 16 bits, or whose transparent color is a gray or has 16 bits, because
    Pillow does not compare these exactly.

    Args:
        path: The folder.
        limits: The most that it may ask for.

    Returns:
        The images, in RGB, in the order of their names.

    Raises:
        ValueError: There are no such files, one is not an image, is not opaque or asks
            for more than the limits, or sizes differ; or a link leads to anything but
            a file in the folder.
    """
    found: dict[str, Path] = {}
    for file in path.rglob("*"):
        name = file.relative_to(path).as_posix()
        if file.is_symlink() and not _is_inside(path, file):
            raise ValueError(
                f"{path} is refused: its entry {name!r} is a link, and not to a file "
                "in the folder."
            )
        if file.is_file():
            found[name] = file
    _check_count(path, len(found), limits)
    readers = {
        name: partial(_read_file, path, file, limits)
        for name, file in found.items()
        if _split_and_class(name)
    }
    return _decode(path, readers, limits)


def read_zip(path: Path, limits: Limits = LIMITS) -> Dataset:
    """Read images from a zip of `train/<class>/*` and `test/<class>/*`.

    Args:
        path: The zip; its entries are stored or deflated.
        limits: The most that it may ask for.

    Returns:
        The images, as of `read_folder`.

    Raises:
        ValueError: As for `read_folder`; or an entry is a link or leaves the folder; or
            an image is there twice, encrypted, or compressed in another way.
    """
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except DAMAGE as error:
            raise ValueError(f"{path} is not a zip, or damaged: {error}.") from error
        with archive:
            entries = _image_entries(path, archive.infolist(), limits)
            readers = {
                name: partial(_read_entry, path, archive, entry)
                for name, entry in entries.items()
            }
            return _decode(path, readers, limits)


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
                _check_name(path, entry.name, link=linked)
                if file := archive.extractfile(entry):
                    files[PurePosixPath(entry.name).name] = file.read()
        train = b"".join(files[f"data_batch_{number}.bin"] for number in range(1, 6))
        classes = tuple(files["batches.meta.txt"].decode().split())
        test = files["test_batch.bin"]
        return Dataset("CIFAR-10", _records(train), _records(test), classes)
    except (tarfile.TarError, EOFError, KeyError, RuntimeError, zlib.error) as error:
        raise ValueError(f"{path} is not CIFAR-10, or damaged: {error!r}.") from error


def _records(content: bytes) -> Split:
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    rows = rearrange(rows, "(n bytes) -> n bytes", bytes=1 + 3 * 32 * 32)
    images = rearrange(rows[:, 1:], "n (c h w) -> n c h w", c=3, h=32)
    return Split(images.contiguous(), rows[:, 0].long())


def _check_name(path: Path, name: str, *, link: bool) -> None:
    parts = (PurePosixPath(name), PureWindowsPath(name))
    leaves = any(part.is_absolute() or ".." in part.parts for part in parts)
    if leaves or parts[1].drive or link:
        what = "is a link" if link else "leaves its folder"
        raise ValueError(f"{path} is refused: its entry {name!r} {what}.")


def _is_inside(path: Path, link: Path) -> bool:
    """Return whether a link leads to a file in a folder."""
    target = Path(os.path.realpath(link))
    return target.is_file() and target.is_relative_to(os.path.realpath(path))


def _check_count(path: Path, count: int, limits: Limits) -> None:
    if count > limits.entries:
        raise ValueError(
            f"{path} is refused: it has {count} files, more than limits.entries = "
            f"{limits.entries}."
        )


def _split_and_class(name: str) -> tuple[str, str] | None:
    """Return where an image belongs, if a file is one."""
    match PurePosixPath(name).parts:
        case (*_, split, kind, file) if split in SPLITS:
            # Hidden files are leftovers of systems, such as ._0000.jpg.
            if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                return split, kind
    return None


def _image_entries(
    path: Path, entries: list[zipfile.ZipInfo], limits: Limits
) -> dict[str, zipfile.ZipInfo]:
    """Return the images among the entries of a zip, if all of them may be read."""
    _check_count(path, len(entries), limits)
    left = limits.ratio * path.stat().st_size
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in entries:
        # The upper half holds the file's mode, where the zip is from Unix.
        link = stat.S_ISLNK(entry.external_attr >> 16)
        _check_name(path, entry.filename, link=link)
        if not _split_and_class(entry.filename):
            continue
        name = PurePosixPath(entry.filename).as_posix()
        left -= entry.file_size
        flaw = "is there twice" if name in found else _flaw(entry, left, limits)
        if flaw:
            raise ValueError(f"{path} is refused: its entry {name!r} {flaw}.")
        found[name] = entry
    return found


def _flaw(entry: zipfile.ZipInfo, left: float, limits: Limits) -> str | None:
    size, method = entry.file_size, entry.compress_type
    if entry.flag_bits & 1:
        return "is encrypted"
    if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {method}: only stored and deflate are read"
    if size > limits.file_bytes:
        return f"has {size} bytes, more than limits.file_bytes = {limits.file_bytes}"
    if left < 0:
        return (
            f"brings the images to more than limits.ratio = {limits.ratio} times the "
            "bytes of the zip"
        )
    return None


def _read_file(path: Path, file: Path, limits: Limits) -> bytes:
    if (size := file.stat().st_size) > limits.file_bytes:
        name = file.relative_to(path).as_posix()
        raise ValueError(
            f"{path}: {name!r} has {size} bytes, more than limits.file_bytes = "
            f"{limits.file_bytes}."
        )
    return file.read_bytes()


def _read_entry(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(entry) as file:
            # As many bytes as it declares, even if it would expand to more.
            return file.read(entry.file_size)
    except DAMAGE as error:
        raise ValueError(f"{path}: {entry.filename!r} is damaged: {error}.") from error


def _decode(
    path: Path, readers: Mapping[str, Callable[[], bytes]], limits: Limits
) -> Dataset:
    found: dict[str, dict[str, list[str]]] = {x: defaultdict(list) for x in SPLITS}
    for name in readers:
        split, kind = _split_and_class(name) or ("", "")
        if not kind.isprintable():
            raise ValueError(f"{path}: the class of {name!r} must be printable.")
        found[split][kind].append(name)
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
    size: tuple[int, ...] = ()
    for split, label, name in progress_bar(entries, desc=path.name, unit=" images"):
        image = _image(f"{path}: {name!r}", readers[name](), limits)
        if not size:
            size = image.shape[:2]
            if len(entries) * math.prod(size) > limits.total_pixels:
                raise ValueError(
                    f"{path} is refused: {len(entries)} images of {size} pixels are "
                    f"more than limits.total_pixels = {limits.total_pixels}."
                )
        if image.shape[:2] != size:
            raise ValueError(
                f"{path}: images must all have one size: the first are {size}, "
                f"{name!r} is {image.shape[:2]}."
            )
        labels[split].append(label)
        pixels[split].append(image)

    def stacked(split: str) -> Split:
        images = torch.from_numpy(np.stack(pixels.pop(split)))
        images = rearrange(images, "n h w c -> n c h w").contiguous()
        return Split(images, torch.tensor(labels[split]))

    return Dataset(path.name, stacked("train"), stacked("test"), tuple(classes))


def _image(
    name: str, content: bytes, limits: Limits
) -> UInt8[np.ndarray, "height width 3"]:
    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes that these limits allow or refuse.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(content), formats=FORMATS)
        with opened:
            width, height = opened.size
            if width * height > limits.pixels:
                raise ValueError(
                    f"it has {height} × {width} pixels, more than limits.pixels = "
                    f"{limits.pixels}"
                )
            return _as_rgb(opened)
    except UnidentifiedImageError as error:
        formats = ", ".join(FORMATS)
        raise ValueError(f"{name} is not an image in one of {formats}.") from error
    except Exception as error:  # Pillow raises nearly anything.
        reason = str(error).rstrip(".")
        raise ValueError(f"{name} cannot be read as an image: {reason}.") from error


def _as_rgb(opened: Any) -> UInt8[np.ndarray, "height width 3"]:
    if not is_opaque(opened):
        raise ValueError(
            "it must be opaque: put it on a background first, for example with "
            "PIL.Image.alpha_composite"
        )
    # Loading turns a TIFF, and deletes its orientation: it is not turned twice.
    ImageOps.exif_transpose(opened, in_place=True)
    # Pillow reduces the channels of color to eight bits, but clips gray numbers.
    sixteen_bits = opened.mode.startswith("I;16")
    if opened.mode == "I" and opened.format in ("PNG", "PPM"):
        sixteen_bits = True
    if opened.has_transparency_data:
        return np.asarray(opened.convert("RGBA").convert("RGB"))
    if not sixteen_bits and opened.mode not in ("F", "I"):
        if opened.format == "TIFF" and 2 in opened.tag_v2.get(SAMPLE_FORMAT, ()):
            raise ValueError("its numbers are signed, and of eight bits")
        return np.asarray(opened.convert("RGB"))
    if opened.format == "TIFF":
        tags = opened.tag_v2
        if tags.get(PHOTOMETRIC) != 1 or tags.get(BITS) not in ((16,), (32,)):
            raise ValueError("its gray numbers must have 16 or 32 bits, and 0 be black")
    gray = np.asarray(opened)
    if sixteen_bits:
        gray = gray >> 8
    elif opened.mode == "F":
        # Written so that NaN is out of range.
        if not (gray.min() >= 0 and gray.max() <= 1):
            raise ValueError(
                "its floating-point numbers must be from 0 to 1, got "
                f"{gray.min()} to {gray.max()}"
            )
        gray = np.rint(255 * gray)
    else:
        raise ValueError("its 32-bit integers have no known range")
    return repeat(gray.astype(np.uint8), "h w -> h w c", c=3)
