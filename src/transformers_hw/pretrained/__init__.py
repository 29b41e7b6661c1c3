"""Other libraries' models into the book's and back, and files of models.

A converter takes another library's module and returns a model of the book with the same
outputs, in evaluation mode. It reads the settings from the module, and compares both
models on a small input before it returns. A state dict or a safetensors file is
converted too, if you give the settings that it does not contain.

Nothing is downloaded and nothing is unpickled. A tensor that is unknown, missing or of
the wrong shape is an error that names it. What a converter returns, and what you build
and train yourself, can be saved with its settings and loaded again, also on the Hugging
Face Hub.
"""

from transformers_hw.pretrained.hub import with_hub
from transformers_hw.pretrained.huggingface import from_huggingface
from transformers_hw.pretrained.saving import load_model, save_model
from transformers_hw.pretrained.timm_models import from_timm
from transformers_hw.pretrained.torch_modules import from_torch, to_torch
from transformers_hw.pretrained.vision import from_torchvision
from transformers_hw.pretrained.weights import WeightsError, read_weights

__all__ = [
    "WeightsError",
    "from_huggingface",
    "from_timm",
    "from_torch",
    "from_torchvision",
    "load_model",
    "read_weights",
    "save_model",
    "to_torch",
    "with_hub",
]
