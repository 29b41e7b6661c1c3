"""Data: the right pictures or a clear error, and batches that repeat themselves.

The names of tests say what has gone wrong in other projects; the numbers tell where.
"""

import hashlib
import io
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from transformers_hw.lab import pictures as pictures_module
from transformers_hw.lab.batching import (
    GeneratedBatches,
    PictureBatches,
    crop_and_flip,
    epoch_order,
    share,
)
from transformers_hw.lab.download import DownloadError, download
from transformers_hw.lab.pictures import Split, cache_folder, load_pictures
from transformers_hw.lab.seeds import derived_seed
from transformers_hw.seq2seq import ChangeOfCase


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep each test's cache to itself."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRANSFORMERS_HW_CACHE", str(folder))
    return folder


def some_split(count: int = 23, channels: int = 3) -> Split:
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, 5, 7)
    pictures = torch.randint(256, shape, generator=generator).byte()
    return Split(pictures, torch.arange(count) % 4)


def batches_of(split: Split, **options: bool | int) -> PictureBatches:
    channels = split.pictures.shape[1]
    mean, std = torch.zeros(channels), torch.ones(channels)
    return PictureBatches(split, 7, mean=mean, std=std, **options)


# Pictures that ship with a library.


def test_digits_are_those_of_scikit_learn() -> None:
    digits, theirs = load_pictures("digits"), load_digits()
    assert digits.classes == tuple("0123456789")
    for label in range(10):
        own = theirs.images[theirs.target == label]
        rest = np.delete(own, np.s_[4::5], axis=0)
        for split, wanted in ((digits.train, rest), (digits.test, own[4::5])):
            found = split.pictures[split.labels == label, 0]
            assert np.array_equal((found.double() * 16 / 255).round().numpy(), wanted)
    assert digits.train.pictures.max() == 255


def test_statistics_are_those_of_numpy() -> None:
    split = some_split()
    mean, std = split.statistics()
    pixels = split.pictures.numpy() / 255
    np.testing.assert_allclose(mean.numpy(), pixels.mean((0, 2, 3)), atol=1e-7)
    np.testing.assert_allclose(std.numpy(), pixels.std((0, 2, 3)), atol=1e-7)
    batches = PictureBatches(split, 23, mean=mean, std=std)
    (normalised, _), _ = batches.part(0)
    assert normalised.mean((0, 2, 3)).abs().max() < 1e-6
    assert (normalised.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_a_subset_keeps_its_share_of_every_class_and_smaller_ones_lie_within() -> None:
    train = load_pictures("digits").train
    tenth, half = train.subset(0.1, seed=3), train.subset(0.5, seed=3)
    wanted = [round(0.1 * count) for count in train.labels.bincount().tolist()]
    assert tenth.labels.bincount().tolist() == wanted
    assert len(train.subset(0.001)) == 10
    within = (rearrange(tenth.pictures, "n ... -> n 1 ...") == half.pictures).flatten(2)
    assert within.all(-1).any(-1).all()
    assert torch.equal(train.subset(1.0).pictures, train.pictures)
    assert not torch.equal(train.subset(0.1, seed=4).pictures, tenth.pictures)
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\], got 0"):
        train.subset(0.0)


# Batches.


def test_every_epoch_has_its_own_order_and_every_picture() -> None:
    """The same order each epoch, for want of set_epoch: pytorch #31771."""
    batches = batches_of(some_split(), shuffle=True, seed=5)
    assert batches.steps_per_epoch == 4
    epochs = [
        torch.cat([batches.indices(4 * epoch + step) for step in range(4)])
        for epoch in range(3)
    ]
    for order in epochs:
        assert torch.equal(order.sort().values, torch.arange(23))
        assert not torch.equal(order, torch.arange(23))
    assert not torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[1], epochs[2])
    other = batches_of(some_split(), shuffle=True, seed=6)
    assert not torch.equal(other.indices(0), batches.indices(0))


