"""Compare a call with the signature: the shapes in it, and the keywords."""

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import NoneType
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

import torch
from torch import Tensor, nn

from transformers_hw._engine.arguments import INTEGERS, describe

P = ParamSpec("P")
R = TypeVar("R")

# What each kind of annotation asks of a dtype, and how an error names it.
KINDS: dict[str, tuple[Callable[[Tensor], bool], str]] = {
    "Float": (Tensor.is_floating_point, "a floating-point tensor"),
    "Int": (lambda x: x.dtype in INTEGERS, "a tensor of integers"),
    "UInt8": (lambda x: x.dtype == torch.uint8, "a tensor of bytes"),
    "Bool": (lambda x: x.dtype == torch.bool, "a boolean tensor"),
}
# Masks are where conventions differ, so their errors state ours.
MEANINGS = {
    "mask": " (True = may see; numbers to add to the scores are a bias)",
    "memory_mask": " (True = may see)",
    "padding_mask": " (True = a real token)",
    "memory_padding_mask": " (True = a real token)",
}
# What PyTorch, timm and others call our arguments.
SYNONYMS = {
    "attn_mask": "mask",
    "bos_token_id": "begin",
    "d_model": "dim",
    "dim_feedforward": "hidden_dim",
    "dropout_p": "dropout",
    "embed_dim": "dim",
    "eos_token_id": "end",
    "hidden_size": "dim",
    "img_size": "image_size",
    "in_chans": "channels",
    "intermediate_size": "hidden_dim",
    "is_causal": "causal",
    "key_padding_mask": "padding_mask",
    "layer_norm_eps": "eps",
    "mlp_dim": "hidden_dim",
    "mlp_ratio": "hidden_dim",
    "need_weights": "return_weights",
    "nhead": "heads",
    "norm_first": "norm",
    "num_attention_heads": "heads",
    "num_beams": "beams",
    "num_heads": "heads",
    "num_hidden_layers": "depth",
    "num_layers": "depth",
    "pad_token_id": "padding_token",
    "padding_idx": "padding_token",
    "src_key_padding_mask": "padding_mask",
}


class Axis(NamedTuple):
    """One axis of an annotation: a name, a number, or an attribute of the module."""

    name: str
    size: int | None
    attribute: Callable[[Any], int] | None
    broadcasts: bool


