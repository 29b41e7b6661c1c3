"""Convert models of other libraries, and record which of them load equal.

    python tools/conversions.py               writes the record, in a quarter of an hour
    python tools/conversions.py beit3 RMS     runs the cases with such names again

Every model is built with two layers where its library allows that, and timm's for an
image of 4×5 patches. All of its parameters are drawn at random, norms and biases
included. It is converted twice: the module itself, and its state dict with the settings
that belong to it. A conversion

- loads equal if both models agree on another input, in 64 bits, to nine digits, or to
  five where the other library keeps the angles of rotary positions in 32 bits;
- is refused if it raises `WeightsError`;
- crashes if anything else is raised, by the conversion or by the converted model;
- is silent if the models differ and nobody says so.
"""

import argparse
import json
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformers_hw.pretrained import (
    WeightsError,
    from_huggingface,
    from_timm,
    from_torchvision,
)
from transformers_hw.pretrained.conversion import name_of_activation
from transformers_hw.pretrained.timm_models import rotation_of

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/records/conversions.json"
TABLE = RECORD.with_suffix(".md")
OUTCOMES = ("equal", "refused", "crash", "silent")
WAYS = ("module", "state dict")
TIMM = ("vit_*", "deit*", "beit*", "eva*")
RES_POST = ("ResPostBlock", "EvaBlockPostNorm")
# What refusals have in common, by what their messages say.
REASONS = {
    r"norms must be layer norms|may be an RMS norm": "other norms than layer norms",
    r"this one has (.*) \(": r"\1",
    r"layers must be timm's Block.* got (\w+)": r"layers of type \1",
    r"attention must be .* got (\w+)": r"attention of type \1",
    r"rotary positions must be .* got (\w+)": r"rotary positions of type \1",
    r"norm must be 'pre'": "norms behind attention and network",
    r"layer scale in attention only": "layer scale in attention only",
    r"this one has (.*?)\.$": r"\1",
    r"a \w+ has (.*), which this book's do not": r"\1",
    r"is_decoder must be": "a decoder, with a causal mask",
    r"(rope_type) must be .* got (.*)\.": r"\1 \2",
    r"(\w+) must be False, got True": r"\1",
    r"(global_pool) must be .* got ('\w*')": r"\1 \2",
    r"(hidden_act|activation) must be": "another activation",
    r"(pooler_act) must be": "another activation of the pooler",
    r"model_type must be .* got (.*)\.": r"model_type \1",
    r"numbers the positions of real tokens only": "a RoBERTa, without padded_at_end",
    r"whole patches": "patches that do not tile the image or the positions",
    r"got (\w+)\.$": r"a module of type \1",
    r"its weights hold no": "weights of other names",
    r"weights must be those of": "weights of other names or shapes",
    r"differ by": "outputs that differ",
}


@dataclass(frozen=True)
class Case:
    """A model to convert.

    Attributes:
        group: Heading in the table.
        name: Its name.
        build: Builds it.
        convert: Converts the module.
        convert_state: Converts its state dict, with settings read from the module.
        outputs: Runs our model and theirs on a random input.
    """

    group: str
    name: str
    build: Callable[[], nn.Module]
    convert: Callable[[nn.Module], nn.Module]
    convert_state: Callable[[nn.Module], nn.Module]
    outputs: Callable[[Any, Any], Iterator[tuple[Tensor, Tensor]]]


# --- models ---------------------------------------------------------------------------


class NotInitialized(TorchFunctionMode):
    """Skip drawing weights that are drawn again anyway."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Fill a tensor with zeros instead of random numbers."""
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0].zero_()
        return func(*args, **(kwargs or {}))


def drawn(module: nn.Module) -> nn.Module:
    """Draw all parameters, so that no norm, bias or gate is neutral."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in module.parameters():
            numbers = torch.randn(x.shape, generator=generator)
            fan_in = x[0].numel() if x.dim() > 1 else 4
            x.copy_(numbers / max(fan_in, 1) ** 0.5 + (0.5 if x.dim() < 2 else 0.0))
    return module.eval()


def images(size: Any, channels: int = 3) -> Tensor:
    """Draw an image."""
    height, width = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(2)
    shape = (1, channels, height, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def classifiers(ours: Any, theirs: Any, size: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Run two classifiers."""
    x = images(size)
    yield ours(x), theirs(x)


