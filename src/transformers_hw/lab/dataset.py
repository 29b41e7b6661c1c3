"""Small labeled images, in memory, as bytes."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from einops import rearrange, reduce
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from transformers_hw.lab.seeds import seeded_generator


@dataclass(frozen=True, eq=False)
class Split:
    """The training or test part of a dataset.

    Attributes:
        images: The images, one byte per pixel and channel.
        labels: The class index of each image.
    """

    images: UInt8[Tensor, "n channels height width"]
    labels: Int64[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Split":
        """Return the same split on a device."""
        return Split(self.images.to(device), self.labels.to(device))

    def subset(self, fraction: float, *, seed: int = 0) -> "Split":
        """Return a fraction of every class, in the old order, at least one image each.

        For one seed, a smaller subset is part of a larger one.

        Args:
            fraction: Fraction to keep, more than 0 and at most 1.
            seed: Seed of the choice.

        Raises:
            ValueError: `fraction` is out of range.
        """
        if not 0.0 < fraction <= 1.0:
            raise ValueError(f"fraction must be in (0, 1], got {fraction}.")
        return self._of_each_class(lambda n: max(1, round(fraction * n)), seed)

    def held_out(self, fraction: float, *, seed: int = 0) -> tuple["Split", "Split"]:
        """Return the split without a fraction of every class, and that fraction.

        What is held out is to choose settings by, so that the test images stay unseen.

        Args:
            fraction: Fraction to hold out, more than 0 and at most 1.
            seed: Seed of the choice.
        """
        chosen = self._indices(lambda n: max(1, round(fraction * n)), seed)
        rest = torch.ones(len(self), dtype=torch.bool)
        rest[chosen] = False
        return self._at(rest.nonzero()[:, 0]), self._at(chosen)

    def one_per_class(self, *, seed: int = 0) -> "Split":
        """Return one image of every class."""
        return self._of_each_class(lambda n: 1, seed)

    def statistics(
        self,
    ) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]:
        """Return mean and standard deviation of each channel, of pixels in [0, 1]."""
        channels = rearrange(self.images, "n c h w -> c (n h w)").cpu()
        counts = torch.stack([torch.bincount(row, minlength=256) for row in channels])
        shares = counts.double() / channels.shape[1]
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = reduce(shares * values, "c value -> c", "sum")
        deviation = (values - rearrange(mean, "c -> c 1")) ** 2
        variance = reduce(shares * deviation, "c value -> c", "sum")
        return mean.float(), variance.sqrt().float()

    def _of_each_class(self, count: Callable[[int], int], seed: int) -> "Split":
        return self._at(self._indices(count, seed))

    def _indices(self, count: Callable[[int], int], seed: int) -> Int64[Tensor, " k"]:
        labels, kept = self.labels.cpu(), []
        for label in labels.unique().tolist():
            own = (labels == label).nonzero()[:, 0]
            generator = seeded_generator("subset", seed, label)
            shuffled = own[torch.randperm(len(own), generator=generator)]
            kept.append(shuffled[: count(len(own))])
        return torch.cat(kept).sort().values

    def _at(self, indices: Int64[Tensor, " k"]) -> "Split":
        indices = indices.to(self.labels.device)
        return Split(self.images[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images to train on and images to test with.

    Attributes:
        name: Name of the dataset.
        train: Training images.
        test: Test images.
        classes: Names of the classes.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """First digits of the SHA-256 of all images and labels."""
        found = hashlib.sha256()
        for split in (self.train, self.test):
            for x in (split.images, split.labels):
                found.update(x.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    def to(self, device: torch.device | str) -> "Dataset":
        """Return the same dataset on a device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))

    def describe(self) -> dict[str, Any]:
        """Return what the record of a run says about its data."""
        return {
            "name": self.name,
            "train": len(self.train),
            "test": len(self.test),
            "image": list(self.train.images.shape[1:]),
            "classes": list(self.classes),
            "digest": self.digest,
        }
