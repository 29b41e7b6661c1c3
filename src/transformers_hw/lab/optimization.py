"""Training settings, the optimizer and the learning-rate schedule."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_choice, check_lengths, check_sizes
from transformers_hw.lab.devices import DeviceName, Precision

Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["cosine", "constant"]
# Settings that do not change the result.
INCIDENTAL = {
    "out",
    "device",
    "compiled",
    "tensorboard",
    "checkpoint_seconds",
    "checkpoint_steps",
    "start_over",
}


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of a training run.

    Attributes:
        out: Folder for checkpoint and weights, which becomes a `Path`; a checkpoint
            there is resumed.
        epochs: Number of passes over the data; or
        steps: number of optimizer steps, instead.
        batch_size: Samples in a batch, over all processes together.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of the parameters that
            [`decays`][transformers_hw.lab.optimization.decays] selects.
        optimizer: `"adamw"`, or `"sgd"` with momentum 0.9.
        schedule: Learning rate after warm-up; see
            [`learning_rate`][transformers_hw.lab.optimization.learning_rate].
        warmup_steps: Steps of linear warm-up.
        clip_norm: Largest norm of the gradient, which is scaled down to it.
        evaluate_every: Steps between evaluations; one epoch by default.
        seed: Seed of dropout.
        device: Device to compute on.
        precision: `"auto"` is bfloat16 on CUDA, float32 elsewhere.
        compiled: Whether to compile the model, on CUDA.
        tensorboard: Whether to log curves for TensorBoard.
        checkpoint_seconds: Longest time between checkpoints.
        checkpoint_steps: Most steps between checkpoints.
        start_over: Whether to ignore and replace the checkpoint in `out`.

    Raises:
        ValueError: A setting is out of range, or not exactly one of `epochs` and
            `steps` is given.
    """

    out: Path = Path("runs/latest")
    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 0.05
    optimizer: Optimizer = "adamw"
    schedule: Schedule = "cosine"
    warmup_steps: int = 0
    clip_norm: float | None = 1.0
    evaluate_every: int | None = None
    seed: int = 0
    device: DeviceName = "auto"
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
        for name in ("epochs", "steps", "evaluate_every", "checkpoint_steps"):
            if getattr(self, name) is not None:
                check_sizes(**{name: getattr(self, name)})
        check_sizes(batch_size=self.batch_size)
        check_lengths(warmup_steps=self.warmup_steps, seed=self.seed)
        check_choice("optimizer", self.optimizer, get_args(Optimizer))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("device", self.device, get_args(DeviceName))
        check_choice("precision", self.precision, get_args(Precision))
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} must be finite and nonnegative, got {value}.")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be positive, got {self.clip_norm}.")
        if not self.checkpoint_seconds >= 0.0:
            raise ValueError(
                "checkpoint_seconds must be zero or greater, got "
                f"{self.checkpoint_seconds}."
            )
        object.__setattr__(self, "out", Path(self.out))

    def identity(self) -> dict[str, Any]:
        """Return the settings that the result depends on."""
        return {k: v for k, v in asdict(self).items() if k not in INCIDENTAL}


def learning_rate(step: int, total: int, config: TrainingConfig) -> float:
    r"""Return the learning rate of a step.

    It rises linearly over $w$ warm-up steps. Then, of $T$ steps in all,

    $$
    \eta_t = \eta \cdot \begin{cases}
    \frac12\left(1 + \cos \pi \frac{t - w}{T + 1 - w}\right) & \text{cosine} \\
    1 & \text{constant.}
    \end{cases}
    $$

    The cosine would reach zero one step after the last.

    Args:
        step: Number of the step, counted from zero; $t$ is one more.
        total: Number of steps, $T$.
        config: Settings with $\eta$, $w$ and the schedule.

    Examples:
        >>> config = TrainingConfig(steps=8, learning_rate=1.0, warmup_steps=4)
        >>> [round(learning_rate(t, 8, config), 3) for t in range(8)]
        [0.25, 0.5, 0.75, 1.0, 0.905, 0.655, 0.345, 0.095]

    References:
        Loshchilov & Hutter (2017), [SGDR](https://arxiv.org/abs/1608.03983), section 3.
    """
    t, warmup = step + 1, config.warmup_steps
    if t < warmup:
        return config.learning_rate * t / warmup
    if config.schedule == "cosine":
        done = (t - warmup) / (total + 1 - warmup)
        return config.learning_rate * (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate


def decays(name: str, parameter: Tensor) -> bool:
    """Return whether weight decay applies to a parameter.

    It applies to every weight matrix: those of linear layers, convolutions and token
    embeddings, and `query_weight`, `key_weight` and `value_weight` of attention. It
    does not apply to biases, norms, class tokens, positional embeddings or the centers
    of Gaussian attention, for which zero is not a neutral value.

    Args:
        name: Name of the parameter, as in `model.named_parameters()`.
        parameter: The parameter.

    Examples:
        >>> decays("layers.0.attention.value_weight", torch.zeros(9, 4, 4))
        True
        >>> decays("positions.weight", torch.zeros(16, 4))
        False
    """
    *_, own = name.split(".")
    is_weight = own.startswith("weight") or own.endswith("weight")
    return parameter.dim() >= 2 and is_weight and "position" not in name


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimizer of the parameters that require a gradient."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[decays(name, parameter)].append(parameter)
    settings = [
        {"params": parameters, "weight_decay": config.weight_decay * decaying}
        for decaying, parameters in groups.items()
        if parameters
    ]
    # One pass over each parameter, where PyTorch has a fused kernel.
    devices = {x.device.type for parameters in groups.values() for x in parameters}
    options: dict[str, Any] = {"fused": devices <= {"cpu", "cuda"}}
    if config.optimizer == "sgd":
        return torch.optim.SGD(settings, config.learning_rate, momentum=0.9, **options)
    return torch.optim.AdamW(settings, config.learning_rate, **options)
