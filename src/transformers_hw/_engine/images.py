"""Pillow images, as chapters may see them: without importing Pillow."""

from typing import Any

ORIENTATION = 274  # tag of EXIF
# Pillow's number of the transposition that undoes each orientation.
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}


def upright(image: Any) -> Any:
    """Return a Pillow image turned upright, as its EXIF or XMP orientation says."""
    # Loading turns a TIFF, and deletes its orientation: it is not turned twice.
    image.load()
    try:
        turn = TURNS.get(image.getexif().get(ORIENTATION))
    except Exception as error:  # Pillow raises nearly anything.
        raise ValueError(f"image must have valid EXIF data, got {error!r}.") from error
    return image if turn is None else image.transpose(turn)


def is_opaque(image: Any) -> bool:
    """Return whether all pixels of a Pillow image are known to be opaque.

    Transparency of 16 bits is only recognized before the image is loaded.
    """
    if not image.has_transparency_data:
        return True
    # Pillow rounds alpha of 16 bits, and compares a transparent color of 16 bits, or a
    # gray one of 2 or 4, with pixels that it has scaled to eight. GIF has indices.
    gray = image.mode == "L" and image.format != "GIF"
    if gray or ";16" in str(getattr(image, "tile", "")):
        return False
    return image.convert("RGBA").getchannel("A").getextrema() == (255, 255)
