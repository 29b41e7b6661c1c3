"""Images from the disk: read as they are, or refused with the name of the file.

The docstrings name reports of the same failure in other projects.
"""

import io
import os
import random
import stat
import struct
import tracemalloc
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, ExifTags, Image

from transformers_hw.lab.archives import Limits
from transformers_hw.lab.dataset import Split
from transformers_hw.lab.images import load_images

FUZZ = int(os.environ.get("FUZZ", "1"))
ENTRY = "train/ant/0.png"


def encoded(
    color: tuple[int, int, int], size: tuple[int, int] = (6, 4), form: str = "PNG"
) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, color).save(content, form)
    return content.getvalue()


def some_files(form: str = "PNG") -> dict[str, bytes]:
    return {
        f"{split}/{kind}/{n}.png": encoded(
            (10 * n, 100 * k, 200 * (split == "test")), form=form
        )
        for split in ("train", "test")
        for k, kind in enumerate(("ant", "bee"))
        for n in range(3)
    }


def write_zip(
    path: Path,
    files: dict[str, bytes],
    prefix: str = "",
    method: int = zipfile.ZIP_STORED,
    forge: Callable[[zipfile.ZipInfo], None] | None = None,
) -> Path:
    """Write a zip; `forge` may change what its directory says of the first entry."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
        if forge:
            forge(archive.filelist[0])
    return path


def write_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("form", ["folder", "zip", "zip within a folder"])
def test_images_are_read_in_the_order_of_classes_and_names(
    tmp_path: Path, form: str
) -> None:
    files = {**some_files(), "train/ant/notes.txt": b"-", "train/bee/._0.png": b"-"}
    if form == "folder":
        path = write_folder(tmp_path / "some", files)
    else:
        path = write_zip(tmp_path / "some.zip", files, "" if form == "zip" else "top/")
    found = load_images(path)
    assert found.classes == ("ant", "bee")
    assert found.train.images.shape == (6, 3, 4, 6)
    assert (
        found.train.labels.tolist() == found.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    )
    corner = found.test.images[:, :, 0, 0].tolist()
    assert corner == [[10 * n, 100 * k, 200] for k in range(2) for n in range(3)]
    assert found.describe()["image"] == [3, 4, 6]
    changed = replace(found, test=Split(found.test.images + 1, found.test.labels))
    assert changed.digest != found.digest == load_images(path).digest


def test_another_zip_of_the_same_name_size_and_time_is_read_anew(
    tmp_path: Path,
) -> None:
    files = some_files("BMP")
    path = write_zip(tmp_path / "some.zip", files)
    before, found = path.stat(), load_images(path)
    write_zip(path, dict.fromkeys(files, files["test/bee/2.png"]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert load_images(path).digest != found.digest


# More than eight bits.


def png(
    color: int, bits: int, width: int, height: int, rows: bytes, clear: bytes = b""
) -> bytes:
    """Write a PNG by hand; color 0 is gray, 2 is RGB, and 4 or 6 with alpha."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + checksum.to_bytes(4)

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows))]
    if clear:
        parts.insert(1, chunk(b"tRNS", clear))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def tiff(pixels: np.ndarray, *, white: int = 65535, kind: int = 1) -> bytes:
    """Write a TIFF by hand, in the byte order of the pixels; 0 is black or white."""
    height, width, *channels = pixels.shape
    order = pixels.dtype.byteorder.replace("=", "<").replace("|", "<")
    count, bits = (len(channels) and channels[0]) or 1, 8 * pixels.itemsize
    photometric = 2 if channels else int(white != 0)
    # Three numbers of bits do not fit into their tag, and stand before the pixels.
    extra, start = struct.pack(f"{order}3H", *3 * [bits]), 8 + 2 + 12 * 9 + 4
    tags = [(256, 4, width), (257, 4, height), (258, 3, bits), (259, 3, 1)]
    tags += [(262, 3, photometric), (273, 4, start + 6), (277, 3, count)]
    tags += [(279, 4, pixels.nbytes), (339, 3, kind)]
    content = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    content += struct.pack(f"{order}H", len(tags))
    for tag, size, value in tags:
        if tag == 258 and count == 3:
            content += struct.pack(f"{order}HHII", tag, 3, 3, start)
        elif size == 3:
            content += struct.pack(f"{order}HHIHH", tag, 3, 1, value, 0)
        else:
            content += struct.pack(f"{order}HHII", tag, 4, 1, value)
    return content + bytes(4) + extra + pixels.tobytes()


