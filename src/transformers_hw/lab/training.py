"""The training loop of all examples."""

import json
import math
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm, parametrize
from tqdm import tqdm

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
from transformers_hw.lab.distributed import Distributed, init_distributed
from transformers_hw.lab.files import file_lock
from transformers_hw.lab.objectives import Objective, means
from transformers_hw.lab.optimization import (
    TrainingConfig,
    learning_rate,
    make_optimizer,
)
from transformers_hw.lab.progress_bar import lenient_output, progress_bar
from transformers_hw.lab.seeds import derived_seed
from transformers_hw.lab.signals import Stopped, StopRequest, handle_signals

CHECKPOINT, WEIGHTS = "checkpoint.safetensors", "weights.safetensors"
# What a record of the history has of its own.
RESERVED = ("step", "epoch", "train")

# Given the model, the step and the TensorBoard writer, if any.
Callback = Callable[[nn.Module, int, Any], Mapping[str, Any]]


@lenient_output()
def train(
    model: nn.Module,
    batches: Batches,
    objective: Objective,
    config: TrainingConfig,
    *,
    name: str = "training",
    evaluations: Mapping[str, Batches] | None = None,
    callbacks: Sequence[Callback] = (),
    identity: Mapping[str, Any] | None = None,
) -> Progress:
    r"""Train a model, or resume its training.

    On the CPU, a run that was interrupted, even killed, ends with exactly the weights
    of one that was not. Several processes started by `torchrun` share every batch
    $B$; the gradient is that of one process with the whole batch,

    $$
    \nabla \frac{1}{|B|} \sum_{i \in B} \ell_i
    = \frac1p \sum_{r=1}^{p} \nabla \frac{p}{|B|} \sum_{i \in B_r} \ell_i,
    $$

    however unequal the shares $B_r$ of the $p$ processes are.

    Args:
        model: The model; it is trained in place. Parametrizations are removed in the
            end.
        batches: Training data.
        objective: Function of the model and a batch that returns sums over the batch:
            the `loss`, the `count` to divide it by, optionally `correct`, and any
            other metric.
        config: Settings.
        name: Name of the run, shown on the progress bar.
        evaluations: Data to evaluate on every `config.evaluate_every` steps, by name,
            which must not be `step`, `epoch` or `train`.
        callbacks: Functions called after each evaluation, in the main process, with
            the model, the step and the TensorBoard writer or `None`. What they return
            goes into the history; it must be what JSON can express, under new names.
        identity: Further settings that a checkpoint must match. Batches and objective
            are not compared: name here what they depend on.

    Returns:
        The progress; its history has an entry for each evaluation.

    Raises:
        CheckpointError: The folder's checkpoint is of another run.
        FloatingPointError: The loss or the gradient is not finite. The weights and
            the last checkpoint are still good.
        OSError: A checkpoint cannot be written.
        Stopped: A signal came; a checkpoint was written.
        ValueError: The batches, the names of the evaluations, or what the objective or
            a callback returned, are not as described.
    """
    _check_evaluations(evaluations or {})
    device = pick_device(config.device)
    keep_freed_memory()
    model.to(device)
    optimizer = make_optimizer(model, config)
    path = config.out / CHECKPOINT
    total = config.steps or (config.epochs or 0) * (batches.steps_per_epoch or 0)
    if not total:
        raise ValueError("these batches have no epochs: give steps instead of epochs.")
    every = config.evaluate_every or batches.steps_per_epoch or total
    with ExitStack() as stack:
        distributed = stack.enter_context(init_distributed(device))
        if distributed.is_main:
            stack.enter_context(file_lock(config.out, wait=False))
            if config.start_over:
                path.unlink(missing_ok=True)
        distributed.barrier()
        request = stack.enter_context(handle_signals())
        identity = {**config.identity(), **(identity or {})}
        progress = load_checkpoint(
            path, model, optimizer, identity, total, evaluations or ()
        )
        progress = progress or Progress()
        if progress.history and progress.history[-1]["step"] == total:
            if distributed.is_main:
                tqdm.write(f"{name}: already trained")
            _finish(model, config, distributed)
            return progress
        wrapped = distributed.wrap(model, device)
        if config.compiled and device.type == "cuda":
            wrapped.compile()
        worker = _Worker(objective, device, config.precision, distributed, request)
        writer = None
        if config.tensorboard and distributed.is_main:
            # Importing it takes seconds.
            from torch.utils.tensorboard.writer import SummaryWriter

            folder = str(config.out / "tensorboard")
            writer = SummaryWriter(folder, purge_step=progress.step)
            stack.enter_context(writer)
        shown = {"desc": name, "unit": "step", "disable": not distributed.is_main}
        bar = progress_bar(initial=progress.step, total=total, **shown)
        stack.enter_context(bar)
        begun = time.monotonic() - progress.seconds
        saved = time.monotonic()

        def save() -> None:
            progress.seconds = time.monotonic() - begun
            if distributed.is_main:
                save_checkpoint(path, model, optimizer, progress, identity)

        def evaluation() -> dict[str, Any]:
            record: dict[str, Any] = {"step": progress.step}
            if batches.steps_per_epoch:
                record["epoch"] = progress.step / batches.steps_per_epoch
            if progress.running:
                record["train"] = means(progress.running)
            for split, others in (evaluations or {}).items():
                record[split] = worker.evaluate(model, others)
                _log(writer, split, record[split], progress.step)
            model.eval()
            for callback in callbacks if distributed.is_main else ():
                found = callback(model, progress.step, writer)
                _check_findings(found, {*RESERVED, *record})
                record.update(found)
            return distributed.broadcast(record)

        try:
            if config.tensorboard and progress.step == 0:
                evaluation()  # the curves start with the untrained model
            while True:
                due = progress.step % every == 0 or progress.step == total
                # A run may have been killed after the step, before the evaluation.
                if due and _steps_since_evaluation(progress) > 0:
                    progress.history.append(evaluation())
                    progress.running = {}
                if progress.step >= total:
                    break
                rate = learning_rate(progress.step, total, config)
                torch.manual_seed(
                    derived_seed(
                        "dropout", config.seed, progress.step, distributed.rank
                    )
                )
                sums, stopping = worker.step(
                    wrapped, batches, progress.step, optimizer, rate, config.clip_norm
                )
                _log(writer, "train", means(sums), progress.step)
                progress.step += 1
                for key, value in sums.items():
                    progress.running[key] = progress.running.get(key, 0.0) + value
                _advance(bar, progress)
                if stopping:
                    raise Stopped(request.number or signal.SIGTERM)
                waited = time.monotonic() - saved
                often = config.checkpoint_steps or total
                if waited >= config.checkpoint_seconds or progress.step % often == 0:
                    save()
                    saved = time.monotonic()
        except Stopped:
            save()
            raise
        save()
        _finish(model, config, distributed)
        # A signal may have come since the last step: all processes stop, or none.
        if distributed.all_reduce(torch.tensor(request.number, device=device)):
            request.number = request.number or signal.SIGTERM
    return progress


