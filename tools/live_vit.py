"""Publish the trained Vision Transformer that chapter 7 runs in the page.

    python tools/live_vit.py runs/vision_transformer/cpu/main/vit_seed_0 DATA

takes the checkpoint of a training and the images it was trained on (`cifar10`, or a
folder or zip), and writes into docs/assets/vit

- vit.safetensors, which `load_model` reads, and so does the page;
- vit.json: classes, normalization, accuracy on the test images, and the training;
- samples.png: a test image of each class, side by side, as in the chapter's figures;

and the still drawing of the explorable, docs/diagrams/vision_transformer/live_vit.svg.
"""

import argparse
import ast
import base64
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from transformers_hw import VisionTransformer
from transformers_hw.lab.batching import ImageBatches
from transformers_hw.lab.dataset import Split
from transformers_hw.lab.files import read_tensors
from transformers_hw.lab.images import load_images
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.training import CHECKPOINT, evaluate
from transformers_hw.pretrained import save_model
from transformers_hw.probes import capture_weights
from transformers_hw.summary import count_parameters

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "docs/assets/vit"
STILL = ROOT / "docs/diagrams/vision_transformer/live_vit.svg"
RECORD = "docs/figures/vision_transformer/main/run.json"
# What the page shows first, and the drawing: an image and a patch, counted from 0.
SHOWN, PATCH = "horse", (2, 6)


def read_model(checkpoint: Path) -> tuple[VisionTransformer, dict[str, Any]]:
    """Return the model of a checkpoint, and what it says about its training."""
    tensors, about = read_tensors(checkpoint)
    call: Any = ast.parse(about["identity"]["model"], mode="eval").body
    settings = {x.arg: ast.literal_eval(x.value) for x in call.keywords}
    model = VisionTransformer(**settings).eval()
    prefix = "model/"
    weights = {
        name.removeprefix(prefix): x
        for name, x in tensors.items()
        if name.startswith(prefix)
    }
    model.load_state_dict(weights)
    return model, about


def publish(checkpoint: Path, source: str) -> None:
    """Write the assets and the drawing."""
    model, about = read_model(checkpoint)
    progress, identity = about["progress"], about["identity"]
    dataset = load_images(source)
    if dataset.digest != identity["data"]:
        raise SystemExit(f"{checkpoint} was trained on other images than {source}.")
    mean, std = dataset.train.statistics()

    def batches(split: Split) -> ImageBatches:
        return ImageBatches(split, 500, mean=mean, std=std)

    found = evaluate(model, batches(dataset.test), classify, device=torch.device("cpu"))
    shown = dataset.test.one_per_class(seed=identity["seed"])
    record = json.loads((ROOT / RECORD).read_text()) if (ROOT / RECORD).exists() else {}
    content = {
        "classes": dataset.classes,
        "mean": mean.double().tolist(),
        "std": std.double().tolist(),
        "samples": [dataset.classes[label] for label in shown.labels],
        "shown": SHOWN,
        "patch": PATCH,
        "parameters": count_parameters(model),
        "test_accuracy": round(found["accuracy"], 4),
        "test_images": len(dataset.test),
        "config": asdict(model.config),
        "training": {**identity, "step": progress["step"]},
        "record": RECORD if record else None,
        "command": record.get("command"),
    }
    ASSETS.mkdir(parents=True, exist_ok=True)
    save_model(model, ASSETS / "vit.safetensors")
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (ASSETS / "vit.json").write_text(text + "\n", "utf-8")
    strip = rearrange(shown.images, "n c h w -> h (n w) c")
    Image.fromarray(strip.numpy()).save(ASSETS / "samples.png", optimize=True)
    (inputs, _), _ = batches(shown).batch(0)
    at = dataset.classes.index(SHOWN)
    STILL.write_text(
        still(model, shown.images[at], inputs[at], dataset.classes), "utf-8"
    )
    accuracy = content["test_accuracy"]
    print(f"step {progress['step']} of {identity['steps']}: {accuracy:.1%}, {ASSETS}")


def png(pixels: Tensor) -> str:
    """Return bytes, gray or in color, as the address of an image."""
    file = io.BytesIO()
    Image.fromarray(pixels.byte().numpy()).save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


