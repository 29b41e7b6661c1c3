"""Hugging Face's decoders and image models, its Hub, and PyTorch's, offline."""

import json
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from transformers_hw import Bert, LanguageModel, VisionTransformer
from transformers_hw.pretrained import (
    WeightsError,
    from_huggingface,
    load_model,
    save_model,
    with_hub,
)
from transformers_hw.transformer import filtered_logits

ROOT = Path(__file__).parents[2]
F64 = torch.float64
VOCAB, DIM, HEADS, HIDDEN, DEPTH = 31, 12, 3, 20, 2
Options = dict[str, Any]


@cache
def huggingface() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("transformers")


class InDouble(TorchFunctionMode):
    """Compute in 64 bits what is written for 32."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        args = [F64 if x is torch.float32 else x for x in args]
        kwargs = {
            name: F64 if x is torch.float32 else x for name, x in (kwargs or {}).items()
        }
        return func(*args, **kwargs)


@pytest.fixture
def in_double() -> Any:
    """Norms and rotary positions of Hugging Face are in 32 bits, but for this."""
    with InDouble():
        yield


def drawn(module: nn.Module, dtype: torch.dtype = F64) -> Any:
    """Draw every weight, norms and biases included."""
    generator = torch.Generator().manual_seed(0)
    module = module.to(dtype).eval()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            numbers = torch.randn(parameter.shape, generator=generator, dtype=F64)
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(0.4 * numbers + (1.0 if is_norm else 0.0))
    return module


SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": DIM,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2_SIZES = {
    "vocab_size": VOCAB,
    "n_embd": DIM,
    "n_inner": HIDDEN,
    "n_layer": DEPTH,
    "n_head": HEADS,
    "n_positions": 24,
    "bos_token_id": None,
    "eos_token_id": None,
}


def decoder(kind: str, dtype: torch.dtype = F64, **options: Any) -> Any:
    model = getattr(huggingface(), kind)
    sizes = GPT2_SIZES if kind.startswith("GPT2") else SIZES
    return drawn(model(model.config_class(**{**sizes, **options})), dtype)


def config_of(module: Any) -> Options:
    """Return a model's configuration as its config.json has it."""
    return json.loads(module.config.to_json_string())


