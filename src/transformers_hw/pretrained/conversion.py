"""Account for every tensor on its way from another library's model into ours."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import reduce, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from transformers_hw._engine.arguments import HOOKS
from transformers_hw.pretrained.verification import Compare, verify
from transformers_hw.pretrained.weights import (
    FLOATS,
    Shape,
    Weights,
    WeightsError,
    listed,
    printable,
    read_weights,
    shown,
)
from transformers_hw.transformer.config import Activation
from transformers_hw.transformer.parts import ACTIVATIONS

Names = Mapping[str, str]
Model = TypeVar("Model", bound=nn.Module)
P = ParamSpec("P")
T = TypeVar("T")


class Conversion:
    """Another library's weights, on their way into a model of ours.

    Our model is built without memory and is given the tensors only when all of them
    fit: sizes that a file claims cost nothing.

    Args:
        source: The other library's module, its state dict, or a safetensors file.
        origin: Whose weights these must be, for error messages.

    Attributes:
        module: The module, if that was given.
        tensors: Their tensors by their names.
        prepared: The same, changed to what our model needs.
        factory: `device` and `dtype` to build our model with.
    """

    def __init__(self, source: nn.Module | Weights, origin: str) -> None:
        self.origin = origin
        # What torch.compile returns holds the module that was compiled.
        source = getattr(source, "_orig_mod", source)
        self.module: Any = source if isinstance(source, nn.Module) else None
        self.tensors = read_weights(
            source.state_dict() if isinstance(source, nn.Module) else source
        )
        self.change(dict)
        dtypes = [x.dtype for x in self.tensors.values() if x.dtype in FLOATS]
        # The dtype that represents all of them without loss.
        dtype = reduce(torch.promote_types, dtypes) if dtypes else None
        self.factory: dict[str, Any] = {"device": "meta", "dtype": dtype}

    def change(
        self, prepare: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    ) -> None:
        """Change tensors before they are copied, or leave some out.

        Args:
            prepare: Takes their tensors by their names, and returns those to copy.
        """
        self._prepare = prepare
        self.prepared = prepare(self.tensors)

    def settings(
        self, read: Callable[[Any], dict[str, Any]], **given: Any
    ) -> dict[str, Any]:
        """Return what a state dict does not tell: read from the module, or given.

        Args:
            read: Reads the settings from the other library's module.
            **given: The settings that the caller gave; `None` for the others.
        """
        told = [name for name, x in given.items() if x is not None]
        if self.module is None:
            missing = [name for name in given if name not in told]
            if missing:
                raise TypeError(
                    f"{', '.join(missing)} must be given with a state dict, which "
                    "does not contain it; a module does."
                )
            return given
        if told:
            raise TypeError(
                f"{', '.join(told)} must not be given with a module, which tells its "
                "own settings."
            )
        try:
            return read(self.module)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise self.other(f"got {type(self.module).__name__}") from error

    def other(self, what: str) -> WeightsError:
        """Return the error for a model that this book's cannot represent."""
        return WeightsError(f"the model must be {self.origin}; {what}.")

    def attempt(self, build: Callable[..., T], *args: Any, **options: Any) -> T:
        """Build something from sizes and settings that may be impossible."""
        try:
            return build(*args, **options)
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise self.other(printable(error).rstrip(".")) from error

    def shape(self, name: str, axes: int) -> Shape:
        """Return the shape of a tensor that tells the model's sizes."""
        if name not in self.prepared:
            held = listed(self.tensors)
            raise self.other(f"its weights hold no {name!r}, but {held}")
        shape = tuple(self.prepared[name].shape)
        if len(shape) != axes or 0 in shape:
            raise WeightsError(
                f"{name!r} must have {axes} axes, none of them empty, got shape "
                f"{shape}."
            )
        return shape

    def depth(self, layers: str) -> int:
        """Count the layers whose names begin with `layers` and a number."""
        pattern = re.compile(re.escape(layers) + r"(\d{1,9})\.")
        found = (pattern.match(name) for name in self.tensors)
        numbers = {int(match[1]) for match in found if match}
        if not numbers or numbers != set(range(len(numbers))):
            held = listed(self.tensors)
            raise self.other(f"its weights hold no {layers}0 and so on, but {held}")
        return len(numbers)

    def convert(
        self,
        build: Callable[[int], Model],
        depth: int,
        names: Names,
        compare: Compare,
        *,
        shapes: Mapping[str, Shape] | None = None,
        skip: Mapping[str, int] | None = None,
        single: bool = False,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> Model:
        """Build our model and copy the tensors into it, if they are accounted for.

        If a module was given, it is first compared with our model.

        Args:
            build: Builds our model of a number of layers, on the meta device.
            depth: Number of layers.
            names: For each tensor of ours, the tensor of theirs that contains it.
                Several in one, such as queries, keys and values, stand in it one after
                the other.
            compare: Runs both models on a small input.
            shapes: Shapes of their tensors that are laid out otherwise.
            skip: Numbers of first rows of their tensors that ours do not have.
            single: Whether the module computes in 32 bits in places, whatever its
                weights are.
            buffers: What the module computes with in the comparison, in place of
                buffers that its state dict does not hold.

        Returns:
            The model, in evaluation mode.
        """
        wanted = self.attempt(layered_shapes, build, depth, len(self.tensors))
        if nameless := [name for name in wanted if name not in names]:
            raise self.other(f"its settings ask for weights of {listed(nameless)}")
        groups, skip = _grouped(names, wanted), skip or {}
        expected = {}
        for theirs, ours in groups.items():
            rows = skip.get(theirs, 0) + sum(wanted[name][0] for name in ours)
            expected[theirs] = (rows, *wanted[ours[0]][1:])
        self._account({**expected, **(shapes or {})})

        def split(tensors: Mapping[str, Tensor], **options: Any) -> dict[str, Tensor]:
            found, tensors = {}, self._prepare(tensors)
            for theirs, ours in groups.items():
                x = tensors[theirs].detach()[skip.get(theirs, 0) :].flatten()
                pieces = x.split([math.prod(wanted[name]) for name in ours])
                for name, piece in zip(ours, pieces, strict=True):
                    found[name] = piece.to(**options).view(wanted[name])
            return found

        def load(state: Mapping[str, Tensor]) -> nn.Module:
            model.load_state_dict(split(state), assign=True)
            return model

        model = build(depth).eval()
        if self.module is not None:
            options: dict[str, Any] = {"single": single, "buffers": buffers or {}}
            verify(load, self.module, self.tensors, compare, self.origin, **options)
        copies = split(self.tensors, dtype=self.factory["dtype"], copy=True)
        model.load_state_dict(copies, assign=True)
        return model

    def _account(self, expected: Mapping[str, Shape]) -> None:
        """Raise unless there are just these tensors, of these shapes, all finite."""
        tensors = self.prepared
        missing = [name for name in expected if name not in tensors]
        unknown = [name for name in tensors if name not in expected]
        wrong = []
        for name, shape in expected.items():
            x = tensors.get(name)
            if x is not None and tuple(x.shape) != shape:
                wrong.append(f"{name} {tuple(x.shape)}, wanted {shape}")
            elif x is not None and x.dtype not in FLOATS:
                wrong.append(f"{name} {x.dtype}, wanted floating-point numbers")
        if not missing and not unknown and not wrong:
            wrong = [
                f"{name} holds NaN or infinity"
                for name, x in tensors.items()
                if not x.isfinite().all()
            ]
        found = {"missing": missing, "of the wrong shape or type": wrong}
        told = [
            f"{what}: {listed(those)}"
            for what, those in {**found, "unknown": unknown}.items()
            if those
        ]
        if told:
            raise WeightsError(
                f"weights must be those of {self.origin}. {'; '.join(told)}."
            )


def names_file(convert: Callable[P, T]) -> Callable[P, T]:
    """Make the errors of a converter name the files that it was given."""

    @wraps(convert)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return convert(*args, **kwargs)
        except WeightsError as error:
            given = (*args[:1], kwargs.get("source"), kwargs.get("config"))
            paths = [shown(x) for x in given if isinstance(x, str | Path)]
            if not any(path in str(error) for path in paths):
                error.args = (": ".join([*paths, str(error)]),)
            raise

    return wrapper


def layered_shapes(
    build: Callable[[int], nn.Module], depth: int, available: int
) -> dict[str, Shape]:
    """Return names and shapes of a model's tensors, without building all its layers.

    A layer takes a millisecond to build even without memory, so that a file that claims
    many of them would be expensive to refuse.

    Args:
        build: Builds the model with a number of layers.
        depth: Number of layers.
        available: Number of tensors in the file.

    Raises:
        ValueError: If there are far too few tensors for so many layers.
    """
    shapes = shapes_of(build(min(depth, 2)))
    second = [name for name in shapes if "layers.1." in name]
    # Twice, since other libraries keep several of ours in one.
    if depth * len(second) > 2 * available:
        raise ValueError(f"there are {available} tensors for {depth} layers")
    for i in range(2, depth):
        for name in second:
            shapes[name.replace("layers.1.", f"layers.{i}.")] = shapes[name]
    return shapes


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    """Return the shapes of a model's tensors by name."""
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}