@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 40), size=st.integers(1, 9))
def test_shares_are_even_and_complete(count: int, size: int) -> None:
    shares = [share(count, rank=rank, size=size) for rank in range(size)]
    own = [list(range(count))[part] for part, weight in shares if weight]
    assert [sample for part in own for sample in part] == list(range(count))
    assert max(map(len, own)) - min(map(len, own)) <= 1
    # Whoever has nothing to do still does it.
    idle = [list(range(count))[part] for part, weight in shares if not weight]
    assert idle == [[0]] * max(0, size - count)


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="rank must be 0 to 1, got 2"):
        share(5, rank=2, size=2)


@pytest.mark.parametrize("size", [2, 3])
def test_processes_share_what_one_would_have_seen(size: int) -> None:
    """The same noise in every worker: pytorch #5059, CenterNet #233."""
    batches = batches_of(some_split(), shuffle=True, crop_padding=2, flip=True)
    for step in range(8):
        (pictures, labels), _ = batches.part(step)
        parts = [batches.part(step, rank=rank, size=size) for rank in range(size)]
        shared = [part.tensors for part in parts if part.weight]
        assert torch.equal(torch.cat([one for one, _ in shared]), pictures)
        assert torch.equal(torch.cat([one for _, one in shared]), labels)


def test_variation_differs_between_pictures_and_epochs_and_repeats_with_its_seed() -> (
    None
):
    """Workers that share a seed: pytorch #5059 #41329, lightning #20412."""
    picture = some_split(1).pictures.expand(23, -1, -1, -1)
    same = Split(picture, torch.zeros(23, dtype=torch.long))
    batches = batches_of(same, crop_padding=2, flip=True, seed=1)
    first, second = (batches.part(step).tensors[0] for step in (0, 4))
    assert len(first.unique(dim=0)) > 4
    assert not torch.equal(first, second)
    torch.rand(5)  # what else is drawn changes nothing
    again = batches_of(same, crop_padding=2, flip=True, seed=1)
    assert torch.equal(again.part(4).tensors[0], second)
    assert torch.equal(again.part(0).tensors[0], first)
    other = batches_of(same, crop_padding=2, flip=True, seed=2)
    assert not torch.equal(other.part(0).tensors[0], first)


def test_cropping_and_flipping_is_that_of_torchvision() -> None:
    pictures = some_split().pictures
    top, left = torch.randint(5, (2, 23))
    mirrored = torch.arange(23) % 3 == 0
    ours = crop_and_flip(pictures, padding=2, top=top, left=left, mirrored=mirrored)
    for n, picture in enumerate(pictures):
        theirs = TF.crop(TF.pad(picture, [2]), int(top[n]), int(left[n]), 5, 7)
        if mirrored[n]:
            theirs = TF.hflip(theirs)
        assert torch.equal(ours[n], theirs)


def test_without_variation_pictures_come_as_they_are_and_are_not_changed() -> None:
    split = some_split()
    before = split.pictures.clone()
    (pictures, labels), weight = batches_of(split).part(1)
    torch.testing.assert_close(pictures, split.pictures[7:14] / 255)
    assert torch.equal(labels, split.labels[7:14])
    assert weight == 1.0
    batches_of(split, crop_padding=1, flip=True).part(0)
    assert torch.equal(split.pictures, before)


