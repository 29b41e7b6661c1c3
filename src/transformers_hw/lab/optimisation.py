"""How a run learns: its settings, its optimiser, its learning rate."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from transformers_hw._checks import check_choice, check_sizes
from transformers_hw.lab.devices import Device, Precision

Optimiser = Literal["adamw", "sgd"]
Schedule = Literal["cosine", "constant", "inverse_root"]


@dataclass(frozen=True)
class TrainingConfig:
    """What there is to choose about a run.

    Attributes:
        out: The folder that checkpoint and weights go to. If it holds a checkpoint,
            the run goes on from there.
        epochs: How often to see every sample; or
        steps: how many steps to take, instead.
        batch_size: Samples in a batch, of all processes together.
        learning_rate: The greatest learning rate.
        weight_decay: How strongly to pull weights towards zero.
        optimiser: `"adamw"`, or `"sgd"` with a momentum of 0.9.
        schedule: How the rate goes on after warming up; see
            [`learning_rate`][transformers_hw.lab.optimisation.learning_rate].
        warmup_steps: Over how many steps the rate rises from zero.
        clip_norm: The greatest norm of the gradient, which is scaled down to it.
        seed: The seed of dropout, and, by convention, of all else.
        device: Where to compute; `"auto"` takes what is fastest.
        precision: `"auto"` is bfloat16 on CUDA, and float32 elsewhere.
        compiled: Whether to compile the model, on CUDA.
        tensorboard: Whether to write curves for TensorBoard.
        checkpoint_seconds: How long to go on without writing a checkpoint.
        checkpoint_steps: After how many steps to write one, besides.
        start_over: Whether to disregard, and replace, the checkpoint in `out`.
    """

    out: Path = Path("runs/latest")
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    optimiser: Optimiser = "adamw"
    schedule: Schedule = "cosine"
    warmup_steps: int = 0
    clip_norm: float | None = 1.0
    seed: int = 0
    device: Device = "auto"
    precision: Precision = "auto"
    compiled: bool = True
    tensorboard: bool = False
    checkpoint_seconds: float = 60.0
    checkpoint_steps: int | None = None
    start_over: bool = False

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"either epochs or steps must be given, got {self.epochs} and "
                f"{self.steps}."
            )
        check_sizes(length=self.epochs or self.steps or 0, batch_size=self.batch_size)
        check_choice("optimiser", self.optimiser, get_args(Optimiser))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("device", self.device, get_args(Device))
        check_choice("precision", self.precision, get_args(Precision))
        for name in ("learning_rate", "weight_decay", "warmup_steps"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} must be finite and not negative, got "
                    f"{getattr(self, name)}."
                )
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be positive, got {self.clip_norm}.")
        if self.checkpoint_steps is not None:
            check_sizes(checkpoint_steps=self.checkpoint_steps)

    def total_steps(self, steps_per_epoch: int) -> int:
        """Say how many steps the whole run takes."""
        return self.steps or (self.epochs or 0) * steps_per_epoch

    def identity(self) -> dict[str, Any]:
        """Give the settings that a run's result depends on."""
        incidental = {
            "out",
            "device",
            "compiled",
            "tensorboard",
            "checkpoint_seconds",
            "checkpoint_steps",
            "start_over",
        }
        return {k: v for k, v in asdict(self).items() if k not in incidental}


def learning_rate(step: int, total: int, config: TrainingConfig) -> float:
    r"""Give the learning rate of a step.

    It rises linearly over $w$ steps of warming up. Then, of $T$ steps in all,

    $$
    \eta_t = \eta \cdot \begin{cases}
    \frac12\left(1 + \cos \pi \frac{t - w}{T + 1 - w}\right) & \text{cosine} \\
    1 & \text{constant} \\
    \sqrt{w / t} & \text{inverse root}
    \end{cases}
    $$

    The cosine would reach zero one step after the last. The inverse root is that of
    "Attention Is All You Need" for $\eta = 1 / \sqrt{d\,w}$.

    Args:
        step: The number of the step, counted from zero; $t$ is one more.
        total: $T$.
        config: Gives $\eta$, $w$ and the schedule.

    Returns:
        $\eta_t$.

    Examples:
        >>> config = TrainingConfig(steps=8, learning_rate=1.0, warmup_steps=4)
        >>> [round(learning_rate(t, 8, config), 3) for t in range(8)]
        [0.25, 0.5, 0.75, 1.0, 0.905, 0.655, 0.345, 0.095]

    References:
        Loshchilov & Hutter (2017), [SGDR](https://arxiv.org/abs/1608.03983), section 3;
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 5.3.
    """
    t, warmup = step + 1, config.warmup_steps
    if t < warmup:
        return config.learning_rate * t / warmup
    if config.schedule == "cosine":
        done = (t - warmup) / (total + 1 - warmup)
        return config.learning_rate * (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "inverse_root":
        return config.learning_rate * math.sqrt(max(1, warmup) / t)
    return config.learning_rate


def make_optimiser(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Make the optimiser of a run.

    Weights decay if they are matrices called weights. Biases, gains, class tokens,
    tables of positions and centres of attention are left where they are: zero means
    nothing special there.

    Args:
        model: Whose parameters to optimise, those that require a gradient.
        config: Says how.

    Returns:
        The optimiser.
    """
    decaying, free = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrix = parameter.dim() >= 2
            weight = name.rpartition(".")[2].startswith("weight")
            (decaying if matrix and weight else free).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": config.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # One pass over each parameter, where PyTorch has a kernel for that.
    devices = {parameter.device.type for parameter in decaying + free}
    options: dict[str, Any] = {"fused": devices <= {"cpu", "cuda"}}
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, config.learning_rate, momentum=0.9, **options)
    return torch.optim.AdamW(groups, config.learning_rate, **options)