def evaluate(
    model: nn.Module,
    batches: Batches,
    objective: Objective,
    *,
    device: torch.device,
    precision: Precision = "auto",
) -> dict[str, float]:
    """Evaluate a model on every sample once, in this process alone.

    Args:
        model: The model; it is left in evaluation mode.
        batches: The data.
        objective: Loss and metrics of a batch, the same as for `train`.
        device: Device to compute on.
        precision: Precision to compute in.

    Returns:
        Means over all samples, and the counts.

    Raises:
        ValueError: The batches have no epochs.
    """
    _check_evaluations({"evaluation": batches})
    worker = _Worker(objective, device, precision, Distributed(), StopRequest())
    return worker.evaluate(model, batches)


@dataclass(frozen=True)
class _Worker:
    """What one process computes."""

    objective: Objective
    device: torch.device
    precision: Precision
    distributed: Distributed
    request: StopRequest

    def run(
        self, model: nn.Module, batches: Batches, step: int
    ) -> tuple[Tensor, list[str], Tensor]:
        """Return the loss of this process's samples, and all sums with their names."""
        rank, world_size = self.distributed.rank, self.distributed.world_size
        samples, weight = batches.batch(step, rank=rank, world_size=world_size)
        samples = tuple(x.to(self.device, non_blocking=True) for x in samples)
        with autocast(self.device, self.precision):
            sums = self.objective(model, samples)
        if not {"loss", "count"} <= sums.keys():
            raise ValueError(
                f"an objective must return a loss and a count, got {sorted(sums)}."
            )
        # Counts stay exact; MPS has no float64.
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        values = [x.detach().to(self.device, exact) for x in sums.values()]
        return weight * sums["loss"], list(sums), weight * torch.stack(values)

    def step(
        self,
        model: nn.Module,
        batches: Batches,
        step: int,
        optimizer: torch.optim.Optimizer,
        rate: float,
        clip_norm: float | None,
    ) -> tuple[dict[str, float], bool]:
        """Take a step; return its sums, and whether any process received a signal."""
        model.train()
        optimizer.zero_grad()
        loss, names, own = self.run(model, batches, step)
        requested = own.new_tensor([bool(self.request.number)])
        sums = self.distributed.all_reduce(torch.cat([own, requested]))
        count = sums[names.index("count")].clamp(min=1)
        # Gradients are averaged over processes; we want the mean over samples.
        (loss * (self.distributed.world_size / count).to(loss.dtype)).backward()
        parameters = [x for group in optimizer.param_groups for x in group["params"]]
        gradients = [x.grad for x in parameters if x.grad is not None]
        norm = get_total_norm(gradients)
        # The only place in a step that waits for the device: before weights change.
        *values, stopping, length = torch.cat([sums, norm[None].to(sums)]).tolist()
        found = dict(zip(names, values, strict=True))
        if not (math.isfinite(found["loss"]) and math.isfinite(length)):
            raise FloatingPointError(
                f"step {step}: the loss is {found['loss']}, the norm of its gradient "
                f"{length}; both must be finite. The weights are those before this "
                "step. A lower learning rate, or clipping, may help."
            )
        if clip_norm is not None:
            clip_grads_with_norm_(parameters, clip_norm, norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        return found, stopping > 0

    def evaluate(self, model: nn.Module, batches: Batches) -> dict[str, float]:
        """Evaluate on every sample once; all processes get the result."""
        model.eval()
        names, sums = [], torch.zeros(())
        with torch.no_grad():
            for step in range(batches.steps_per_epoch or 0):
                # Several processes would have to agree to stop; the next step is soon.
                if self.request.number and self.distributed.world_size == 1:
                    raise Stopped(self.request.number)
                _, names, own = self.run(model, batches, step)
                sums = own if step == 0 else sums + own
        values = self.distributed.all_reduce(sums).tolist()
        return means(dict(zip(names, values, strict=True)))


def _finish(model: nn.Module, config: TrainingConfig, distributed: Distributed) -> None:
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name)
    if distributed.is_main:
        save_weights(config.out / WEIGHTS, model)


