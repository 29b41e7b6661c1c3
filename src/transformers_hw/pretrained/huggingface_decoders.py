"""GPT-2 and Llama-style decoders of Hugging Face."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transformers_hw.positional_encoding import RotaryScaling
from transformers_hw.pretrained.conversion import Conversion, with_parameters
from transformers_hw.pretrained.huggingface_vision import (
    Config,
    base_of,
    check_head,
    check_sizes,
    one_of,
)
from transformers_hw.pretrained.verification import Draw
from transformers_hw.pretrained.vision import names_of_layers
from transformers_hw.pretrained.weights import printable
from transformers_hw.transformer import LanguageModel
from transformers_hw.transformer.config import BIASED

GPT2_PARTS = {
    "attention.query_proj": "attn.c_attn.",
    "attention.key_proj": "attn.c_attn.",
    "attention.value_proj": "attn.c_attn.",
    "attention.output_proj": "attn.c_proj.",
    "attention_norm": "ln_1.",
    "feed_forward.hidden_proj": "mlp.c_fc.",
    "feed_forward.output_proj": "mlp.c_proj.",
    "feed_forward_norm": "ln_2.",
}
LLAMA_PARTS = {
    "attention.query_proj": "self_attn.q_proj.",
    "attention.key_proj": "self_attn.k_proj.",
    "attention.value_proj": "self_attn.v_proj.",
    "attention.output_proj": "self_attn.o_proj.",
    "attention.query_norm": "self_attn.q_norm.",
    "attention.key_norm": "self_attn.k_norm.",
    "attention_norm": "input_layernorm.",
    "feed_forward.gate_proj": "mlp.gate_proj.",
    "feed_forward.hidden_proj": "mlp.up_proj.",
    "feed_forward.output_proj": "mlp.down_proj.",
    "feed_forward_norm": "post_attention_layernorm.",
}
LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
# What a configuration must tell, by `model_type`.
DECODERS = {
    "gpt2": ("n_head", "activation_function", "layer_norm_epsilon"),
    **dict.fromkeys(LLAMAS, ("num_attention_heads", "hidden_act", "rms_norm_eps")),
}
# Older files have these, which follow from the settings: masks and frequencies.
DERIVED = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$")
# GPT-2 keeps the transposes of these matrices.
TRANSPOSED = re.compile(r"\.c_(attn|proj|fc)\.weight$")
HEAD = "lm_head.weight"
# Length of the texts of a comparison; windows beyond it have no effect on them.
MOST_TOKENS = 64
# What is known of the settings of rotary positions.
ROTARY = (
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
)


def convert_decoder(
    conversion: Conversion, config: Config, activations: Mapping[str, Any]
) -> LanguageModel:
    """Convert a decoder-only language model.

    Args:
        conversion: The weights.
        config: The model's configuration.
        activations: Our names of activations, by theirs.
    """
    llama = config["model_type"] in LLAMAS
    one_of(conversion, config, "is_causal", (True, None))
    check_head(conversion, own="lm_head.")
    base = base_of(conversion, "model." if llama else "transformer.", "")
    table = f"{base}embed_tokens.weight" if llama else f"{base}wte.weight"
    layers = f"{base}layers." if llama else f"{base}h."
    parts = LLAMA_PARTS if llama else GPT2_PARTS
    depth = conversion.depth(layers)
    if llama:
        settings = _llama(conversion, config, f"{layers}0.")
        settings["window"] = _window(conversion, config, depth)
    else:
        settings = _gpt2(conversion, config, activations)
    tied = _is_tied(conversion, config, table, below_head=bool(base))
    conversion.change(partial(_prepared, tied))
    vocab_size, dim = conversion.shape(table, 2)
    network = f"{layers}0.{parts['feed_forward.hidden_proj']}weight"
    sizes = {"dim": dim, "hidden_dim": conversion.shape(network, 2)[0], "tied": tied}
    names = {
        "embedding.weight": table,
        "output_proj.weight": HEAD,
        **names_of_layers(depth, layers, parts),
    }
    if llama:
        sizes["head_dim"] = _head_dim(config, dim)
        names["encoder.final_norm.weight"] = f"{base}norm.weight"
        check_sizes(
            conversion,
            config,
            vocab_size=vocab_size,
            hidden_size=dim,
            num_hidden_layers=depth,
            intermediate_size=sizes["hidden_dim"],
        )
    else:
        positions = f"{base}wpe.weight"
        sizes["max_length"] = conversion.shape(positions, 2)[0]
        names |= {"positions.weight": positions}
        names |= with_parameters({"encoder.final_norm": f"{base}ln_f."})
        check_sizes(
            conversion,
            config,
            vocab_size=vocab_size,
            n_embd=dim,
            n_layer=depth,
            n_positions=sizes["max_length"],
        )

    def build(depth: int) -> LanguageModel:
        options = {**settings, **sizes, **conversion.factory}
        return LanguageModel(vocab_size, depth=depth, **options)

    buffers = _frequencies(conversion, build) if llama else {}
    # Norms and angles of these are in 32 bits, whatever the model is in.
    return conversion.convert(
        build, depth, names, _texts, single=llama, buffers=buffers
    )


def _gpt2(
    conversion: Conversion, config: Config, activations: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the settings of a GPT-2."""
    one_of(conversion, config, "scale_attn_weights", (True, None))
    for name in (
        "scale_attn_by_inverse_layer_idx",
        "reorder_and_upcast_attn",
        "add_cross_attention",
    ):
        one_of(conversion, config, name, (False, None))
    name = one_of(conversion, config, "activation_function", tuple(activations))
    return {
        "heads": config["n_head"],
        "eps": config["layer_norm_epsilon"],
        "activation": activations[name],
    }


