"""Record the attention weights of a model while it runs."""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import currentframe, signature
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from transformers_hw._engine.recording import AttentionRecorder
from transformers_hw._engine.shapes import checked

# Packages whose classes attend only through layers that give their weights.
KNOWN = {"torch", "transformers_hw", "builtins", "typing", "abc"}


@contextmanager
@checked
def capture_weights(
    model: nn.Module,
) -> Iterator[dict[str, list[Tensor]]]:
    """Record the attention weights of a model while it runs.

    Within the `with` block, every attention layer of the model computes its weights
    explicitly: every
    [`MultiHeadAttention`][transformers_hw.multi_head_attention.MultiHeadAttention],
    and any other layer whose `forward` takes `return_weights` and then returns
    `(output, weights)`. If such layers are nested, the innermost are recorded.

    Models of other libraries are recorded, too, although the kernel they call does not
    return its weights. Inside the block, each call of
    [`scaled_dot_product_attention`
    ][torch.nn.functional.scaled_dot_product_attention] and of
    [`nn.MultiheadAttention`][torch.nn.MultiheadAttention] is read, the weights are
    computed from its queries, keys and masks, and the call goes on as it is. This
    covers timm, torchvision and Hugging Face's default, `attn_implementation="sdpa"`.
    Code that multiplies by its own softmax, or calls another kernel, is not covered; a
    warning names the modules that this concerns, if their classes have attention in
    their names.

    The model may also run through another method, as in `model.encode(x)`. Layers that
    return their weights must be called themselves.

    The model's output is the same as outside the block, up to rounding and the random
    draws of dropout. Compiled modules run uncompiled. The hooks are removed when the
    block is left, also by an error.

    Args:
        model: A model that contains such a layer, or is one.

    Yields:
        A dictionary that fills up as the model runs, from the name of each layer that
        was called, as in `model.named_modules()`, to its weights, one tensor per call.
        Weights are those before dropout, detached from the graph; those of
        `MultiHeadAttention` are `(b, heads, q, k)`. Other libraries' are named after
        the innermost module that attends, such as `blocks.0.attn`, and have the leading
        axes of its queries.

    Raises:
        TypeError: If `model` is not a module.
        ValueError: If it contains no such layer, or, at the end of the block, if it ran
            without any attention that could be captured.

    Warns:
        UserWarning: At the end of the block, if nothing was called that could be
            captured, or only some of the modules that are named like attention were.

    Examples:
        >>> from transformers_hw.transformer import Encoder
        >>> encoder = Encoder(12, heads=3, hidden_dim=24, depth=2)
        >>> with capture_weights(encoder) as weights:
        ...     y = encoder(torch.randn(2, 5, 12))
        >>> {name: [tuple(w.shape) for w in calls] for name, calls in weights.items()}
        {'layers.0.attention': [(2, 3, 5, 5)], 'layers.1.attention': [(2, 3, 5, 5)]}

        PyTorch's own encoder, whose fused kernels return no weights:

        >>> layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        >>> with torch.no_grad(), capture_weights(layer.eval()) as weights:
        ...     y = layer(torch.randn(2, 5, 12))
        >>> {name: [tuple(w.shape) for w in calls] for name, calls in weights.items()}
        {'self_attn': [(2, 3, 5, 5)]}
    """
    layers = {
        name: module
        for name, module in model.named_modules()
        if _gives_weights(module) and not any(map(_gives_weights, _parts(module)))
    }
    others = _others(model, layers)
    if not layers and not others:
        raise ValueError(
            "model must contain a layer that can return its weights, "
            f"got {type(model).__name__} without one."
        )
    captured: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks:
        # Compiled code ignores hooks that were added or removed after compilation.
        hooks.enter_context(torch.compiler.set_stance("force_eager"))
        for name, layer in layers.items():
            request, record = _request_and_record(name, captured)
            hooks.enter_context(
                layer.register_forward_pre_hook(request, with_kwargs=True)
            )
            # Prepended, so that a capture within another records the weights before
            # the outer one takes them out of the output.
            hooks.enter_context(layer.register_forward_hook(record, prepend=True))
        called = _record_others(others, layers, captured, hooks) if others else set()
        yield captured
    if called and not captured:
        raise ValueError(
            f"model must attend through PyTorch's functions, but {type(model).__name__}"
            " ran no attention that could be captured. A Hugging Face model must be "
            'loaded with attn_implementation="sdpa"; a model that computes its own '
            "softmax may return its weights if asked, which probes.show takes as well."
        )
    if not captured:
        warnings.warn(
            f"nothing was captured: no layer of {type(model).__name__} was called "
            "within the block, except through methods that compute their own softmax.",
            stacklevel=3,
        )
    elif missed := _missed({**layers, **others}, called, captured):
        more = f" and {len(missed) - 3} more" * (len(missed) > 3)
        warnings.warn(
            "modules that are named like attention must attend through PyTorch's "
            f"functions to be captured, got none from {', '.join(missed[:3])}{more}.",
            stacklevel=3,
        )