def timm_cases() -> Iterator[Case]:
    """List the Vision Transformers of timm."""
    import timm

    names = sorted({name for pattern in TIMM for name in timm.list_models(pattern)})
    variants = [("", name, {}) for name in names]
    small = "vit_tiny_patch16_224"
    for told, options in {
        "image 256×64": {"img_size": (256, 64)},
        "dynamic_img_size": {"dynamic_img_size": True},
        "no_embed_class": {"no_embed_class": True},
        "eps 0.01": {"norm_layer": partial(nn.LayerNorm, eps=1e-2)},
        "ReLU6": {"act_layer": nn.ReLU6},
        "ReLU": {"act_layer": nn.ReLU},
        "mean": {"global_pool": "avg"},
        "mean with the class token": {
            "global_pool": "avg",
            "pool_include_prefix": True,
        },
        "mean, no class token": {"global_pool": "avg", "class_token": False},
        "maximum": {"global_pool": "max"},
        "fc_norm of the class token": {"fc_norm": True},
        "no biases": {"qkv_bias": False, "proj_bias": False},
        "RMS norm": {"norm_layer": nn.RMSNorm},
        "patch 14 on 224 and 3": {"patch_size": 14, "img_size": 227},
    }.items():
        variants.append((told, small, options))
    for told, name, options in variants:
        yield Case(
            group="timm",
            name=f"{name}, {told}" if told else name,
            build=partial(timm_model, name, options),
            convert=from_timm,
            convert_state=lambda x: from_timm(x.state_dict(), **timm_settings(x)),
            outputs=lambda a, b: classifiers(a, b, timm_settings(b)["image_size"]),
        )


def timm_model(name: str, options: dict[str, Any]) -> nn.Module:
    """Build one of timm's models with two layers, for a small image."""
    import timm

    if "sapiens2" in name:
        # It lists a number for each of its layers.
        options = {"num_kv_heads": 1, **options}
    model: Any = timm.create_model(name, depth=2, **options)
    embedding: Any = getattr(model, "patch_embed", None)
    if type(embedding).__name__ == "PatchEmbed" and "img_size" not in options:
        # Images that patches do not tile stay such images.
        sizes = zip((4, 5), embedding.patch_size, embedding.img_size, strict=True)
        model.set_input_size(tuple(n * p + size % p for n, p, size in sizes))
    return model


def timm_settings(module: Any) -> dict[str, Any]:
    """Tell of a state dict what its owner would know, and nothing but the truth."""
    layer = next(iter(getattr(module, "blocks", [])), nn.Identity())
    network = getattr(layer, "mlp", nn.Identity())
    activation = getattr(network, "act", nn.GELU())
    try:
        activation = name_of_activation(activation)
    except WeightsError:
        activation = type(activation).__name__
    if type(network).__name__ in ("GluMlp", "SwiGLU"):
        activation = "swiglu"
    embedding = getattr(module, "patch_embed", module)
    size = getattr(embedding, "img_size", None) or module.default_cfg["input_size"][1:]
    pool = getattr(module, "global_pool", "token")
    pool = {"token": "class", "avg": "mean", "map": "attention"}.get(pool, pool)
    told: dict[str, Any] = {}
    if pool == "attention":
        told["pool_heads"] = module.attn_pool.num_heads
    if pool != "class":
        eva = pool == "attention" and type(module).__name__ == "Eva"
        told["pool_prefix"] = getattr(module, "pool_include_prefix", eva)
    try:
        told["rotary"] = rotation_of(module)
    except WeightsError:
        told["rotary"] = {}
    return {
        **told,
        "heads": getattr(getattr(layer, "attn", layer), "num_heads", 3),
        "eps": getattr(getattr(layer, "norm1", None), "eps", None) or 1e-6,
        "activation": activation,
        "norm": "res-post" if type(layer).__name__ in RES_POST else "pre",
        "pool": pool,
        "image_size": size,
    }


