"""Objectives: sums of losses and counts over a batch.

Sums, unlike means, add up over batches and processes of unequal size.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from transformers_hw.transformer.training import label_smoothing_loss

Objective = Callable[[nn.Module, tuple[Tensor, ...]], Mapping[str, Tensor]]


def cross_entropy_sums(
    logits: Tensor,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    padding_token: int | None = None,
) -> dict[str, Tensor]:
    """Return the summed loss, the correct predictions and the number of targets.

    Args:
        logits: Scores of the classes, along the last axis.
        targets: Indices of the correct classes.
        smoothing: Amount of label smoothing.
        padding_token: A target to ignore.

    Examples:
        >>> logits = torch.tensor([[0.0, 9.0, 0.0], [0.0, 0.0, 9.0]])
        >>> sums = cross_entropy_sums(logits, torch.tensor([1, 0]), padding_token=0)
        >>> {name: int(x) for name, x in sums.items()}
        {'loss': 0, 'correct': 1, 'count': 1}
    """
    real = torch.ones_like(targets, dtype=torch.bool)
    if padding_token is not None:
        real = targets != padding_token
    mean = label_smoothing_loss(
        logits.float(), targets, smoothing=smoothing, padding_token=padding_token
    )
    count = real.sum()
    correct = ((logits.argmax(dim=-1) == targets) & real).sum()
    return {"loss": mean * count, "correct": correct, "count": count}


def classify(
    model: nn.Module, batch: tuple[Tensor, ...], *, smoothing: float = 0.0
) -> dict[str, Tensor]:
    """Return the cross-entropy sums of a batch of inputs and labels.

    Labels are smoothed in training only.
    """
    inputs, labels = batch
    smoothing = smoothing if model.training else 0.0
    return cross_entropy_sums(model(inputs), labels, smoothing=smoothing)


def means(sums: Mapping[str, float]) -> dict[str, float]:
    """Divide sums by the `count` among them, if it is not zero.

    `correct` becomes `accuracy`.

    Examples:
        >>> means({"loss": 6.0, "correct": 1.0, "count": 4.0})
        {'loss': 1.5, 'accuracy': 0.25, 'correct': 1, 'count': 4}
    """
    counts = {name: int(sums[name]) for name in ("correct", "count") if name in sums}
    count = sums["count"] or 1
    divided = {name: x / count for name, x in sums.items() if name != "count"}
    named = {"accuracy" if k == "correct" else k: x for k, x in divided.items()}
    return {**named, **counts}
