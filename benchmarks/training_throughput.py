"""Pictures a second in training: the lab against the usual way.

The usual way is another library's Vision Transformer, fed by torchvision's transforms
in a `DataLoader`, and trained by a plain loop with PyTorch's AdamW. All have the same
sizes, pictures, batch, augmentation and number of threads. Each contender is a process
of its own; they take turns, and what is recorded is the ratio of each pair of turns.

    python benchmarks/training_throughput.py            # some minutes
    python benchmarks/training_throughput.py --quick    # half a minute, no record
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
import torch.nn.functional as F
from contests.data import InMemory
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms

RECORD = Path(__file__).parent / "records/training_throughput.json"
# The main model of the chapter's example, and one of the usual size for such pictures.
SIZES = {
    "chapter": {"dim": 96, "depth": 6, "heads": 3, "hidden_dim": 192},
    "larger": {"dim": 192, "depth": 6, "heads": 3, "hidden_dim": 768},
}
PICTURE, PATCH, CLASSES = 32, 4, 10
PEERS = ("timm", "vit-pytorch")
# A loader can work beside the training or within it: the peer gets whichever is best.
WORKERS = (0, 2)
# Batches in an epoch, by size: enough for a measurement of some seconds.
STEPS = {"chapter": 12, "larger": 5}


def pictures_and_labels(count: int) -> tuple[Tensor, Tensor]:
    """Draw pictures: how long training takes does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, PICTURE, PICTURE)
    pictures = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    return pictures, torch.randint(CLASSES, (count,), generator=generator)


def peer_model(name: str, size: dict[str, int]) -> nn.Module:
    """Build another library's model."""
    if name == "timm":
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=PICTURE,
            patch_size=PATCH,
            num_classes=CLASSES,
            embed_dim=size["dim"],
            depth=size["depth"],
            num_heads=size["heads"],
            mlp_ratio=size["hidden_dim"] / size["dim"],
        )
    from vit_pytorch import ViT  # type: ignore[import-not-found]

    return ViT(
        image_size=PICTURE,
        patch_size=PATCH,
        num_classes=CLASSES,
        dim=size["dim"],
        depth=size["depth"],
        heads=size["heads"],
        mlp_dim=size["hidden_dim"],
        dim_head=size["dim"] // size["heads"],
    )


def run_peer(
    name: str, size: dict[str, int], batch: int, steps: int, workers: int
) -> float:
    """Train another library's model the usual way; give pictures a second."""
    vary = transforms.Compose(
        [
            transforms.RandomCrop(PICTURE, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )
    data = InMemory(*pictures_and_labels(batch * steps), vary)
    loader = DataLoader(
        data,
        batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    model = peer_model(name, size)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for pictures, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(model(pictures), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
        times.append(time.perf_counter() - start)
    return 2 * len(data) / sum(times[1:])


def run_ours(size: dict[str, int], batch: int, steps: int) -> float:
    """Train the book's model in its lab; give pictures a second."""
    from transformers_hw import VisionTransformer
    from transformers_hw.lab.batching import PictureBatches
    from transformers_hw.lab.objectives import classify
    from transformers_hw.lab.optimisation import TrainingConfig
    from transformers_hw.lab.pictures import Split
    from transformers_hw.lab.training import train

    split = Split(*pictures_and_labels(batch * steps))
    model = VisionTransformer(
        PICTURE,
        PATCH,
        classes=CLASSES,
        dim=size["dim"],
        depth=size["depth"],
        heads=size["heads"],
        hidden_dim=size["hidden_dim"],
    )
    ends = []

    def watch(_: nn.Module, epoch: int) -> dict[str, float]:
        ends.append(time.perf_counter())
        return {}

    half, quarter = torch.full((3,), 0.5), torch.full((3,), 0.25)
    with tempfile.TemporaryDirectory() as folder:
        train(
            model,
            PictureBatches(
                split,
                batch,
                mean=half,
                std=quarter,
                shuffle=True,
                crop_padding=4,
                flip=True,
            ),
            classify,
            TrainingConfig(Path(folder), epochs=3, batch_size=batch, device="cpu"),
            callbacks=[watch],
        )
    return 2 * len(split) / (ends[2] - ends[0])


def turn(*options: str) -> float:
    """Let one contender run, in a process of its own."""
    ran = subprocess.run(
        [sys.executable, __file__, *options],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    return float(ran.stdout.split()[-1])


def compare(size: str, batch: int, steps: int, threads: int, turns: int) -> list[dict]:
    """Let ours and the peers take turns on one size."""
    shape = ("--size", size, "--batch", str(batch), "--steps", str(steps))
    shape += ("--threads", str(threads))
    best = {
        name: max(
            WORKERS, key=lambda n: turn("--run", name, *shape, "--workers", str(n))
        )
        for name in PEERS
    }
    found: dict[str, list[float]] = {name: [] for name in ("ours", *PEERS)}
    for _ in range(turns):
        for name, rates in found.items():
            workers = str(best.get(name, 0))
            rates.append(turn("--run", name, *shape, "--workers", workers))
    rows = []
    for name in PEERS:
        ratios = [a / b for a, b in zip(found["ours"], found[name], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "size": size,
                **SIZES[size],
                "batch": batch,
                "peer": name,
                "workers": best[name],
                "ratio": round(middle, 3),
                "lower_quartile": round(low, 3),
                "upper_quartile": round(high, 3),
                "our_pictures_per_second": round(statistics.median(found["ours"])),
                "their_pictures_per_second": round(statistics.median(found[name])),
                "turns": turns,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Compare all sizes and write the record; or run one contender."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size, no record")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--size", default="chapter", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=64, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=20, help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = SIZES[options.size]
    if options.run == "ours":
        print(run_ours(size, options.batch, options.steps))
        return
    if options.run:
        print(
            run_peer(options.run, size, options.batch, options.steps, options.workers)
        )
        return
    if options.quick:
        compare("chapter", 64, 4, options.threads, 2)
        return
    rows = [
        row
        for name in SIZES
        for row in compare(name, 64, STEPS[name], options.threads, 4)
    ]
    packages = ("torch", "torchvision", "timm", "vit-pytorch")
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
        "processor": platform.processor() or platform.machine(),
        "threads": options.threads,
        "comparisons": rows,
    }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
