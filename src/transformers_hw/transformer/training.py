"""The loss and the learning rate that the paper trains with."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from transformers_hw._engine.arguments import check_below, check_sizes, check_token
from transformers_hw._engine.kernels import widen
from transformers_hw._engine.shapes import checked


@checked
def label_smoothing_loss(
    logits: Float[Tensor, "*batch classes"],
    targets: Int[Tensor, "*batch"],
    *,
    smoothing: float = 0.1,
    padding_token: int | None = 0,
) -> Float[Tensor, ""]:
    r"""Compute the cross-entropy with smoothed labels, leaving out padding.

    $$
    -\frac1n \sum_{i:\, y_i \ne \text{pad}} \;\sum_{c \ne \text{pad}}
    \left((1-\epsilon)\,[c = y_i] + \frac{\epsilon}{C}\right) \log p_i(c)
    $$

    The mean is over the $n$ real targets, and $\epsilon$ is spread over the $C$
    classes other than padding. Without a real target the loss is zero.

    Args:
        logits: Scores of the classes.
        targets: Correct classes.
        smoothing: $\epsilon$.
        padding_token: Class that marks padding; with `None` for none, this is
            `F.cross_entropy(..., label_smoothing=smoothing)`.

    Returns:
        The mean loss, in float32 or wider.

    Raises:
        TypeError: If the targets are neither int64 nor int32.
        ValueError: If `smoothing` is not in $[0, 1)$, or a target or the padding token
            is not a class.

    Examples:
        >>> logits = torch.zeros(2, 5)  # the second target is padding
        >>> label_smoothing_loss(logits, torch.tensor([3, 0])).exp()
        tensor(5.0000)

    References:
        Szegedy et al. (2016), [Rethinking the Inception Architecture
        ](https://arxiv.org/abs/1512.00567), section 7; Vaswani et al. (2017),
        section 5.4, use 0.1.
    """
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing must be in [0, 1), got {smoothing}.")
    check_below("targets", targets, logits.shape[-1])
    if padding_token is not None:
        check_token("padding_token", padding_token, logits.shape[-1])
    log_p = widen(logits).log_softmax(dim=-1)
    correct = log_p.gather(-1, rearrange(targets, "... -> ... 1"))[..., 0]
    classes, total = logits.shape[-1], log_p.sum(dim=-1)
    real = torch.ones_like(correct, dtype=torch.bool)
    if padding_token is not None:
        # Never part of the sum, since it may be -inf.
        others = log_p[..., :padding_token], log_p[..., padding_token + 1 :]
        classes, total = classes - 1, sum(x.sum(dim=-1) for x in others)
        real = targets != padding_token
    loss = -(1.0 - smoothing) * correct
    if smoothing:  # zero times the -inf of a masked class would be NaN
        loss = loss - smoothing / max(classes, 1) * total
    return loss.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


@checked
def transformer_learning_rate(step: int, *, dim: int, warmup: int = 4000) -> float:
    r"""Return the learning rate: linear warm-up, then inverse square-root decay.

    $$d^{-1/2} \min\!\left(t^{-1/2},\; t\, w^{-3/2}\right)$$

    The two branches meet at $t = w$, where the rate is greatest.

    Args:
        step: $t$, counted from one.
        dim: Width $d$ of the model.
        warmup: $w$, number of warm-up steps.

    Returns:
        The learning rate.

    Raises:
        ValueError: If an argument is less than one.

    Examples:
        >>> round(transformer_learning_rate(4000, dim=512), 6)
        0.000699

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 5.3, equation 3.
    """
    check_sizes(step=step, dim=dim, warmup=warmup)
    return dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
