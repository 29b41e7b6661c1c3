"""Data: the right images or a clear error, and batches that depend on the seed alone.

The docstrings name reports of the same failure in other projects.
"""

import ast
import gc
import hashlib
import io
import re
import tarfile
import threading
import time
from collections import defaultdict
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
from sklearn.datasets import load_digits
from torch import Tensor

from transformers_hw.lab import images as images_module
from transformers_hw.lab.batching import (
    GeneratedBatches,
    ImageBatches,
    crop_and_flip,
    erase,
    shard,
)
from transformers_hw.lab.change_of_case import ChangeOfCase
from transformers_hw.lab.dataset import Split
from transformers_hw.lab.download import DownloadError, download
from transformers_hw.lab.images import load_images


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep each test's cache to itself."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TRANSFORMERS_HW_CACHE", str(folder))
    return folder


def some_split(count: int = 23, channels: int = 3) -> Split:
    generator = torch.Generator().manual_seed(0)
    shape = (count, channels, 5, 7)
    images = torch.randint(256, shape, generator=generator).byte()
    return Split(images, torch.arange(count) % 4)


def batches_of(split: Split, **options: bool | int) -> ImageBatches:
    channels = split.images.shape[1]
    mean, std = torch.zeros(channels), torch.ones(channels)
    return ImageBatches(split, 7, mean=mean, std=std, **options)


# Images that ship with a library.


def test_digits_are_those_of_scikit_learn() -> None:
    digits, theirs = load_images("digits"), load_digits()
    assert digits.classes == tuple("0123456789")
    for label in range(10):
        own = theirs.images[theirs.target == label]
        rest = np.delete(own, np.s_[4::5], axis=0)
        for split, wanted in ((digits.train, rest), (digits.test, own[4::5])):
            found = split.images[split.labels == label, 0]
            assert np.array_equal((found.double() * 16 / 255).round().numpy(), wanted)
    assert digits.train.images.max() == 255