def torchvision_cases() -> Iterator[Case]:
    """List the Vision Transformers of torchvision, and variants of one."""
    from torchvision.models import VisionTransformer

    sizes = {"num_layers": 2, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768}
    base = {"image_size": 224, "patch_size": 16, **sizes}
    published = {
        "vit_b_16": {"num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
        "vit_b_32": {"num_heads": 12, "hidden_dim": 768, "patch_size": 32},
        "vit_l_16": {"num_heads": 16, "hidden_dim": 1024, "mlp_dim": 4096},
        "vit_l_32": {"num_heads": 16, "hidden_dim": 1024, "patch_size": 32},
        "vit_h_14": {"num_heads": 16, "hidden_dim": 1280, "patch_size": 14},
        "image 384": {"image_size": 384},
        "image 512": {"image_size": 512},
        "eps 0.01": {"norm_layer": partial(nn.LayerNorm, eps=1e-2)},
        "RMS norm": {"norm_layer": nn.RMSNorm},
        "representation_size": {"representation_size": 100},
    }

    def told(module: Any) -> dict[str, Any]:
        layer = module.encoder.layers[0]
        eps = layer.ln_1.eps or 1e-6
        return {"heads": layer.self_attention.num_heads, "eps": eps}

    for name, options in published.items():
        yield Case(
            group="torchvision",
            name=name,
            build=partial(VisionTransformer, **{**base, **options}),
            convert=from_torchvision,
            convert_state=lambda x: from_torchvision(x.state_dict(), **told(x)),
            outputs=lambda a, b: classifiers(a, b, b.image_size),
        )


SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 80,
}
VISION = {"image_size": 32, "patch_size": 8}
TEXT = {"vocab_size": 99, "max_position_embeddings": 40}
GROUPED = {**TEXT, "num_key_value_heads": 2}
# A DINOv2 has a ratio instead of this, which its configuration must not contradict.
FOURFOLD = {"intermediate_size": 4 * SIZES["hidden_size"]}
ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_10")
ACTIVATIONS += ("gelu_pytorch_tanh", "gelu_accurate", "quick_gelu", "silu", "tanh")
VITS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViTModel": ("ViTModel", {}),
    "ViTModel, image 32×8": ("ViTModel", {"image_size": (32, 8)}),
    "ViTModel, image 64×16": ("ViTModel", {"image_size": (64, 16)}),
    "ViTModel, patch 8×4": ("ViTModel", {"patch_size": (8, 4)}),
    "ViTModel, patch 8 on 36": ("ViTModel", {"image_size": 36}),
    "ViTModel, eps 0.01": ("ViTModel", {"layer_norm_eps": 1e-2}),
    "ViTModel, no qkv bias": ("ViTModel", {"qkv_bias": False}),
    "ViTModel, pooler_act relu": ("ViTModel", {"pooler_act": "relu"}),
    "ViTModel, pooler_act gelu": ("ViTModel", {"pooler_act": "gelu"}),
    "ViTModel, pooler of 20": ("ViTModel", {"pooler_output_size": 20}),
    "ViTForImageClassification": ("ViTForImageClassification", {}),
    "ViTForMaskedImageModeling": ("ViTForMaskedImageModeling", {"encoder_stride": 8}),
    **{f"ViTModel, {act}": ("ViTModel", {"hidden_act": act}) for act in ACTIVATIONS},
    **{
        name: (name, {})
        for name in (
            "ViTMAEModel",
            "ViTMSNModel",
            "ViTMSNForImageClassification",
            "DeiTModel",
            "DeiTForImageClassification",
            "DeiTForImageClassificationWithTeacher",
            "BeitModel",
            "Data2VecVisionModel",
            "DINOv3ViTModel",
            "IJepaModel",
            "CLIPVisionModel",
            "SiglipVisionModel",
        )
    },
    "YolosModel": ("YolosModel", {"image_size": (32, 32)}),
    "Dinov2Model": ("Dinov2Model", FOURFOLD),
    "Dinov2ForImageClassification": ("Dinov2ForImageClassification", FOURFOLD),
    "Dinov2WithRegistersModel": ("Dinov2WithRegistersModel", FOURFOLD),
}
BERTS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertModel": ("BertModel", {}),
    "BertModel, eps 0.01": ("BertModel", {"layer_norm_eps": 1e-2}),
    "BertModel, three segments": ("BertModel", {"type_vocab_size": 3}),
    "BertModel, pad_token_id 7": ("BertModel", {"pad_token_id": 7}),
    "BertModel, is_decoder": ("BertModel", {"is_decoder": True}),
    "BertModel, cross-attention": (
        "BertModel",
        {"is_decoder": True, "add_cross_attention": True},
    ),
    **{f"BertModel, {act}": ("BertModel", {"hidden_act": act}) for act in ACTIVATIONS},
    "RobertaModel": ("RobertaModel", {}),
    "XLMRobertaModel": ("XLMRobertaModel", {}),
    "CamembertModel": ("CamembertModel", {}),
    "RobertaModel, pad_token_id 5": ("RobertaModel", {"pad_token_id": 5}),
    "RobertaModel, is_decoder": ("RobertaModel", {"is_decoder": True}),
    **{
        name: (name, {})
        for name in (
            "BertForMaskedLM",
            "BertForPreTraining",
            "BertForSequenceClassification",
            "BertLMHeadModel",
            "RobertaForMaskedLM",
            "AlbertModel",
            "BertGenerationEncoder",
            "BigBirdModel",
            "ConvBertModel",
            "Data2VecTextModel",
            "DebertaModel",
            "DistilBertModel",
            "ElectraModel",
            "ErnieModel",
            "EsmModel",
            "LayoutLMModel",
            "MegatronBertModel",
            "MPNetModel",
            "NystromformerModel",
            "RemBertModel",
            "RobertaPreLayerNormModel",
            "RoFormerModel",
            "SplinterModel",
            "XLMRobertaXLModel",
        )
    },
}
ROTARY = {"rope_theta": 500.0, "factor": 3.0, "rope_type": "linear"}
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2Model": ("GPT2Model", {}),
    "GPT2LMHeadModel": ("GPT2LMHeadModel", {}),
    "GPT2LMHeadModel, untied": ("GPT2LMHeadModel", {"tie_word_embeddings": False}),
    "GPT2LMHeadModel, relu": ("GPT2LMHeadModel", {"activation_function": "relu"}),
    "GPT2LMHeadModel, eps 0.01": ("GPT2LMHeadModel", {"layer_norm_epsilon": 1e-2}),
    "GPT2LMHeadModel, scaled by layer": (
        "GPT2LMHeadModel",
        {"scale_attn_by_inverse_layer_idx": True},
    ),
    "LlamaModel": ("LlamaModel", {}),
    "LlamaForCausalLM": ("LlamaForCausalLM", {}),
    "LlamaForCausalLM, own heads": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "LlamaForCausalLM, biases": (
        "LlamaForCausalLM",
        {"attention_bias": True, "mlp_bias": True},
    ),
    "LlamaForCausalLM, tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "LlamaForCausalLM, linear": ("LlamaForCausalLM", {"rope_parameters": ROTARY}),
    "LlamaForCausalLM, dynamic": (
        "LlamaForCausalLM",
        {"rope_parameters": {**ROTARY, "rope_type": "dynamic"}},
    ),
    "MistralForCausalLM": ("MistralForCausalLM", {"sliding_window": None}),
    "MistralForCausalLM, window": ("MistralForCausalLM", {"sliding_window": 4}),
    **{
        name: (name, {})
        for name in (
            "Qwen2ForCausalLM",
            "Qwen3ForCausalLM",
            "BloomForCausalLM",
            "CohereForCausalLM",
            "GemmaForCausalLM",
            "Gemma2ForCausalLM",
            "GPT2ForSequenceClassification",
            "GPTNeoXForCausalLM",
            "GraniteForCausalLM",
            "LlamaForSequenceClassification",
            "MixtralForCausalLM",
            "Olmo2ForCausalLM",
            "OPTForCausalLM",
            "PhiForCausalLM",
            "Qwen3MoeForCausalLM",
            "StableLmForCausalLM",
            "Starcoder2ForCausalLM",
        )
    },
}
ROBERTAS = ("RobertaModel", "XLMRobertaModel", "CamembertModel")
# Models with heads that are converted without them as well.
WITH_HEADS = (
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "Dinov2ForImageClassification",
    "GPT2ForSequenceClassification",
    "LlamaForSequenceClassification",
    "ViTForMaskedImageModeling",
)


