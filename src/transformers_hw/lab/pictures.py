"""Small labelled pictures, in memory, as bytes."""

import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from transformers_hw.lab.archives import (
    Archive,
    read_cifar10,
    read_folder,
    read_zip,
)
from transformers_hw.lab.download import download
from transformers_hw.lab.files import (
    DamagedFileError,
    read_tensors,
    sole_writer,
    write_tensors,
)
from transformers_hw.lab.seeds import seeded_generator

CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"


@dataclass(frozen=True, eq=False)
class Split:
    """Pictures to train on, or to test with.

    Attributes:
        pictures: The pictures, a byte a pixel and channel.
        labels: The number of each one's class.
    """

    pictures: UInt8[Tensor, "n channels height width"]
    labels: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Split":
        """Give the same split on a device."""
        return Split(self.pictures.to(device), self.labels.to(device))

    def subset(self, fraction: float, *, seed: int = 0) -> "Split":
        """Keep a fraction of every class, and at least one picture of it.

        With one seed, a smaller fraction is part of a larger one.

        Args:
            fraction: How much to keep, more than 0 and at most 1.
            seed: Which to keep.

        Returns:
            The smaller split; the pictures stand in their old order.

        Raises:
            ValueError: If `fraction` is out of range.
        """
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction must be in (0, 1], got {fraction}.")
        labels, kept = self.labels.cpu(), []
        for label in labels.unique().tolist():
            own = (labels == label).nonzero()[:, 0]
            generator = seeded_generator("subset", seed, label)
            shuffled = own[torch.randperm(len(own), generator=generator)]
            kept.append(shuffled[: max(1, round(fraction * len(own)))])
        chosen = torch.cat(kept).sort().values.to(self.labels.device)
        return Split(self.pictures[chosen], self.labels[chosen])

    def statistics(
        self,
    ) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]:
        """Give the mean and standard deviation of each channel, of pixels in [0, 1]."""
        channels = rearrange(self.pictures, "n c h w -> c (n h w)").cpu()
        counts = torch.stack([torch.bincount(row, minlength=256) for row in channels])
        share = counts.double() / channels.shape[1]
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = reduce(share * values, "c value -> c", "sum")
        distance = (values - rearrange(mean, "c -> c 1")) ** 2
        variance = reduce(share * distance, "c value -> c", "sum")
        return mean.float(), variance.sqrt().float()


@dataclass(frozen=True, eq=False)
class Pictures:
    """A set of pictures to train on and one to test with.

    Attributes:
        name: What they are called.
        train: The pictures to train on.
        test: The pictures to test with.
        classes: The names of the classes.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    def to(self, device: torch.device | str) -> "Pictures":
        """Give the same pictures on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def describe(self) -> dict[str, Any]:
        """Say what these pictures are, for the record of a run."""
        return {
            "name": self.name,
            "train": len(self.train),
            "test": len(self.test),
            "picture": list(self.train.pictures.shape[1:]),
            "classes": list(self.classes),
            "digest": _digest(self.train, self.test),
        }