class Shape(NamedTuple):
    """What one argument's annotation says."""

    argument: str
    place: int
    optional: bool
    has_dtype: Callable[[Tensor], bool]
    kind: str
    leading: Axis | None
    axes: tuple[Axis, ...]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Raise where a call does not fit the signature, and say what was wanted.

    Tensors are compared with their jaxtyping annotations: dtype, number of axes, and
    sizes. A name stands for one size in the whole call, `{self.dim}` for an attribute
    of the module, and `#` allows a size of one. An unknown keyword is answered with
    the nearest known one. While torch compiles or exports, nothing is checked.
    """
    parameters = inspect.signature(function).parameters
    shapes = tuple(
        shape
        for place, parameter in enumerate(parameters.values())
        if (shape := _read(parameter.name, place, parameter.annotation)) is not None
    )
    keywords = _keywords(parameters)

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if kwargs and keywords is not None and not kwargs.keys() <= keywords:
            _raise_keyword(function, args, kwargs, keywords)
        _check(shapes, args, kwargs)
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            _explain_dtypes(args, kwargs, shapes, error)
            raise

    return wrapper


def check_shape(argument: str, x: Tensor, *axes: str | int) -> None:
    """Raise unless the last axes of `x` are these; `"..."` in front allows for more."""
    wanted = axes[1:] if axes[0] == "..." else axes
    shape = x.shape[x.dim() - len(wanted) :] if axes[0] == "..." else x.shape
    if len(shape) != len(wanted) or any(
        axis != size and not isinstance(axis, str)
        for axis, size in zip(wanted, shape, strict=False)
    ):
        _raise_shape(argument, _words(axes), x)


def _check(
    shapes: tuple[Shape, ...], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    sizes: dict[str, Any] = {}
    given = len(args)
    for shape in shapes:
        argument, place, optional, has_dtype, kind, leading, axes = shape
        if place < given:
            x = args[place]
        elif argument in kwargs:
            x = kwargs[argument]
        else:
            continue
        if x is None and optional:
            continue
        if not isinstance(x, Tensor) or not has_dtype(x):
            meaning = MEANINGS.get(argument, "")
            raise TypeError(f"{argument} must be {kind}{meaning}, got {describe(x)}.")
        known, actual = len(sizes), x.shape
        extra = len(actual) - len(axes)
        fits = extra == 0 or (extra > 0 and leading is not None)
        if fits and leading is not None:
            lead = actual[:extra]
            if leading.broadcasts:
                full = sizes.get(leading.name)
                fits = full is None or _broadcasts(lead, full)
            else:
                fits = sizes.setdefault(leading.name, lead) == lead
        if fits:
            for axis, size in zip(axes, actual[extra:], strict=True):
                name, wanted, attribute, broadcasts = axis
                if attribute is not None:
                    wanted = attribute(args[0])
                elif wanted is None:
                    if broadcasts:
                        wanted = sizes.get(name, size)
                    elif name not in sizes:
                        sizes[name] = size
                        continue
                    else:
                        wanted = sizes[name]
                if size != wanted and not (broadcasts and size == 1):
                    fits = False
                    break
        if not fits:
            from_others = dict(list(sizes.items())[:known])
            _raise_shape(argument, _wanted(shape, from_others, args), x)


def _broadcasts(lead: tuple[int, ...], full: tuple[int, ...]) -> bool:
    aligned = zip(reversed(lead), reversed(full), strict=False)
    return len(lead) <= len(full) and all(size in (1, n) for size, n in aligned)


def _wanted(shape: Shape, sizes: Mapping[str, Any], args: tuple[object, ...]) -> str:
    words: list[str | int] = []
    if shape.leading is not None:
        words += sizes.get(shape.leading.name, ["..."])
    for axis in shape.axes:
        size = axis.size if axis.attribute is None else axis.attribute(args[0])
        words.append(sizes.get(axis.name, axis.name) if size is None else size)
    broadcasts = any(axis.broadcasts for axis in shape.axes)
    return ("broadcastable to " if broadcasts else "") + _words(words)


def _words(axes: Sequence[str | int]) -> str:
    return "(" + ", ".join(map(str, axes)) + ("," if len(axes) == 1 else "") + ")"


def _raise_shape(argument: str, wanted: str, x: Tensor) -> None:
    raise ValueError(f"{argument} must be {wanted}, got shape {tuple(x.shape)}.")


def _raise_keyword(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    keywords: frozenset[str],
) -> None:
    called = function.__qualname__
    if called.endswith(".__init__"):
        called = type(args[0]).__name__
    wrong = next(name for name in kwargs if name not in keywords)
    near = SYNONYMS.get(wrong)
    if near not in keywords:
        near = next(iter(difflib.get_close_matches(wrong, keywords, n=1)), None)
    hint = "" if near is None else f"; did you mean {near!r}{MEANINGS.get(near, '')}?"
    raise TypeError(
        f"{called}() has no argument {wrong!r}{hint or '.'} "
        f"It takes {', '.join(sorted(keywords))}."
    )


def _explain_dtypes(
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    shapes: tuple[Shape, ...],
    error: RuntimeError,
) -> None:
    """Raise a clearer error if a module met a dtype other than its parameters'."""
    said = str(error)
    if "same dtype" not in said and "expected scalar type" not in said:
        return
    module = args[0]
    weight = next(module.parameters(), None) if isinstance(module, nn.Module) else None
    for shape in shapes:
        name = shape.argument
        x = args[shape.place] if shape.place < len(args) else kwargs.get(name)
        if weight is not None and isinstance(x, Tensor) and x.dtype != weight.dtype:
            raise TypeError(
                f"{name} must have the dtype of the parameters of "
                f"{type(module).__name__}, {weight.dtype}, got {x.dtype}."
            ) from error


def _keywords(parameters: Mapping[str, inspect.Parameter]) -> frozenset[str] | None:
    names: set[str] = set()
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            options = get_args(parameter.annotation)  # Unpack[SomeTypedDict]
            if not options:
                return None
            names |= options[0].__annotations__.keys()
        elif name != "self" and parameter.kind is not parameter.VAR_POSITIONAL:
            names.add(name)
    return frozenset(names)


def _read(argument: str, place: int, annotation: Any) -> Shape | None:
    """Read `Float[Tensor, "..."]` or `Float[Tensor, "..."] | None`."""
    optional = NoneType in get_args(annotation)
    if optional:
        annotation, *others = (x for x in get_args(annotation) if x is not NoneType)
        if others:
            return None
    if not hasattr(annotation, "dim_str"):
        return None
    words = annotation.dim_str.split()
    leading = None
    if words and words[0].startswith(("*", "...")):
        leading = _axis(words.pop(0).replace("...", "*_").replace("*", "", 1))
    has_dtype, kind = KINDS[annotation.dtype.__name__]
    axes = tuple(map(_axis, words))
    return Shape(argument, place, optional, has_dtype, kind, leading, axes)


def _axis(word: str) -> Axis:
    broadcasts = word.startswith("#")
    word = word.removeprefix("#")
    if word.isdigit():
        return Axis(word, int(word), None, broadcasts)
    if word.startswith("{self."):
        return Axis(word, None, attrgetter(word[6:-1]), broadcasts)
    return Axis(word, None, None, broadcasts)
