"""Pillow images enter a model as they are meant to be seen, or not at all."""

import io

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import ExifTags, ImageOps

from transformers_hw.vision_transformer import Preprocessing

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3
CLEAR = np.dstack([PIXELS, np.full((4, 6), 254, np.uint8)])


def prepared(image: PIL.Image.Image, channels: int = 3) -> torch.Tensor:
    mean, std = (0.0,) * channels, (1.0,) * channels
    size = (image.height, image.width)
    return Preprocessing(size, mean, std, crop_fraction=1.0).transform(image)


def opened(pixels: np.ndarray, form: str = "PNG", **options: object) -> PIL.Image.Image:
    PIL.Image.fromarray(pixels).save(content := io.BytesIO(), form, **options)
    return PIL.Image.open(content)


@pytest.mark.parametrize(
    ("pixels", "mode"),
    [
        (np.array([[0, 300, 65535]], np.uint16), "I;16"),
        (np.array([[0, 300, 65535]], np.int32), "I"),
        (np.array([[0.0, 0.5, 1.0]], np.float32), "F"),
    ],
)
def test_images_of_other_than_eight_bits_are_refused(pixels, mode):
    with pytest.raises(ValueError, match=f"eight bits per channel, .* mode '{mode}'"):
        prepared(PIL.Image.fromarray(pixels))


@pytest.mark.parametrize("form", ["PNG", "TIFF", "WEBP"])
def test_images_are_turned_upright_once(form):
    options = {"lossless": True} if form == "WEBP" else {}
    for orientation in range(1, 9):
        exif = PIL.Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        image = opened(PIXELS, form, exif=exif, **options)
        wanted = prepared(ImageOps.exif_transpose(image))
        image = opened(PIXELS, form, exif=exif, **options)
        turned = wanted.shape[1:]
        found = Preprocessing(
            tuple(turned), (0.0,) * 3, (1.0,) * 3, crop_fraction=1.0
        ).transform(image)
        assert torch.equal(found, wanted)
        assert turned == ((6, 4) if orientation > 4 else (4, 6))


def test_malformed_exif_is_refused():
    with pytest.raises(ValueError, match="image must have valid EXIF data, got Synt"):
        prepared(opened(PIXELS, exif=b"Exif\0\0no TIFF"))


@pytest.mark.parametrize(
    "image",
    [
        PIL.Image.fromarray(CLEAR),
        PIL.Image.fromarray(CLEAR[..., 2:]),
        opened(PIXELS, transparency=tuple(PIXELS[1, 2].tolist())),
        opened(PIXELS[..., 0], transparency=int(PIXELS[1, 2, 0])),
    ],
)
def test_transparency_is_refused_unless_the_model_has_alpha(image):
    for channels, mode in ((1, "L"), (3, "RGB")):
        with pytest.raises(ValueError, match=f"image must be opaque to become {mode}"):
            prepared(image, channels)
    rgba = torch.from_numpy(np.array(image.convert("RGBA"))).permute(2, 0, 1)
    torch.testing.assert_close(prepared(image, 4), rgba / 255)


def test_alpha_that_is_opaque_everywhere_is_left_out():
    image = PIL.Image.fromarray(CLEAR + np.uint8([0, 0, 0, 1]))
    wanted = torch.from_numpy(PIXELS).permute(2, 0, 1) / 255
    torch.testing.assert_close(prepared(image), wanted)
