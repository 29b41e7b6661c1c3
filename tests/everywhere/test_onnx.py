"""Models leave for ONNX whole, and ONNX Runtime gives what PyTorch gives."""

import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from catalog import CATALOG, Entry, tensors
from torch import Tensor, nn

from transformers_hw.pretrained.saving import MODELS as SAVED

# Models, and every way of attending that they do not take.
EXPORTED = [
    "Bert",
    "ImageBert gaussian",
    "LanguageModel",
    "LanguageModel rotary",
    "Seq2Seq additive",
    "Transformer",
    "VisionTransformer",
    "VisionTransformer of today",
    "PaddedAttention",
    "Decoder masked",
    "Encoder masked",
    "GaussianSelfAttention full",
    "GaussianSelfAttention hard",
    "LearnedRelativeSelfAttention with content",
    "MultiHeadAttention cross",
    "MultiHeadAttention grouped, normalized",
    "MultiHeadAttention window",
    "RelativeTableAttention",
    "SelfAttention with positions",
]
ENTRIES = {entry.name: entry for entry in CATALOG}


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


def session(entry: Entry, model: nn.Module, path: Path) -> onnxruntime.InferenceSession:
    inputs = tuple(entry.example(dtype=torch.float32).values())
    shapes = (tuple(entry.free_axes().values()),)
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
    for inputs in entry.resized(torch.float32):
        with torch.no_grad():
            wanted = model(*inputs.values())
        given = {name: x.numpy() for name, x in inputs.items()}
        found = runtime.run(None, given)
        assert len(found) == len(wanted)
        for x, y in zip(found, wanted, strict=True):
            assert x.shape == y.shape
            assert y.std() > 1e-3
            assert np.abs(x - y.numpy()).max() <= 1e-4


def test_every_model_of_the_book_is_among_them() -> None:
    exported = {type(ENTRIES[name].make()).__name__ for name in EXPORTED}
    assert SAVED.keys() - {"EncoderLayer", "DecoderLayer"} <= exported
