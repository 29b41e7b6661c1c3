"""Compare a call with the signature: shapes, modules, choices and keywords."""

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import torch
from torch import Tensor, nn

from transformers_hw._engine.arguments import INTEGERS, check_choice, describe

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
# What PyTorch, timm, Hugging Face and papers call our arguments.
SYNONYMS = {
    "beams": "beam_size num_beams",
    "begin": "bos bos_token_id sos",
    "bias": "attn_bias qkv_bias use_bias",
    "causal": "is_causal",
    "channels": "in_channels in_chans num_channels",
    "context": "key",
    "context_dim": "kdim",
    "depth": "layers n_layers num_hidden_layers num_layers",
    "dim": "d_model embed_dim embedding_dim hidden_size n_embd",
    "dropout": "attention_dropout attn_drop dropout_p dropout_rate p",
    "end": "eos eos_token_id",
    "eps": "layer_norm_eps",
    "head_dim": "d_k dim_head",
    "heads": "n_head n_heads nhead num_attention_heads num_heads",
    "hidden_dim": "d_ff dim_feedforward intermediate_size mlp_dim mlp_ratio",
    "image_size": "img_size",
    "images": "pixel_values",
    "input_dim": "input_size",
    "length": "max_len max_length seq_len",
    "mask": "attn_mask src_mask tgt_mask",
    "max_length": "length max_len max_position_embeddings n_positions seq_len",
    "memory_padding_mask": "memory_key_padding_mask",
    "norm": "norm_first",
    "num_classes": "classes n_classes num_labels",
    "num_segments": "type_vocab_size",
    "output_dim": "out_channels out_features",
    "padding_mask": "attention_mask key_padding_mask src_key_padding_mask",
    "padding_token": "pad_token_id padding_idx",
    "return_weights": "need_weights output_attentions",
    "scale": "beta",
    "segments": "token_type_ids",
    "source": "src",
    "target": "tgt",
    "tokens": "input_ids",
    "value_head_dim": "d_v",
    "values_dim": "vdim",
    "vocab_size": "n_vocab num_embeddings num_tokens",
    "weights": "attentions attn attn_weights",
}
# How PyTorch complains of two dtypes in one operation.
CLASHES = ("same dtype", "expected scalar type", "mixed dtype")


class Axis(NamedTuple):
    """One axis of an annotation: a name, a number, or an attribute of the module."""

    name: str
    size: int | None
    attribute: Callable[[Any], int] | None
    broadcasts: bool


class Form(NamedTuple):
    """The axes of one annotation; `leading` stands for any number in front."""

    leading: Axis | None
    axes: tuple[Axis, ...]


class Shape(NamedTuple):
    """What the annotation of one tensor says.

    A union has several forms, which differ in their number of axes.
    """

    argument: str
    position: int
    optional: bool
    has_dtype: Callable[[Tensor], bool]
    kind: str
    forms: tuple[Form, ...]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Raise where a call does not fit the signature, and say what was wanted.

    Tensors are compared with their jaxtyping annotations: dtype, number of axes, and
    sizes. A name stands for one size in the whole call, `{self.dim}` for an attribute
    of the module, and `#` allows a size of one. Modules are compared with the classes
    they are annotated with, and names with the choices of a `Literal`. An unknown
    keyword is answered with the nearest known one. While torch compiles or exports,
    nothing is checked.
    """
    parameters = inspect.signature(function).parameters
    found = _arguments(parameters)
    keywords = frozenset(argument for argument, _, _ in found) - {"self", "cls"}
    anything = any(_takes_anything(parameter) for parameter in parameters.values())
    modules = [(a, i, types) for a, i, x in found if (types := _module_types(x))]
    choices = [(a, i, names) for a, i, x in found if (names := _choices(x))]
    read = [shape for one in found if (shape := _read(*one)) is not None]
    # Sizes are known before anything has to broadcast to them.
    shapes = tuple(sorted(read, key=_broadcasting))

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        if kwargs and not anything and not kwargs.keys() <= keywords:
            _raise_keyword(function, args, kwargs, keywords)
        if modules or choices:
            _check_others(modules, choices, args, kwargs)
        _check(shapes, args, kwargs)
        try:
            return function(*args, **kwargs)
        except (RuntimeError, TypeError) as error:
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
    shapes: Sequence[Shape], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    sizes: dict[str, Any] = {}
    given = len(args)
    for shape in shapes:
        argument, position, optional, has_dtype, kind, forms = shape
        if position < given:
            x = args[position]
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
        leading, axes = forms[0]
        for form in forms[1:]:
            if len(form.axes) == len(actual):
                leading, axes = form
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


def _check_others(
    modules: Sequence[tuple[str, int, tuple[type, ...]]],
    choices: Sequence[tuple[str, int, tuple[object, ...]]],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> None:
    for argument, position, types in modules:
        if position < len(args) or argument in kwargs:
            x = args[position] if position < len(args) else kwargs[argument]
            if not isinstance(x, types):
                names = " or ".join(x.__name__ for x in types if x is not NoneType)
                raise TypeError(
                    f"{argument} must be of type {names}, got {describe(x)}."
                )
    for argument, position, names in choices:
        if position < len(args) or argument in kwargs:
            x = args[position] if position < len(args) else kwargs[argument]
            check_choice(argument, x, names)


def _broadcasts(lead: tuple[int, ...], full: tuple[int, ...]) -> bool:
    aligned = zip(reversed(lead), reversed(full), strict=False)
    return len(lead) <= len(full) and all(size in (1, n) for size, n in aligned)


def _broadcasting(shape: Shape) -> bool:
    return any(axis.broadcasts for form in shape.forms for axis in form.axes)


def _wanted(shape: Shape, sizes: Mapping[str, Any], args: tuple[object, ...]) -> str:
    described = []
    for leading, axes in shape.forms:
        words: list[str | int] = []
        if leading is not None:
            words += sizes.get(leading.name, ["..."])
        for axis in axes:
            size = axis.size if axis.attribute is None else axis.attribute(args[0])
            words.append(sizes.get(axis.name, axis.name) if size is None else size)
        described.append(_words(words))
    prefix = "broadcastable to " if _broadcasting(shape) else ""
    return prefix + " or ".join(described)


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
    called = function.__name__
    if next(iter(inspect.signature(function).parameters), None) in ("self", "cls"):
        owner = args[0] if isinstance(args[0], type) else type(args[0])
        method = "" if called == "__init__" else f".{called}"
        called = f"{owner.__name__}{method}"
    wrong = next(name for name in kwargs if name not in keywords)
    known = sorted(keywords)
    near = [ours for ours in known if wrong in SYNONYMS.get(ours, "").split()]
    near += difflib.get_close_matches(wrong, known, n=1)
    near += [ours for ours in known if ours.startswith(wrong)]
    hint = f"; did you mean {near[0]!r}{MEANINGS.get(near[0], '')}?" if near else "."
    raise TypeError(
        f"{called}() has no argument {wrong!r}{hint} It takes {', '.join(known)}."
    )


def _explain_dtypes(
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    shapes: Sequence[Shape],
    error: Exception,
) -> None:
    """Raise a clearer error if a module met a dtype other than its parameters'."""
    # An inner module may have explained it: the outer one is what the user called.
    cause = error.__cause__ or error
    if not any(clash in str(cause) for clash in CLASHES):
        return
    module = args[0] if args else None
    weight = next(module.parameters(), None) if isinstance(module, nn.Module) else None
    for shape in shapes:
        name = shape.argument
        x = args[shape.position] if shape.position < len(args) else kwargs.get(name)
        if weight is None or not isinstance(x, Tensor) or not x.is_floating_point():
            continue
        if x.dtype != weight.dtype:
            raise TypeError(
                f"{name} must have the dtype of the parameters of "
                f"{type(module).__name__}, {weight.dtype}, got {x.dtype}."
            ) from cause


