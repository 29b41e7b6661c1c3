"""Augmented batches and whole epochs of training, against torchvision and timm."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from measuring import Pair, Row
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from transformers_hw.lab.batching import ImageBatches
from transformers_hw.lab.images import Split
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.optimization import TrainingConfig
from transformers_hw.lab.training import train
from transformers_hw.vision_transformer import VisionTransformer

SIDE, CLASSES, MEAN, STD = 32, 10, 0.5, 0.25
# The main model of the example of chapter 7, and a patch size of 4.
MODEL = {"dim": 96, "depth": 6, "heads": 3, "hidden_dim": 192}
WORKERS = (0, 2)  # worker processes of the data loader


class InMemory(Dataset):
    """Images in memory, one at a time, as torchvision's own datasets return them."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = rearrange(images, "n c h w -> n h w c").numpy()
        self.labels = labels.tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(SIDE, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((MEAN,) * 3, (STD,) * 3),
            ]
        )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return an augmented image and its label."""
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


def rows() -> Iterator[Row]:
    """Yield all comparisons."""
    for workers in WORKERS:
        case = f"5000 images of {SIDE} × {SIDE}, crop, flip, normalize"
        peer = f"torchvision, {workers} workers"
        yield Row("data", case, peer, "epoch", _batches(workers), workers == 0)
    for workers in WORKERS:
        case = f"ViT, dim {MODEL['dim']}, depth {MODEL['depth']}, batch 64, augmented"
        peer = f"timm, {workers} workers"
        yield Row("training", case, peer, "epoch", _training(workers), workers == 0)


def _loaders(count: int, batch: int, workers: int) -> tuple[ImageBatches, DataLoader]:
    # The content of the images does not affect the time.
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, SIDE, SIDE)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    options = {"mean": torch.full((3,), MEAN), "std": torch.full((3,), STD)}
    options |= {"shuffle": True, "crop_padding": 4, "flip": True}
    ours = ImageBatches(Split(images, labels), batch, **options)
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    data = InMemory(images, labels)
    return ours, DataLoader(data, batch, shuffle=True, **options)


def _batches(workers: int) -> Callable[[], Pair]:
    def build() -> Pair:
        batches, loader = _loaders(5000, 100, workers)

        # Both draw at random, so we only check that every label came once.
        def ours() -> Tensor:
            parts = [batches.batch(n)[0] for n in range(batches.steps_per_epoch)]
            return torch.cat([labels for _, labels in parts]).sort().values

        def theirs() -> Tensor:
            parts = list(loader)
            return torch.cat([labels for _, labels in parts]).sort().values

        return Pair(ours, theirs, unit="images", count=5000, tolerance=0.0)

    return build


def _training(workers: int) -> Callable[[], Pair]:
    """Compare the book's training loop with a plain loop over timm's model."""

    def build() -> Pair:
        from timm.models.vision_transformer import VisionTransformer as TimmModel

        count, batch = 512, 64
        batches, loader = _loaders(count, batch, workers)
        model = VisionTransformer(SIDE, 4, num_classes=CLASSES, **MODEL)
        peer = TimmModel(
            img_size=SIDE,
            patch_size=4,
            num_classes=CLASSES,
            embed_dim=MODEL["dim"],
            depth=MODEL["depth"],
            num_heads=MODEL["heads"],
            mlp_ratio=MODEL["hidden_dim"] / MODEL["dim"],
        )
        optimizer = torch.optim.AdamW(peer.parameters(), 1e-3, fused=True)

        def ours() -> None:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder)
                config = TrainingConfig(out, epochs=1, batch_size=batch, device="cpu")
                train(model, batches, classify, config)

        def theirs() -> None:
            for images, labels in loader:
                optimizer.zero_grad()
                F.cross_entropy(peer(images), labels).backward()
                nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
                optimizer.step()

        return Pair(ours, theirs, unit="images", count=count)

    return build
