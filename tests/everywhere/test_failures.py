"""Failures that bit users of other libraries, and the tests that show us safe.

| failure | met in | shown by |
|---|---|---|
| a row that sees nothing is NaN, and spoils the gradients of all others | pytorch #41508, #160064, #103963 | test_a_sample_that_sees_nothing_spoils_no_other |
| a mask means the opposite | rasbt/LLMs-from-scratch #1061, pytorch PR #120668, halonet-pytorch #4 | test_true_means_may_see |
| a mask is computed and not applied | flamingo-pytorch #10, DI-engine #333, ParlAI PR #3068 | test_a_masked_key_and_value_have_no_influence_not_in_the_last_bit |
| padding hides queries in place of keys | hyunwoongko/transformer PR #40 | test_padding_has_no_influence |
| NaN in padding leaks, since zero times NaN is NaN | flash-attention #1745 | test_padding_has_no_influence, test_a_mask_does_not_hide_nan_in_a_value |
| a large negative number for minus infinity overflows half precision | bentrevett/pytorch-seq2seq #191, fairseq #3575, flax #982 | test_half_precision_survives_large_scores_and_blind_rows, test_layers_in_half_precision_survive_masks_upon_masks |
| products overflow half precision before they are scaled | pytorch PR #60940 | test_products_that_overflow_half_precision_are_still_attended_to |
| masks of integers or of 0.0 and 1.0 are added to the scores | pytorch #33763, #103963 | test_malformed_calls_get_clear_errors |
| a causal mask is aligned with the wrong end | pytorch #108108, #103082, mlx #2835 | test_causal_attention_aligns_the_last_query_with_the_last_key, test_decoding_in_steps_equals_the_whole |
| dropout acts in evaluation | pytorch #124464, nanoGPT PR #240, torchtune #1791 | test_dropout_acts_in_training_alone |
| training and evaluation take paths that disagree | pytorch #97111, #86120, #83142 | test_without_dropout_training_is_evaluation |
| asking for the weights changes the output | pytorch #160064, #152028 | test_asking_for_the_weights_changes_nothing, test_explicit_and_fused_attention_agree |
| the caller's tensor is changed | pytorch's own test_check_inplace | test_inputs_are_not_changed_however_they_lie |
| a table of positions is too short and cut silently | SamLynnEvans/Transformer #14, bentrevett/pytorch-seq2seq #69, OpenNMT-py #2522 | test_a_sequence_longer_than_the_table_is_refused_never_cut |
| sinusoids of odd width crash in use | BERT-pytorch #78, pyaptamer #526 | test_a_width_works_or_is_refused_at_construction |
| heads or patches do not divide; height and width are swapped | vit-pytorch #61, #104, dinov2 #333, timm PR #652 | test_malformed_calls_get_clear_errors, test_rows_and_columns_are_not_confused, test_a_transposed_image_gives_other_tokens |
| batch and length are confused, which equal sizes hide | nn.Transformer's batch_first | test_samples_of_a_batch_do_not_meet |
| tied weights cannot be saved | safetensors #98, #202, trl #5150 | test_every_module_is_saved_and_loaded_by_safetensors, test_ties_hold_after_loading |
| buffers that are not saved are garbage after a start without memory | HF transformers #34234, timm PR #2350 | test_modules_are_made_without_memory_and_filled_later |
| a checkpoint from a GPU does not load without one | torch.load without map_location | test_a_checkpoint_from_a_gpu_loads_without_one |
| a compiled model breaks its graph or compiles again and again | pytorch #93905, #157601, einops #250 | test_compiles_whole_and_seldom, test_exports_with_free_batch_and_length |
| names of weights drift between versions | timm's test_checkpoint_loading | test_weights_keep_their_names_shapes_and_meaning |
"""  # noqa: E501

import ast
import inspect
import math
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from catalog import CATALOG, DIM, HEADS, HIDDEN, VOCABULARY, Entry, tensors
from einops import rearrange
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transformers_hw.attention import dot_product_attention
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.seq2seq import Alignment, Seq2Seq
from transformers_hw.transformer import Decoder, Encoder, Transformer

