"""Compare a converted model with the original on a small input."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from transformers_hw.pretrained.weights import FLOATS, WeightsError, listed, printable

# Greatest difference of the outputs, relative to the largest of them. In 32 bits, the
# same model of 24 layers written in two ways differs by 3e-7.
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10}
# For models of 64 bits that compute some numbers in 32.
SINGLE = 1e-5


class Draw:
    """Draw inputs: the same ones every time, without the global random numbers.

    Args:
        device: Device of the inputs.
        dtype: Dtype of floating-point inputs.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._place = {"device": device, "dtype": dtype}

    def numbers(self, *shape: int) -> Tensor:
        """Draw from a uniform distribution over [-1, 1)."""
        x = torch.rand(shape, generator=self._generator, device="cpu")
        return (2.0 * x - 1.0).to(**self._place)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Draw integers from 0 to `below - 1`."""
        x = torch.randint(below, shape, generator=self._generator, device="cpu")
        return x.to(self._place["device"])

    def padding_mask(self, batch: int, length: int) -> Tensor:
        """Return a mask that is `False` at the end of the last sequence."""
        real = torch.ones(batch, length, dtype=torch.bool, device=self._place["device"])
        real[-1, (length + 1) // 2 :] = False
        return real


# Runs our model and theirs; yields what is compared, our output, and theirs.
Compare = Callable[
    [Any, Callable[..., Any], Draw], Iterator[tuple[str, Tensor, Tensor]]
]


def verify(
    load: Callable[[Mapping[str, Tensor]], nn.Module],
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    compare: Compare,
    origin: str,
    *,
    single: bool = False,
    buffers: Mapping[str, Tensor] | None = None,
) -> None:
    """Raise unless both models compute the same.

    Both run in evaluation mode and without gradients, with the module's own matrices;
    half precision is widened to 32 bits. Vectors, and rows of zeros, are drawn anew for
    the comparison, and shorter rows of a matrix are scaled to length one: a model that
    was not trained has norms of one, biases of zero and matrices so small that its
    activations and scores are next to zero, which would hide what is done to them. The
    module is left as it was, and so are the global random numbers. It must not be used
    elsewhere meanwhile.

    Args:
        load: Loads such tensors, by their names, into our model, and returns it.
        module: The other library's module.
        tensors: Its tensors by name.
        compare: Runs both.
        origin: What the module must be, for error messages.
        single: Whether the module computes in 32 bits in places, whatever its weights
            are.
        buffers: What stands in for some of its buffers that are not among `tensors`.

    Raises:
        WeightsError: If outputs differ, or the module cannot be run.
    """
    floats = {name: x for name, x in tensors.items() if x.dtype in FLOATS}
    device = next(iter(floats.values())).device
    # Convolutions of 32-bit numbers may be rounded on CUDA, where matrices are not.
    double = all(x.dtype == torch.float64 for x in floats.values())
    dtype = torch.float64 if double or device.type == "cuda" else torch.float32
    tolerance = max(TOLERANCES[dtype], SINGLE if single else 0.0)
    draw = Draw(device, dtype)
    drawn: dict[tuple[Any, ...], Tensor] = {}

    def replaced(x: Tensor) -> Tensor:
        # Weights that are shared stay shared.
        key = (x.data_ptr(), x.shape, x.stride())
        if key not in drawn:
            drawn[key] = _visible(x.detach().to(dtype), draw)
        return drawn[key]

    state = {name: replaced(x) for name, x in floats.items()}
    # A part that occurs twice has two names, and must be given its tensors once only.
    own = {
        name: state[name]
        for prefix, part in module.named_modules()
        for last in (*part._parameters, *part._buffers)
        if (name := f"{prefix}.{last}".lstrip(".")) in state
    }
    own |= buffers or {}
    rounded = [
        name
        for name, x in module.named_buffers()
        if x.dtype in FLOATS[:2] and name not in own
    ]
    hint = f" Its buffers {listed(rounded)} are rounded." if rounded else ""

    def theirs(*args: Any, **kwargs: Any) -> Any:
        try:
            return functional_call(module, own, args, kwargs, tie_weights=False)
        except Exception as error:
            raise WeightsError(
                f"{type(module).__name__} cannot be run on a small input to compare "
                f"the converted model with it: {printable(error)}"
            ) from error

    with _undisturbed(module, device):
        for what, found, wanted in compare(load(state), theirs, draw):
            _check(what, found, wanted, tolerance, origin, hint)


def _visible(x: Tensor, draw: Draw) -> Tensor:
    """Return numbers that are large enough to show what is done to them."""
    if x.dim() < 2:
        return draw.numbers(*x.shape)
    # A row has the weights of one output, or is one of a list of embeddings.
    axes = tuple(range(1, x.dim())) if len(x) > 1 else -1
    length = torch.linalg.vector_norm(x, dim=axes, keepdim=True)
    x = x / length.clamp(max=1.0)
    return x if length.all() else x.where(length > 0.0, draw.numbers(*x.shape))


def _check(
    what: str,
    found: Tensor,
    wanted: Tensor,
    tolerance: float,
    origin: str,
    hint: str,
) -> None:
    if found.shape != wanted.shape:
        raise WeightsError(
            f"module must be {origin}, but its {what} have shape "
            f"{tuple(wanted.shape)}, and those of the converted model "
            f"{tuple(found.shape)}."
        )
    size = float(wanted.abs().max())
    difference = float((found - wanted).abs().max())
    if not difference <= tolerance * size:
        raise WeightsError(
            f"module must be {origin}, but its {what}, up to {size:.3g}, and those of "
            f"the converted model differ by {difference:.3g}: it computes something "
            f"that its weights and settings do not tell.{hint}"
        )


@contextmanager
def _undisturbed(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Evaluate a module, and leave no trace of it."""
    training = {part: part.training for part in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        indices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type
        stack.enter_context(torch.random.fork_rng(indices, device_type=kind))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        try:
            module.eval()
            # PyTorch's own fast path gives other outputs than its slow one in places.
            torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for part, was in training.items():
                part.training = was