RAMP = np.linspace(0, 65535, 24).astype(">u2").reshape(4, 6)
COLORS = np.stack([RAMP, RAMP[::-1], RAMP.T.reshape(4, 6)], axis=-1).astype(">u2")
FLOATS = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6)


def rows_of(pixels: np.ndarray) -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in pixels)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (png(0, 16, 6, 4, rows_of(RAMP)), RAMP // 256),
        (png(2, 16, 6, 4, rows_of(COLORS)), COLORS // 256),
        (tiff(RAMP), RAMP // 256),
        (tiff(RAMP.astype("<u2")), RAMP // 256),
        (tiff(COLORS.astype("<u2")), COLORS // 256),
        (b"P5 6 4 65535\n" + RAMP.tobytes(), RAMP // 256),
        (b"P6 6 4 65535\n" + COLORS.tobytes(), np.rint(COLORS / 257)),
        (tiff(FLOATS, kind=3), np.rint(255 * FLOATS.astype(float))),
        (tiff(FLOATS.astype(">f4"), kind=3), np.rint(255 * FLOATS.astype(float))),
        (b"Pf 6 4 -1.0\n" + FLOATS[::-1].tobytes(), np.rint(255 * FLOATS)),
    ],
    ids=[
        "png",
        "png-rgb",
        "tiff-big",
        "tiff",
        "tiff-rgb",
        "pgm",
        "ppm",
        "float",
        "float-big",
        "pfm",
    ],
)
def test_more_than_eight_bits_are_scaled_not_clipped(
    tmp_path: Path, content: bytes, expected: np.ndarray
) -> None:
    """All but black became white: Pillow #2574 #3011 #3159."""
    files = dict.fromkeys(("train/ant/0.png", "test/ant/0.png"), content)
    image = load_images(write_zip(tmp_path / "some.zip", files)).train.images[0]
    if expected.ndim == 2:
        expected = np.stack([expected] * 3, axis=-1)
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tiff(2 * FLOATS, kind=3), "numbers must be from 0 to 1, got 0.0 to 2.0"),
        (tiff(FLOATS * np.nan, kind=3), "must be from 0 to 1, got nan to nan"),
        (tiff(RAMP.astype("<i4"), kind=2), "its 32-bit integers have no known range"),
        (tiff((RAMP // 512).astype("i1"), kind=2), "are signed, and of eight bits"),
        (tiff(RAMP.astype("<u2"), white=0), "must have 16 or 32 bits, and 0 be black"),
    ],
)
def test_numbers_of_unknown_range_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = write_zip(tmp_path / "some.zip", {**some_files(), ENTRY: content})
    with pytest.raises(ValueError, match=rf"'{ENTRY}' cannot be read .*{message}"):
        load_images(path)


# Orientation, pages and alpha.

DRAWING = np.zeros((4, 6, 4), np.uint8)
DRAWING[1:3, 1:5, 3] = 255
OPAQUE = np.dstack([COLORS // 256, np.full((4, 6), 255)]).astype(np.uint8)
BLOCKS = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda x: x,
    2: lambda x: x[:, ::-1],
    3: lambda x: x[::-1, ::-1],
    4: lambda x: x[::-1],
    5: lambda x: x.T,
    6: lambda x: np.rot90(x, -1),
    7: lambda x: x[::-1, ::-1].T,
    8: lambda x: np.rot90(x),
}


def saved(pixels: np.ndarray, form: str, **options: Any) -> bytes:
    """Return pixels as Pillow writes them."""
    content = io.BytesIO()
    exact = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}.get(form, {})
    Image.fromarray(pixels).save(content, form, **exact, **options)
    return content.getvalue()


def palette(form: str, **options: Any) -> bytes:
    """Return opaque pixels as indices of a palette, in order."""
    indices = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6))
    indices.putpalette(OPAQUE[..., :3].tobytes())
    indices.save(content := io.BytesIO(), form, **options)
    return content.getvalue()


def read_twice(path: Path, content: bytes) -> np.ndarray:
    """Return the pixels of a training image; the test image is the same."""
    files = dict.fromkeys((ENTRY, "test/ant/0.png"), content)
    images = load_images(write_zip(path / "some.zip", files)).train.images
    return images[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}),
        ("PNG", {}),
        ("WEBP", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_deflate"}),
    ],
)
def test_images_are_turned_upright_once(
    tmp_path: Path, form: str, options: dict[str, str]
) -> None:
    """Photos were not, and a TIFF was already: datumaro #1756."""
    # Blocks as large as those of JPEG.
    stored = np.kron(BLOCKS, np.ones((8, 8), np.uint8))
    for orientation, turned in UPRIGHT.items():
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        image = read_twice(tmp_path, saved(stored, form, exif=exif, **options))
        for channel in range(3):
            found = image[..., channel].astype(int)
            np.testing.assert_allclose(found, turned(stored), atol=2)


