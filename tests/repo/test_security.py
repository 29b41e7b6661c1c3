"""SECURITY.md: its numbers are those of the code, and the tests it names exist."""

import re
from pathlib import Path

import pytest

from transformers_hw.lab import archives, images
from transformers_hw.pretrained import weights

ROOT = Path(__file__).parents[2]
TEXT = " ".join((ROOT / "SECURITY.md").read_text("utf-8").split())


def test_the_limits_are_those_of_the_code() -> None:
    most = archives.Limits()
    header, tensors = weights.MOST_HEADER_BYTES, weights.MOST_TENSORS
    *formats, last = archives.FORMATS
    for promise in (
        f"a header has at most {header / 2**20:.0f} MiB, a file at most {tensors:,} ",
        f"an archive or folder may have {most.entries:,} files",
        f"a file {most.file_bytes / 2**20:.0f} MiB",
        f"an image {most.pixels / 1e6:.1f} million pixels",
        f"all images together {most.total_pixels / 1e9:.1f} billion pixels, which "
        f"take {3 * most.total_pixels / 1e9:.0f} GB",
        f"the images of a zip {most.ratio:.0f} times the bytes of the zip",
        f"only {', '.join(formats)} and {last} are decoded",
    ):
        assert promise.lower() in TEXT.lower()


def test_cifar10_is_fetched_over_https_and_has_a_checksum() -> None:
    assert images.CIFAR10_URL.startswith("https://")
    assert re.fullmatch("[0-9a-f]{64}", images.CIFAR10_SHA256)


def test_the_oldest_pytorch_without_known_holes_is_the_oldest_supported() -> None:
    (oldest,) = re.findall(r"versions before (\d+\.\d+), which the package", TEXT)
    assert f'"torch>={oldest}"' in (ROOT / "pyproject.toml").read_text("utf-8")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT))))
def test_the_tests_it_names_exist(name: str) -> None:
    assert (ROOT / name).is_file()