def join(state: Mapping[str, Tensor], names: Names, like: nn.Module) -> nn.Module:
    """Copy our tensors into another library's module: the reverse of `convert`.

    Args:
        state: Our tensors by name. A bias that is not among them is zero.
        names: For each tensor of ours, the tensor of theirs that contains it.
        like: Their module; it is changed.

    Returns:
        Their module.

    Raises:
        WeightsError: If a tensor of ours has no place in it.
    """
    theirs, left = like.state_dict(), set(state)
    for name, ours in _grouped(names, names).items():
        if name in theirs:
            size = math.prod(theirs[name].shape) // len(ours)
            zeros = theirs[name].new_zeros(size)
            pieces = [state.get(part, zeros).flatten() for part in ours]
            if {len(piece) for piece in pieces} == {size}:
                theirs[name].copy_(torch.cat(pieces).view(theirs[name].shape))
                left -= set(ours)
    if left:
        raise WeightsError(
            f"torch.nn.{type(like).__name__} has no place for {listed(sorted(left))}."
        )
    return like


def with_own_code(module: nn.Module) -> list[str]:
    """List the parts of a module that have hooks, or a forward of their own."""
    return [
        name or type(part).__name__
        for name, part in module.named_modules()
        if "forward" in vars(part) or any(getattr(part, hooks) for hooks in HOOKS)
    ]