def _llama(conversion: Conversion, config: Config, layer: str) -> dict[str, Any]:
    """Read the settings of a Llama, and from its first layer what has biases."""
    one_of(conversion, config, "hidden_act", ("silu", "swish"))
    ours = {name: f"attention.{name}_proj" for name in BIASED[:4]}
    ours["feed_forward"] = "feed_forward.hidden_proj"
    normalized = f"{layer}{LLAMA_PARTS['attention.query_norm']}weight"
    settings = {
        "heads": config["num_attention_heads"],
        "kv_heads": config.get("num_key_value_heads"),
        "eps": config["rms_norm_eps"],
        "normalization": "rms",
        "activation": "swiglu",
        "bias": tuple(
            name
            for name, part in ours.items()
            if f"{layer}{LLAMA_PARTS[part]}bias" in conversion.tensors
        ),
        "qk_norm": "rms" if normalized in conversion.tensors else None,
        **_rotary(conversion, config),
    }
    if config.get("max_position_embeddings") is not None:
        settings["max_length"] = config["max_position_embeddings"]
    return settings


def _rotary(conversion: Conversion, config: Config) -> dict[str, Any]:
    """Read the rotary positions.

    What version 4 of transformers wrote, `rope_scaling`, takes the place of all of
    `rope_parameters` in version 5.
    """
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    told = config.get(name) or {}
    if not isinstance(told, Mapping):
        raise conversion.other(
            f"{name} must be a mapping, got {printable(repr(told), 80)}"
        )
    told = {**told, "rope_type": told.get("rope_type") or told.get("type")}
    kind = one_of(conversion, told, "rope_type", ("default", "linear", "llama3", None))
    for settings in (config, told):
        one_of(conversion, settings, "partial_rotary_factor", (1.0, None))
    if any(key not in ROTARY or isinstance(x, Mapping) for key, x in told.items()):
        raise conversion.other(
            f"{name} must tell nothing but {', '.join(ROTARY)}, the same for all "
            f"layers, got {printable(told, 80)}"
        )
    scaling = None
    if kind in ("linear", "llama3"):
        names = {"factor": "factor"}
        if kind == "llama3":
            names["original_length"] = "original_max_position_embeddings"
            names |= {"low": "low_freq_factor", "high": "high_freq_factor"}
        missing = [name for name in names.values() if told.get(name) is None]
        if missing:
            raise conversion.other(
                f"rope_type {kind!r} needs {' and '.join(missing)}, got "
                f"{printable(told, 80)}"
            )
        values = {ours: told[theirs] for ours, theirs in names.items()}
        scaling = conversion.attempt(RotaryScaling, **values)
    base = told.get("rope_theta", config.get("rope_theta"))
    return {
        "positions": "rotary",
        "rotary_base": conversion.attempt(float, 10_000.0 if base is None else base),
        "rotary_scaling": scaling,
    }


