"""Preprocessing: from a photograph to the input of a model."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from transformers_hw._engine.arguments import (
    check_choice,
    describe,
    height_and_width,
)
from transformers_hw._engine.images import is_opaque, upright

Interpolation = Literal["nearest", "bilinear", "bicubic"]
Crop = Literal["center", "squash"]

# Pillow's numbers of its filters.
FILTERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Preprocessing:
    r"""How the images were prepared that a model was trained on.

    A model's weights fit one scale of pixels and one way to resize. `transform` does
    the same to a photograph: it resizes, crops the center, and normalizes each channel
    to $(x / 255 - \mu) / \sigma$.

    Attributes:
        size: Height and width of the model's input; one number for a square.
        mean: $\mu$, one number for each channel.
        std: $\sigma$, one number for each channel.
        interpolation: How to resize: `"nearest"`, `"bilinear"` or `"bicubic"`, with
            antialiasing.
        crop_fraction: Which part of the resized image the crop keeps, along the
            shorter side.
        crop: `"center"` to keep the proportions and crop what does not fit, or
            `"squash"` to stretch both sides.

    Raises:
        ValueError: If a number is out of range or a name is unknown.

    Examples:
        >>> preprocessing = Preprocessing(8, mean=(0.5,) * 3, std=(0.5,) * 3)
        >>> white = torch.full((3, 12, 20), 255, dtype=torch.uint8)
        >>> x = preprocessing.transform(white)
        >>> x.shape, x.unique()
        (torch.Size([3, 8, 8]), tensor([1.]))
    """

    size: int | tuple[int, int]
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bicubic"
    crop_fraction: float = 0.875
    crop: Crop = "center"

    def __post_init__(self) -> None:
        """Check the numbers and names."""
        object.__setattr__(self, "size", height_and_width("size", self.size))
        object.__setattr__(self, "mean", tuple(self.mean))
        object.__setattr__(self, "std", tuple(self.std))
        check_choice("interpolation", self.interpolation, tuple(FILTERS))
        check_choice("crop", self.crop, ("center", "squash"))
        if len(self.mean) != len(self.std) or len(self.mean) not in MODES:
            raise ValueError(
                "mean and std must have a number for each of 1, 3 or 4 channels, got "
                f"{self.mean} and {self.std}."
            )
        if not all(x > 0.0 for x in self.std):
            raise ValueError(f"std must be positive, got {self.std}.")
        if not 0.0 < self.crop_fraction <= 1.0:
            raise ValueError(
                f"crop_fraction must be in (0, 1], got {self.crop_fraction}."
            )

    def transform(self, image: Any) -> Float[Tensor, "*b c height width"]:
        """Prepare an image for the model.

        Args:
            image: A Pillow image with eight bits per channel, or a tensor of bytes
                with the channels before height and width. A Pillow image is turned
                upright, as its EXIF orientation says, and must be opaque unless the
                model's input has an alpha channel.

        Returns:
            The model's input; of a Pillow image without a batch axis.

        Raises:
            TypeError: If `image` is neither.
            ValueError: If a tensor has another number of channels, or a Pillow image
                has other than eight bits per channel, is not opaque, or has malformed
                EXIF data.
        """
        if isinstance(image, Tensor):
            self._check(image)
            size = self._resized(image.shape[-2], image.shape[-1])
            pixels = self._crop(_resize(image, size, self.interpolation))
        elif hasattr(image, "convert"):
            image = self._converted(image)
            height, width = self._resized(image.height, image.width)
            image = image.resize((width, height), FILTERS[self.interpolation])
            numbers = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
            axes = "(height width c) -> c height width"
            pixels = self._crop(rearrange(numbers, axes, height=height, width=width))
        else:
            raise TypeError(
                "image must be a Pillow image or a tensor of bytes, got "
                f"{describe(image)}."
            )
        mean, std = (
            rearrange(torch.tensor(x, device=pixels.device), "c -> c 1 1")
            for x in (self.mean, self.std)
        )
        return (pixels.float() / 255.0 - mean) / std

    def _check(self, image: Tensor) -> None:
        if image.dtype != torch.uint8:
            raise TypeError(
                "image must be a Pillow image or a tensor of bytes, got "
                f"{describe(image)}."
            )
        if image.dim() < 3 or image.shape[-3] != len(self.mean) or not image.numel():
            raise ValueError(
                f"image must be (..., {len(self.mean)}, height, width), got shape "
                f"{tuple(image.shape)}."
            )

    def _converted(self, image: Any) -> Any:
        """Return a Pillow image upright, with the channels of the model's input."""
        mode = MODES[len(self.mean)]
        # Pillow clips numbers of other than eight bits, and ignores alpha.
        if image.mode[0] in "IF":
            raise ValueError(
                "image must have eight bits per channel, got Pillow's mode "
                f"{image.mode!r}: scale it to 0 to 255, and convert it to 'L'."
            )
        if mode != "RGBA" and not is_opaque(image):
            raise ValueError(
                f"image must be opaque to become {mode}, got transparency: put it on a "
                "background first, for example with PIL.Image.alpha_composite."
            )
        return upright(image).convert(mode)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the size that an image gets before the crop."""
        # Just enough to undo the rounding of a fraction such as 224 / 242.
        wanted = [math.floor(x / self.crop_fraction + 1e-6) for x in self.size]  # type: ignore[union-attr]
        if self.crop == "squash":
            return wanted[0], wanted[1]
        if wanted[0] == wanted[1]:
            short = min(height, width)
            return wanted[0] * height // short, wanted[0] * width // short
        ratio = min(height / wanted[0], width / wanted[1])
        return round(height / ratio), round(width / ratio)

    def _crop(self, pixels: Tensor) -> Tensor:
        height, width = self.size  # type: ignore[misc]
        top = round((pixels.shape[-2] - height) / 2)
        left = round((pixels.shape[-1] - width) / 2)
        return pixels[..., top : top + height, left : left + width]


def _resize(image: Tensor, size: tuple[int, int], mode: Interpolation) -> Tensor:
    """Resize bytes, and round them to bytes again, as an image file would be."""
    if size == (image.shape[-2], image.shape[-1]):
        return image
    x = image.reshape(-1, *image.shape[-3:]).float()
    x = F.interpolate(x, size, mode=mode, antialias=mode != "nearest")
    return x.clamp(0.0, 255.0).round().byte().reshape(*image.shape[:-2], *size)