def texts(length: int = 11, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(VOCAB, (batch, length), generator=generator)


def assert_same(found: Tensor, wanted: Tensor, most: float = 1e-10) -> None:
    assert found.shape == wanted.shape
    assert wanted.std() > 1e-2
    assert (found - wanted).abs().max() <= most


LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "rope_theta": 500.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DECODERS: dict[str, tuple[str, Options]] = {
    "GPT-2": ("GPT2LMHeadModel", {}),
    "GPT-2, untied": (
        "GPT2LMHeadModel",
        {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-2},
    ),
    "GPT-2, relu": ("GPT2LMHeadModel", {"activation_function": "relu"}),
    "GPT-2, no head": ("GPT2Model", {"n_inner": None}),
    "Llama": ("LlamaForCausalLM", {}),
    "Llama, tied, biases": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "Llama, wide heads": (
        "LlamaForCausalLM",
        {"head_dim": 8, "num_key_value_heads": HEADS, "rms_norm_eps": 1e-2},
    ),
    "Llama, linear": ("LlamaForCausalLM", {"rope_parameters": LINEAR}),
    "Llama 3": ("LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    "Llama, no head": ("LlamaModel", {}),
    "Mistral": ("MistralForCausalLM", {"sliding_window": 4}),
    "Mistral, no window": ("MistralForCausalLM", {"sliding_window": None}),
    "Qwen2": ("Qwen2ForCausalLM", {}),
    "Qwen2, window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    ),
    "Qwen3": ("Qwen3ForCausalLM", {"head_dim": 6}),
    "Qwen3, biases": ("Qwen3ForCausalLM", {"head_dim": 4, "attention_bias": True}),
}
EACH_DECODER = pytest.mark.parametrize(
    ("kind", "options"), DECODERS.values(), ids=DECODERS
)
# One of each family, and one with a window.
FAMILIES = {x: DECODERS[x] for x in ("GPT-2", "Llama 3", "Mistral", "Qwen2", "Qwen3")}
EACH_FAMILY = pytest.mark.parametrize(
    ("kind", "options"), FAMILIES.values(), ids=FAMILIES
)


def outputs(
    ours: Any, theirs: Any, tokens: Tensor, real: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return what both compute: logits, or without a head hidden states."""
    wanted = theirs(tokens, attention_mask=None if real is None else real.long())
    call = ours if hasattr(wanted, "logits") else ours.encode
    found = call(tokens, padding_mask=real)
    return found, getattr(wanted, "logits", wanted[0])


@EACH_DECODER
@pytest.mark.usefixtures("in_double")
def test_decoders_give_hugging_faces_outputs(kind, options, tmp_path):
    theirs, tokens = decoder(kind, **options), texts()
    at_end = torch.ones(2, 11, dtype=torch.bool)
    at_end[1, -4:] = False
    file = tmp_path / "model.safetensors"
    converted = from_huggingface(theirs)
    for ours in (
        converted,
        from_huggingface(theirs.state_dict(), config=config_of(theirs)),
        load_model(save_model(converted, file)),
    ):
        assert not ours.training
        assert_same(*outputs(ours, theirs, tokens))
        # Padding has positions here, at the beginning of a text as well.
        for real in (at_end, at_end.flip(1)):
            found, wanted = outputs(ours, theirs, tokens, real)
            assert_same(found[real], wanted[real])


@EACH_DECODER
def test_decoders_in_single_precision(kind, options):
    theirs = decoder(kind, torch.float32, **options)
    assert_same(*outputs(from_huggingface(theirs), theirs, texts()), 1e-5)
    # Without help, rotary positions and RMS norms are in 32 bits there.
    theirs = theirs.double()
    most = 1e-10 if kind.startswith("GPT2") else 1e-5
    assert_same(*outputs(from_huggingface(theirs), theirs, texts()), most)


@EACH_FAMILY
def test_a_decoder_in_half_precision_is_copied_as_it_is(kind, options):
    theirs = decoder(kind, **options)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.bfloat16()
    ours = from_huggingface(theirs)
    assert {x.dtype for x in ours.parameters()} == {torch.bfloat16}
    table = theirs.get_input_embeddings().weight
    assert torch.equal(ours.embedding.weight, table)
    assert ours.embedding.weight.data_ptr() != table.data_ptr()


@EACH_FAMILY
@pytest.mark.usefixtures("in_double")
def test_a_cache_gives_hugging_faces_outputs(kind, options):
    theirs, tokens = decoder(kind, **options), texts()
    ours, wanted = from_huggingface(theirs), theirs(tokens).logits
    cache, their_cache, start = ours.make_cache(), None, 0
    for size in (5, 1, 2, 1, 1, 1):
        new = tokens[:, start : start + size]
        found = ours(new, cache=cache)
        step = theirs(new, past_key_values=their_cache, use_cache=True)
        their_cache = step.past_key_values
        assert_same(found, step.logits)
        assert_same(found, wanted[:, start : start + size])
        start += size
    assert start == tokens.shape[1]


@EACH_FAMILY
@pytest.mark.usefixtures("in_double")
def test_gradients_are_hugging_faces(kind, options):
    theirs, tokens = decoder(kind, **options), texts()
    ours, losses = from_huggingface(theirs), []
    for logits in (ours(tokens), theirs(tokens).logits):
        loss = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        )
        loss.backward()
        losses.append(loss.detach())
    assert abs(losses[0] - losses[1]) <= 1e-10
    # Their gradients, in place of their weights, go the way of the weights.
    for x in theirs.parameters():
        x.data = x.grad.clone()
    wanted = from_huggingface(theirs).state_dict()
    for name, x in ours.named_parameters():
        # Without rotations, a bias of the keys changes all scores of a query alike.
        if kind != "GPT2LMHeadModel" or "key_proj.bias" not in name:
            assert wanted[name].abs().max() > 1e-6, name
        assert (x.grad - wanted[name]).abs().max() <= 1e-10, name


@pytest.mark.usefixtures("in_double")
def test_older_files_and_settings_are_read():
    theirs, tokens = decoder("GPT2LMHeadModel"), texts()
    state = theirs.transformer.state_dict()
    for i in range(DEPTH):
        mask = torch.ones(24, 24).tril().bool()[None, None]
        state[f"h.{i}.attn.bias"] = mask
        state[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4, dtype=F64)
    names = ("n_head", "activation_function", "layer_norm_epsilon")
    least = {name: config_of(theirs)[name] for name in names}
    ours = from_huggingface(state, config={"model_type": "gpt2", **least})
    assert_same(ours(tokens), theirs(tokens).logits)

    theirs = decoder("LlamaForCausalLM", rope_parameters=LLAMA3)
    config = config_of(theirs)
    rope = dict(config.pop("rope_parameters"))
    del config["head_dim"]
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    rope["type"] = rope.pop("rope_type")
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    state = {**theirs.state_dict(), name: torch.ones(2)}
    ours = from_huggingface(state, config=config)
    assert_same(ours(tokens), theirs(tokens).logits)
    # Qwen's older configurations do not list the kinds of layers.
    kind, options = DECODERS["Qwen2, window"]
    theirs = decoder(kind, **options)
    config = config_of(theirs)
    del config["layer_types"]
    ours = from_huggingface(theirs.state_dict(), config=config)
    assert_same(ours(tokens), theirs(tokens).logits)
    for name in ("use_sliding_window", "max_window_layers"):  # off, and beyond them
        less = {key: x for key, x in config.items() if key != name}
        ours = from_huggingface(theirs.state_dict(), config=less)
        assert ours.config.window is None


def test_what_a_configuration_leaves_out_or_turns_around():
    theirs = decoder("MistralForCausalLM")
    state, config = theirs.state_dict(), config_of(theirs)
    del config["sliding_window"]
    assert type(theirs.config)(**config).sliding_window == 4096
    assert from_huggingface(state, config=config).config.window == 4096
    for kind in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        theirs = decoder(kind)
        told = {**config_of(theirs), "is_causal": False}
        with pytest.raises(WeightsError, match="is_causal"):
            from_huggingface(theirs.state_dict(), config=told)


def test_tied_weights_are_one():
    theirs = decoder("GPT2LMHeadModel")
    state, config = theirs.state_dict(), config_of(theirs)
    ours = from_huggingface(theirs)
    assert ours.output_proj is None
    count = sum(x.numel() for x in theirs.parameters())
    assert sum(x.numel() for x in ours.parameters()) == count
    head, table = "lm_head.weight", "transformer.wte.weight"
    other = {**state, head: state[head] + 1.0}
    with pytest.raises(WeightsError, match=f"False where '{head}' and '{table}' diff"):
        from_huggingface(other, config=config)
    untied = {**config, "tie_word_embeddings": False}
    ours = from_huggingface(other, config=untied)
    assert torch.equal(ours.output_proj.weight, other[head])
    without = {name: x for name, x in state.items() if name != head}
    assert from_huggingface(without, config=config).output_proj is None
    with pytest.raises(WeightsError, match=f"hold no '{head}', and tie_word_emb"):
        from_huggingface(without, config=untied)


# --- generation ---------------------------------------------------------------------

SAMPLING: dict[str, Options] = {
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.6},
    "top-k": {"temperature": 1.3, "top_k": 5},
    "top-p": {"top_p": 0.8},
    "all": {"temperature": 0.9, "top_k": 9, "top_p": 0.7},
}


def their_tokens(theirs: Any, prompt: Tensor, steps: int, **options: Any) -> Tensor:
    plain = {"top_k": 0, "top_p": 1.0, "temperature": 1.0, "pad_token_id": 0}
    sampled = {**plain, **options} if options.get("do_sample") else options
    found = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=steps,
        **{"pad_token_id": 0, **sampled},
    )
    return found[:, prompt.shape[1] :]


@EACH_FAMILY
def test_generation_is_hugging_faces_token_for_token(kind, options):
    # Longer than the window of Mistral, and than its cache.
    theirs, prompt = decoder(kind, **options), texts(6, batch=3)
    ours = from_huggingface(theirs)
    greedy = ours.generate(prompt, 15, temperature=0.0)
    assert torch.equal(greedy, their_tokens(theirs, prompt, 15, do_sample=False))
    assert greedy.unique().numel() > 2
    drawn_so_far = set()
    for settings in SAMPLING.values():
        torch.manual_seed(7)
        wanted = their_tokens(theirs, prompt, 15, do_sample=True, **settings)
        torch.manual_seed(7)
        assert torch.equal(ours.generate(prompt, 15, **settings), wanted)
        generator = torch.Generator().manual_seed(7)
        found = ours.generate(prompt, 15, generator=generator, **settings)
        assert torch.equal(found, wanted)
        drawn_so_far.add(tuple(wanted.flatten().tolist()))
    assert len(drawn_so_far) == len(SAMPLING)


def test_generation_ends_where_hugging_faces_does():
    theirs, prompt = decoder("LlamaForCausalLM"), texts(6, batch=3)
    ours = from_huggingface(theirs)
    end = int(ours.generate(prompt, 15, temperature=0.0)[1, 4])
    settings = {"do_sample": False, "eos_token_id": end, "pad_token_id": end}
    wanted = their_tokens(theirs, prompt, 15, **settings)
    found = ours.generate(prompt, 15, temperature=0.0, end=end)
    assert torch.equal(found, wanted)
    assert (found == end).any()


@pytest.mark.parametrize("settings", SAMPLING.values(), ids=SAMPLING)
def test_distributions_are_filtered_as_hugging_face_does(settings):
    process = import_module("transformers.generation.logits_process")
    logits = 3.0 * torch.randn(50, VOCAB, dtype=F64)
    wanted = process.TemperatureLogitsWarper(settings.get("temperature", 1.0))(
        None, logits
    )
    if "top_k" in settings:
        wanted = process.TopKLogitsWarper(settings["top_k"])(None, wanted)
    if "top_p" in settings:
        wanted = process.TopPLogitsWarper(settings["top_p"])(None, wanted)
    found = filtered_logits(logits, **settings)
    assert torch.equal(found.isfinite(), wanted.isfinite())
    assert (found.softmax(dim=-1) - wanted.softmax(dim=-1)).abs().max() <= 1e-12
    seeded = [torch.Generator().manual_seed(3) for _ in range(2)]
    ours, theirs = (
        torch.multinomial(x.softmax(dim=-1), 1, generator=generator)
        for x, generator in zip((found, wanted), seeded, strict=True)
    )
    assert torch.equal(ours, theirs)


# --- images -------------------------------------------------------------------------

IMAGE_SIZES = {
    "hidden_size": DIM,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "image_size": 8,
    "patch_size": 4,
}


def image_model(kind: str, dtype: torch.dtype = F64, **options: Any) -> Any:
    model = getattr(huggingface(), kind)
    network = {"mlp_ratio": 2} if "Dino" in kind else {"intermediate_size": HIDDEN}
    settings = {**IMAGE_SIZES, **network, "num_labels": 7, **options}
    return drawn(model(model.config_class(**settings)), dtype)


def images(*size: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    size = size or (8, 8)
    return torch.randn(2, 3, *size, generator=generator, dtype=F64).requires_grad_()


IMAGE_MODELS: dict[str, tuple[str, Options]] = {
    "DeiT": ("DeiTModel", {}),
    "DeiT, other eps": ("DeiTModel", {"layer_norm_eps": 1e-2, "qkv_bias": False}),
    "DeiT, larger": ("DeiTModel", {"image_size": 20}),
    "DeiT, classes": ("DeiTForImageClassification", {}),
    "DINOv2": ("Dinov2Model", {}),
    "DINOv2, SwiGLU": ("Dinov2Model", {"use_swiglu_ffn": True, "qkv_bias": False}),
    "DINOv2, mask token": ("Dinov2Model", {"use_mask_token": True, "image_size": 12}),
    "DINOv2, tanh": ("Dinov2Model", {"hidden_act": "gelu_new"}),
    "registers": ("Dinov2WithRegistersModel", {}),
    "two registers": (
        "Dinov2WithRegistersModel",
        {"num_register_tokens": 2, "use_swiglu_ffn": True, "layer_norm_eps": 1e-2},
    ),
}


@pytest.mark.parametrize(("kind", "options"), IMAGE_MODELS.values(), ids=IMAGE_MODELS)
def test_image_models_give_hugging_faces_outputs(kind, options, tmp_path):
    theirs = image_model(kind, **options)
    size = options.get("image_size", 8)
    x, file = images(size, size), tmp_path / "model.safetensors"
    wanted, converted = theirs(x), from_huggingface(theirs)
    for ours in (
        converted,
        from_huggingface(theirs.state_dict(), config=config_of(theirs)),
        load_model(save_model(converted, file)),
    ):
        if hasattr(wanted, "logits"):
            pairs = [(ours(x), wanted.logits)]
        else:
            tokens = ours.encode(x)
            pairs = [(tokens, wanted.last_hidden_state)]
            pairs += [(ours.pool(tokens), wanted.pooler_output)]
        for found, theirs_of_it in pairs:
            assert_same(found, theirs_of_it)
            gradients = [
                torch.autograd.grad(y.sin().sum(), x, retain_graph=True)[0]
                for y in (found, theirs_of_it)
            ]
            assert_same(*gradients)
    theirs, x = theirs.float(), x.detach().float()
    found, wanted = from_huggingface(theirs), theirs(x)
    if hasattr(wanted, "logits"):
        assert_same(found(x), wanted.logits, 1e-5)
    else:
        assert_same(found.encode(x), wanted.last_hidden_state, 1e-5)


@pytest.mark.parametrize("kind", ["ViT", "DeiT", "Dinov2", "Dinov2WithRegisters"])
def test_positions_are_resampled_as_hugging_face_does(kind):
    theirs, x = image_model(f"{kind}Model"), images(20, 12)
    state, config = theirs.state_dict(), config_of(theirs)
    other = {} if "Dino" in kind else {"interpolate_pos_encoding": True}
    wanted = theirs(x, **other).last_hidden_state
    for ours in (
        from_huggingface(theirs, image_size=(20, 12)),
        from_huggingface(state, config=config, image_size=(20, 12)),
    ):
        assert ours.config.image_size == (20, 12)
        assert_same(ours.encode(x), wanted)
    # This book's model does the same by itself, but for an older kernel.
    found = from_huggingface(theirs).encode(x)
    if kind == "Dinov2WithRegisters":
        assert (found - wanted).abs().max() > 1e-3
    else:
        assert_same(found, wanted, 1e-6 if "Dino" in kind else 1e-10)


@pytest.mark.parametrize("kind", ["DeiT", "Dinov2", "Dinov2WithRegisters"])
def test_older_names_of_image_models_are_known(kind):
    options = {} if kind == "DeiT" else {"use_swiglu_ffn": True}
    theirs, x = image_model(f"{kind}Model", **options), images()
    older = {
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
    }
    if kind == "DeiT":
        older |= {"layers.": "encoder.layer."}
        older |= {"mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}
    else:
        older |= {"mlp.down_proj": "mlp.weights_out"}
    state = theirs.state_dict()
    for new, old in older.items():
        state = {name.replace(new, old): tensor for name, tensor in state.items()}
    for name in [name for name in state if "gate_proj" in name]:
        both = (name, name.replace("gate", "up"))
        joined = torch.cat([state.pop(part) for part in both])
        state[name.replace("gate_proj", "weights_in")] = joined
    found = from_huggingface(state, config=config_of(theirs))
    assert_same(found.encode(x), theirs(x).last_hidden_state)


# --- heads --------------------------------------------------------------------------

BERT_SIZES = {"vocab_size": VOCAB, "max_position_embeddings": 16}
HEADED = {
    "BertForMaskedLM": ("bert", "cls.predictions.bias"),
    "BertForPreTraining": ("bert", "cls.predictions.bias"),
    "BertForSequenceClassification": ("bert", "classifier.weight"),
    "BertForTokenClassification": ("bert", "classifier.weight"),
    "BertForQuestionAnswering": ("bert", "qa_outputs.weight"),
    "RobertaForMaskedLM": ("roberta", "lm_head.bias"),
    "LlamaForSequenceClassification": ("model", "score.weight"),
    "LlamaForQuestionAnswering": ("transformer", "qa_outputs.weight"),
    "Qwen3ForQuestionAnswering": ("transformer", "qa_outputs.weight"),
    "MistralForQuestionAnswering": ("model", "qa_outputs.weight"),
    "GPT2ForQuestionAnswering": ("transformer", "qa_outputs.weight"),
    "GPT2ForTokenClassification": ("transformer", "classifier.weight"),
    "DeiTForImageClassificationWithTeacher": ("deit", "cls_classifier.weight"),
    "Dinov2ForImageClassification": ("dinov2", "classifier.weight"),
}


def headed(kind: str) -> Any:
    if kind.startswith(("DeiT", "Dino")):
        return image_model(kind)
    if kind.startswith(("Llama", "Mistral", "Qwen", "GPT2")):
        return decoder(kind, pad_token_id=0)
    model = getattr(huggingface(), kind)
    sizes = {**IMAGE_SIZES, "intermediate_size": HIDDEN, **BERT_SIZES}
    del sizes["image_size"], sizes["patch_size"]
    return drawn(model(model.config_class(**sizes)))


@pytest.mark.parametrize("kind", HEADED)
def test_another_head_is_refused_and_the_base_below_it_converted(kind):
    theirs, (base, name) = headed(kind), HEADED[kind]
    state, config = theirs.state_dict(), config_of(theirs)
    told = {"padded_at_end": True} if base == "roberta" else {}
    complaint = f"head.* {re.escape(f'({name}')}.*: base_only=True converts"
    with pytest.raises(WeightsError, match=complaint):
        from_huggingface(theirs, **told)
    with pytest.raises(WeightsError, match=complaint):
        from_huggingface(state, config=config, **told)
    below = getattr(theirs, base)
    x = images() if base in ("deit", "dinov2") else texts(9).clamp(min=2)
    rotary = hasattr(below, "rotary_emb")  # in 32 bits
    most = 1e-5 if rotary else 1e-10
    for ours in (
        from_huggingface(theirs, base_only=True, **told),
        from_huggingface(state, config=config, base_only=True, **told),
        from_huggingface(below, base_only=True, **told),
    ):
        found = ours(x) if isinstance(ours, Bert) else ours.encode(x)
        assert_same(found, below(x).last_hidden_state, most)


def test_berts_oldest_names_of_norms_are_known():
    theirs, x = headed("BertForMaskedLM"), texts(9)
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    state = theirs.state_dict()
    for new, old in older.items():
        state = {name.replace(new, old): tensor for name, tensor in state.items()}
    ours = from_huggingface(state, config=config_of(theirs), base_only=True)
    assert_same(ours(x), theirs.bert(x).last_hidden_state)


# --- what cannot be expressed -------------------------------------------------------


def told(**changed: Any) -> Callable[[], Any]:
    """Convert a Llama's state dict with a changed configuration."""

    def convert() -> Any:
        theirs = decoder("LlamaForCausalLM")
        config = {**config_of(theirs), **changed}
        return from_huggingface(theirs.state_dict(), config=config)

    return convert


def made(kind: str, **options: Any) -> Callable[[], Any]:
    make = image_model if kind.startswith(("Dino", "DeiT")) else decoder
    return lambda: from_huggingface(make(kind, **options))


YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 500.0}
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "cross-attention": (
        made("GPT2LMHeadModel", add_cross_attention=True),
        "add_cross_attention must be False, got True",
    ),
    "scale by layer": (
        made("GPT2LMHeadModel", scale_attn_by_inverse_layer_idx=True),
        "scale_attn_by_inverse_layer_idx must be False, got True",
    ),
    "upcast": (
        made("GPT2LMHeadModel", reorder_and_upcast_attn=True),
        "reorder_and_upcast_attn must be False, got True",
    ),
    "no scale": (
        made("GPT2LMHeadModel", scale_attn_weights=False),
        "scale_attn_weights must be True, got False",
    ),
    "activation": (
        made("GPT2LMHeadModel", activation_function="tanh"),
        "activation_function must be 'relu' or .* got 'tanh'",
    ),
    "gate": (
        made("LlamaForCausalLM", hidden_act="gelu"),
        "hidden_act must be 'silu' or 'swish', got 'gelu'",
    ),
    "yarn": (
        made("LlamaForCausalLM", rope_parameters=YARN),
        "rope_type must be 'default' or 'linear' or 'llama3', got 'yarn'",
    ),
    "dynamic, of version 4": (
        told(rope_parameters=None, rope_scaling={"type": "dynamic", "factor": 2.0}),
        "rope_type must be .* got 'dynamic'",
    ),
    "part": (
        told(partial_rotary_factor=0.5),
        r"partial_rotary_factor must be 1\.0, got 0\.5",
    ),
    "no factor": (
        told(rope_parameters={"rope_type": "linear"}),
        "rope_type 'linear' needs factor",
    ),
    "factor": (
        told(rope_parameters={"rope_type": "linear", "factor": -1.0}),
        "factor must be positive and finite",
    ),
    "yarn beside": (
        told(rope_scaling={"rope_type": "yarn", "factor": 2.0}),
        "rope_type must be .* got 'yarn'",
    ),
    "yarn, in two ways": (
        told(rope_parameters={"rope_type": None, "type": "yarn", "factor": 2.0}),
        "rope_type must be .* got 'yarn'",
    ),
    "by layer": (
        told(rope_parameters={"full_attention": LINEAR}),
        "rope_parameters must tell nothing but rope_type, .* got .*full_attention",
    ),
    "nested base": (
        told(rope_scaling={"type": "linear", "factor": 2.0, "rope_theta": {"a": 1}}),
        "rope_scaling must tell nothing but rope_type, .* got .*'a': 1",
    ),
    "no mapping of scaling": (
        told(rope_scaling=3),
        "rope_scaling must be a mapping, got 3",
    ),
    "no mapping": (told(rope_parameters=3), "rope_parameters must be a mapping, got 3"),
    "base": (
        told(rope_parameters={"rope_theta": "x"}),
        "could not convert string to float",
    ),
    "some windows": (
        made(
            "Qwen2ForCausalLM",
            **{**DECODERS["Qwen2, window"][1], "max_window_layers": 1},
        ),
        "layer_types must be one kind, got .*'full_attention', 'sliding_attention'",
    ),
    "window of no size": (
        lambda: from_huggingface(
            decoder("Qwen2ForCausalLM").state_dict(),
            config={
                **config_of(decoder("Qwen2ForCausalLM")),
                "layer_types": ["sliding_attention"] * 2,
            },
        ),
        "layer_types must not name 'sliding_attention' unless use_sliding_window is",
    ),
    "kinds": (
        lambda: from_huggingface(
            decoder("Qwen2ForCausalLM").state_dict(),
            config={
                **config_of(decoder("Qwen2ForCausalLM")),
                **DECODERS["Qwen2, window"][1],
                "layer_types": 5,
            },
        ),
        "'int' object is not iterable",
    ),
    "heads": (
        told(num_attention_heads=5),
        r"q_proj\.weight \(12, 12\), wanted \(20, 12\)",
    ),
    "kv_heads": (told(num_key_value_heads=2), "kv_heads must divide heads, got 2"),
    "eps": (told(rms_norm_eps=None), "config must tell rms_norm_eps"),
    "size": (told(hidden_size=24), "of hidden_size 12, got 24"),
    "depth": (told(num_hidden_layers=3), "of num_hidden_layers 2, got 3"),
    "experts": (told(model_type="mixtral"), "a mixtral has a mixture of experts"),
    "soft cap": (told(model_type="gemma2"), "a gemma2 has soft caps on logits"),
    "distances": (told(model_type="bloom"), "a bloom has scores with biases"),
    "other": (told(model_type="rwkv"), "model_type must be .* got 'rwkv'"),
    "backbone": (made("Dinov2Backbone"), "must return logits or .*BackboneOutput"),
    "gated": (
        made("Dinov2Model", hidden_act="silu"),
        "hidden_act must be 'relu' or .* got 'silu'",
    ),
    "patch": (
        lambda: from_huggingface(image_model("DeiTModel"), image_size=3),
        r"image_size must be at least a patch.* got a grid of \(0, 0\)",
    ),
    "cut": (
        lambda: from_huggingface(image_model("DeiTModel"), image_size=10),
        "10×10 pixels has 2×2 whole patches of 4×4",
    ),
}


# Their settings and weights contradict each other, or nothing but running them tells.
BUILT = ("heads", "kv_heads", "backbone")


@pytest.mark.unhooked
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_name(name, monkeypatch):
    built = []
    for model in (LanguageModel, VisionTransformer):
        make = model.__init__

        def count(self: Any, *args: Any, make: Any = make, **options: Any) -> None:
            built.append(options["device"])
            make(self, *args, **options)

        monkeypatch.setattr(model, "__init__", count)
    convert, complaint = REFUSED[name]
    with pytest.raises(WeightsError, match=complaint):
        convert()
    assert set(built) == ({"meta"} if name in BUILT else set())


def test_a_module_that_computes_something_else_is_refused():
    theirs = decoder("LlamaForCausalLM")
    theirs.model.layers[1].self_attn.scaling *= 2.0
    with pytest.raises(WeightsError, match=r"logits, up to .* differ by"):
        from_huggingface(theirs)
    theirs = image_model("Dinov2Model")
    theirs.encoder.layer[1].layer_scale1 = nn.Identity()
    with pytest.raises(WeightsError, match=r"missing: encoder\.layer\.1\.layer_scale1"):
        from_huggingface(theirs)


@pytest.mark.parametrize("kind", ["LlamaModel", "Qwen2Model", "GPT2Model"])
def test_a_decoder_made_bidirectional_is_refused(kind):
    theirs, tokens = decoder(kind, torch.float32), texts()
    before, real = theirs(tokens)[0], torch.ones(2, 11)
    real[1, -4:] = 0.0
    same = theirs(tokens, attention_mask=real)[0]
    for layer in theirs.h if kind == "GPT2Model" else theirs.layers:
        (layer.attn if kind == "GPT2Model" else layer.self_attn).is_causal = False
    # Where there is padding, a mask decides.
    assert torch.equal(theirs(tokens, attention_mask=real)[0], same)
    assert (theirs(tokens)[0] - before).abs().max() > 1e-2
    with pytest.raises(WeightsError, match=r"hidden states, up to .* differ by"):
        from_huggingface(theirs)


@pytest.mark.parametrize("theta", [None, 300.0])
@pytest.mark.usefixtures("in_double")
def test_older_scaling_takes_the_place_of_newer_as_in_hugging_face(theta):
    plain = decoder("LlamaForCausalLM", rope_parameters={"rope_theta": 500.0})
    state, config, tokens = plain.state_dict(), config_of(plain), texts()
    assert config["rope_parameters"]["rope_type"] == "default"
    config["rope_scaling"] = {"type": "linear", "factor": 3.0}
    if theta is not None:
        config["rope_theta"] = theta
    theirs = type(plain)(type(plain.config)(**config)).to(F64).eval()
    theirs.load_state_dict(state)
    ours = from_huggingface(state, config=config)
    assert ours.config.rotary_base == (theta or 10_000.0)
    assert_same(ours(tokens), theirs(tokens).logits)
    assert (plain(tokens).logits - theirs(tokens).logits).abs().max() > 1e-2


def test_small_weights_do_not_hide_what_a_decoder_does_to_them():
    def small() -> Any:
        settings = {**SIZES, "initializer_range": 0.002}
        kind = huggingface().LlamaForCausalLM
        return kind(kind.config_class(**settings)).eval()

    assert from_huggingface(small()).config.heads == HEADS
    swapped, scaled = small(), small()
    swapped.model.layers[0].mlp.act_fn = nn.ReLU()
    scaled.model.layers[1].self_attn.scaling *= 1.5
    for theirs in (swapped, scaled):
        with pytest.raises(WeightsError, match=r"logits, up to .* differ by"):
            from_huggingface(theirs)


def test_other_rotary_positions_are_refused():
    theirs = decoder("LlamaForCausalLM", torch.float32, head_dim=16)
    theirs.model.rotary_emb.inv_freq[-1] *= 1.01
    with pytest.raises(WeightsError, match=r"inv_freq must be the frequencies that "):
        from_huggingface(theirs)
    # Positions that are all the same from the thirtieth on.
    theirs = decoder("LlamaForCausalLM", torch.float32)
    theirs.model.rotary_emb.register_forward_pre_hook(
        lambda _, inputs, named: (inputs, {"position_ids": named["position_ids"] % 30}),
        with_kwargs=True,
    )
    with pytest.raises(WeightsError, match=r"logits, up to .* differ by"):
        from_huggingface(theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frequencies_that_half_precision_rounded_are_taken_unrounded(dtype):
    """A module that is loaded in half precision has its frequencies in 32 bits."""
    options = {"hidden_size": 64, "num_attention_heads": 2, "rope_parameters": LLAMA3}
    theirs = decoder("LlamaForCausalLM", torch.float32, **options)
    exact, tokens = theirs.model.rotary_emb.inv_freq.clone(), texts(60)
    for x in theirs.parameters():
        if x.dim() > 1:
            x.data *= 2.0 / x.norm(dim=1, keepdim=True)
    theirs.to(dtype)
    rounded = theirs.model.rotary_emb.inv_freq
    assert rounded.dtype == dtype
    ours = from_huggingface(theirs)
    assert torch.equal(theirs.model.rotary_emb.inv_freq, rounded)
    found, theirs = ours.float()(tokens), theirs.float()
    other = theirs(tokens).logits
    theirs.model.rotary_emb.inv_freq = exact
    wanted = theirs(tokens).logits
    assert_same(found, wanted, 1e-4)
    assert (other - wanted).abs().max() > 1e-3
    theirs.to(dtype).model.rotary_emb.inv_freq.mul_(1.02)
    with pytest.raises(WeightsError, match=r"inv_freq must be the frequencies that "):
        from_huggingface(theirs)


def test_a_size_of_images_is_for_models_of_images():
    with pytest.raises(TypeError, match="image_size must not be given for a llama"):
        from_huggingface(decoder("LlamaForCausalLM"), image_size=8)


@pytest.mark.parametrize("name", ["GPT-2, untied", "Llama", "Qwen2"])
def test_a_wrong_tensor_of_a_decoder_is_named(name):
    kind, options = DECODERS[name]
    theirs = decoder(kind, **options)
    state, config = theirs.state_dict(), config_of(theirs)
    last = list(state)[-2]
    for changed, complaint in (
        ({**state, "extra": torch.zeros(2)}, "unknown: extra"),
        ({x: state[x] for x in state if x != last}, f"missing: {last}"),
        ({**state, last: torch.zeros(99)}, rf"{last} \(99,\), wanted"),
        ({**state, last: torch.full_like(state[last], torch.nan)}, "holds NaN"),
        ({"weight": torch.zeros(2, 3)}, "its weights hold no"),
    ):
        with pytest.raises(WeightsError, match=complaint):
            from_huggingface(changed, config=config)


def test_a_file_with_its_configuration_beside_it(tmp_path):
    theirs, tokens = decoder("MistralForCausalLM", sliding_window=4), texts()
    theirs.save_pretrained(tmp_path)
    ours = from_huggingface(tmp_path / "model.safetensors")
    assert ours.config.window == 4
    assert_same(ours(tokens), theirs(tokens).logits, 1e-5)


# --- hubs ---------------------------------------------------------------------------


def some_models() -> list[Any]:
    sizes = {"dim": DIM, "depth": DEPTH, "heads": HEADS}
    vit = VisionTransformer((8, 12), 4, num_classes=7, registers=2, **sizes)
    scaling = {"factor": 2.0, "original_length": 8}
    rotary = {"positions": "rotary", "rotary_scaling": scaling, "window": 4}
    return [vit, LanguageModel(VOCAB, **sizes, **rotary), Bert(VOCAB, **sizes)]


def test_a_folder_gives_back_the_model(tmp_path):
    inputs = [images(8, 12), texts(), texts()]
    for plain, x in zip(some_models(), inputs, strict=True):
        plain, kind = drawn(plain), type(plain)
        folder = tmp_path / kind.__name__
        model = with_hub(plain)
        assert isinstance(model, kind)
        assert model.config == plain.config
        first, shared = next(plain.parameters()), next(model.parameters())
        assert first.data_ptr() == shared.data_ptr()
        assert model.save_pretrained(folder) is None
        names = {path.name for path in folder.iterdir()}
        assert names == {"model.safetensors", "config.json", "README.md"}
        told = json.loads((folder / "config.json").read_text("utf-8"))
        assert (told["model"], told["dim"]) == (kind.__name__, DIM)
        assert "transformers_hw" in (folder / "README.md").read_text("utf-8")
        found = with_hub(kind).from_pretrained(folder)
        assert type(found) is with_hub(kind)
        assert found.config == plain.config
        assert not found.training
        assert torch.equal(found(x), plain(x))
        # It is an ordinary file of a model.
        again = load_model(folder / "model.safetensors")
        assert type(again) is kind
        assert torch.equal(again(x), plain(x))


def test_pushing_uploads_the_folder(monkeypatch):
    hub = import_module("huggingface_hub")
    pushed: dict[str, Any] = {}

    def upload(self: Any, **options: Any) -> str:
        files = Path(options["folder_path"]).iterdir()
        pushed.update(options, files={path.name for path in files})
        return "https://example.com/commit"

    made = lambda self, repo_id, **_: hub.RepoUrl(  # noqa: E731
        f"https://huggingface.co/{repo_id}"
    )
    monkeypatch.setattr(hub.HfApi, "create_repo", made)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload)
    url = with_hub(some_models()[0]).push_to_hub("me/vit")
    assert url == "https://example.com/commit"
    assert pushed["repo_id"] == "me/vit"
    assert pushed["files"] == {"model.safetensors", "config.json", "README.md"}


def test_a_repository_is_downloaded(monkeypatch, tmp_path):
    model = drawn(some_models()[0])
    with_hub(model).save_pretrained(tmp_path)
    asked = []

    def download(repo_id: str, filename: str, **options: Any) -> str:
        asked.append((repo_id, filename, options["revision"]))
        return str(tmp_path / filename)

    hub_class = with_hub(VisionTransformer)
    # The mixin reads the configuration, and this package the weights.
    for module in ("huggingface_hub.hub_mixin", "huggingface_hub"):
        monkeypatch.setattr(import_module(module), "hf_hub_download", download)
    monkeypatch.chdir(tmp_path)
    found = hub_class.from_pretrained("me/vit", revision="v2")
    assert ("me/vit", "model.safetensors", "v2") in asked
    assert torch.equal(found(images(8, 12)), model(images(8, 12)))


def test_a_model_with_hooks_does_not_lose_them_silently():
    for model in some_models():
        model.encoder.layers[1].register_forward_hook(lambda *_: None)
        with pytest.raises(ValueError, match=r"no hooks .* from encoder\.layers\.1\."):
            with_hub(model)


def test_a_folder_of_something_else_is_refused(tmp_path):
    vit, language, _ = some_models()
    with_hub(vit).save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="must hold a LanguageModel, got a VisionTr"):
        with_hub(type(language)).from_pretrained(tmp_path)
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="must be a file that save_model wrote"):
        with_hub(type(vit)).from_pretrained(tmp_path)
    for other in (nn.Linear(2, 3), nn.Linear):
        with pytest.raises(TypeError, match=r"one of VisionTransformer.* got Linear\."):
            with_hub(other)


def test_the_hub_needs_its_library_and_says_so(monkeypatch):
    from transformers_hw.pretrained.hub import _hub_class

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    _hub_class.cache_clear()
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        with_hub(Bert)


def test_torch_hub_loads_from_this_folder():
    def load(*args: Any, **options: Any) -> Any:
        return torch.hub.load(str(ROOT), *args, source="local", **options)

    before = list(sys.path)
    model = load("trained_vit")
    assert sys.path == before
    assert not model.training
    about = json.loads((ROOT / "docs/assets/vit/vit.json").read_text("utf-8"))
    assert sum(x.numel() for x in model.parameters()) == about["parameters"]
    pixels = torch.rand(1, 3, 32, 32)
    assert model(pixels).shape == (1, len(about["classes"]))
    small = load("vision_transformer", "ViT-Ti/16", num_classes=7, device="meta")
    assert (type(small), small.config.num_classes) == (VisionTransformer, 7)
    language = load("LanguageModel", VOCAB, dim=DIM, heads=HEADS, depth=DEPTH)
    assert language(texts()).shape == (2, 11, VOCAB)