def test_gray_of_sixteen_bits_is_turned_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    expected = np.stack([np.rot90(RAMP // 256, -1)] * 3, axis=-1)
    for form in ("PNG", "TIFF"):
        content = saved(RAMP.astype(np.uint16), form, exif=exif)
        np.testing.assert_array_equal(read_twice(tmp_path, content), expected)


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
@pytest.mark.parametrize("exif", [b"Exif\0\0no TIFF", b"Exif\0\0II"])
def test_malformed_exif_is_refused_by_the_name_of_the_image(
    tmp_path: Path, form: str, exif: bytes
) -> None:
    content = saved(OPAQUE, form, exif=exif)
    with pytest.raises(ValueError, match=f"some.zip: '{ENTRY}' cannot be read as an "):
        read_twice(tmp_path, content)


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF", "WEBP"])
def test_the_first_frame_is_read(tmp_path: Path, form: str) -> None:
    frames = [np.full((4, 6, 3), 100 * n, np.uint8) for n in range(3)]
    later = [Image.fromarray(frame) for frame in frames[1:]]
    content = saved(frames[0], form, save_all=True, append_images=later)
    np.testing.assert_array_equal(read_twice(tmp_path, content), frames[0])


@pytest.mark.parametrize(
    "content",
    [
        saved(DRAWING, "PNG"),
        saved(DRAWING, "TIFF"),
        saved(DRAWING, "WEBP"),
        saved(DRAWING, "GIF"),
        saved(DRAWING[..., 2:], "PNG"),  # gray
        saved(OPAQUE - np.uint8([0, 0, 0, 1]), "PNG"),
        palette("PNG", transparency=b"\xff" * 23 + b"\xfe"),
        palette("GIF", transparency=23),
        saved(OPAQUE[..., :3], "PNG", transparency=tuple(OPAQUE[2, 3, :3].tolist())),
        saved(RAMP.astype(np.uint16), "PNG", transparency=int(RAMP[2, 3])),
        png(0, 1, 4, 1, b"\0\x50", b"\0\1"),
        png(0, 2, 4, 1, b"\0\x1b", b"\0\1"),
        png(0, 4, 4, 1, b"\0\x01\x23", b"\0\1"),
        png(0, 8, 4, 1, b"\0\0\1\2\3", b"\0\1"),
        png(2, 16, 1, 1, b"\0" + bytes(range(6)), bytes(range(6))),
        png(4, 16, 1, 1, b"\0" + struct.pack(">2H", 1, 65280)),
        png(6, 16, 1, 1, b"\0" + struct.pack(">4H", 1, 2, 3, 65280)),
    ],
)
def test_an_image_that_is_not_opaque_is_refused(tmp_path: Path, content: bytes) -> None:
    """A black drawing on nothing became all black: DIGITS #85."""
    message = f"some.zip: '{ENTRY}' cannot .* must be opaque: put it on a background"
    with pytest.raises(ValueError, match=message):
        read_twice(tmp_path, content)


@pytest.mark.parametrize(
    "content",
    [
        saved(OPAQUE, "PNG"),
        saved(OPAQUE, "TIFF"),
        palette("PNG", transparency=b"\xff" * 24),
        palette("GIF", transparency=24),
        saved(OPAQUE[..., :3], "PNG", transparency=(1, 2, 3)),
    ],
)
def test_alpha_that_is_opaque_everywhere_is_left_out(
    tmp_path: Path, content: bytes
) -> None:
    np.testing.assert_array_equal(read_twice(tmp_path, content), OPAQUE[..., :3])


# What is refused.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({ENTRY: b"no image"}, f"'{ENTRY}' is not an image in one of BMP, "),
        ({ENTRY: encoded((1, 1, 1))[:50]}, f"'{ENTRY}' cannot be read as an image"),
        ({"train/cat/0.png": encoded((0, 0, 0))}, r"only one has \['cat'\]"),
        (
            {"test/bee/9.png": encoded((1, 2, 3), (8, 8))},
            r"the first are \(4, 6\), 'test/bee/9.png' is \(8, 8\)",
        ),
        ({"train/a\x1b[2J/0.png": b""}, r"class of 'train/a\\x1b\[2J/0.png' must be"),
        # Pillow's own limits are above and below.
        ({ENTRY: png(0, 1, 9000, 9000, b"")}, f"'{ENTRY}' .* 9000 × 9000 pixels, more"),
        ({ENTRY: png(0, 1, 11000, 9000, b"")}, f"'{ENTRY}' .* 9000 × 11000 pixels"),
        ({ENTRY: png(0, 1, 40000, 40000, b"")}, rf"'{ENTRY}' .*\(1600000000 pixels"),
    ],
)
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_what_is_wrong_with_an_image_is_named(
    tmp_path: Path, change: dict[str, bytes], message: str, form: str
) -> None:
    write = write_folder if form == "folder" else write_zip
    path = write(tmp_path / "some.zip", {**some_files(), **change})
    with pytest.raises(ValueError, match=message):
        load_images(path)


def test_nothing_and_nonsense_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r'"digits", "cifar10".*nothing at'):
        load_images(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="nothing at aaa"):
        load_images(5000 * "a")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"must hold images .* none of train"):
        load_images(tmp_path / "empty")
    (tmp_path / "some.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"some.zip is not a zip, or damaged"):
        load_images(tmp_path / "some.zip")


@pytest.mark.parametrize(
    "name", ["train/../../x.png", "/etc/x.png", "C:\\x.png", "..\\x.png", "a link"]
)
def test_a_zip_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Zip slip: vision #1456."""
    path = write_zip(tmp_path / "some.zip", some_files())
    entry, message = zipfile.ZipInfo(name), "leaves its folder"
    if name == "a link":
        entry.filename, message = "train/ant/link.png", "is a link"
        entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ValueError, match=rf"some.zip is refused: .* {message}"):
        load_images(path)


