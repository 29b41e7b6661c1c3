"""What the paper trains with: smoothed labels, and a rate that rises and falls."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from transformers_hw._checks import (
    check_below,
    check_float,
    check_integers,
    check_sizes,
    check_token,
)


def label_smoothing_loss(
    logits: Float[Tensor, "*batch classes"],
    targets: Int[Tensor, "*batch"],
    *,
    smoothing: float = 0.1,
    padding_token: int | None = 0,
) -> Float[Tensor, ""]:
    r"""Compare predictions with targets that are a little unsure of themselves.

    $$
    -\frac1n \sum_{i:\, y_i \ne \text{pad}} \;\sum_{c \ne \text{pad}}
    \left((1-\epsilon)\,[c = y_i] + \frac{\epsilon}{C}\right) \log p_i(c)
    $$

    Padding takes no part in it: the mean is over the $n$ real targets, and the
    share $\epsilon$ is spread over the $C$ classes that can occur, the padding
    token not among them. Without a real target the loss is zero.

    Args:
        logits: Scores of the classes.
        targets: The right classes.
        smoothing: $\epsilon$.
        padding_token: The class that marks padding, or `None` if there is none;
            then this is `F.cross_entropy(..., label_smoothing=smoothing)`.

    Returns:
        The mean loss.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `smoothing` is not in $[0, 1)$, shapes do not match, or a
            target or the padding token is no class.

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
    check_float("logits", logits, "...", "classes")
    check_integers("targets", targets, "...")
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            "logits (..., classes) and targets (...) must match, "
            f"got {tuple(logits.shape)} and {tuple(targets.shape)}."
        )
    check_below("targets", targets, logits.shape[-1])
    if padding_token is not None:
        check_token("padding_token", padding_token, logits.shape[-1])
    log_p = logits.log_softmax(dim=-1)
    right = log_p.gather(-1, rearrange(targets, "... -> ... 1"))[..., 0]
    classes, everything = logits.shape[-1], log_p.sum(dim=-1)
    real = torch.ones_like(right, dtype=torch.bool)
    if padding_token is not None:
        classes, everything = classes - 1, everything - log_p[..., padding_token]
        real = targets != padding_token
    loss = -(1.0 - smoothing) * right - smoothing / classes * everything
    return loss.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1)


def transformer_learning_rate(step: int, *, dim: int, warmup: int = 4000) -> float:
    r"""Raise the learning rate linearly, then let it fall as one over a root.

    $$d^{-1/2} \min\!\left(t^{-1/2},\; t\, w^{-3/2}\right)$$

    The two meet, and the rate is greatest, at $t = w$.

    Args:
        step: $t$, counted from one.
        dim: Width $d$ of the model.
        warmup: $w$, how many steps to rise.

    Returns:
        The learning rate.

    Raises:
        ValueError: If a number is less than one.

    Examples:
        >>> round(transformer_learning_rate(4000, dim=512), 6)
        0.000699

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 5.3, equation 3.
    """
    check_sizes(step=step, dim=dim, warmup=warmup)
    return dim**-0.5 * min(step**-0.5, step * warmup**-1.5)
