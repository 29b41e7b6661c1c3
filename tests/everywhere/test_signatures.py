"""Signatures are contracts: a call that breaks one is told which argument, and how.

These run without the import hook, as for anyone who installs the package.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from bad_calls import assert_refused
from catalog import CATALOG, Entry, _for_grid, _for_lengths
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

import transformers_hw
from transformers_hw import (
    LearnedPositions,
    LearnedPositions2D,
    MultiHeadAttention,
    RelativePositionBias,
    SinusoidalPositions,
    VisionTransformer,
    attention_rollout,
    causal_mask,
    padding_mask,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.seq2seq import GRU

pytestmark = pytest.mark.unhooked
# Other modules are called with numbers that are read off the tensors.
TENSORS = [entry for entry in CATALOG if entry.call not in (_for_grid, _for_lengths)]
# Encodings that are concatenated take tokens of any width.
SIZED = [e for e in TENSORS if "OneHot" not in e.name and "concat" not in e.name]


@pytest.mark.parametrize("entry", TENSORS, ids=lambda entry: entry.name)
def test_a_tensor_of_another_kind_is_named_in_the_error(entry: Entry) -> None:
    module, inputs = entry.make(), entry.example()
    for name, x in inputs.items():
        wrong = x.long() if entry.inputs[name].kind == "float" else x.double()
        with pytest.raises(TypeError, match=rf"{name} must be a .*, got {wrong.dtype}"):
            entry.call(module, **{**inputs, name: wrong})


@pytest.mark.parametrize("entry", SIZED, ids=lambda entry: entry.name)
def test_a_tensor_of_another_shape_is_told_what_was_wanted(entry: Entry) -> None:
    module, inputs = entry.make(), entry.example()
    for name, x in inputs.items():
        axes = entry.inputs[name].axes.split()
        for axis in (i for i, word in enumerate(axes) if word.isdigit()):
            wider = torch.cat([x, x.narrow(axis, 0, 1)], dim=axis)
            with pytest.raises(ValueError, match=r"must .*, got .*\d"):
                entry.call(module, **{**inputs, name: wider})


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dim = 7
        self.proj = nn.Linear(7, 5)

    @checked
    def forward(
        self,
        x: Float[Tensor, "*batch n {self.dim}"],
        ids: Int[Tensor, "*batch n"] | None = None,
        *,
        mask: Bool[Tensor, "*#batch #n 3"] | None = None,
    ) -> Float[Tensor, "*batch n 5"]:
        return self.proj(x)


def test_names_stand_for_one_size_and_a_hash_allows_one() -> None:
    layer, x = Layer(), torch.zeros(2, 11, 7)
    ids = torch.zeros(2, 11, dtype=torch.int32)
    for shape in ((2, 11, 3), (1, 3), (1, 1, 3)):
        mask = torch.ones(shape, dtype=torch.bool)
        assert layer(x, ids=ids, mask=mask).shape == (2, 11, 5)
    with pytest.raises(ValueError, match=r"ids must be \(2, 11\), got shape \(3, 11\)"):
        layer(x, torch.zeros(3, 11, dtype=torch.int64))
    wanted = r"mask must be broadcastable to \(2, 11, 3\), got shape \(5, 11, 3\)"
    with pytest.raises(ValueError, match=wanted):
        layer(x, mask=torch.ones(5, 11, 3, dtype=torch.bool))


def test_an_unknown_keyword_is_answered_with_the_nearest() -> None:
    layer, x = Layer(), torch.zeros(2, 11, 7)
    with pytest.raises(TypeError, match=r"has no argument 'id'; did you mean 'ids'\?"):
        layer(x, id=None)
    with pytest.raises(TypeError, match=r"'attn_mask'; did you mean 'mask' \(True ="):
        layer(x, attn_mask=None)
    with pytest.raises(TypeError, match="It takes ids, mask, x"):
        layer(x, zzz=None)


# Called once per token or step, by the package itself: a check would slow them down.
UNCHECKED = {"append", "select", "step"}


def public_callables() -> Iterator[tuple[str, Any]]:
    """Give every public function, class and method of the book, with its name."""
    for info in iter_modules(transformers_hw.__path__, "transformers_hw."):
        if info.name.endswith(("._engine", ".exercises", ".lab")):
            continue
        module = import_module(info.name)
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if name[0] == "_" or info.name not in getattr(value, "__module__", ""):
                continue
            if inspect.isfunction(value):
                yield name, value
            elif inspect.isclass(value) and not (
                is_dataclass(value) or issubclass(value, dict | tuple | Exception)
            ):
                yield name, value
                own = [base for base in value.__mro__ if "_hw" in base.__module__]
                for method in sorted({one for base in own for one in vars(base)}):
                    bound = getattr(value.__new__(value), method, None)
                    if inspect.ismethod(bound) and method[0] != "_":
                        yield f"{name}.{method}", bound


def keywords_of(function: Callable[..., object]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [
        p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        pytest.param(name, function, id=name)
        for name, function in public_callables()
        if keywords_of(function) and name.rpartition(".")[2] not in UNCHECKED
    ],
)
def test_every_wrong_keyword_is_answered_for_what_was_called(
    name: str, function: Callable[..., object]
) -> None:
    for keyword in keywords_of(function):
        answer = f"{name}() has no argument '{keyword}_'; did you mean '{keyword}'"
        with pytest.raises(TypeError, match="^" + re.escape(answer)):
            function(**{f"{keyword}_": None})


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda: SinusoidalPositions(d_model=8), "SinusoidalPositions() … 'dim'"),
        (
            lambda: LearnedPositions(max_len=8, dim=4),
            "LearnedPositions() … 'max_length'",
        ),
        (
            lambda: LearnedPositions2D((2, 3), embed_dim=8),
            "LearnedPositions2D() … 'dim'",
        ),
        (lambda: RelativePositionBias(num_heads=8), "RelativePositionBias() … 'heads'"),
        (lambda: causal_mask(q=3), "causal_mask() … 'queries'"),
        (
            lambda: padding_mask(torch.ones(3), length=5),
            "padding_mask() … 'max_length'",
        ),
        (lambda: attention_rollout(attn=[]), "attention_rollout() … 'weights'"),
        (
            lambda: VisionTransformer.from_preset("ViT-B/16", classes=3),
            "VisionTransformer.from_preset() … 'num_classes'",
        ),
        (lambda: GRU(3, 5)(torch.ones(2, 7, 3), h0=None), "GRU.forward() has no"),
        (
            lambda: MultiHeadAttention(8, 2, kdim=3),
            "MultiHeadAttention() … 'context_dim'",
        ),
    ],
)
def test_names_of_other_libraries_are_answered_with_ours(
    call: Callable[[], object], answer: str
) -> None:
    assert_refused(call, TypeError, answer)


def test_a_clash_with_the_parameters_dtype_is_explained() -> None:
    wanted = "x must have the dtype of the parameters of Layer, torch.float32, got "
    with pytest.raises(TypeError, match=wanted + "torch.float64"):
        Layer()(torch.zeros(2, 11, 7, dtype=torch.float64))


def test_nothing_is_checked_while_compiling() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    layer, x = Layer(), torch.randn(2, 11, 7)
    compiled = torch.compile(layer, backend=count, fullgraph=True)
    assert torch.equal(compiled(x), layer(x))
    assert len(graphs) == 1