def test_generated_batches_depend_on_the_seed_and_the_step_alone() -> None:
    task = ChangeOfCase()

    def make(count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return task.sample(count, min_length=2, max_length=5, generator=generator)

    batches = GeneratedBatches(make, 5, steps_per_epoch=3, seed=1)
    later, first = batches.part(9).tensors, batches.part(0).tensors
    again = GeneratedBatches(make, 5, steps_per_epoch=3, seed=1).part(9).tensors
    assert all(torch.equal(one, other) for one, other in zip(later, again, strict=True))
    assert later[0].tolist() != first[0].tolist()
    parts = [batches.part(9, rank=rank, size=2).tensors for rank in range(2)]
    for n, whole in enumerate(later):
        assert torch.equal(torch.cat([part[n] for part in parts]), whole)
    other = GeneratedBatches(make, 5, steps_per_epoch=3, seed=2)
    assert other.part(0).tensors[0].tolist() != first[0].tolist()


def test_seeds_of_different_purposes_differ() -> None:
    keys = [
        (name, *pair) for name in "ab" for pair in ((0, 1), (1, 0), (11, 0), (1, 10))
    ]
    assert len({derived_seed(*key) for key in keys}) == len(keys)
    assert all(0 <= derived_seed(*key) < 2**63 for key in keys)
    assert not torch.equal(epoch_order(50, 0, 1), epoch_order(50, 1, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on, got 0"),
        ({"crop_padding": -1}, "crop_padding must not be negative, got -1"),
    ],
)
def test_batches_that_make_no_sense_are_refused(
    options: dict[str, int], message: str
) -> None:
    sizes = {"batch_size": 3, **options}
    with pytest.raises(ValueError, match=message):
        PictureBatches(some_split(), mean=torch.zeros(3), std=torch.ones(3), **sizes)


# Pictures from the disk.


def encoded(colour: tuple[int, int, int], size: tuple[int, int] = (6, 4)) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", size, colour).save(content, "PNG")
    return content.getvalue()


def some_files() -> dict[str, bytes]:
    return {
        f"{split}/{kind}/{n}.png": encoded((10 * n, 100 * k, 200 * (split == "test")))
        for split in ("train", "test")
        for k, kind in enumerate(("ant", "bee"))
        for n in range(3)
    }


def write_zip(path: Path, files: dict[str, bytes], prefix: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(prefix + name, content)
    return path


def write_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("form", ["folder", "zip", "zip within a folder"])
def test_pictures_are_read_in_the_order_of_classes_and_names(
    tmp_path: Path, form: str
) -> None:
    files = {**some_files(), "train/ant/notes.txt": b"-", "train/bee/._0.png": b"-"}
    if form == "folder":
        path = write_folder(tmp_path / "some", files)
    else:
        path = write_zip(tmp_path / "some.zip", files, "" if form == "zip" else "top/")
    found = load_pictures(path)
    assert found.classes == ("ant", "bee")
    assert found.train.pictures.shape == (6, 3, 4, 6)
    assert (
        found.train.labels.tolist() == found.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    )
    corner = found.test.pictures[:, :, 0, 0].tolist()
    assert corner == [[10 * n, 100 * k, 200] for k in range(2) for n in range(3)]
    assert found.describe()["picture"] == [3, 4, 6]


def test_pictures_of_several_sizes_are_refused_or_resized(tmp_path: Path) -> None:
    files = {**some_files(), "test/bee/9.png": encoded((1, 2, 3), (8, 8))}
    path = write_folder(tmp_path / "some", files)
    with pytest.raises(ValueError, match=r"size.*\(4, 6\), test/bee/9.png is \(8, 8\)"):
        load_pictures(path)
    assert load_pictures(path, size=(3, 5)).test.pictures.shape == (7, 3, 3, 5)
    with pytest.raises(ValueError, match="size is for pictures from the disk"):
        load_pictures("digits", size=(3, 5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test/bee/0.png": b"no picture"}, "test/bee/0.png is no picture, or damaged"),
        (
            {"test/bee/0.png": encoded((1, 1, 1))[:40]},
            "0.png is no picture, or damaged",
        ),
        ({"train/cat/0.png": encoded((0, 0, 0))}, r"only one has \['cat'\]"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(
    tmp_path: Path, change: dict[str, bytes], message: str
) -> None:
    path = write_folder(tmp_path / "some", {**some_files(), **change})
    with pytest.raises(ValueError, match=message):
        load_pictures(path)


def test_nothing_and_nonsense_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r'"digits", "cifar10".*nothing at'):
        load_pictures(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"must hold pictures .* none of train"):
        load_pictures(tmp_path / "empty")
    (tmp_path / "some.zip").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"some.zip is no zip, or damaged"):
        load_pictures(tmp_path / "some.zip")


@pytest.mark.parametrize(
    "name", ["../x.png", "train/../../x.png", "/etc/x.png", "C:\\x.png", "..\\x.png"]
)
def test_a_zip_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Zip slip: vision #1456."""
    files = {**some_files(), name: encoded((0, 0, 0))}
    path = write_zip(tmp_path / "some.zip", files)
    with pytest.raises(ValueError, match=r"some.zip is refused: .* leaves its folder"):
        load_pictures(path)


def test_a_zip_with_a_link_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "some.zip", some_files())
    entry = zipfile.ZipInfo("train/ant/link.png")
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ValueError, match=r"'train/ant/link.png' is a link"):
        load_pictures(path)


# The cache.


def test_a_zip_is_decoded_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "some.zip", some_files())
    first = load_pictures(path)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(pictures_module, "read_zip", None)
    again = load_pictures(path)
    assert torch.equal(again.train.pictures, first.train.pictures)
    assert again.describe() == first.describe()