def huggingface_cases() -> Iterator[Case]:
    """List encoders and decoders of Hugging Face, in configurations."""
    for models, sizes, group, outputs in (
        (VITS, VISION, "Hugging Face, images", hidden_states_of_images),
        (BERTS, TEXT, "Hugging Face, texts", hidden_states_of_texts),
        (DECODERS, GROUPED, "Hugging Face, language models", next_tokens),
    ):
        for name, (kind, options) in models.items():
            variants: dict[str, Callable[[Any], Any]] = {"": lambda x: x}
            if kind in ROBERTAS:
                variants["padded_at_end"] = lambda x: x
            if kind in WITH_HEADS:
                variants["base_only"] = lambda x: x.base_model
            for told, base in variants.items():
                settings = {told: True} if told else {}
                yield Case(
                    group=group,
                    name=f"{name}, {told}" if told else name,
                    build=partial(huggingface_model, kind, {**sizes, **options}),
                    convert=partial(from_huggingface, **settings),
                    convert_state=partial(from_its_state, **settings),
                    outputs=lambda a, b, run=outputs, base=base: run(a, base(b)),
                )


def huggingface_model(kind: str, settings: dict[str, Any]) -> nn.Module:
    """Build one of Hugging Face's models, in 64 bits: sums of weights are rounded."""
    import transformers

    model = getattr(transformers, kind)
    settings = {**SIZES, "embedding_size": SIZES["hidden_size"], **settings}
    return model(model.config_class(**settings)).double()