def _gives_weights(module: nn.Module) -> bool:
    return "return_weights" in signature(module.forward).parameters


def _parts(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if part is not module]


def _others(model: nn.Module, layers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the modules that may call PyTorch's attention, by name."""
    inner = {id(part) for layer in layers.values() for part in _parts(layer)}
    return {
        name: module
        for name, module in model.named_modules()
        if id(module) not in inner
        if isinstance(module, nn.MultiheadAttention)
        or not {base.__module__.split(".")[0] for base in type(module).__mro__} <= KNOWN
    }


def _missed(
    modules: dict[str, nn.Module], called: set[str], captured: dict[str, list[Tensor]]
) -> list[str]:
    """Return the modules that are named like attention, ran, and recorded nothing.

    One that holds a recorded module, or is part of one, is not missed.
    """
    recorded = {modules[name] for name in captured}
    parts = {part for module in recorded for part in module.modules()}
    return [
        f"{name} ({type(module).__name__})"
        for name, module in modules.items()
        if name in called
        if re.search("attn|attention", type(module).__name__, re.IGNORECASE)
        if module not in parts and recorded.isdisjoint(module.modules())
    ]


def _request_and_record(
    name: str, captured: dict[str, list[Tensor]]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    requested = False

    def request(
        module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal requested
        requested = options.get("return_weights", False)
        return inputs, {**options, "return_weights": True}

    def record(
        module: nn.Module, inputs: tuple[Any, ...], result: tuple[Tensor, Tensor]
    ) -> Tensor | tuple[Tensor, Tensor]:
        output, weights = result
        captured.setdefault(name, []).append(weights.detach())
        return (output, weights) if requested else output

    return request, record


def _record_others(
    others: dict[str, nn.Module],
    layers: dict[str, nn.Module],
    captured: dict[str, list[Tensor]],
    hooks: ExitStack,
) -> set[str]:
    """Record what PyTorch's functions attend to; return the names that are called."""
    names = {id(module): name for name, module in others.items()}
    called: set[str] = set()

    def record(weights: Tensor) -> None:
        name = _caller(names)
        if name is not None and name not in layers:
            weights = _unpacked(weights, others[name])
            captured.setdefault(name, []).append(weights)

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.add(name)

    for name, module in others.items():
        if isinstance(getattr(module, "fused_attn", None), bool):
            # timm's flag: whether a layer calls PyTorch's function.
            hooks.callback(setattr, module, "fused_attn", module.fused_attn)
            module.fused_attn = True  # pyright: ignore[reportArgumentType]
        hooks.enter_context(module.register_forward_pre_hook(note(name)))
    hooks.enter_context(AttentionRecorder(record))
    return called


def _caller(names: dict[int, str]) -> str | None:
    """Return the name of the innermost module that is running, in any method.

    A hook sees only calls of the module; the stack also shows other methods.
    """
    frame = currentframe()
    while frame is not None:
        name = names.get(id(frame.f_locals.get("self")))
        if name is not None:
            return name
        frame = frame.f_back
    return None


def _unpacked(weights: Tensor, module: nn.Module) -> Tensor:
    """Give every query head its axis, where grouped heads were sent as queries.

    Hugging Face does so for a single query: `(b, groups, heads_of_group, k)`.
    """
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    if weights.dim() != 4 or heads in (None, weights.shape[1]):
        return weights
    if weights.shape[1] * weights.shape[2] != heads:
        return weights
    return rearrange(weights, "b groups heads k -> b (groups heads) 1 k")
