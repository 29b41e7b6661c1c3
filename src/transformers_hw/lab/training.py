"""The loop that all examples train with."""

import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from tqdm import tqdm

from transformers_hw.lab.bars import bar
from transformers_hw.lab.batching import Batches
from transformers_hw.lab.checkpoint import (
    Progress,
    load_checkpoint,
    save_checkpoint,
    save_weights,
)
from transformers_hw.lab.devices import (
    Precision,
    autocast,
    keep_freed_memory,
    pick_device,
)
from transformers_hw.lab.distributed import Team, join_team
from transformers_hw.lab.files import sole_writer
from transformers_hw.lab.objectives import Objective, means
from transformers_hw.lab.optimisation import (
    TrainingConfig,
    learning_rate,
    make_optimiser,
)
from transformers_hw.lab.seeds import derived_seed
from transformers_hw.lab.signals import Request, Stopped, heed_signals

CHECKPOINT, WEIGHTS = "checkpoint.safetensors", "weights.safetensors"

Callback = Callable[[nn.Module, int], Mapping[str, Any]]


def train(
    model: nn.Module,
    batches: Batches,
    objective: Objective,
    config: TrainingConfig,
    *,
    evaluations: Mapping[str, Batches] | None = None,
    callbacks: Sequence[Callback] = (),
    about: Mapping[str, Any] | None = None,
) -> Progress:
    r"""Train a model, or go on training it.

    On the CPU a run that was interrupted, even killed, ends with the very weights
    of one that was not. Several processes started by `torchrun` share every batch $B$;
    the gradient is that of one process with the whole batch,

    $$
    \nabla \frac{1}{|B|} \sum_{i \in B} \ell_i
    = \frac1p \sum_{r=1}^{p} \nabla \frac{p}{|B|} \sum_{i \in B_r} \ell_i,
    $$

    however unequal the shares $B_r$ of the $p$ processes are.

    Args:
        model: The model; it is trained in place.
        batches: What it is trained on.
        objective: Given the model and a batch, gives sums over the batch: of the
            `loss`, the `count` it is to be divided by, `correct` if there is right
            and wrong, and whatever else is worth a mean.
        config: How to train.
        evaluations: What to evaluate after each epoch, by name.
        callbacks: Called with the model and the epoch after each epoch, in the process
            that leads; what they return, as JSON has it, goes into the history.
        about: More facts that a checkpoint must agree in, such as which data this is.

    Returns:
        The history, among others; an entry for each epoch.

    Raises:
        CheckpointError: If the folder's checkpoint is of another run.
        FloatingPointError: If the loss or the gradient is no finite number. The
            weights, and the last checkpoint, are still good.
        OSError: If a checkpoint cannot be written.
        Stopped: If the process is asked to stop; it has then written a checkpoint.
    """
    device = pick_device(config.device)
    keep_freed_memory()
    model.to(device)
    optimiser = make_optimiser(model, config)
    path = config.out / CHECKPOINT
    with ExitStack() as stack:
        team = stack.enter_context(join_team(device))
        if team.leads:
            stack.enter_context(sole_writer(config.out, wait=False))
            if config.start_over:
                path.unlink(missing_ok=True)
        team.wait()
        request = stack.enter_context(heed_signals())
        identity = {**config.identity(), **(about or {})}
        progress = load_checkpoint(path, model, optimiser, identity) or Progress()
        trained = team.share_gradients(model, device)
        if config.compiled and device.type == "cuda":
            trained.compile()
        worker = _Worker(objective, device, config.precision, team, request)
        total = config.total_steps(batches.steps_per_epoch)
        if progress.history and progress.history[-1]["step"] == total:
            return progress
        curves = None
        if config.tensorboard and team.leads:
            # Importing it takes seconds.
            from torch.utils.tensorboard.writer import SummaryWriter

            folder, future = str(config.out / "tensorboard"), progress.step + 1
            curves = stack.enter_context(SummaryWriter(folder, purge_step=future))
        steps = stack.enter_context(
            bar(initial=progress.step, total=total, unit="step", disable=not team.leads)
        )
        begun = time.monotonic() - progress.seconds
        saved = time.monotonic()

        def save() -> None:
            progress.seconds = time.monotonic() - begun
            if team.leads:
                save_checkpoint(path, model, optimiser, progress, identity)

        try:
            while True:
                if _epoch_has_ended(progress, batches.steps_per_epoch, total):
                    epoch = -(-progress.step // batches.steps_per_epoch)
                    record: dict[str, Any] = {"epoch": epoch, "step": progress.step}
                    record["train"] = means(progress.running)
                    for name, others in (evaluations or {}).items():
                        record[name] = worker.evaluate(model, others)
                    model.eval()
                    for callback in callbacks if team.leads else ():
                        record.update(callback(model, epoch))
                    record = team.from_leader(record)
                    progress.history.append(record)
                    progress.running = {}
                    if curves is not None:
                        _draw(curves, record)
                if progress.step >= total:
                    break
                rate = learning_rate(progress.step, total, config)
                torch.manual_seed(
                    derived_seed("dropout", config.seed, progress.step, team.rank)
                )
                sums, stopping = worker.step(
                    trained, batches, progress.step, optimiser, rate, config.clip_norm
                )
                progress.step += 1
                for name, value in sums.items():
                    progress.running[name] = progress.running.get(name, 0.0) + value
                _advance(steps, progress)
                if stopping:
                    raise Stopped(request.number or signal.SIGTERM)
                waited = time.monotonic() - saved
                every = config.checkpoint_steps or total
                if waited >= config.checkpoint_seconds or progress.step % every == 0:
                    save()
                    saved = time.monotonic()
        except Stopped:
            save()
            raise
        # First the weights: a checkpoint of the last epoch tells that all is done.
        if team.leads:
            save_weights(config.out / WEIGHTS, model, identity)
        save()
    return progress


def evaluate(
    model: nn.Module,
    batches: Batches,
    objective: Objective,
    *,
    device: torch.device,
    precision: Precision = "auto",
) -> dict[str, float]:
    """Measure a model on every sample once, in this process alone.

    Args:
        model: The model; it is left in evaluation mode.
        batches: What to measure it on: their first epoch.
        objective: As for [`train`][transformers_hw.lab.training.train].
        device: Where to compute.
        precision: How precisely.

    Returns:
        Means over all samples, with the counts they come from.
    """
    worker = _Worker(objective, device, precision, Team(), Request())
    return worker.evaluate(model, batches)


@dataclass(frozen=True)
class _Worker:
    """One process's part in all that is computed together."""

    objective: Objective
    device: torch.device
    precision: Precision
    team: Team
    request: Request

    def run(
        self, model: nn.Module, batches: Batches, step: int
    ) -> tuple[Tensor, list[str], Tensor]:
        """Give the loss of this process's share, and all sums with their names."""
        part = batches.part(step, rank=self.team.rank, size=self.team.size)
        batch = tuple(x.to(self.device, non_blocking=True) for x in part.tensors)
        with autocast(self.device, self.precision):
            found = self.objective(model, batch)
        if not {"loss", "count"} <= found.keys():
            raise ValueError(
                f"an objective must give a loss and a count, got {sorted(found)}."
            )
        # Counts stay exact; MPS has no float64.
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        values = [x.detach().to(self.device, exact) for x in found.values()]
        return (
            part.weight * found["loss"],
            list(found),
            part.weight * torch.stack(values),
        )

    def step(
        self,
        model: nn.Module,
        batches: Batches,
        step: int,
        optimiser: torch.optim.Optimizer,
        rate: float,
        clip_norm: float | None,
    ) -> tuple[dict[str, float], bool]:
        """Take a step; give its sums, and whether any process was asked to stop."""
        model.train()
        optimiser.zero_grad()
        loss, names, own = self.run(model, batches, step)
        asked = own.new_tensor([bool(self.request.number)])
        sums = self.team.sum(torch.cat([own, asked]))
        count = sums[names.index("count")].clamp(min=1)
        # Gradients are averaged over processes, but a mean over samples is wanted.
        (loss * (self.team.size / count).to(loss.dtype)).backward()
        parameters = [x for group in optimiser.param_groups for x in group["params"]]
        gradients = [x.grad for x in parameters if x.grad is not None]
        norm = get_total_norm(gradients)
        # The one place in a step that waits for the device: before weights change.
        *values, stopping, length = torch.cat([sums, norm[None].to(sums)]).tolist()
        found = dict(zip(names, values, strict=True))
        if not (math.isfinite(found["loss"]) and math.isfinite(length)):
            raise FloatingPointError(
                f"step {step}: the loss is {found['loss']}, the norm of its gradient "
                f"{length}; both should be finite. The weights are those before this "
                "step. A lower learning rate, or clipping, may help."
            )
        if clip_norm is not None:
            clip_grads_with_norm_(parameters, clip_norm, norm)
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.step()
        return found, stopping > 0

    def evaluate(self, model: nn.Module, batches: Batches) -> dict[str, float]:
        """Measure a model on every sample once, together; all get the result."""
        model.eval()
        names, sums = [], torch.zeros(())
        with torch.no_grad():
            for step in range(batches.steps_per_epoch):
                # Together, they would have to agree to stop; the next step is soon.
                if self.request.number and self.team.size == 1:
                    raise Stopped(self.request.number)
                _, names, own = self.run(model, batches, step)
                sums = own if step == 0 else sums + own
        values = self.team.sum(sums).tolist()
        return means(dict(zip(names, values, strict=True)))


def _epoch_has_ended(progress: Progress, steps_per_epoch: int, total: int) -> bool:
    # A run may have been killed after an epoch's last step, before its record.
    ended = progress.step % steps_per_epoch == 0 or progress.step == total
    return ended and _steps_since_record(progress) > 0


def _steps_since_record(progress: Progress) -> int:
    return progress.step - (progress.history[-1]["step"] if progress.history else 0)


def _advance(steps: tqdm, progress: Progress) -> None:
    steps.update()
    if not steps.disable:
        found = means(progress.running)
        shown = {name: x for name, x in found.items() if name in ("loss", "accuracy")}
        rate = (steps.n - steps.initial) / max(steps.format_dict["elapsed"], 1e-9)
        samples = found["count"] / _steps_since_record(progress)
        shown["samples/s"] = round(rate * samples)
        steps.set_postfix(shown, refresh=False)


def _draw(curves: Any, record: Mapping[str, Any]) -> None:
    for split, found in record.items():
        if isinstance(found, Mapping):
            for name in {"loss", "accuracy"} & found.keys():
                curves.add_scalar(f"{name}/{split}", found[name], record["step"])
