"""Batches that are a pure function of the seed, the step and the rank.

Pictures stay on the device as bytes; a batch is gathered, shifted, mirrored and
normalised there, all pictures at once. There are no worker processes to feed, to seed
or to lose, and no state that a resumed run would have to restore.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from transformers_hw._checks import check_sizes
from transformers_hw.lab.pictures import Split
from transformers_hw.lab.seeds import seeded_generator


class Part(NamedTuple):
    """What one process works on in a step.

    Attributes:
        tensors: Its share of the batch; their first axis counts the samples.
        weight: 1; or 0 where there was no sample left to share out, and the first
            one stands in.
    """

    tensors: tuple[Tensor, ...]
    weight: float


@runtime_checkable
class Batches(Protocol):
    """What a run trains on, or evaluates: a batch for every step.

    Attributes:
        steps_per_epoch: After how many steps every sample has been seen once.
    """

    steps_per_epoch: int

    def part(self, step: int, *, rank: int = 0, size: int = 1) -> Part:
        """Give a process its share of a batch.

        Args:
            step: The number of the step, counted from zero over all epochs.
            rank: The number of the process.
            size: How many processes there are.
        """
        ...


class PictureBatches:
    r"""Share out batches of pictures, shuffled and varied.

    The last batch of an epoch holds what is left, so that an epoch sees every picture
    exactly once. What is drawn for a picture depends on the seed, the epoch, the step
    and its place in the batch, not on how many processes share the batch.

    Args:
        split: The pictures; batches are made on their device.
        batch_size: Pictures in a batch, of all processes together.
        mean: What to subtract from each channel, of pixels in $[0, 1]$.
        std: What to divide each channel by.
        seed: The seed of order and variation.
        shuffle: Whether to draw a new order each epoch.
        crop_padding: Surround a picture with so many black pixels, and cut one of the
            old size out of it at random.
        flip: Whether to mirror every other picture, left to right, at random.

    Raises:
        ValueError: If a number is not valid.

    Examples:
        >>> from transformers_hw.lab.pictures import load_pictures
        >>> digits = load_pictures("digits").train
        >>> mean, std = digits.statistics()
        >>> batches = PictureBatches(digits, 500, mean=mean, std=std, shuffle=True)
        >>> batches.steps_per_epoch
        3
        >>> (pictures, labels), _ = batches.part(2)
        >>> pictures.shape, labels.shape
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
    ) -> None:
        check_sizes(pictures=len(split), batch_size=batch_size)
        if crop_padding < 0:
            raise ValueError(f"crop_padding must not be negative, got {crop_padding}.")
        self.split, self.batch_size, self.seed = split, batch_size, seed
        self.shuffle, self.crop_padding, self.flip = shuffle, crop_padding, flip
        self.steps_per_epoch = -(-len(split) // batch_size)
        device = split.pictures.device
        channels = "c -> 1 c 1 1"
        self._scale = rearrange(1 / (255 * std), channels).to(device)
        self._shift = rearrange(-mean / std, channels).to(device)

    def indices(self, step: int) -> Int64[Tensor, " n"]:
        """Say which pictures make up a batch."""
        epoch, place = divmod(step, self.steps_per_epoch)
        start = place * self.batch_size
        stop = min(start + self.batch_size, len(self.split))
        if not self.shuffle:
            return torch.arange(start, stop)
        return epoch_order(len(self.split), self.seed, epoch)[start:stop]

    def part(self, step: int, *, rank: int = 0, size: int = 1) -> Part:
        """Give a process its share of a batch: pictures and labels.

        Args:
            step: The number of the step, counted from zero over all epochs.
            rank: The number of the process.
            size: How many processes there are.
        """
        everything = self.indices(step)
        own, weight = share(len(everything), rank=rank, size=size)
        device = self.split.labels.device
        indices = everything[own].to(device, non_blocking=True)
        pictures = self.split.pictures[indices]
        if self.crop_padding or self.flip:
            generator = seeded_generator("vary", self.seed, step)
            count, span = len(everything), 2 * self.crop_padding + 1
            offsets = torch.randint(span, (2, count), generator=generator)
            mirrored = torch.randint(2, (count,), generator=generator).bool()
            pictures = crop_and_flip(
                pictures,
                padding=self.crop_padding,
                top=offsets[0, own].to(device, non_blocking=True),
                left=offsets[1, own].to(device, non_blocking=True),
                mirrored=(mirrored & self.flip)[own].to(device, non_blocking=True),
            )
        normalised = pictures * self._scale + self._shift
        return Part((normalised, self.split.labels[indices]), weight)


class GeneratedBatches:
    """Share out batches of a task that makes up its own samples.

    Args:
        make: Given a number of samples and a generator, gives tensors whose first
            axis counts the samples.
        batch_size: Samples in a batch, of all processes together.
        steps_per_epoch: How many batches to call an epoch.
        seed: The seed; another one gives samples to test with.

    Examples:
        >>> from transformers_hw.seq2seq import ChangeOfCase
        >>> task = ChangeOfCase()
        >>> def make(count, generator):
        ...     return task.sample(
        ...         count, min_length=1, max_length=5, generator=generator
        ...     )
        >>> batches = GeneratedBatches(make, 2, steps_per_epoch=10)
        >>> (source, target_inputs, target), _ = batches.part(7)
        >>> [task.decode(tokens) for tokens in source]
        ['<U> hGNm', '<U> YU']
    """

    def __init__(
        self,
        make: Callable[[int, torch.Generator], tuple[Tensor, ...]],
        batch_size: int,
        *,
        steps_per_epoch: int,
        seed: int = 0,
    ) -> None:
        check_sizes(batch_size=batch_size, steps_per_epoch=steps_per_epoch)
        self.make, self.batch_size, self.seed = make, batch_size, seed
        self.steps_per_epoch = steps_per_epoch

    def part(self, step: int, *, rank: int = 0, size: int = 1) -> Part:
        """Give a process its share of a batch.

        Args:
            step: The number of the step, counted from zero over all epochs.
            rank: The number of the process.
            size: How many processes there are.
        """
        generator = seeded_generator("generate", self.seed, step)
        own, weight = share(self.batch_size, rank=rank, size=size)
        tensors = self.make(self.batch_size, generator)
        return Part(tuple(x[own] for x in tensors), weight)


def share(count: int, *, rank: int, size: int) -> tuple[slice, float]:
    """Say which samples of a batch are one process's, as evenly as can be.

    Every process must take part in every step, or the others would wait for it
    forever. So where there are fewer samples than processes, those that get none
    work on the first one, with a weight of zero.

    Args:
        count: Samples in the batch.
        rank: The number of the process.
        size: How many processes there are.

    Returns:
        The samples, and their weight.

    Examples:
        >>> [share(5, rank=rank, size=2) for rank in range(2)]
        [(slice(0, 2, None), 1.0), (slice(2, 5, None), 1.0)]
        >>> share(1, rank=0, size=2)
        (slice(0, 1, None), 0.0)
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank must be 0 to {size - 1}, got {rank}.")
    start, stop = count * rank // size, count * (rank + 1) // size
    return (slice(start, stop), 1.0) if start < stop else (slice(0, 1), 0.0)


@lru_cache(maxsize=4)
def epoch_order(count: int, seed: int, epoch: int) -> Int64[Tensor, " count"]:
    """Shuffle the numbers below `count`, anew each epoch."""
    generator = seeded_generator("order", seed, epoch)
    return torch.randperm(count, generator=generator)


def crop_and_flip(
    pictures: UInt8[Tensor, "n channels height width"],
    *,
    padding: int,
    top: Int64[Tensor, " n"],
    left: Int64[Tensor, " n"],
    mirrored: Bool[Tensor, " n"],
) -> UInt8[Tensor, "n channels height width"]:
    """Surround each picture with black, cut out a part of the old size, mirror it.

    Args:
        pictures: The pictures.
        padding: How many black pixels to put on every side.
        top: The first row to keep, of each padded picture.
        left: The first column to keep.
        mirrored: Which pictures to mirror, left to right.

    Returns:
        The pictures, shifted by up to `padding` pixels.
    """
    height, width = pictures.shape[-2:]
    padded = F.pad(pictures, (padding,) * 4)
    columns = torch.arange(width, device=pictures.device)
    columns = torch.where(rearrange(mirrored, "n -> n 1"), columns.flip(0), columns)
    columns = rearrange(left, "n -> n 1") + columns
    rows = rearrange(top, "n -> n 1") + torch.arange(height, device=pictures.device)
    row_starts = rearrange(rows * padded.shape[-1], "n h -> n h 1")
    places = row_starts + rearrange(columns, "n w -> n 1 w")
    places = repeat(places, "n h w -> n c (h w)", c=pictures.shape[1])
    pixels = rearrange(padded, "n c h w -> n c (h w)").gather(-1, places)
    return rearrange(pixels, "n c (h w) -> n c h w", h=height)