@pytest.mark.parametrize("target", ["/etc/passwd", "../x.png", "..", ".", "gone"])
def test_a_folder_whose_links_lead_elsewhere_is_refused(
    tmp_path: Path, target: str
) -> None:
    path = write_folder(tmp_path / "some", some_files())
    link = path / "train/ant/link.png"
    link.symlink_to(target if target != "../x.png" else "../../../x.png")
    (tmp_path / "x.png").write_bytes(encoded((0, 0, 0)))
    with pytest.raises(ValueError, match=r"'train/ant/link.png' is a link, and not to"):
        load_images(path)
    link.unlink()
    link.symlink_to("../bee/1.png")
    images = load_images(path).train.images
    assert torch.equal(images[3], images[5])  # 0, 1, 2, link; 0, 1, 2


def _declare(**changes: int) -> Callable[[zipfile.ZipInfo], None]:
    def forge(entry: zipfile.ZipInfo) -> None:
        for name, value in changes.items():
            setattr(entry, name, value)

    return forge


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (_declare(flag_bits=1), "is encrypted"),
        (_declare(compress_type=12), "is compressed by method 12: only stored and"),
        (_declare(compress_type=99), "is compressed by method 99: only stored and"),
        (_declare(file_size=10**10), "has 10000000000 bytes, more than limits.file_by"),
        (_declare(file_size=10**6), "brings the images to more than limits.ratio"),
        (_declare(filename="train/ant/./1.png"), "is there twice"),
        (_declare(flag_bits=32), "is damaged: compressed patched data"),
        (_declare(CRC=1), "is damaged: Bad CRC-32"),
        (_declare(header_offset=7), "is damaged: Bad magic number"),
        (_declare(filename="train/ant/9.png"), "is damaged: File name in directory"),
    ],
)
def test_a_forged_zip_is_refused_by_the_name_of_the_entry(
    tmp_path: Path, forge: Callable[[zipfile.ZipInfo], None], message: str
) -> None:
    path = write_zip(tmp_path / "some.zip", some_files(), forge=forge)
    name = r"'train/ant/\d.png'"
    with pytest.raises(ValueError, match=rf"some.zip.* {name} {message}"):
        load_images(path)


