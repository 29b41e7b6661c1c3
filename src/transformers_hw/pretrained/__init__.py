"""Other libraries' weights in these modules, and these modules' weights elsewhere.

A converter takes a state dict, or the path of a safetensors file, and gives a module
in evaluation mode that computes what the other library's would. Nothing is fetched,
nothing is unpickled, and nothing is dropped in silence: a tensor that is unknown,
missing or of the wrong shape is an error that names it.
"""

from transformers_hw.pretrained.back_to_torch import to_torch
from transformers_hw.pretrained.pictures import (
    vision_transformer_from_huggingface,
    vision_transformer_from_timm,
    vision_transformer_from_torchvision,
)
from transformers_hw.pretrained.saving import load_model, save_model
from transformers_hw.pretrained.text import bert_from_huggingface
from transformers_hw.pretrained.torch_modules import (
    attention_from_torch,
    decoder_from_torch,
    decoder_layer_from_torch,
    encoder_from_torch,
    encoder_layer_from_torch,
    transformer_from_torch,
)
from transformers_hw.pretrained.weights import WeightsError, read_weights

__all__ = [
    "WeightsError",
    "attention_from_torch",
    "bert_from_huggingface",
    "decoder_from_torch",
    "decoder_layer_from_torch",
    "encoder_from_torch",
    "encoder_layer_from_torch",
    "load_model",
    "read_weights",
    "save_model",
    "to_torch",
    "transformer_from_torch",
    "vision_transformer_from_huggingface",
    "vision_transformer_from_timm",
    "vision_transformer_from_torchvision",
]
