"""Models of Hugging Face: their families, configurations, and BERTs."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from transformers_hw._engine.shapes import checked
from transformers_hw.pretrained.conversion import (
    Conversion,
    names_file,
    with_parameters,
)
from transformers_hw.pretrained.huggingface_decoders import (
    DECODERS,
    LLAMAS,
    convert_decoder,
)
from transformers_hw.pretrained.huggingface_vision import (
    VITS,
    Config,
    base_of,
    check_head,
    check_sizes,
    convert_vit,
    one_of,
)
from transformers_hw.pretrained.verification import Draw
from transformers_hw.pretrained.vision import names_of_layers
from transformers_hw.pretrained.weights import Weights, WeightsError, printable
from transformers_hw.transformer.bert import Bert
from transformers_hw.vision_transformer import Size

BERT_PARTS = {
    "attention.query_proj": "attention.self.query.",
    "attention.key_proj": "attention.self.key.",
    "attention.value_proj": "attention.self.value.",
    "attention.output_proj": "attention.output.dense.",
    "attention_norm": "attention.output.LayerNorm.",
    "feed_forward.hidden_proj": "intermediate.dense.",
    "feed_forward.output_proj": "output.dense.",
    "feed_forward_norm": "output.LayerNorm.",
}
# The models, by `model_type`, with what their names begin with below a head.
ROBERTAS = {"roberta": "roberta.", "xlm-roberta": "roberta.", "camembert": "roberta."}
BERTS = {"bert": "bert.", **ROBERTAS}
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
MOST_CONFIG_BYTES = 2**20
CHUNK = "chunk_size_feed_forward"
# All models, by `model_type`, with what their names begin with below a head.
BASES = {**VITS, **BERTS, **dict.fromkeys(LLAMAS, "model."), "gpt2": "transformer."}
# What well-known others have, and this book's models do not.
OTHERS = {
    "mixtral": "a mixture of experts",
    "qwen2_moe": "a mixture of experts",
    "qwen3_moe": "a mixture of experts",
    "gpt_oss": "a mixture of experts",
    "gemma": "norms that add one to their weights, and scaled embeddings",
    "gemma2": "soft caps on logits, and norms behind its sublayers",
    "gemma3_text": "two kinds of rotary positions, and norms behind its sublayers",
    "gpt_neox": "attention and network side by side",
    "phi": "attention and network side by side",
    "phi3": "queries, keys and values in one matrix, and other rotary positions",
    "bloom": "scores with biases by distance",
    "mpt": "scores with biases by distance",
    "t5": "scores with learned biases by distance",
    "opt": "positions that begin with the third",
}


@checked
@names_file
def from_huggingface(
    source: nn.Module | Weights,
    *,
    config: Config | str | Path | None = None,
    base_only: bool = False,
    padded_at_end: bool = False,
    image_size: Size | None = None,
) -> Any:
    """Convert a Hugging Face ViT, DeiT, DINOv2, BERT, GPT-2 or Llama.

    These are the families, with the models that have no head and these heads:

    - vision: `ViT`, `ViTMSN` and `DeiT`, also `ForImageClassification`; `Dinov2` and
      `Dinov2WithRegisters`;
    - texts: `Bert`, `Roberta`, `XLMRoberta` and `Camembert`;
    - language models: `GPT2`, also `LMHeadModel`; `Llama`, `Mistral`, `Qwen2` and
      `Qwen3`, also `ForCausalLM`.

    Any other head, such as that of `BertForMaskedLM`, is refused; with `base_only`, the
    model below it is converted. What this book's models do not have is refused by name,
    such as other rotary positions, or a window in some layers only.

    A module is compared with the converted model before that is returned: both get two
    short random texts, with and without padding, or one image, and one of another size.
    Where `module.to(torch.bfloat16)` also rounded the frequencies of rotary positions,
    the converted model has them unrounded, as a module that is loaded in half
    precision has.

    Args:
        source: The module, which tells its own settings; or its state dict, or a
            safetensors file of it, which do not.
        config: The model's configuration, as in its `config.json`, or the path of such
            a file. It is needed with a state dict; for a file of weights, it is by
            default the `config.json` beside it.
        base_only: Whether to leave out the head, and to convert the model below it.
        padded_at_end: Whether all texts will have their padding at the end. A RoBERTa
            is converted only then: it numbers the positions of real tokens only, and
            this book's `Bert` those of all tokens.
        image_size: Height and width of the images, if not those of the configuration;
            one number for a square. Positions are resampled for it as Hugging Face
            does, which for a `Dinov2WithRegisters` differs from what this book's model
            does with an image of another size.

    Returns:
        A `VisionTransformer`, `Bert` or `LanguageModel` with the same outputs, in
        evaluation mode: of a classifier or language model the logits, of a `BertModel`
        the last hidden states. Of a vision or language model without a head, `encode`
        returns the last hidden states. A call of the vision model then returns the
        pooled output, or without a pooler the class token; a call of the language
        model returns logits with the embedding's weights. The distillation token of a
        DeiT becomes a register.

    Raises:
        TypeError: If `config` is missing, or is given with a module; or if
            `image_size` is given for a model of texts.
        WeightsError: If these are other weights; if the configuration asks for what
            this book's models do not have, such as another activation or a causal
            mask; or if the module computes something else than the converted model.
    """
    origin = "a Hugging Face ViT, BERT, GPT-2 or Llama"
    conversion = Conversion(source, origin)
    found = _config(conversion, source, config)
    kind = found["model_type"]
    if base_only:
        # `ForQuestionAnswering` of a decoder keeps the model below by another name.
        prefixes = (BASES[kind], "transformer.")
        conversion = Conversion(_base(conversion, prefixes), origin)
    if image_size is not None and kind not in VITS:
        raise TypeError(f"image_size must not be given for a {kind}, got {image_size}.")
    if kind in DECODERS:
        return convert_decoder(conversion, found, ACTIVATIONS)
    settings = {
        "heads": found["num_attention_heads"],
        "eps": found["layer_norm_eps"],
        "activation": ACTIVATIONS[
            one_of(conversion, found, "hidden_act", tuple(ACTIVATIONS))
        ],
    }
    if kind in VITS:
        return convert_vit(conversion, found, settings, image_size)
    one_of(conversion, found, "is_decoder", (False, None))
    one_of(conversion, found, "position_embedding_type", ("absolute", None))
    if kind in ROBERTAS and not padded_at_end:
        raise conversion.other(
            f"a {kind} numbers the positions of real tokens only, and this book's Bert "
            "those of all tokens: for texts with their padding at the end, they are "
            "the same, and padded_at_end=True converts it"
        )
    return _bert(conversion, found, settings)


def _config(
    conversion: Conversion, source: nn.Module | Weights, config: Any
) -> dict[str, Any]:
    """Find the configuration, and check that it has what every one of them has."""
    if conversion.module is not None:
        if config is not None:
            raise TypeError(
                "config must not be given with a module, which has its own."
            )
        try:
            found = conversion.module.config.to_dict()
        except AttributeError as error:
            name = type(conversion.module).__name__
            raise conversion.other(f"got {name}") from error
    else:
        if config is None and isinstance(source, str | Path):
            config = Path(source).with_name("config.json")
        if config is None:
            raise TypeError(
                "config must be given with a state dict, which does not tell the "
                "number of heads and more; a module does."
            )
        found = config if isinstance(config, Mapping) else _read_json(Path(config))
    told = found.get("model_type")
    if isinstance(told, str) and told in OTHERS:
        raise conversion.other(f"a {told} has {OTHERS[told]}, which this book's do not")
    kind = one_of(conversion, found, "model_type", tuple(BASES))
    needed = ("num_attention_heads", "hidden_act", "layer_norm_eps")
    needed = DECODERS.get(kind, needed)
    needed = (*needed, "image_size") if kind in VITS else needed
    needed = (*needed, "pad_token_id") if kind in ROBERTAS else needed
    missing = [name for name in needed if found.get(name) is None]
    if missing:
        raise WeightsError(f"config must tell {', '.join(missing)}.")
    return dict(found)


def _base(
    conversion: Conversion, prefixes: tuple[str, ...]
) -> nn.Module | dict[str, Tensor]:
    """Return the model below a head: the module, or its tensors."""
    for prefix in prefixes:
        below = {
            name.removeprefix(prefix): x
            for name, x in conversion.tensors.items()
            if name.startswith(prefix)
        }
        if below and conversion.module is not None:
            return conversion.module.get_submodule(prefix.rstrip("."))
        if below:
            return below
    return conversion.tensors if conversion.module is None else conversion.module


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_CONFIG_BYTES + 1)
        found = json.loads(content)
    except (OSError, RecursionError, ValueError) as error:
        raise WeightsError(
            f"{path} must be the model's configuration, in JSON: {printable(error)}"
        ) from error
    if not isinstance(found, dict) or len(content) > MOST_CONFIG_BYTES:
        raise WeightsError(f"{path} must be the model's configuration, in JSON.")
    return found


def _bert(conversion: Conversion, config: Config, settings: dict[str, Any]) -> Bert:
    tensors = conversion.tensors
    check_head(conversion)
    base = base_of(conversion, BERTS[config["model_type"]])
    embeddings, layers = f"{base}embeddings.", f"{base}encoder.layer."
    conversion.change(partial(_of_today, f"{embeddings}position_ids"))
    words = f"{embeddings}word_embeddings.weight"
    positions = f"{embeddings}position_embeddings.weight"
    segments = f"{embeddings}token_type_embeddings.weight"
    hidden = f"{layers}0.{BERT_PARTS['feed_forward.hidden_proj']}weight"
    pooler = f"{base}pooler.dense."
    vocab_size, dim = conversion.shape(words, 2)
    rows = conversion.shape(positions, 2)[0]
    # RoBERTa's positions begin after the number of its padding token.
    padding_token, skipped = None, 0
    if config["model_type"] in ROBERTAS:
        padding_token = config["pad_token_id"]
        if not isinstance(padding_token, int) or not 0 <= padding_token < rows - 1:
            raise conversion.other(
                f"pad_token_id must be from 0 to {rows - 2}, got {padding_token!r}"
            )
        skipped = padding_token + 1
    sizes = {
        "dim": dim,
        "hidden_dim": conversion.shape(hidden, 2)[0],
        "max_length": rows - skipped,
        "num_segments": conversion.shape(segments, 2)[0],
        "pooler": f"{pooler}weight" in tensors,
    }
    depth = conversion.depth(layers)
    check_sizes(
        conversion,
        config,
        hidden_size=dim,
        num_hidden_layers=depth,
        intermediate_size=sizes["hidden_dim"],
        max_position_embeddings=rows,
    )

    def build(depth: int) -> Bert:
        options = {**sizes, **settings, **conversion.factory}
        return Bert(vocab_size, depth=depth, **options)

    def compare(
        ours: Bert, theirs: Callable[..., Any], draw: Draw
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        # The network may take the tokens in chunks of one size.
        length, chunk = min(16, ours.config.max_length), config.get(CHUNK) or 1
        shape = (2, length - length % chunk or chunk)
        real = draw.padding_mask(*shape)
        tokens = draw.integers(vocab_size, *shape)
        if padding_token is not None:
            others = (padding_token + 1) % vocab_size
            tokens = tokens.masked_fill(tokens == padding_token, others)
        kinds = draw.integers(ours.config.num_segments, *shape)
        for mask in (None, real):
            if mask is not None and padding_token is not None:
                tokens = tokens.masked_fill(~mask, padding_token)
            told = {"attention_mask": None if mask is None else mask.long()}
            wanted = theirs(tokens, token_type_ids=kinds, **told)
            found = ours(tokens, padding_mask=mask, segments=kinds)
            shown = slice(None) if mask is None else mask
            yield "hidden states", found[shown], wanted.last_hidden_state[shown]
            if ours.pooler is not None:
                yield "pooled outputs", ours.pool(found), wanted.pooler_output

    names = {
        "positions.weight": positions,
        "token_embedding.weight": words,
        "segment_embedding.weight": segments,
        **with_parameters({"norm": f"{embeddings}LayerNorm.", "pooler": pooler}),
        **names_of_layers(depth, layers, BERT_PARTS),
    }
    return conversion.convert(build, depth, names, compare, skip={positions: skipped})


def _of_today(numbers: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a BERT by the names that they have now."""
    older = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    found = {}
    for name, x in tensors.items():
        for old, new in older.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        # Older versions kept these, which are nothing but the numbers 0, 1, 2, …
        if name != numbers or x.flatten().tolist() != list(range(x.numel())):
            found[name] = x
    return found