def _arguments(
    parameters: Mapping[str, inspect.Parameter],
) -> list[tuple[str, int, Any]]:
    """List name, position and annotation; options that a TypedDict declares, too."""
    found: list[tuple[str, int, Any]] = []
    for position, (name, parameter) in enumerate(parameters.items()):
        if parameter.kind is parameter.VAR_KEYWORD:
            for declared in get_args(parameter.annotation):  # Unpack[SomeTypedDict]
                options = declared.__annotations__.items()
                found += [(option, sys.maxsize, x) for option, x in options]
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            found.append((name, position, parameter.annotation))
    return found


def _takes_anything(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.VAR_KEYWORD and not get_args(
        parameter.annotation
    )


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    union = get_origin(annotation) in (Union, UnionType)
    return get_args(annotation) if union else (annotation,)


def _module_types(annotation: Any) -> tuple[type, ...]:
    """Return the classes of `SomeModule` or `SomeModule | None`, and else nothing."""
    types = _alternatives(annotation)
    fits = all(isinstance(x, type) and issubclass(x, nn.Module | None) for x in types)
    return types if fits else ()


def _choices(annotation: Any) -> tuple[object, ...]:
    """Return the choices of `Literal[...]`, or of one with `None`; else nothing."""
    types = _alternatives(annotation)
    literals = [x for x in types if get_origin(x) is Literal]
    names = tuple(name for x in literals for name in get_args(x))
    if len(literals) == len(types):
        return names
    return (*names, None) if {*types} - {*literals} == {NoneType} else ()


def _read(argument: str, position: int, annotation: Any) -> Shape | None:
    """Read `Float[Tensor, "..."]`, a union of such, or one with `None`."""
    types = _alternatives(annotation)
    tensors = [x for x in types if x is not NoneType]
    if not all(hasattr(x, "dim_str") for x in tensors):
        return None
    has_dtype, kind = KINDS[tensors[0].dtype.__name__]
    forms = tuple(_form(x.dim_str.split()) for x in tensors)
    return Shape(argument, position, NoneType in types, has_dtype, kind, forms)


def _form(words: list[str]) -> Form:
    leading = None
    if words and words[0].startswith(("*", "...")):
        leading = _axis(words.pop(0).replace("...", "*_").replace("*", "", 1))
    return Form(leading, tuple(map(_axis, words)))


def _axis(word: str) -> Axis:
    broadcasts = word.startswith("#")
    word = word.removeprefix("#")
    if word.isdigit():
        return Axis(word, int(word), None, broadcasts)
    if word.startswith("{self."):
        return Axis(word, None, attrgetter(word[6:-1]), broadcasts)
    return Axis(word, None, None, broadcasts)
