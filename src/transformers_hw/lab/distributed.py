"""One run, many processes: `torchrun --nproc-per-node=2 examples/...`.

All processes hold the same weights and take the same steps; each batch is shared out
among them. What a batch adds up to, its loss, its count and whether anyone was asked
to stop, is summed over all processes before anybody acts on it, so they act alike.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Team:
    """The processes of a run, seen from one of them.

    Attributes:
        rank: The number of this process.
        size: How many processes there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add up a tensor over all processes; in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def from_leader(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Give every process what the leading one knows, as JSON has it."""
        if self.size == 1:
            return dict(facts)
        letters = torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8)
        device = _backend_device()
        count = torch.tensor(len(letters) if self.leads else 0, device=device)
        told = torch.zeros(int(self.sum(count)), dtype=torch.uint8, device=device)
        if self.leads:
            told.copy_(letters)
        return json.loads(bytes(self.sum(told).tolist()))

    def wait(self) -> None:
        """Let no process go on before all are here."""
        self.sum(torch.zeros((), device=_backend_device() if self.size > 1 else "cpu"))

    def share_gradients(self, model: nn.Module, device: torch.device) -> nn.Module:
        """Wrap a model so that gradients are averaged over all processes."""
        if self.size == 1:
            return model
        devices = [device] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)


@contextmanager
def join_team(device: torch.device) -> Iterator[Team]:
    """Join the other processes that `torchrun` started; alone, be a team of one.

    Within another such block, the team is that block's.

    Args:
        device: Where this process computes; CUDA talks through NCCL, others gloo.

    Yields:
        The team.
    """
    size = int(os.environ.get("WORLD_SIZE", 1))
    if size == 1 and not dist.is_initialized():
        yield Team()
        return
    outermost = not dist.is_initialized()
    if outermost:
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if cuda else "gloo")
    yield Team(dist.get_rank(), dist.get_world_size())
    # Not after an error: others may wait in another place, and would never answer.
    if outermost:
        dist.destroy_process_group()


def _backend_device() -> torch.device:
    nccl = dist.get_backend() == "nccl"
    return (
        torch.device("cuda", torch.cuda.current_device())
        if nccl
        else torch.device("cpu")
    )