def test_statistics_are_those_of_numpy() -> None:
    split = some_split()
    mean, std = split.statistics()
    pixels = split.images.numpy() / 255
    np.testing.assert_allclose(mean.numpy(), pixels.mean((0, 2, 3)), atol=1e-7)
    np.testing.assert_allclose(std.numpy(), pixels.std((0, 2, 3)), atol=1e-7)
    batches = ImageBatches(split, 23, mean=mean, std=std)
    (normalized, _), _ = batches.batch(0)
    assert normalized.mean((0, 2, 3)).abs().max() < 1e-6
    assert (normalized.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_a_constant_channel_is_centered_only() -> None:
    split = some_split()
    split.images[:, 1] = 51
    mean, std = split.statistics()
    assert std[1] == 0
    (normalized, _), _ = ImageBatches(split, 23, mean=mean, std=std).batch(0)
    assert normalized[:, 1].abs().max() < 1e-6
    assert (normalized[:, ::2].std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_a_subset_keeps_its_share_of_every_class_and_smaller_ones_lie_within() -> None:
    train = load_images("digits").train
    tenth, half = train.subset(0.1, seed=3), train.subset(0.5, seed=3)
    wanted = [round(0.1 * count) for count in train.labels.bincount().tolist()]
    assert tenth.labels.bincount().tolist() == wanted
    assert len(train.subset(0.001)) == 10
    one = train.one_per_class(seed=3)
    assert sorted(one.labels.tolist()) == list(range(10))
    assert torch.equal(one.images, train.subset(0.001, seed=3).images)
    within = (rearrange(tenth.images, "n ... -> n 1 ...") == half.images).flatten(2)
    assert within.all(-1).any(-1).all()
    assert torch.equal(train.subset(1.0).images, train.images)
    assert not torch.equal(train.subset(0.1, seed=4).images, tenth.images)
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\], got 0"):
        train.subset(0.0)


# Batches.


def test_every_epoch_has_its_own_order_and_every_image() -> None:
    """The same order each epoch, for want of set_epoch: pytorch #31771."""
    batches = batches_of(some_split(), shuffle=True, seed=5)
    assert batches.steps_per_epoch == 4
    epochs = [
        torch.cat([batches.indices(4 * epoch + step) for step in range(4)])
        for epoch in range(3)
    ]
    assert all(torch.equal(x.sort().values, torch.arange(23)) for x in epochs)
    assert len(torch.stack([*epochs, torch.arange(23)]).unique(dim=0)) == 4
    other = batches_of(some_split(), shuffle=True, seed=6)
    assert not torch.equal(other.indices(0), batches.indices(0))


@settings(deadline=None, max_examples=25)
@given(count=st.integers(1, 40), world_size=st.integers(1, 9))
def test_shards_are_even_and_complete(count: int, world_size: int) -> None:
    shards = [shard(count, rank=n, world_size=world_size) for n in range(world_size)]
    own = [list(range(count))[part] for part, weight in shards if weight]
    assert [sample for part in own for sample in part] == list(range(count))
    assert max(map(len, own)) - min(map(len, own)) <= 1
    # A process without samples takes part with weight zero.
    idle = [list(range(count))[part] for part, weight in shards if not weight]
    assert idle == [[0]] * max(0, world_size - count)
    with pytest.raises(ValueError, match=f"must be from 0 to {world_size - 1}"):
        shard(count, rank=world_size, world_size=world_size)


@pytest.mark.parametrize("size", [2, 3])
def test_processes_share_what_one_would_have_seen(size: int) -> None:
    """The same noise in every worker: pytorch #5059, CenterNet #233."""
    options = {"crop_padding": 2, "flip": True, "erase": 3}
    batches = batches_of(some_split(), shuffle=True, **options)
    for step in range(8):
        (images, labels), _ = batches.batch(step)
        parts = [batches.batch(step, rank=n, world_size=size) for n in range(size)]
        shared = [part.tensors for part in parts if part.weight]
        assert torch.equal(torch.cat([one for one, _ in shared]), images)
        assert torch.equal(torch.cat([one for _, one in shared]), labels)


def test_augmentation_differs_by_image_and_epoch_and_repeats_with_its_seed() -> None:
    """Workers that share a seed: pytorch #5059 #41329, lightning #20412."""
    image = some_split(1).images.expand(23, -1, -1, -1)
    same = Split(image, torch.zeros(23, dtype=torch.long))
    batches = batches_of(same, crop_padding=2, flip=True, seed=1)
    first, second = (batches.batch(step).tensors[0] for step in (0, 4))
    assert len(first.unique(dim=0)) > 4
    assert not torch.equal(first, second)
    torch.rand(5)  # other draws change nothing
    again = batches_of(same, crop_padding=2, flip=True, seed=1)
    assert torch.equal(again.batch(4).tensors[0], second)
    assert torch.equal(again.batch(0).tensors[0], first)
    other = batches_of(same, crop_padding=2, flip=True, seed=2)
    assert not torch.equal(other.batch(0).tensors[0], first)


def test_cropping_and_flipping_equal_torchvision() -> None:
    images = some_split().images
    top, left = torch.randint(5, (2, 23))
    mirrored = torch.arange(23) % 3 == 0
    ours = crop_and_flip(images, padding=2, top=top, left=left, mirrored=mirrored)
    for n, image in enumerate(images):
        theirs = TF.crop(TF.pad(image, [2]), int(top[n]), int(left[n]), 5, 7)
        if mirrored[n]:
            theirs = TF.hflip(theirs)
        assert torch.equal(ours[n], theirs)


def test_a_square_is_erased_around_every_pixel_of_an_image_alike() -> None:
    images = torch.rand(6, 3, 5, 7) + 1
    top, left = torch.tensor([[-2, 0, 1, 4, 2, 2], [3, -1, 2, 6, 5, 2]])
    ours = erase(images, 3, top=top, left=left)
    for n, image in enumerate(images):
        place = (max(int(top[n]), 0), max(int(left[n]), 0))
        sizes = (int(top[n]) + 3 - place[0], int(left[n]) + 3 - place[1])
        assert torch.equal(ours[n], TF.erase(image, *place, *sizes, torch.tensor(0.0)))
    split = Split(torch.full((400, 1, 5, 7), 255, dtype=torch.uint8), torch.arange(400))
    batches = ImageBatches(split, 400, mean=torch.zeros(1), std=torch.ones(1), erase=1)
    erased = (batches.batch(3).tensors[0] == 0).flatten(1)
    assert (erased.sum(1) == 1).all()
    assert erased.any(0).all()


def test_generated_batches_depend_on_the_seed_and_the_step_alone() -> None:
    task = ChangeOfCase()

    def make(count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return task.sample(count, min_length=2, max_length=5, generator=generator)

    batches = GeneratedBatches(make, 5, seed=1)
    later, first = batches.batch(9).tensors, batches.batch(0).tensors
    again = GeneratedBatches(make, 5, seed=1).batch(9).tensors
    assert all(torch.equal(one, other) for one, other in zip(later, again, strict=True))
    assert later[0].tolist() != first[0].tolist()
    parts = [batches.batch(9, rank=rank, world_size=2).tensors for rank in range(2)]
    for n, whole in enumerate(later):
        assert torch.equal(torch.cat([part[n] for part in parts]), whole)
    other = GeneratedBatches(make, 5, seed=2)
    assert other.batch(0).tensors[0].tolist() != first[0].tolist()


# The network.

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
UNSAFE = re.compile(
    r"(dill|eval|exec|ftplib|http|joblib|marshal|os\.popen|os\.system|pickle|requests|"
    r"huggingface_hub|shelve|socket|subprocess|torch\.hub|torch\.load|urllib)(?![a-z_])"
)
Answer = Callable[[BaseHTTPRequestHandler], None]


def _send(
    handler: BaseHTTPRequestHandler,
    content: bytes,
    length: int | None = None,
    kind: str = "application/gzip",
    wait: float = 0.0,
) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(length or len(content)))
    handler.end_headers()
    handler.wfile.write(content)
    time.sleep(wait)


ANSWERS: dict[str, Answer] = {
    "/good": lambda x: _send(x, CONTENT),
    "/truncated": lambda x: _send(x, CONTENT[:500], len(CONTENT)),
    "/page": lambda x: _send(x, b"<html>Busy</html>", kind="text/html"),
    "/other": lambda x: _send(x, CONTENT[::-1]),
    "/missing": lambda x: x.send_error(404),
    "/stalled": lambda x: _send(x, CONTENT[:500], len(CONTENT), wait=1.5),
    "/nothing": lambda x: None,
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ANSWERS[self.path](self)

    def log_message(self, format: str, *_: object) -> None:  # noqa: A002
        del format


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that fails in every way that servers do."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("/truncated", "invalid hash value"),
        ("/page", f'invalid hash value .expected "{SHA256}"'),
        ("/other", "invalid hash value"),
        ("/missing", "HTTP Error 404: Not Found"),
        ("/stalled", "could not be downloaded: timed out"),
        ("/nothing", "closed connection"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_download_says_why_leaves_nothing_and_can_be_repeated(
    tmp_path: Path, server: str, page: str, message: str
) -> None:
    """Half files taken for whole, pages for data: vision #8338 #8204 #5817."""
    path = tmp_path / "fetched" / "some.tar.gz"
    with pytest.raises(DownloadError, match=message) as caught:
        download(server + page, path, sha256=SHA256, timeout=0.3)
    assert server + page in str(caught.value)
    assert f"by other means to {path}" in str(caught.value)
    assert list(path.parent.iterdir()) == []
    download(server + "/good", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    gc.collect()  # torch.hub leaves it to the garbage collector to close its sockets


def test_a_file_that_is_there_is_kept_if_it_is_the_right_one(
    tmp_path: Path, server: str
) -> None:
    path = tmp_path / "some.tar.gz"
    path.write_bytes(CONTENT)
    download(server + "/missing", path, sha256=SHA256)
    path.write_bytes(CONTENT[:-1])
    download(server + "/good", path, sha256=SHA256)
    assert path.read_bytes() == CONTENT


def names_used(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [x.name for x in node.names]
        case ast.ImportFrom():
            return [f"{node.module}.{x.name}" for x in node.names]
        case ast.Attribute() | ast.Name():
            return [ast.unparse(node)]
    return []


def test_only_the_download_opens_connections_and_nothing_is_unpickled() -> None:
    found = defaultdict(set)
    source = Path(images_module.__file__).parents[1]
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in filter(UNSAFE.match, names_used(node)):
                found[path.relative_to(source).as_posix()].add(name)
    assert "torch.hub.download_url_to_file" in found.pop("lab/download.py")
    assert "huggingface_hub" in found.pop("pretrained/hub.py")
    # Exercises run the answers that they check, in processes of their own.
    for path, names in found.items():
        assert path.startswith("exercises/")
        assert {name.partition(".")[0] for name in names} <= {"exec", "subprocess"}


# CIFAR-10.


def cifar_archive(names: dict[str, bytes] | None = None, link: str = "") -> bytes:
    """Make an archive like that of CIFAR-10, of two images a file."""
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
    monkeypatch.setattr(images_module, "CIFAR10_URL", server + "/cifar")
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(images_module, "CIFAR10_SHA256", digest)


def test_cifar10_is_fetched_once_and_read_without_unpickling(
    server: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_cifar(monkeypatch, server, cifar_archive())
    found = load_images("cifar10")
    assert found.train.images.shape == (10, 3, 32, 32)
    assert found.train.labels.tolist() == list(range(10))
    assert found.test.labels.tolist() == [0, 1]
    assert found.classes[9] == "class9"
    # The second image begins with the 3072nd number; its second row 32 later.
    assert found.train.images[1, 0, 1, 0] == (3072 + 32) % 251
    assert found.train.images[1, 1, 0, 0] == (3072 + 1024) % 251
    monkeypatch.setattr(images_module, "CIFAR10_URL", server + "/missing")
    assert torch.equal(load_images("cifar10").train.images, found.train.images)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (cifar_archive({"../x": b""}), "'../x' leaves its folder"),
        (cifar_archive({"/etc/x": b""}), "'/etc/x' leaves its folder"),
        (cifar_archive(link="/etc/passwd"), "'link' is a link"),
        (CONTENT, "is not CIFAR-10, or damaged"),
        (cifar_archive()[:-100], "is not CIFAR-10, or damaged"),
    ],
    ids=["above", "absolute", "link", "other", "truncated"],
)
def test_an_archive_that_leaves_its_folder_or_is_not_cifar10_is_refused(
    server: str, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    serve_cifar(monkeypatch, server, content)
    with pytest.raises(ValueError, match=message):
        load_images("cifar10")