def load_pictures(
    source: str | Path = "digits", *, size: tuple[int, int] | None = None
) -> Pictures:
    """Load pictures that ship with a library, from the network, or from the disk.

    Args:
        source: `"digits"` for the 1,797 handwritten digits, 8 by 8 pixels, that come
            with scikit-learn, of which every fifth of a class is for testing;
            `"cifar10"` for CIFAR-10, downloaded once; or the path of a folder or a zip
            of `train/<class>/*` and `test/<class>/*`. What a zip holds is kept,
            decoded, in [`cache_folder`][transformers_hw.lab.pictures.cache_folder].
        size: Height and width to bring pictures from the disk to; otherwise they must
            all have one size.

    Returns:
        The pictures.

    Raises:
        DownloadError: If CIFAR-10 is not there and cannot be downloaded.
        FileNotFoundError: If there is nothing at that path.
        ValueError: If what is there are no such pictures.

    Examples:
        >>> digits = load_pictures("digits")
        >>> digits.train.pictures.shape, len(digits.test)
        (torch.Size([1442, 1, 8, 8]), 355)

    References:
        Alpaydin & Kaynak (1998), [Optical Recognition of Handwritten Digits
        ](https://doi.org/10.24432/C50P49); Krizhevsky (2009), [Learning Multiple
        Layers of Features from Tiny Images
        ](https://www.cs.toronto.edu/~kriz/cifar.html).
    """
    if size is not None and source in ("digits", "cifar10"):
        raise ValueError(f"size is for pictures from the disk, not for {source}.")
    if source == "digits":
        return _digits()
    if source == "cifar10":
        path = cache_folder() / "cifar-10-binary.tar.gz"
        with sole_writer(cache_folder(), wait=True):
            download(CIFAR10_URL, path, sha256=CIFAR10_SHA256)
        return _cached("CIFAR-10", path, lambda: read_cifar10(path))
    path = Path(source)
    if path.is_dir():
        return _pictures(path.name, read_folder(path, size=size))
    if path.is_file():
        return _cached(path.name, path, lambda: read_zip(path, size=size), size)
    raise FileNotFoundError(
        'source must be "digits", "cifar10", or the path of a folder or zip; there is '
        f"nothing at {path}."
    )


def cache_folder() -> Path:
    """Say where downloaded and decoded data is kept.

    The environment variable `TRANSFORMERS_HW_CACHE` names the folder; otherwise it is
    `transformers_hw` where the system keeps caches (on Linux, `XDG_CACHE_HOME` or
    `~/.cache`).
    """
    if chosen := os.environ.get("TRANSFORMERS_HW_CACHE"):
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "transformers_hw"


def _digits() -> Pictures:
    # Importing it takes longer than all that follows.
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    # Sixteen grey levels, and zero.
    pictures = torch.from_numpy(digits.images * (255 / 16)).round().byte()
    pictures = rearrange(pictures, "n h w -> n 1 h w")
    labels = torch.from_numpy(digits.target).long()
    # They were written in turn, 0 to 9: every fifth of all would be fours and nines.
    fifth = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        fifth[(labels == label).nonzero()[4::5]] = True
    return Pictures(
        "digits",
        train=Split(pictures[~fifth], labels[~fifth]),
        test=Split(pictures[fifth], labels[fifth]),
        classes=tuple(map(str, digits.target_names)),
    )


def _pictures(name: str, archive: Archive) -> Pictures:
    train, test, classes = archive
    return Pictures(name, Split(*train), Split(*test), classes)


def _cached(
    name: str,
    path: Path,
    read: Callable[[], Archive],
    size: tuple[int, int] | None = None,
) -> Pictures:
    facts = path.stat()
    version = 1
    key = (version, str(path.resolve()), facts.st_size, facts.st_mtime_ns, size)
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    place = cache_folder() / f"pictures-{digest}.safetensors"
    pictures = None
    try:
        with sole_writer(place.parent, wait=True):
            pictures = _read_cache(name, place)
            if pictures is None:
                pictures = _pictures(name, read())
                _write_cache(place, pictures)
    except OSError as error:
        # Reading is what was asked for; keeping is a kindness.
        pictures = pictures or _pictures(name, read())
        warnings.warn(f"what {path} holds cannot be kept: {error}.", stacklevel=3)
    return pictures


def _write_cache(place: Path, pictures: Pictures) -> None:
    tensors = {
        "train/pictures": pictures.train.pictures,
        "train/labels": pictures.train.labels,
        "test/pictures": pictures.test.pictures,
        "test/labels": pictures.test.labels,
    }
    write_tensors(place, tensors, {"classes": pictures.classes})


def _read_cache(name: str, place: Path) -> Pictures | None:
    try:
        tensors, about = read_tensors(place)
        train, test = (
            Split(tensors[f"{split}/pictures"], tensors[f"{split}/labels"])
            for split in ("train", "test")
        )
        return Pictures(name, train, test, tuple(about["classes"]))
    except (FileNotFoundError, DamagedFileError, KeyError):
        return None


def _digest(*splits: Split) -> str:
    digest = hashlib.sha256()
    for split in splits:
        for x in (split.pictures, split.labels):
            digest.update(x.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