def test_a_changed_zip_and_another_size_are_decoded_anew(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "some.zip", some_files())
    load_pictures(path)
    assert load_pictures(path, size=(2, 2)).train.pictures.shape[2:] == (2, 2)
    write_zip(path, {**some_files(), "train/ant/7.png": encoded((9, 9, 9))})
    assert len(load_pictures(path).train) == 7


@pytest.mark.parametrize("damage", ["cut", "flip", "foreign"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, cache: Path, damage: str) -> None:
    path = write_zip(tmp_path / "some.zip", some_files())
    first = load_pictures(path)
    (kept,) = cache.iterdir()
    content = bytearray(kept.read_bytes())
    content[-5] ^= 1
    damaged = {"cut": content[:-9], "flip": content, "foreign": b"<html>"}[damage]
    kept.write_bytes(damaged)
    assert torch.equal(load_pictures(path).test.pictures, first.test.pictures)
    assert kept.read_bytes() != bytes(damaged)
    assert [file.name for file in cache.iterdir()] == [kept.name]


def test_pictures_load_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRANSFORMERS_HW_CACHE", str(tmp_path / "file/cache"))
    path = write_zip(tmp_path / "some.zip", some_files())
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert len(load_pictures(path).train) == 6


def test_the_cache_is_where_the_system_keeps_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRANSFORMERS_HW_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/tmp/xdg")
    assert cache_folder() == Path("/var/tmp/xdg/transformers_hw")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache/transformers_hw"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == Path.home() / "Library/Caches/transformers_hw"


# The network.

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
Answer = Callable[[BaseHTTPRequestHandler], None]


def _send(
    handler: BaseHTTPRequestHandler,
    content: bytes,
    *,
    length: int | None = None,
    kind: str = "application/gzip",
) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(length or len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _stall(handler: BaseHTTPRequestHandler) -> None:
    _send(handler, CONTENT[:500], length=len(CONTENT))
    time.sleep(1.5)


ANSWERS: dict[str, Answer] = {
    "/good": lambda handler: _send(handler, CONTENT),
    "/truncated": lambda handler: _send(handler, CONTENT[:500], length=len(CONTENT)),
    "/page": lambda handler: _send(handler, b"<html>Busy</html>", kind="text/html"),
    "/other": lambda handler: _send(handler, CONTENT[::-1]),
    "/missing": lambda handler: handler.send_error(404),
    "/stalled": _stall,
    "/nothing": lambda handler: None,
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ANSWERS[self.path](self)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        del format


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that misbehaves in every way that servers do."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("/truncated", "the connection broke after 500 of 10240 bytes"),
        ("/page", f"should be {SHA256}, and is .* It looks like a web page"),
        ("/other", f"what came is another file: its SHA-256 should be {SHA256}"),
        ("/missing", "the server answered 404 Not Found"),
        ("/stalled", "the connection failed .*timed out"),
        ("/nothing", "the connection failed .*closed connection"),
    ],
)
def test_a_failed_download_says_why_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, server: str, page: str, message: str
) -> None:
    """Half files taken for whole, pages for data: vision #8338 #8204 #5817."""
    path = tmp_path / "fetched" / "some.tar.gz"
    with pytest.raises(DownloadError, match=message) as caught:
        download(server + page, path, sha256=SHA256, timeout=0.3)
    assert server + page in str(caught.value)
    assert f"put it at {path}" in str(caught.value)
    assert list(path.parent.iterdir()) == []
    download(server + "/good", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_without_a_connection_there_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "some.tar.gz"
    with pytest.raises(DownloadError, match=r"the connection failed .*refused"):
        download("http://127.0.0.1:9/some.tar.gz", path, sha256=SHA256)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_kept_if_it_is_the_right_one(
    tmp_path: Path, server: str
) -> None:
    path = tmp_path / "some.tar.gz"
    path.write_bytes(CONTENT)
    download(server + "/missing", path, sha256=SHA256)
    path.write_bytes(CONTENT[:-1])
    download(server + "/good", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT


# CIFAR-10.


def cifar_archive(names: dict[str, bytes] | None = None, link: str = "") -> bytes:
    """Make an archive like that of CIFAR-10, of two pictures a file."""
    pixels = torch.arange(12 * 3072).remainder(251).byte().reshape(12, 3072)
    records = [bytes([n % 10]) + bytes(pixels[n].tolist()) for n in range(12)]
    files = {
        f"data_batch_{n}.bin": b"".join(records[2 * n - 2 : 2 * n]) for n in range(1, 6)
    }
    files["test_batch.bin"] = b"".join(records[10:])
    files["batches.meta.txt"] = b"\n".join(b"class%d" % n for n in range(10)) + b"\n\n"
    files = {f"cifar-10-batches-bin/{name}": x for name, x in files.items()}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, x in {**files, **(names or {})}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(x)
            archive.addfile(entry, io.BytesIO(x))
        if link:
            entry = tarfile.TarInfo("link")
            entry.type, entry.linkname = tarfile.SYMTYPE, link
            archive.addfile(entry)
    return content.getvalue()


def serve_cifar(monkeypatch: pytest.MonkeyPatch, server: str, content: bytes) -> None:
    monkeypatch.setitem(ANSWERS, "/cifar", lambda handler: _send(handler, content))
    monkeypatch.setattr(pictures_module, "CIFAR10_URL", server + "/cifar")
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(pictures_module, "CIFAR10_SHA256", digest)


def test_cifar10_is_fetched_once_and_read_without_unpickling(
    server: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_cifar(monkeypatch, server, cifar_archive())
    found = load_pictures("cifar10")
    assert found.train.pictures.shape == (10, 3, 32, 32)
    assert found.train.labels.tolist() == list(range(10))
    assert found.test.labels.tolist() == [0, 1]
    assert found.classes[9] == "class9"
    # The second picture begins with the 3072nd number; its second row 32 later.
    assert found.train.pictures[1, 0, 1, 0] == (3072 + 32) % 251
    assert found.train.pictures[1, 1, 0, 0] == (3072 + 1024) % 251
    monkeypatch.setattr(pictures_module, "CIFAR10_URL", server + "/missing")
    assert torch.equal(load_pictures("cifar10").train.pictures, found.train.pictures)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": {"../x": b""}}, "'../x' leaves its folder"),
        ({"names": {"/etc/x": b""}}, "'/etc/x' leaves its folder"),
        ({"link": "/etc/passwd"}, "'link' is a link"),
    ],
)
def test_a_tar_that_leaves_its_folder_is_refused(
    server: str, monkeypatch: pytest.MonkeyPatch, change: dict, message: str
) -> None:
    serve_cifar(monkeypatch, server, cifar_archive(**change))
    with pytest.raises(ValueError, match=message):
        load_pictures("cifar10")


def test_an_archive_that_is_not_cifar10_is_refused(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (CONTENT, cifar_archive()[:-100]):
        serve_cifar(monkeypatch, server, content)
        with pytest.raises(ValueError, match="is not CIFAR-10, or damaged"):
            load_pictures("cifar10")
