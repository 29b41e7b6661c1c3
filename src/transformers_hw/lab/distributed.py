"""Data-parallel training: `torchrun --nproc-per-node=2 examples/...`.

All processes hold the same weights and take the same steps; each batch is split among
them. Sums over a batch (its loss, its count, whether a signal came) are reduced over
all processes before anyone acts on them, so that all act alike.
"""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Distributed:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: Number of this process.
        world_size: Number of processes.
    """

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return the main process's value in every process."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.world_size > 1:
            dist.barrier()

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Wrap a model so that gradients are averaged over all processes."""
        if self.world_size == 1:
            return model
        devices = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)


@contextmanager
def init_distributed(device: torch.device) -> Iterator[Distributed]:
    """Join the process group that `torchrun` started, or be a single process.

    A nested block uses the group of the outer one.

    Args:
        device: Device of this process; CUDA communicates through NCCL, others gloo.

    Yields:
        The rank and world size.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 and not dist.is_initialized():
        yield Distributed()
        return
    outermost = not dist.is_initialized()
    if outermost:
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)
        # Its functions take the group of the time of their import as a default. Were
        # it imported later, as an optimizer does, they would keep the group's threads
        # beyond its end, and one may abort the process while Python shuts down.
        importlib.import_module("torch.distributed.nn.functional")
        dist.init_process_group("nccl" if cuda else "gloo")
    yield Distributed(dist.get_rank(), dist.get_world_size())
    # Not after an error: other processes may wait elsewhere and never answer.
    if outermost:
        dist.destroy_process_group()