def from_its_state(module: Any, **options: Any) -> Any:
    """Convert a state dict beside its configuration, as in a file."""
    config = json.loads(module.config.to_json_string())
    return from_huggingface(module.state_dict(), config=config, **options)


def hidden_states_of_images(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Run two models of images, and the pooler, if there is one."""
    x = images(theirs.config.image_size)
    wanted = theirs(x)
    if hasattr(wanted, "logits"):
        yield ours(x), wanted.logits
        return
    yield ours.encode(x), wanted.last_hidden_state
    if getattr(wanted, "pooler_output", None) is not None:
        yield ours(x), wanted.pooler_output
    # DINOv2 resamples positions in 32 bits, and with registers by another kernel.
    if ours.grid[0] == ours.grid[1] and "dinov2" not in theirs.config.model_type:
        x = images((40, 48))
        wanted = theirs(x, interpolate_pos_encoding=True).last_hidden_state
        yield ours.encode(x), wanted


def hidden_states_of_texts(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Run two models of texts, two of them padded at the end."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(10, 99, (3, 11), generator=generator)
    segments = torch.randint(2, (3, 11), generator=generator)
    if theirs.config.type_vocab_size < 2:
        segments.zero_()
    real = torch.arange(11) < torch.tensor([[11], [8], [3]])
    tokens = tokens.masked_fill(~real, theirs.config.pad_token_id)
    options = {"attention_mask": real.long(), "token_type_ids": segments}
    wanted = theirs(tokens, **options)
    found = ours(tokens, padding_mask=real, segments=segments)
    yield found[real], wanted.last_hidden_state[real]
    if wanted.pooler_output is not None:
        yield ours.pool(found), wanted.pooler_output


def next_tokens(ours: Any, theirs: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Run two language models on three texts, two of them padded at the end."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(99, (3, 11), generator=generator)
    real = torch.arange(11) < torch.tensor([[11], [8], [3]])
    wanted = theirs(tokens, attention_mask=real.long())
    run = ours if hasattr(wanted, "logits") else ours.encode
    found = run(tokens, padding_mask=real)
    yield found[real], getattr(wanted, "logits", wanted[0])[real]


# --- running them ---------------------------------------------------------------------


def outcome(
    case: Case, convert: Callable[[nn.Module], nn.Module], theirs: nn.Module
) -> tuple[dict[str, Any], Any]:
    """Convert a model; return what came of it, and our model if there is one."""
    try:
        ours = convert(theirs)
    except WeightsError as error:
        return {"outcome": "refused", "reason": reason(str(error))}, None
    except Exception as error:
        return crash(error), None
    return {}, ours


def comparison(case: Case, ours: nn.Module, theirs: nn.Module) -> dict[str, Any]:
    """Compare a converted model with the original, in 64 bits."""
    try:
        with torch.no_grad():
            pairs = list(case.outputs(ours.double(), theirs.double()))
    except Exception as error:
        return crash(error)
    finally:
        ours.float()
        theirs.float()
    differences = [
        float((found - wanted).abs().max() / wanted.abs().max())
        if found.shape == wanted.shape
        else float("inf")
        for found, wanted in pairs
    ]
    # Other libraries keep the angles of rotary positions in 32 bits.
    rotary = getattr(ours.config, "rotary", None) is not None
    rotary = rotary or getattr(ours.config, "positions", None) == "rotary"
    digits = 1e-5 if rotary else 1e-9
    equal = bool(differences) and all(x <= digits for x in differences)
    return {
        "outcome": "equal" if equal else "silent",
        "difference": float(f"{max(differences, default=1.0):.2g}"),
    }


def crash(error: Exception) -> dict[str, Any]:
    """Describe an error that should not have been raised."""
    return {"outcome": "crash", "reason": f"{type(error).__name__}: {error}"[:200]}


def same(first: Any, second: Any) -> bool:
    """Tell whether two converted models are one and the same."""
    if first is None or second is None or first.config != second.config:
        return False
    other = second.state_dict()
    return all(torch.equal(x, other[name]) for name, x in first.state_dict().items())


def reason(message: str) -> str:
    """Say in few words why a model was refused."""
    for pattern, words in REASONS.items():
        found = re.search(pattern, message)
        if found:
            return found.expand(words)
    return message[:120]


def run(cases: list[Case]) -> list[dict[str, Any]]:
    """Run the cases, and print each."""
    rows = []
    for case in cases:
        row: dict[str, Any] = {"group": case.group, "name": case.name}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row.update(run_case(case))
        print(json.dumps(row, ensure_ascii=False), flush=True)
        rows.append(row)
    return rows


def run_case(case: Case) -> dict[str, Any]:
    """Build a model, and convert it in both ways."""
    try:
        with NotInitialized():
            theirs = case.build()
        theirs = drawn(theirs)
    except Exception as error:
        return {"not built": f"{type(error).__name__}: {error}"[:200]}
    row: dict[str, Any] = {}
    first = None
    for way, convert in zip(WAYS, (case.convert, case.convert_state), strict=True):
        row[way], ours = outcome(case, convert, theirs)
        if same(first, ours):
            row[way] = row[WAYS[0]]
        elif ours is not None:
            row[way], first = comparison(case, ours, theirs), ours
    return row


def table(record: dict[str, Any]) -> str:
    """Return the tables that the site shows."""
    words = {"equal": "loads equal", "refused": "refused"}
    heads = [words.get(name, name) for name in OUTCOMES]
    lines = [f"| Models | given as | cases | {' | '.join(heads)} |"]
    lines += ["|---|---|--:|" + "--:|" * len(OUTCOMES)]
    rows = [row for row in record["rows"] if "not built" not in row]
    groups = list(dict.fromkeys(row["group"] for row in rows))
    for group in groups:
        for way in WAYS:
            found = [row[way]["outcome"] for row in rows if row["group"] == group]
            counts = Counter(found)
            numbers = " | ".join(str(counts[name]) for name in OUTCOMES)
            lines += [f"| {group} | {way} | {len(found)} | {numbers} |"]
    lines += ["", "| Refused for | modules |", "|---|--:|"]
    reasons = Counter(
        re.sub("model_type .*", "another model_type", row["module"]["reason"])
        for row in rows
        if row["module"]["outcome"] == "refused"
    )
    lines += [f"| {why} | {count} |" for why, count in reasons.most_common()]
    found = ", ".join(f"{name} {x}" for name, x in record["versions"].items())
    lines += ["", f"Versions: {found}."]
    return "\n".join(lines) + "\n"


def versions() -> dict[str, str]:
    """Return the versions of the libraries."""
    libraries = ("torch", "torchvision", "timm", "transformers")
    return {name: version(name) for name in libraries}


def all_cases() -> list[Case]:
    """List all cases."""
    return [*timm_cases(), *torchvision_cases(), *huggingface_cases()]


def main() -> None:
    """Run all cases, or some, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names of cases")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    cases, start = all_cases(), time.process_time()
    chosen = [case for case in cases if any(name in case.name for name in names)]
    rows = run(chosen if names else cases)
    record: dict[str, Any] = {
        "command": "python tools/conversions.py",
        "versions": versions(),
        "CPU seconds": round(time.process_time() - start),
        "rows": rows,
    }
    if names:
        record = json.loads(RECORD.read_text("utf-8"))
        known = {(x["group"], x["name"]): x for x in [*record["rows"], *rows]}
        names = [(case.group, case.name) for case in cases]
        rows = record["rows"] = [known[name] for name in names if name in known]
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    TABLE.write_text(table(record), "utf-8")
    ways = [row[way]["outcome"] for row in rows for way in row if way in WAYS]
    if {"crash", "silent"} & set(ways):
        sys.exit("Some conversions crash or differ: see above.")


if __name__ == "__main__":
    main()