@torch.no_grad()
def still(
    model: VisionTransformer, pixels: Tensor, image: Tensor, classes: tuple[str, ...]
) -> str:
    """Draw an image, its classes, and where every head attends from one patch."""
    with capture_weights(model) as captured:
        chances = model(image[None])[0].softmax(-1)
    rows, columns = model.grid
    row, column = PATCH
    # Strength of color, as in the page: 1 at the largest weight of a map, or at four
    # times an equal share.
    maps = torch.stack([calls[0][0] for calls in captured.values()])
    maps = rearrange(maps[:, :, row * columns + column], "l h (r s) -> l h r s", r=rows)
    maps = maps / maps.amax((-2, -1), keepdim=True).clamp(min=4 / rows / columns)
    depth, heads = maps.shape[:2]
    sheet = torch.zeros(depth, heads, rows + 1, columns + 1)
    sheet[:, :, :rows, :columns] = 255 * maps
    sheet = rearrange(sheet, "l h r s -> (h r) (l s)")
    best = chances.topk(4)
    listed = [
        (classes[k], p) for k, p in zip(best.indices, best.values.tolist(), strict=True)
    ]
    words = ", ".join(f"{name} {p:.0%}" for name, p in listed)
    cell, left, top, unit = 16, 44, 204, 5.85
    lines = [
        '<text class="bold" x="4" y="15" font-size="14">patch in row '
        f"{row + 1},</text>",
        f'<text class="bold" x="4" y="32" font-size="14">column {column + 1}</text>',
        f'<image x="4" y="42" width="128" height="128" style="image-rendering: '
        f'pixelated" xlink:href="{png(rearrange(pixels, "c h w -> h w c"))}"/>',
        f'<path d="{grid(4, 42, cell, rows)}" fill="none" stroke="#fff" '
        'stroke-opacity=".35"/>',
        f'<rect x="{4 + cell * column}" y="{42 + cell * row}" width="{cell}" '
        f'height="{cell}" fill="none" stroke="var(--paper)" stroke-width="4"/>',
        f'<rect x="{4 + cell * column}" y="{42 + cell * row}" width="{cell}" '
        f'height="{cell}" fill="none" stroke="var(--query)" stroke-width="2"/>',
        '<text class="bold" x="150" y="15" font-size="14">the model’s answer</text>',
    ]
    for i, (name, p) in enumerate(listed):
        y = 56 + 34 * i
        lines += [
            f'<text x="150" y="{y}" font-size="14">{name}</text>',
            f'<text class="end" x="356" y="{y}" font-size="14">{p:.0%}</text>',
            f'<rect x="150" y="{y + 5}" width="206" height="6" fill="var(--rule)"/>',
            f'<rect x="150" y="{y + 5}" width="{206 * p:.1f}" height="6" '
            'fill="var(--key)"/>',
        ]
    for layer in range(depth):
        x = left + unit * (layer * (columns + 1) + columns / 2)
        lines.append(
            f'<text class="middle soft" x="{x:.1f}" y="{top - 6}" font-size="13">'
            f"layer {layer + 1}</text>"
        )
    for head in range(heads):
        y = top + unit * (head * (rows + 1) + rows / 2) + 4
        lines.append(
            f'<text class="soft" x="0" y="{y:.1f}" font-size="13">'
            f"head {head + 1}</text>"
        )
    height, width = (unit * x for x in sheet.shape)
    place = f'x="{left}" y="{top}" width="{width:.2f}" height="{height:.2f}"'
    frames = "".join(
        f"M{left + unit * layer * (columns + 1):.2f} "
        f"{top + unit * head * (rows + 1):.2f}h{unit * columns:.2f}"
        f"v{unit * rows:.2f}h{-unit * columns:.2f}z"
        for layer in range(depth)
        for head in range(heads)
    )
    lines += [
        f'<mask id="vt-live-mask"><image {place} preserveAspectRatio="none" '
        'style="image-rendering: pixelated" '
        f'xlink:href="{png(sheet.round())}"/></mask>',
        f'<rect {place} fill="var(--query)" mask="url(#vt-live-mask)"/>',
        f'<path d="{frames}" fill="none" stroke="var(--rule)"/>',
    ]
    model_svg = STILL.with_name("bag-image.svg").read_text("utf-8")
    style = model_svg[model_svg.index("  <style>") : model_svg.index("</style>") + 8]
    bottom = round(top + height)
    return "\n".join(
        [
            '<svg class="thw" '  # codespell:ignore thw
            'xmlns="http://www.w3.org/2000/svg" '
            'xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 360 {bottom}" role="img" '
            'aria-labelledby="vt-live-t vt-live-d">',
            '  <title id="vt-live-t">Our Vision Transformer on one image, from the '
            "inside</title>",
            f'  <desc id="vt-live-d">A test image of a {SHOWN}, cut into {rows} by '
            f"{columns} patches. The patch in row {row + 1}, column {column + 1} is "
            f"outlined. The model’s answer: {words}. Below, {depth} by {heads} small "
            "maps, one for each layer and head: the more the outlined patch attends to "
            "a patch, the stronger its color.</desc>",
            style,
            *("  " + line for line in lines),
            "</svg>",
            "",
        ]
    )


def grid(x: int, y: int, cell: int, count: int) -> str:
    """Return the path of the lines between patches."""
    side = cell * count
    across = [f"M{x} {y + cell * i}h{side}" for i in range(1, count)]
    down = [f"M{x + cell * i} {y}v{side}" for i in range(1, count)]
    return "".join(across + down)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("training", type=Path, help="folder with the checkpoint")
    parser.add_argument("data", help="cifar10, or a folder or zip of images")
    chosen = parser.parse_args()
    publish(chosen.training / CHECKPOINT, chosen.data)
