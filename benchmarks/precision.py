"""Time training steps of chapter 7's main model in float32 and with bfloat16.

    python benchmarks/precision.py --data cifar10.zip    prints, and writes the record

Three copies of the model train on the same batches: in float32, under autocast, and
with the products of linear layers alone in bfloat16. Their steps take turns, so that
whatever else the machine does slows all of them alike.
"""

import argparse
import copy
import importlib
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformers_hw.lab import experiment
from transformers_hw.lab.devices import keep_freed_memory

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/records/precision.json"
# The first steps also allocate memory; the loss is a mean over the last.
STEPS, WARM, LAST = 300, 10, 100


class Product(torch.autograd.Function):
    """Multiply in bfloat16; take and return float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the output of a linear layer."""
        x, weight = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x, weight)
        return (x @ weight.T).float() + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        """Return the gradients with respect to input, weight and bias."""
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        low = rows.bfloat16()
        inputs = (low @ weight).float().reshape_as(x)
        return inputs, (low.T @ x.flatten(0, -2)).float(), rows.sum(0)


class LowLinear(nn.Linear):
    """A linear layer whose products are in bfloat16."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return the output."""
        return Product.apply(input, self.weight, self.bias)  # type: ignore[return-value]


def with_low_products(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose linear layers multiply in bfloat16."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = LowLinear
    return model


def measure(data: str, steps: int) -> dict[str, Any]:
    """Train the three models, and return their times and losses."""
    example = importlib.import_module("vision_transformer")
    config = replace(example.PRESETS["cpu"], data=data)
    whole = experiment.Experiment(config)
    batches = whole.image_batches(
        whole.dataset.train, config.batch_size, seed=0, shuffle=True
    )
    torch.manual_seed(0)
    model = example.make_vit(whole, config.main, pool=config.pool)
    models = {"float32": model, "autocast": copy.deepcopy(model)}
    models["linear_layers"] = with_low_products(model)
    optimizers = {
        name: torch.optim.AdamW(x.parameters(), config.main_learning_rate, fused=True)
        for name, x in models.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in models}
    losses: dict[str, list[float]] = {name: [] for name in models}
    for step in range(steps):
        (images, labels), _ = batches.batch(step)
        for name, x in models.items():
            start = time.perf_counter()
            optimizers[name].zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
                loss = F.cross_entropy(x(images).float(), labels)
            loss.backward()
            optimizers[name].step()
            seconds[name].append(time.perf_counter() - start)
            losses[name].append(loss.item())
    times = {name: statistics.median(x[WARM:]) for name, x in seconds.items()}
    return {
        "threads": torch.get_num_threads(),
        "steps": steps,
        "milliseconds_per_step": {n: round(1e3 * x, 1) for n, x in times.items()},
        "ratio": {n: round(x / times["float32"], 2) for n, x in times.items()},
        "loss": {n: round(statistics.fmean(x[-LAST:]), 4) for n, x in losses.items()},
    }


def sentence(record: dict[str, Any]) -> str:
    """Return the outcome in words."""
    ratio, loss = record["ratio"], record["loss"]
    return (
        "A training step of chapter 7's main model takes "
        f"{ratio['autocast']:.2f} times as long under bfloat16 autocast, and "
        f"{ratio['linear_layers']:.2f} times as long if only linear layers multiply in "
        f"bfloat16. Over the last {LAST} of {record['steps']} steps the mean loss is "
        f"{loss['float32']:.3f} in float32, {loss['autocast']:.3f} and "
        f"{loss['linear_layers']:.3f}.\n"
    )


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10", help="images, as for the examples")
    given = parser.parse_args()
    sys.path.append(str(ROOT / "examples"))
    keep_freed_memory()
    record = measure(given.data, STEPS)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    RECORD.with_suffix(".md").write_text(sentence(record), "utf-8")
    print(sentence(record))


if __name__ == "__main__":
    main()