def _window(conversion: Conversion, config: Config, depth: int) -> int | None:
    """Read how far a token sees, which must be equally far in all layers."""
    kind = config["model_type"]
    if kind == "llama":
        return None
    window = config.get("sliding_window", 4096)  # what a file leaves out
    if kind == "mistral":
        return window
    kinds = config.get("layer_types")
    if window is None or not config.get("use_sliding_window"):
        if kinds is not None and "sliding_attention" in conversion.attempt(list, kinds):
            raise conversion.other(
                "layer_types must not name 'sliding_attention' unless "
                "use_sliding_window is true and sliding_window is given"
            )
        return None
    if kinds is None:
        far = conversion.attempt(int, config.get("max_window_layers", 28))
        far = max(0, min(far, depth))
        kinds = ["full_attention"] * far + ["sliding_attention"] * (depth - far)
    different = sorted(conversion.attempt(set, kinds), key=repr)
    if len(different) > 1:
        raise conversion.other(
            f"layer_types must be one kind, got {printable(different, 80)}: the layers "
            "of this book's model share a window"
        )
    return window if different == ["sliding_attention"] else None


def _head_dim(config: Config, dim: int) -> int | None:
    """Return the width of a head, unless it follows from the model's."""
    width, heads = config.get("head_dim"), config["num_attention_heads"]
    if width is None and config["model_type"] == "qwen3":
        return 128
    same = isinstance(width, int) and isinstance(heads, int) and width * heads == dim
    return None if same else width


def _is_tied(
    conversion: Conversion, config: Config, table: str, *, below_head: bool
) -> bool:
    """Tell whether the weights of the output projection are the embedding's."""
    tensors = conversion.tensors
    # Versions that leave out defaults leave out GPT-2's, which is true.
    told = config.get("tie_word_embeddings", config["model_type"] == "gpt2")
    if HEAD not in tensors:
        if below_head and not told:
            raise conversion.other(
                f"its weights hold no {HEAD!r}, and tie_word_embeddings is {told!r}"
            )
        return True
    head, embedding = tensors[HEAD], tensors.get(table)
    if conversion.module is not None and embedding is not None:
        return head.data_ptr() == embedding.data_ptr()
    if not told or embedding is None:
        return False
    if head.shape != embedding.shape or not head.equal(embedding):
        raise conversion.other(
            f"tie_word_embeddings must be False where {HEAD!r} and {table!r} differ, "
            f"got {told!r}"
        )
    return True


def _prepared(tied: bool, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out what follows from the rest, and transpose GPT-2's matrices."""
    return {
        name: x.T if TRANSPOSED.search(name) and x.dim() == 2 else x
        for name, x in tensors.items()
        if not DERIVED.search(name) and not (tied and name == HEAD)
    }


def _texts(
    ours: LanguageModel, theirs: Callable[..., Any], draw: Draw
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Compare logits, or without a head hidden states, of two texts."""
    length = min(MOST_TOKENS, ours.config.max_length)
    real = draw.padding_mask(2, length)
    tokens = draw.integers(ours.config.vocab_size, 2, length)
    # Without a mask, a module decides elsewhere whether it is causal.
    for mask in (None, real):
        told = {"attention_mask": None if mask is None else mask.long()}
        wanted = theirs(tokens, use_cache=False, **told)
        shown = slice(None) if mask is None else mask
        if hasattr(wanted, "logits"):
            found = ours(tokens, padding_mask=mask)
            yield "logits", found[shown], wanted.logits[shown]
        else:
            found = ours.encode(tokens, padding_mask=mask)
            yield "hidden states", found[shown], wanted.last_hidden_state[shown]


def _frequencies(
    conversion: Conversion, build: Callable[[int], LanguageModel]
) -> dict[str, Tensor]:
    """Return the frequencies of rotary positions that a module has in half precision.

    `module.to(torch.bfloat16)` rounds these buffers too; a module that is loaded in
    half precision has them in 32 bits.

    Raises:
        WeightsError: If they are others than those of the settings.
    """
    found: dict[str, Tensor] = {}
    if conversion.module is None:
        return found
    rotary: Any = conversion.attempt(build, 1).rotary
    for name, x in conversion.module.named_buffers():
        if not name.endswith("inv_freq") or not x.is_floating_point():
            continue
        exact, limits = rotary.frequencies(device=x.device), torch.finfo(x.dtype)
        # The second is the least number that is not zero.
        most = (max(1e-5, limits.eps), limits.smallest_normal * limits.eps)
        if x.shape != exact.shape or not torch.allclose(x.to(exact), exact, *most):
            raise conversion.other(
                f"{name} must be the frequencies that its settings tell, got others"
            )
        if limits.bits < 32:
            found[name] = exact.float()
    return found
