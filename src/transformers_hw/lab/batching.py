"""Batches that are a pure function of the seed, the step and the rank.

Images stay on the device as bytes; a batch is gathered, cropped, flipped and
normalized there, all images at once. There are no worker processes to feed, seed or
lose, and no state that a resumed run would have to restore.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from transformers_hw._engine.arguments import check_lengths, check_sizes
from transformers_hw.lab.dataset import Split
from transformers_hw.lab.seeds import seeded_generator


class Batch(NamedTuple):
    """The samples of one process in one step.

    Attributes:
        tensors: The samples, along the first axis of each tensor.
        weight: 1; or 0 if there were fewer samples than processes and the first
            sample stands in.
    """

    tensors: tuple[Tensor, ...]
    weight: float


@runtime_checkable
class Batches(Protocol):
    """Data to train or evaluate on: a batch for every step."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in which every sample is seen once; `None` if samples never end."""
        ...

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return a process's share of a batch.

        Args:
            step: Number of the step, counted from zero over all epochs.
            rank: Number of the process.
            world_size: Number of processes.
        """
        ...


class ImageBatches:
    r"""Batches of images, shuffled and augmented.

    The last batch of an epoch holds what is left, so that an epoch sees every image
    exactly once. What is drawn for an image depends on the seed, the step and its
    index in the batch, not on how many processes share the batch.

    Args:
        split: The images; batches are made on their device.
        batch_size: Images in a batch, over all processes together.
        mean: Mean of each channel, of pixels in $[0, 1]$.
        std: Standard deviation of each channel; a channel that is constant, with a
            standard deviation of zero, is centered only.
        seed: Seed of order and augmentation.
        shuffle: Whether to draw a new order each epoch.
        crop_padding: Black pixels to pad an image with before cropping it at random.
        flip: Whether to mirror half of the images, chosen at random.
        erase: Side of a square, centered anywhere in the image, that is replaced by the
            mean color.

    Raises:
        ValueError: `batch_size` is not positive, or `crop_padding` or `erase` is
            negative.

    Examples:
        >>> from transformers_hw.lab.images import load_images
        >>> digits = load_images("digits").train
        >>> mean, std = digits.statistics()
        >>> batches = ImageBatches(digits, 500, mean=mean, std=std, shuffle=True)
        >>> batches.steps_per_epoch
        3
        >>> (images, labels), _ = batches.batch(2)
        >>> images.shape, labels.shape
        (torch.Size([442, 1, 8, 8]), torch.Size([442]))
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        mean: Float[Tensor, " channels"],
        std: Float[Tensor, " channels"],
        seed: int = 0,
        shuffle: bool = False,
        crop_padding: int = 0,
        flip: bool = False,
        erase: int = 0,
    ) -> None:
        check_sizes(images=len(split), batch_size=batch_size)
        check_lengths(crop_padding=crop_padding, erase=erase)
        self.split, self.batch_size, self.seed = split, batch_size, seed
        self.shuffle, self.crop_padding, self.flip = shuffle, crop_padding, flip
        self.erase = erase
        self.steps_per_epoch = -(-len(split) // batch_size)
        device = split.images.device
        std = torch.where(std == 0, 1.0, std)
        self._scale = rearrange(1 / (255 * std), "c -> 1 c 1 1").to(device)
        self._shift = rearrange(-mean / std, "c -> 1 c 1 1").to(device)

    def indices(self, step: int) -> Int64[Tensor, " n"]:
        """Return which images make up a batch."""
        epoch, number = divmod(step, self.steps_per_epoch)
        start = number * self.batch_size
        stop = min(start + self.batch_size, len(self.split))
        if not self.shuffle:
            return torch.arange(start, stop)
        return epoch_order(len(self.split), self.seed, epoch)[start:stop]

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return a process's share of a batch: images and labels."""
        everything = self.indices(step)
        own, weight = shard(len(everything), rank=rank, world_size=world_size)
        device = self.split.labels.device
        indices = everything[own].to(device, non_blocking=True)
        images = self.split.images[indices]
        if self.crop_padding or self.flip:
            generator = seeded_generator("vary", self.seed, step)
            count, span = len(everything), 2 * self.crop_padding + 1
            offsets = torch.randint(span, (2, count), generator=generator)
            mirrored = torch.randint(2, (count,), generator=generator).bool()
            images = crop_and_flip(
                images,
                padding=self.crop_padding,
                top=offsets[0, own].to(device, non_blocking=True),
                left=offsets[1, own].to(device, non_blocking=True),
                mirrored=(mirrored & self.flip)[own].to(device, non_blocking=True),
            )
        normalized = images * self._scale + self._shift
        if self.erase:
            generator = seeded_generator("erase", self.seed, step)
            centers = (
                torch.randint(length, (len(everything),), generator=generator)
                for length in images.shape[-2:]
            )
            top, left = (x[own].to(device) - self.erase // 2 for x in centers)
            normalized = erase(normalized, self.erase, top=top, left=left)
        return Batch((normalized, self.split.labels[indices]), weight)


class GeneratedBatches:
    """Batches of a task that generates its own samples.

    Args:
        make: Function of a number of samples and a generator that returns tensors
            with the samples along their first axis.
        batch_size: Samples in a batch, over all processes together.
        seed: Seed of the samples.

    Examples:
        >>> from transformers_hw.lab.change_of_case import ChangeOfCase
        >>> task = ChangeOfCase()
        >>> def make(count, generator):
        ...     return task.sample(
        ...         count, min_length=1, max_length=5, generator=generator
        ...     )
        >>> batches = GeneratedBatches(make, 2)
        >>> (source, target_inputs, target), _ = batches.batch(7)
        >>> [task.decode(tokens) for tokens in source]
        ['<U> hGNm', '<U> YU']
    """

    steps_per_epoch = None

    def __init__(
        self,
        make: Callable[[int, torch.Generator], tuple[Tensor, ...]],
        batch_size: int,
        *,
        seed: int = 0,
    ) -> None:
        check_sizes(batch_size=batch_size)
        self.make, self.batch_size, self.seed = make, batch_size, seed

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return a process's share of a batch."""
        generator = seeded_generator("generate", self.seed, step)
        own, weight = shard(self.batch_size, rank=rank, world_size=world_size)
        tensors = self.make(self.batch_size, generator)
        return Batch(tuple(x[own] for x in tensors), weight)


def shard(count: int, *, rank: int, world_size: int) -> tuple[slice, float]:
    """Return which samples of a batch belong to a process, and their weight.

    Every process must take part in every step, or the others would wait forever. If
    there are fewer samples than processes, those without a sample compute the first
    one with weight zero.

    Examples:
        >>> [shard(5, rank=rank, world_size=2) for rank in range(2)]
        [(slice(0, 2, None), 1.0), (slice(2, 5, None), 1.0)]
        >>> shard(1, rank=0, world_size=2)
        (slice(0, 1, None), 0.0)
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be from 0 to {world_size - 1}, got {rank}.")
    start, stop = count * rank // world_size, count * (rank + 1) // world_size
    return (slice(start, stop), 1.0) if start < stop else (slice(0, 1), 0.0)


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> Int64[Tensor, " count"]:
    """Return a permutation of the samples, another one each epoch."""
    return torch.randperm(count, generator=seeded_generator("order", seed, epoch))


def crop_and_flip(
    images: UInt8[Tensor, "n channels height width"],
    *,
    padding: int,
    top: Int64[Tensor, " n"],
    left: Int64[Tensor, " n"],
    mirrored: Bool[Tensor, " n"],
) -> UInt8[Tensor, "n channels height width"]:
    """Pad each image with black, crop it to its old size, and mirror some.

    Args:
        images: The images.
        padding: Black pixels on every side.
        top: First row to keep of each padded image.
        left: First column to keep.
        mirrored: Which images to mirror, left to right.
    """
    height, width = images.shape[-2:]
    padded = F.pad(images, (padding,) * 4)
    columns = torch.arange(width, device=images.device)
    columns = torch.where(rearrange(mirrored, "n -> n 1"), columns.flip(0), columns)
    columns = rearrange(left, "n -> n 1") + columns
    rows = rearrange(top, "n -> n 1") + torch.arange(height, device=images.device)
    row_starts = rearrange(rows * padded.shape[-1], "n h -> n h 1")
    indices = row_starts + rearrange(columns, "n w -> n 1 w")
    indices = repeat(indices, "n h w -> n c (h w)", c=images.shape[1])
    pixels = rearrange(padded, "n c h w -> n c (h w)").gather(-1, indices)
    return rearrange(pixels, "n c (h w) -> n c h w", h=height)


def erase(
    images: Float[Tensor, "n channels height width"],
    size: int,
    *,
    top: Int64[Tensor, " n"],
    left: Int64[Tensor, " n"],
) -> Float[Tensor, "n channels height width"]:
    """Set a square of each image to zero, the mean of normalized images.

    Args:
        images: The images.
        size: Side of the square, in pixels.
        top: First row of each square; what lies outside the image is cut off.
        left: First column.

    References:
        DeVries & Taylor (2017), [Cutout](https://arxiv.org/abs/1708.04552), section 3.
    """
    rows, columns = (
        torch.arange(length, device=images.device) - rearrange(start, "n -> n 1")
        for length, start in zip(images.shape[-2:], (top, left), strict=True)
    )
    rows, columns = ((x >= 0) & (x < size) for x in (rows, columns))
    square = rearrange(rows, "n h -> n 1 h 1") & rearrange(columns, "n w -> n 1 1 w")
    return images.masked_fill(square, 0.0)