F64 = torch.float64
entries = pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)


def test_the_table_above_names_tests_that_exist() -> None:
    shown = [row.split("|")[3] for row in str(__doc__).splitlines() if "test_" in row]
    named = {name for cell in shown for name in re.findall(r"test_\w+", cell)}
    written = {
        node.name
        for path in Path(__file__).parents[1].rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert named - written == set()


# Rows that see nothing


def _layers() -> dict[str, Any]:
    """Give functions of tokens, a context, and which tokens of it are real."""
    layer = MultiHeadAttention(DIM, HEADS, dtype=F64)
    encoder = Encoder(DIM, HEADS, HIDDEN, 2, dtype=F64)
    decoder = Decoder(DIM, HEADS, HIDDEN, 2, norm="post", dtype=F64)

    def attend(x: Tensor, c: Tensor, seen: Tensor, **asked: bool) -> Tensor:
        mask = rearrange(seen, "b k -> b 1 k")
        return tensors(dot_product_attention(x, c, c, mask=mask, **asked))[0]

    def align(score: Any) -> tuple[nn.Module, Any]:
        alignment = Alignment(DIM, DIM, score=score, dtype=F64)
        return alignment, lambda x, c, s: alignment(
            x, c, mask=rearrange(s, "b k -> b 1 k")
        )

    weights = {"return_weights": True}
    return {
        "attention": (nn.Identity(), attend),
        "attention, weights": (nn.Identity(), lambda *x: attend(*x, **weights)),
        "layer": (layer, lambda x, c, s: layer(x, c, padding_mask=s)),
        "layer, weights": (
            layer,
            lambda x, c, s: layer(x, c, padding_mask=s, **weights)[0],
        ),
        "layer, causal": (layer, lambda x, c, s: layer(c, padding_mask=s, causal=True)),
        "encoder": (encoder, lambda x, c, s: encoder(c, padding_mask=s)),
        "decoder": (decoder, lambda x, c, s: decoder(x, c, memory_padding_mask=s)),
        "bilinear": align("bilinear"),
        "additive": align("additive"),
    }


@pytest.mark.filterwarnings("ignore:padding_mask hides every token")
@pytest.mark.parametrize("name", _layers())
def test_a_sample_that_sees_nothing_spoils_no_other(name: str) -> None:
    module, function = _layers()[name]
    x, context = torch.randn(2, 5, DIM, dtype=F64), torch.randn(2, 7, DIM, dtype=F64)
    seen = torch.ones(2, 7, dtype=torch.bool)
    seen[1] = False

    def run(rows: slice) -> tuple[Tensor, dict[str, Tensor]]:
        given = {"x": x[rows].clone(), "context": context[rows].clone()}
        given = {name: value.requires_grad_() for name, value in given.items()}
        output = function(*given.values(), seen[rows])
        leaves = {**dict(module.named_parameters()), **given}

        def gradients(part: Tensor) -> dict[str, Tensor]:
            options = {"retain_graph": True, "materialize_grads": True}
            total = part.sin().sum()
            found = torch.autograd.grad(total, list(leaves.values()), **options)
            return dict(zip(leaves, found, strict=True))

        assert all(x.isfinite().all() for x in (output, *gradients(output).values()))
        # The good sample alone is judged; the blind one is there to do harm.
        by = gradients(output[0])
        return output, {n: g[:1] if n in given else g for n, g in by.items()}

    whole, by = run(slice(0, 2))
    alone, alone_by = run(slice(0, 1))
    torch.testing.assert_close(whole[:1], alone, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(by, alone_by, atol=1e-12, rtol=1e-12)
    if name.startswith("attention") or name in ("bilinear", "additive"):
        assert (whole[1] == 0).all()
    if name.startswith("layer"):
        assert torch.equal(whole[1], module.output_proj.bias.expand_as(whole[1]))


@pytest.mark.filterwarnings("ignore:padding_mask hides every token")
@pytest.mark.parametrize("kind", ["Transformer", "Seq2Seq"])
def test_a_source_of_padding_alone_spoils_no_other(kind: str) -> None:
    sizes = {"dim": DIM, "hidden_dim": HIDDEN, "dtype": F64}
    model = (
        Transformer(VOCABULARY, heads=HEADS, depth=2, **sizes)
        if kind == "Transformer"
        else Seq2Seq(VOCABULARY, attention="additive", **sizes)
    )
    source = torch.randint(1, VOCABULARY, (2, 7))
    target = torch.randint(1, VOCABULARY, (2, 5))
    source[1] = 0
    logits = tensors(model(source, target))[0]
    assert logits.isfinite().all()
    gradients = torch.autograd.grad(logits.sin().sum(), list(model.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    alone = tensors(model(source[:1], target[:1]))[0]
    torch.testing.assert_close(logits[:1], alone, atol=1e-12, rtol=1e-12)


# Masks


def _masks() -> list[Any]:
    """Give each mask of each module, with the input that it is about."""
    found = []
    for entry in CATALOG:
        masks = {n: x for n, x in entry.inputs.items() if x.kind == "mask"}
        for name, described in masks.items():
            axis = described.axes.split()[-1]
            about = next(
                other
                for other in ("values", "context", "memory", "x", "tokens")
                if other in entry.inputs and entry.inputs[other].axes.split()[1] == axis
            )
            found.append(pytest.param(entry, name, about, id=f"{entry.name}: {name}"))
    return found


@pytest.mark.parametrize(("entry", "name", "about"), _masks())
def test_true_means_may_see(entry: Entry, name: str, about: str) -> None:
    module, inputs = entry.make(), entry.example()
    for mask, described in entry.inputs.items():
        if described.kind == "mask":
            inputs[mask] = torch.ones_like(inputs[mask])
    # Only the first token may be seen: one of the others is no judge of itself.
    inputs[name][..., 1:] = False
    last = tensors(entry.call(module, **inputs))[0][:, -1]

    def moved(token: int) -> Tensor:
        changed = inputs[about].clone()
        if changed.is_floating_point():
            changed[:, token] += torch.randn_like(changed[:, token])
        else:
            changed[:, token] = (changed[:, token] + 1) % entry.inputs[about].below
        return tensors(entry.call(module, **{**inputs, about: changed}))[0][:, -1]

    assert not torch.allclose(moved(0), last, atol=1e-6)
    assert torch.equal(moved(2), last)


def test_every_module_with_masks_is_asked_what_they_mean() -> None:
    asked = {type(param.values[0].make()) for param in _masks()}
    takers = {
        type(entry.make())
        for entry in CATALOG
        for name in inspect.signature(type(entry.make()).forward).parameters
        if name.endswith("mask")
    }
    # The layers' masks are the stacks'.
    stacked = {"EncoderLayer", "DecoderLayer", "RNN"}
    assert {kind.__name__ for kind in takers - asked} <= stacked


@pytest.mark.filterwarnings("ignore:padding_mask hides every token")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("explicitly", [False, True])
def test_layers_in_half_precision_survive_masks_upon_masks(
    dtype: torch.dtype, explicitly: bool
) -> None:
    layer = MultiHeadAttention(DIM, HEADS, scale=50.0, dtype=dtype)
    x = (30 * torch.randn(3, 5, DIM)).to(dtype).requires_grad_()
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3, [False] * 5])
    mask = torch.ones(5, 5, dtype=torch.bool).triu(-2)
    result = layer(
        x, mask=mask, padding_mask=real, causal=True, return_weights=explicitly
    )
    output = result[0] if explicitly else result
    gradients = torch.autograd.grad(
        output.float().sin().sum(), [x, *layer.parameters()]
    )
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    # The first two tokens of the second sample see padding alone, the third none.
    assert torch.equal(output[1, :2], output[2, :2])


# Weights, batches


@pytest.mark.parametrize(
    "entry",
    [
        entry
        for entry in CATALOG
        if "return_weights" in inspect.signature(type(entry.make()).forward).parameters
        # One has no parameters, the other no weights.
        and entry.name not in ("Alignment dot", "Seq2Seq None")
    ],
    ids=lambda entry: entry.name,
)
def test_asking_for_the_weights_changes_nothing(entry: Entry) -> None:
    module, inputs = entry.make(), entry.example()
    options = getattr(entry.call, "keywords", {})
    found = []
    for ask in (False, True):
        given = {**inputs, **options, "return_weights": ask}
        result = module(**given)
        assert isinstance(result, tuple) == ask
        output = result[0] if ask else result
        gradients = torch.autograd.grad(
            output.sin().sum(), list(module.parameters()), materialize_grads=True
        )
        found.append([output, *gradients])
    torch.testing.assert_close(*found, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    "entry",
    [entry for entry in CATALOG if entry.output.startswith("b ")],
    ids=lambda entry: entry.name,
)
def test_samples_of_a_batch_do_not_meet(entry: Entry) -> None:
    module, inputs = entry.make(), entry.example()
    whole = tensors(entry.call(module, **inputs))[0]
    for row in range(len(whole)):
        alone = {
            name: x[row : row + 1] if entry.inputs[name].axes.startswith("b ") else x
            for name, x in inputs.items()
        }
        output = tensors(entry.call(module, **alone))[0]
        torch.testing.assert_close(output[0], whole[row], atol=1e-10, rtol=1e-10)


# Saving and loading


@entries
def test_every_module_is_saved_and_loaded_by_safetensors(
    entry: Entry, tmp_path: Path
) -> None:
    module, inputs = entry.make(), entry.example()
    weights = module.state_dict()
    places = [x.untyped_storage().data_ptr() for x in weights.values()]
    assert len(set(places)) == len(places)
    save_file(weights, tmp_path / "weights.safetensors")
    other = entry.build(**({"dtype": F64} if entry.placed else {}))
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    found, expected = (tensors(entry.call(x.eval(), **inputs)) for x in (other, module))
    torch.testing.assert_close(found, expected, atol=0.0, rtol=0.0)


def test_ties_hold_after_loading(tmp_path: Path) -> None:
    entry = next(entry for entry in CATALOG if entry.name == "Transformer")
    save_file(entry.make().state_dict(), tmp_path / "weights.safetensors")
    model = entry.build(dtype=F64)
    model.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    inputs = entry.example()
    memory = model.encode(inputs["source"])
    token = int(inputs["target"][0, 0])
    unused = next(i for i in range(1, VOCABULARY) if i not in inputs["target"])
    with torch.no_grad():
        before = model.decode(inputs["target"], memory, inputs["source"])
        model.embedding.weight[unused] += 1.0
        after = model.decode(inputs["target"], memory, inputs["source"])
    # Moving a token's vector moves its logit, and no other token's.
    moved = (before != after).any(dim=0).any(dim=0)
    assert moved.nonzero().flatten().tolist() == [unused]
    assert token != unused


def _as_if_saved_on_a_gpu(path: Path, copy: Path) -> None:
    """Rewrite where a checkpoint says that its numbers lay."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy, "w") as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith("data.pkl"):
                here = b"X\x03\x00\x00\x00cpu"
                assert here in content
                content = content.replace(here, b"X\x06\x00\x00\x00cuda:0")
                names = [name for _, name, _ in pickletools.genops(content)]
                assert "cuda:0" in names
            new.writestr(item.filename, content)


def test_a_checkpoint_from_a_gpu_loads_without_one(tmp_path: Path) -> None:
    entry = next(entry for entry in CATALOG if entry.name == "Transformer")
    model, inputs = entry.make(), entry.example()
    torch.save(model.state_dict(), tmp_path / "here.pt")
    _as_if_saved_on_a_gpu(tmp_path / "here.pt", tmp_path / "there.pt")
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="CUDA"):
            torch.load(tmp_path / "there.pt", weights_only=True)
    weights = torch.load(tmp_path / "there.pt", map_location="cpu", weights_only=True)
    other = entry.build(dtype=F64)
    other.load_state_dict(weights)
    assert torch.equal(other(**inputs), model(**inputs))
    assert not any(math.isnan(x.sum()) for x in weights.values())
