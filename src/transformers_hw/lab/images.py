"""Loading images: from scikit-learn, from the network, or from the disk."""

import os
from pathlib import Path
from typing import Any

import torch
from einops import rearrange

from transformers_hw.lab.archives import (
    LIMITS,
    Limits,
    read_cifar10,
    read_folder,
    read_zip,
)
from transformers_hw.lab.dataset import Dataset, Split
from transformers_hw.lab.download import download
from transformers_hw.lab.files import file_lock

CIFAR10_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
CIFAR10_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"


def load_images(source: str | Path = "digits", *, limits: Limits = LIMITS) -> Dataset:
    """Load a dataset of images.

    Args:
        source: `"digits"` for the 1,797 handwritten digits, 8 by 8 pixels, that come
            with scikit-learn, of which every fifth of a class is for testing;
            `"cifar10"` for CIFAR-10, downloaded once; or the path of a folder or zip
            with opaque images called `train/<class>/*` and `test/<class>/*`.
        limits: The most that a folder or zip may ask for.

    Raises:
        DownloadError: CIFAR-10 cannot be downloaded.
        FileNotFoundError: There is nothing at `source`.
        ValueError: There are no such images at `source`, or one is not opaque, cannot
            be read, or exceeds the limits.

    Examples:
        >>> digits = load_images("digits")
        >>> digits.train.images.shape, len(digits.test)
        (torch.Size([1442, 1, 8, 8]), 355)

    References:
        Alpaydin & Kaynak (1998), [Optical Recognition of Handwritten Digits
        ](https://doi.org/10.24432/C50P49); Krizhevsky (2009), [Learning Multiple
        Layers of Features from Tiny Images
        ](https://www.cs.toronto.edu/~kriz/cifar.html).
    """
    if source == "digits":
        return _digits()
    if source == "cifar10":
        path = cache_folder() / "cifar-10-binary.tar.gz"
        with file_lock(cache_folder(), wait=True):
            download(CIFAR10_URL, path, sha256=CIFAR10_SHA256)
        return read_cifar10(path)
    path = Path(source)
    # Unlike those of Path, these are false for names too long for a file.
    if os.path.isdir(path):
        return read_folder(path, limits)
    if os.path.isfile(path):
        return read_zip(path, limits)
    raise FileNotFoundError(
        'source must be "digits", "cifar10", or the path of a folder or zip; there is '
        f"nothing at {path}."
    )


def cache_folder() -> Path:
    """Return the folder of downloaded data.

    The environment variable `TRANSFORMERS_HW_CACHE` names it; by default it is
    `transformers_hw` in `XDG_CACHE_HOME` or `~/.cache`.
    """
    if chosen := os.environ.get("TRANSFORMERS_HW_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "transformers_hw"


def _digits() -> Dataset:
    # Importing it takes longer than all that follows.
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    # Gray levels from 0 to 16.
    images = torch.from_numpy(digits.images * (255 / 16)).round().byte()
    images = rearrange(images, "n h w -> n 1 h w")
    labels = torch.from_numpy(digits.target).long()
    # They were written in turn, 0 to 9: every fifth of all would be fours and nines.
    fifth = torch.zeros(len(labels), dtype=torch.bool)
    for label in range(10):
        fifth[(labels == label).nonzero()[4::5]] = True
    return Dataset(
        "digits",
        train=Split(images[~fifth], labels[~fifth]),
        test=Split(images[fifth], labels[fifth]),
        classes=tuple(map(str, digits.target_names)),
    )