def test_a_zip_bomb_that_hides_its_size_does_not_expand(tmp_path: Path) -> None:
    bomb = b"P5 8000 8000 255\n" + bytes(2**26)
    path = write_zip(
        tmp_path / "some.zip",
        {"train/ant/00.png": bomb, **some_files()},
        method=zipfile.ZIP_DEFLATED,
        forge=_declare(file_size=1000),
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"/00.png' is damaged: Bad CRC-32"):
            load_images(path)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_limits_can_be_lowered_and_raised(tmp_path: Path) -> None:
    blank = b"P5 600 400 255\n" + bytes(600 * 400)
    names = ["train/ant/0.png", "train/ant/1.png", "test/ant/0.png"]
    files = dict.fromkeys(names, blank)
    path = write_zip(tmp_path / "some.zip", files, method=zipfile.ZIP_DEFLATED)
    raised = Limits(ratio=1100.0)
    assert load_images(path, limits=raised).train.images.shape == (2, 3, 400, 600)
    folder = write_folder(tmp_path / "some", files)
    assert load_images(folder).train.images.shape == (2, 3, 400, 600)
    size = len(blank)
    for change, message in (
        (
            {"ratio": 100.0},
            "'train/ant/0.png' brings .* limits.ratio = 100.0",
        ),
        ({"entries": 2}, "it has 3 files, more than limits.entries = 2"),
        ({"file_bytes": size - 1}, f"'.*/0.png' has {size} bytes, more than limits.fi"),
        (
            {"pixels": 239_999},
            "400 × 600 pixels, more than limits.pixels = 239999",
        ),
        ({"total_pixels": 719_999}, r"3 images of \(400, 600\) pixels are more than"),
    ):
        with pytest.raises(ValueError, match=message):
            load_images(path, limits=replace(raised, **change))
        if "ratio" not in change:
            with pytest.raises(ValueError, match=message):
                load_images(folder, limits=replace(raised, **change))


def test_no_other_program_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow reads EPS by Ghostscript, whatever the file is called."""
    program, trace = tmp_path / "bin/gs", tmp_path / "trace"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {trace}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EndComments\n%%EOF\n"
    path = write_zip(tmp_path / "some.zip", {**some_files(), ENTRY: content})
    with pytest.raises(ValueError, match=f"'{ENTRY}' is not an image in one of"):
        load_images(path)
    assert not trace.exists()


def _mutated(content: bytes, chosen: random.Random) -> bytes:
    mutated = bytearray(content)
    for _ in range(chosen.choice((1, 1, 2, 5, 20))):
        place = chosen.randrange(len(mutated))
        match chosen.randrange(5):
            case 0:
                mutated[place] ^= 1 << chosen.randrange(8)
            case 1:
                mutated[place] = chosen.choice((0, 1, 127, 128, 255))
            case 2:
                huge = chosen.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)))
                mutated[place : place + 4] = huge
            case 3:
                mutated[place : place + chosen.randrange(1, 9)] = b""
            case 4:
                other = chosen.randrange(len(mutated))
                mutated[place:place] = mutated[other : other + chosen.randrange(1, 30)]
    shorter = chosen.randrange(1, 1 + len(mutated))
    return bytes(mutated[: chosen.choice((len(mutated), len(mutated), shorter))])


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of what it repairs
def test_hostile_archives_and_images_are_read_or_refused_by_name(
    tmp_path: Path,
) -> None:
    chosen = random.Random(FUZZ)
    sample = Image.fromarray(np.arange(72, dtype=np.uint8).reshape(4, 6, 3))
    images = [png(0, 16, 6, 4, rows_of(RAMP)), tiff(RAMP), tiff(FLOATS, kind=3)]
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 3
    for form in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        sample.save(content := io.BytesIO(), form, exif=exif)
        images.append(content.getvalue())
    images += [saved(OPAQUE, "PNG", exif=exif), saved(OPAQUE, "TIFF")]
    path, found = tmp_path / "some.zip", Counter[str]()
    for case in range(300 * FUZZ):
        image = images[case % len(images)]
        files = dict.fromkeys((ENTRY, "test/ant/0.png"), image)
        if case % 3:
            files[ENTRY] = _mutated(image, chosen)
        write_zip(path, files, method=chosen.choice((0, zipfile.ZIP_DEFLATED)))
        if not case % 3:
            path.write_bytes(_mutated(path.read_bytes(), chosen))
        try:
            loaded = load_images(path)
            outcome = "read" if loaded.train.images.dtype == torch.uint8 else "lost"
        except ValueError as error:
            clear = str(path) in str(error) and str(error).isprintable()
            outcome = "refused" if clear else repr(error)
        found[outcome] += 1
    assert found.keys() == {"read", "refused"}
    assert min(found.values()) > 20 * FUZZ
    assert list(tmp_path.iterdir()) == [path]