def _check_evaluations(evaluations: Mapping[str, Batches]) -> None:
    for name, batches in evaluations.items():
        if name in RESERVED:
            raise ValueError(
                f"the name of an evaluation must not be among {RESERVED}, got {name!r}."
            )
        if not batches.steps_per_epoch:
            raise ValueError(
                f"batches to evaluate on must end, but those of {name!r} have no "
                "epochs."
            )


def _check_findings(found: Mapping[str, Any], taken: Collection[str]) -> None:
    """Raise unless what a callback returned fits into a record of the history."""
    if not found.keys().isdisjoint(taken):
        raise ValueError(
            f"a callback must return names other than {sorted(taken)}, got "
            f"{list(found)}."
        )
    try:
        json.dumps(dict(found))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a callback must return what JSON can express: {error}."
        ) from error


def _steps_since_evaluation(progress: Progress) -> int:
    return progress.step - (progress.history[-1]["step"] if progress.history else 0)


def _advance(bar: tqdm, progress: Progress) -> None:
    bar.update()
    if not bar.disable:
        found = means(progress.running)
        shown = {name: x for name, x in found.items() if name in ("loss", "accuracy")}
        rate = (bar.n - bar.initial) / max(bar.format_dict["elapsed"], 1e-9)
        samples = found["count"] / _steps_since_evaluation(progress)
        shown["samples/s"] = round(rate * samples)
        bar.set_postfix(shown, refresh=False)


def _log(writer: Any, split: str, metrics: Mapping[str, float], step: int) -> None:
    if writer is not None:
        for name in ("loss", "accuracy"):
            if name in metrics:
                writer.add_scalar(f"{name}/{split}", metrics[name], step)
