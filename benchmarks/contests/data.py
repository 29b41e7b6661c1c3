"""Batches of pictures, varied: the lab's against torchvision's transforms."""

from collections.abc import Callable, Iterator

import torch
from measuring import Pair, Row
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from transformers_hw.lab.batching import PictureBatches
from transformers_hw.lab.pictures import Split

COUNT, SIDE, BATCH = 5000, 32, 100


class InMemory(Dataset):
    """Pictures in memory, each given as torchvision's own data sets do."""

    def __init__(self, pictures: Tensor, labels: Tensor, transform: Callable) -> None:
        self.pictures = pictures.permute(0, 2, 3, 1).numpy()
        self.labels, self.transform = labels.tolist(), transform

    def __len__(self) -> int:
        """Count the pictures."""
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        """Give a picture, varied, and its label."""
        picture = Image.fromarray(self.pictures[place])
        return self.transform(picture), self.labels[place]


def rows() -> Iterator[Row]:
    """Give all comparisons."""
    what = f"{COUNT} pictures of {SIDE} × {SIDE}, crop, flip, normalise"
    for workers in (0, 2):
        peer = f"torchvision, {workers} workers"
        yield Row("Data", what, peer, "an epoch", _epochs(workers), workers == 0)


def _epochs(workers: int) -> Callable[[], Pair]:
    def build() -> Pair:
        generator = torch.Generator().manual_seed(0)
        shape = (COUNT, 3, SIDE, SIDE)
        pictures = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
        labels = torch.randint(10, (COUNT,), generator=generator)
        half, quarter = torch.full((3,), 0.5), torch.full((3,), 0.25)
        batches = PictureBatches(
            Split(pictures, labels),
            BATCH,
            mean=half,
            std=quarter,
            shuffle=True,
            crop_padding=4,
            flip=True,
        )
        vary = transforms.Compose(
            [
                transforms.RandomCrop(SIDE, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(half.tolist(), quarter.tolist()),
            ]
        )
        loader = DataLoader(
            InMemory(pictures, labels, vary),
            BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

        # Both draw at random: what can be compared is that every label came once.
        def ours() -> Tensor:
            parts = [batches.part(n)[0] for n in range(batches.steps_per_epoch)]
            return torch.cat([labels for _, labels in parts]).sort().values

        def theirs() -> Tensor:
            parts = list(loader)
            return torch.cat([labels for _, labels in parts]).sort().values

        return Pair(ours, theirs, unit="pictures", count=COUNT, tolerance=0.0)

    return build
