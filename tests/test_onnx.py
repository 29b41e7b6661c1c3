"""Models leave for ONNX whole, and ONNX Runtime gives what PyTorch gives."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from catalogue import CATALOGUE, OTHER_SIZES, SIZES, Entry, tensors
from torch import Tensor, nn

from transformers_hw.pretrained.saving import SETTINGS

MODELS = [
    "Bert",
    "PictureBert gaussian",
    "Seq2Seq additive",
    "Transformer",
    "VisionTransformer",
    "VisionTransformer mean, none",
]
# And every way of attending that these do not take.
EXPORTED = [
    *MODELS,
    "ConvolutionAsAttention",
    "Decoder masked",
    "Encoder masked",
    "GaussianSelfAttention full",
    "GaussianSelfAttention hard",
    "LearnedRelativeSelfAttention with content",
    "MultiHeadAttention causal",
    "MultiHeadAttention cross",
    "RelativeTableAttention",
    "SelfAttention with positions",
]
ENTRIES = {entry.name: entry for entry in CATALOGUE}


class InOrder(nn.Module):
    """An entry's module, called with its inputs one after the other."""

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.module = entry.make(dtype=torch.float32).eval()
        self.call = entry.call
        self.names = list(entry.inputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, inputs, strict=True))
        return tuple(tensors(self.call(self.module, **named)))


def example(entry: Entry, sizes: dict[str, int]) -> tuple[Tensor, ...]:
    """Give inputs, of other sizes but where a graph fixes them."""
    kept = {axis: SIZES[axis] for axis in entry.fixed}
    return tuple(entry.example({**sizes, **kept}, dtype=torch.float32).values())


def free_axes(entry: Entry) -> tuple[dict[int, Any], ...]:
    fixed = {*entry.fixed, *entry.sizes}
    return tuple(
        {
            i: torch.export.Dim.DYNAMIC
            for i, axis in enumerate(x.axes.split())
            if axis in SIZES and axis not in fixed
        }
        for x in entry.inputs.values()
    )


def session(entry: Entry, model: nn.Module, path: Path) -> onnxruntime.InferenceSession:
    inputs, shapes = example(entry, SIZES), (free_axes(entry),)
    with warnings.catch_warnings():
        # PyTorch's exporter uses parts of Python and itself that it calls outdated.
        warnings.simplefilter("ignore")
        # Not strict: what it cannot follow would be fixed, and show below.
        program = torch.export.export(
            model, inputs, dynamic_shapes=shapes, strict=False
        )
        names = list(entry.inputs)
        torch.onnx.export(program, f=path, dynamo=True, input_names=names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    )


@pytest.mark.unhooked
@pytest.mark.parametrize("name", EXPORTED)
def test_exports_to_onnx_with_free_batch_and_length(name: str, tmp_path: Path) -> None:
    entry = ENTRIES[name]
    model = InOrder(entry)
    runtime = session(entry, model, tmp_path / "model.onnx")
    assert [x.name for x in runtime.get_inputs()] == list(entry.inputs)
    for sizes in (SIZES, *OTHER_SIZES):
        inputs = example(entry, sizes)
        with torch.no_grad():
            wanted = model(*inputs)
        given = {x: y.numpy() for x, y in zip(entry.inputs, inputs, strict=True)}
        found = runtime.run(None, given)
        assert len(found) == len(wanted)
        for x, y in zip(found, wanted, strict=True):
            assert x.shape == y.shape
            assert y.std() > 1e-3
            assert np.abs(x - y.numpy()).max() <= 1e-4


@pytest.mark.unhooked
@pytest.mark.parametrize("name", MODELS)
def test_compiles_without_a_graph_break(name: str) -> None:
    torch._dynamo.reset()
    entry = ENTRIES[name]
    seen = torch._dynamo.explain(InOrder(entry))(*example(entry, SIZES))
    assert (seen.graph_count, seen.graph_break_count) == (1, 0)


def test_every_model_of_the_book_is_among_them() -> None:
    kept = {kind.__name__ for kind in SETTINGS}
    assert {type(ENTRIES[name].make()).__name__ for name in MODELS} == kept