def shared(what: str, values: Iterable[T]) -> T:
    """Return a setting that all layers of a model must share."""
    found = list(dict.fromkeys(values))
    if len(found) != 1:
        raise WeightsError(f"all layers must have one {what}, got {found}.")
    return found[0]


def eps_of(norms: Iterable[Any]) -> float:
    """Return the epsilon of layer norms."""
    found = []
    for norm in norms:
        if not isinstance(norm, nn.LayerNorm):
            raise WeightsError(f"norms must be layer norms, got {type(norm).__name__}.")
        found.append(norm.eps)
    return shared("eps", found)


def name_of_activation(activation: Callable[[Tensor], Tensor]) -> Activation:
    """Return our name of another library's activation, by its values."""
    # Far enough to tell relu from relu6, and what is clipped from what is not.
    x = torch.linspace(-12.0, 12.0, 241, dtype=torch.float64)
    for name, ours in ACTIVATIONS.items():
        with suppress(Exception):  # whatever it is, and whatever it returns
            if torch.allclose(activation(x.clone()), ours(x), rtol=1e-9, atol=1e-9):
                return name  # type: ignore[return-value]
    known = ", ".join(ACTIVATIONS)
    raise WeightsError(f"activation must be one of {known}, got {activation}.")


def with_parameters(modules: Names) -> dict[str, str]:
    """Return names of weights and biases, given names of modules up to there."""
    return {
        f"{ours}.{kind}": f"{theirs}{kind}"
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
    }


def _grouped(names: Names, wanted: Mapping[str, Any]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for ours, theirs in names.items():
        if ours in wanted:
            groups.setdefault(theirs, []).append(ours)
    return groups
