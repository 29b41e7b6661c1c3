"""What holds for every module of the book, asked of each of them in turn."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
import torch.utils._pytree
from catalog import (
    CATALOG,
    OTHER_SIZES,
    SIZES,
    TRACED_ELSEWHERE,
    Entry,
    Input,
    public_modules,
    tensors,
    traced,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformers_hw import FeedForward, RelativePositionBias, SelfAttention
from transformers_hw.attention import dot_product_attention
from transformers_hw.self_attention import ZeroPaddedSelfAttention
from transformers_hw.seq2seq import Alignment

EXACTLY = {"atol": 0.0, "rtol": 0.0}
NEARLY = {"atol": 1e-10, "rtol": 1e-10}
SMALL = {"b": 2, "n": 3, "k": 2, "rows": 3, "columns": 2}


def each(**wanted: Any) -> pytest.MarkDecorator:
    """Parametrize over the entries that have these attributes set."""
    found = [
        entry
        for entry in CATALOG
        if all(bool(getattr(entry, name)) == want for name, want in wanted.items())
    ]
    return pytest.mark.parametrize("entry", found, ids=lambda entry: entry.name)


class Called(nn.Module):
    """An entry's module together with the way to call it, inputs in one dict."""

    def __init__(self, entry: Entry, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.call = entry.call

    def forward(self, inputs: dict[str, Tensor]) -> Any:
        return self.call(self.module, **inputs)


def outputs(entry: Entry, module: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    return tensors(entry.call(module, **inputs))


def results(
    entry: Entry,
    module: nn.Module,
    inputs: dict[str, Tensor],
    kept: tuple[Any, ...] = (...,),
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Give a part of the outputs, and its gradients by parameter and by input."""
    inputs = {
        name: x.detach().requires_grad_(x.is_floating_point())
        for name, x in inputs.items()
    }
    found = [
        x[kept] if i == 0 else x for i, x in enumerate(outputs(entry, module, inputs))
    ]
    leaves = {**dict(module.named_parameters()), **inputs}
    leaves = {name: x for name, x in leaves.items() if x.requires_grad}
    total = sum(x.sin().sum() for x in found[:1])
    gradients: dict[str, Tensor] = {}
    if isinstance(total, Tensor) and total.requires_grad:
        taken = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        gradients = {
            name: torch.zeros_like(leaf) if gradient is None else gradient
            for (name, leaf), gradient in zip(leaves.items(), taken, strict=True)
        }
    return [x.detach() for x in found], gradients


def assert_all_equal(ours: list[Tensor], theirs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, **EXACTLY)
    assert len(ours) > 0


def assert_all_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, **NEARLY)
    assert len(ours) > 0


def reordered(
    entry: Entry, inputs: dict[str, Tensor], axis: str, order: Tensor
) -> dict[str, Tensor]:
    """Reorder an axis in all inputs that have it."""
    changed = dict(inputs)
    for name, described in entry.inputs.items():
        for i, one in enumerate(described.axes.split()):
            if one == axis:
                changed[name] = changed[name].index_select(i, order)
    return changed


# The catalog itself


def test_the_catalog_holds_every_module_of_the_book() -> None:
    held = {type(entry.make()) for entry in CATALOG}
    here = {type(part) for entry in traced() for part in entry.make().modules()}
    assert {kind.__name__ for kind in held - here} <= TRACED_ELSEWHERE
    assert {kind.__name__ for kind in public_modules() - held} == set()
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)


@each()
def test_outputs_have_the_shape_and_type_stated(entry: Entry) -> None:
    for sizes in (SIZES, *OTHER_SIZES):
        output = outputs(entry, entry.make(), entry.example(sizes))[0]
        assert list(output.shape) == Input(entry.output).shape({**sizes, **entry.sizes})
        assert output.dtype == torch.float64


# Order


@each(equivariant=True)
@settings(deadline=None, max_examples=5)
@given(order=st.permutations(range(SIZES["n"])))
def test_reordered_tokens_take_their_outputs_along(
    entry: Entry, order: list[int]
) -> None:
    assert entry.equivariant is not None
    module, inputs = entry.make(), entry.example()
    at = torch.tensor(order)
    output = outputs(entry, module, inputs)[0]
    shuffled = reordered(entry, inputs, entry.equivariant, at)
    axis = entry.output.split().index(entry.equivariant)
    assert_all_close(
        outputs(entry, module, shuffled)[:1], [output.index_select(axis, at)]
    )


@each(invariant=True)
def test_a_context_is_a_set(entry: Entry) -> None:
    assert entry.invariant is not None
    module, inputs = entry.make(), entry.example()
    order = torch.randperm(SIZES[entry.invariant])
    shuffled = reordered(entry, inputs, entry.invariant, order)
    assert not torch.equal(order, order.sort().values)
    assert_all_close(
        outputs(entry, module, shuffled)[:1], outputs(entry, module, inputs)[:1]
    )


# What is hidden has no influence


@each(causal=True)
@pytest.mark.parametrize("filling", [1e30, -1e30])
def test_the_future_has_no_influence(entry: Entry, filling: float) -> None:
    assert entry.causal is not None
    name, axis = entry.causal
    module, inputs = entry.make(), entry.example()
    assert axis == entry.output.split()[1]
    for now in (1, inputs[name].shape[1] - 1):
        changed = inputs[name].clone()
        if changed.is_floating_point():
            changed[:, now:] = filling
        else:
            changed[:, now:] = 1 + changed[:, now:] % 5
        assert not torch.equal(changed, inputs[name])
        kept = (slice(None), slice(now))
        before, by = results(entry, module, inputs, kept)
        after, changed_by = results(entry, module, {**inputs, name: changed}, kept)
        assert torch.equal(before[0], after[0])
        torch.testing.assert_close(changed_by, by, **EXACTLY)
        if name in by:
            assert (by[name][:, now:] == 0).all()


@each(padded=True)
@pytest.mark.parametrize("filling", [1e30, -1e30, math.inf, math.nan])
def test_padding_has_no_influence(entry: Entry, filling: float) -> None:
    """Where tokens attend to each other, padding has outputs of its own.

    What is not finite stays in these, and in the gradients of the weights that
    project it as a query; the outputs of real tokens never see it.
    """
    assert entry.padded is not None
    name, mask = entry.padded
    module, inputs = entry.make(), entry.example()
    real = inputs[mask]
    assert not real.all()
    changed = inputs[name].clone()
    changed[~real] = filling
    itself = entry.inputs[name].axes.split()[1] == entry.output.split()[1]
    kept = (real,) if itself else (...,)
    before, by = results(entry, module, inputs, kept)
    after, changed_by = results(entry, module, {**inputs, name: changed}, kept)
    assert torch.equal(before[0], after[0])
    if not itself or math.isfinite(filling):
        torch.testing.assert_close(changed_by, by, **EXACTLY)


MASKS = {
    "none": None,
    "all heads": torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.4,
    "each head": torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(2)) > 0.4,
    "padding": torch.tensor([[[[True] * 7]], [[[True] * 4 + [False] * 3]]]),
    "blind row": torch.ones(5, 7).bool().index_fill(0, torch.tensor([2]), False),
    "blind": torch.zeros(1, 1, dtype=torch.bool),
}


def queries_keys_values() -> list[Tensor]:
    shapes = ((5, 11), (7, 11), (7, 13))
    return [torch.randn(2, 3, *x).double().requires_grad_() for x in shapes]


def attended(explicitly: bool, qkv: list[Tensor], **options: Any) -> list[Tensor]:
    """Give the output, and its gradients by queries, keys, values and bias."""
    result = dot_product_attention(*qkv, return_weights=explicitly, **options)
    output = result[0] if explicitly else result
    bias = options.get("bias")
    leaves = qkv if bias is None else [*qkv, bias]
    found = torch.autograd.grad(
        output.sin().sum(), leaves, allow_unused=True, materialize_grads=True
    )
    return [output, *found]


@pytest.mark.parametrize("scale", [None, 0.0, 1.0, 50.0, math.inf])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_explicit_and_fused_attention_agree(
    mask: Tensor | None, with_bias: bool, causal: bool, scale: float | None
) -> None:
    qkv, bias = queries_keys_values(), None
    if with_bias:
        bias = torch.randn(3, 5, 7).double()
        bias[1, 3, 2] = bias[2, 4] = -math.inf
        bias.requires_grad_()
    options = {"mask": mask, "bias": bias, "causal": causal, "scale": scale}
    fused, explicit = (attended(x, qkv, **options) for x in (False, True))
    assert all(x.isfinite().all() for x in (*fused, *explicit))
    assert_all_close(fused, explicit)


@pytest.mark.parametrize("explicitly", [False, True])
@pytest.mark.parametrize("filling", [1e30, -1e30])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("scale", [None, math.inf])
def test_a_masked_key_and_value_have_no_influence_not_in_the_last_bit(
    explicitly: bool, filling: float, with_bias: bool, scale: float | None
) -> None:
    qkv = queries_keys_values()
    bias = torch.randn(5, 7).double().requires_grad_() if with_bias else None
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, [1, 4]] = False
    options = {"mask": mask, "bias": bias, "scale": scale}
    before = attended(explicitly, qkv, **options)
    with torch.no_grad():
        for x in qkv[1:]:
            x[:, :, [1, 4]] = filling
    assert_all_equal(attended(explicitly, qkv, **options), before)
    for gradient in before[2:4]:
        assert (gradient[:, :, [1, 4]] == 0).all()
    assert (before[3][:, :, [0, 2, 3, 5, 6]] != 0).any()


@pytest.mark.parametrize("explicitly", [False, True])
def test_a_mask_does_not_hide_nan_in_a_value(explicitly: bool) -> None:
    qkv = queries_keys_values()
    with torch.no_grad():
        qkv[2][:, :, 1] = math.nan
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 1] = False
    # Zero times NaN is NaN: the padding mask of the layer hides even that.
    assert attended(explicitly, qkv, mask=mask)[0].isnan().all()


# Training and evaluation


@each(dropout=True)
def test_without_dropout_training_is_evaluation(entry: Entry) -> None:
    module, inputs = entry.make(dropout=0.0), entry.example()
    trained, by = results(entry, module.train(), inputs)
    evaluated, evaluated_by = results(entry, module.eval(), inputs)
    assert_all_equal(trained, evaluated)
    assert_all_equal(list(by.values()), list(evaluated_by.values()))


@each(dropout=True)
def test_dropout_acts_in_training_alone(entry: Entry) -> None:
    inputs = entry.example()
    module, without = entry.make(dropout=0.9), entry.make(dropout=0.0)
    first = outputs(entry, module.eval(), inputs)
    assert_all_equal(first, outputs(entry, module, inputs))
    assert_all_equal(first, outputs(entry, without.eval(), inputs))
    trained = outputs(entry, module.train(), inputs)
    assert not torch.equal(trained[0], first[0])
    assert not torch.equal(trained[0], outputs(entry, module, inputs)[0])


def test_every_module_that_takes_dropout_is_asked_about_it() -> None:
    def drops(entry: Entry) -> bool:
        rates = [
            getattr(module, "p", getattr(module, "dropout", None))
            for module in entry.make().modules()
        ]
        return any(isinstance(rate, float) for rate in rates)

    silent = {type(entry.make()) for entry in CATALOG if drops(entry)} - {
        type(entry.make()) for entry in CATALOG if entry.dropout
    }
    assert silent == set()


# Inputs


def strided(x: Tensor) -> Tensor:
    """Give the same numbers, laid out with the axes in reverse and gaps between."""
    order = tuple(reversed(range(x.dim())))
    room = x.new_zeros([2 * n for n in reversed(x.shape)])
    view = room[tuple(slice(None, None, 2) for _ in order)].permute(order)
    return view.copy_(x)


@each()
@pytest.mark.parametrize("layout", ["plain", "expanded", "strided"])
def test_inputs_are_not_changed_however_they_lie(entry: Entry, layout: str) -> None:
    module, inputs = entry.make(), entry.example()
    if layout == "expanded":
        inputs = {name: x[:1].expand_as(x) for name, x in inputs.items()}
    if layout == "strided":
        inputs = {name: strided(x) for name, x in inputs.items()}
        assert not any(x.is_contiguous() for x in inputs.values())
    plain = {
        name: x.clone(memory_format=torch.contiguous_format)
        for name, x in inputs.items()
    }
    weights = copy.deepcopy(module.state_dict())
    found, by = results(entry, module, inputs)
    torch.testing.assert_close(inputs, plain, **EXACTLY)
    torch.testing.assert_close(module.state_dict(), weights, **EXACTLY)
    expected, expected_by = results(entry, module, plain)
    assert_all_close(found, expected)
    torch.testing.assert_close(by, expected_by, **NEARLY)


# Gradients


@each()
def test_gradients_and_their_gradients_are_right(entry: Entry) -> None:
    called = Called(entry, entry.make())
    inputs = entry.example(SMALL)
    floats = {name: inputs[name] for name in entry.floats()}
    parameters = dict(called.named_parameters())
    # One vector of all parameters: each argument is perturbed on its own.
    sizes = [p.numel() for p in parameters.values()]
    flat = torch.cat(
        [torch.zeros(1).double(), *(p.flatten() for p in parameters.values())]
    )

    def function(flat: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(floats, values, strict=True))
        pieces = zip(parameters.items(), flat[1:].split(sizes), strict=True)
        weights = {name: piece.view_as(p) for (name, p), piece in pieces}
        found = functional_call(called, weights, ({**inputs, **given},))
        return tuple(x for x in tensors(found) if x.requires_grad)

    leaves = [x.detach().clone().requires_grad_() for x in (flat, *floats.values())]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    # PyTorch's fused kernel for CPUs has no second derivative (yet); its plain one has.
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


def test_the_explicit_path_has_second_derivatives() -> None:
    def function(*qkv: Tensor) -> Tensor:
        return dot_product_attention(*qkv, return_weights=True)[0]

    assert torch.autograd.gradgradcheck(function, queries_keys_values(), fast_mode=True)


# Making, moving, copying


@each()
def test_modules_are_made_without_memory_and_filled_later(entry: Entry) -> None:
    module, inputs = entry.make(), entry.example()
    with torch.device("meta"):
        empty = entry.build(**({"dtype": torch.float64} if entry.placed else {}))
    held = [*empty.parameters(), *empty.buffers()]
    assert all(x.is_meta for x in held)
    assert empty.state_dict().keys() == module.state_dict().keys()
    empty.to_empty(device="cpu")
    for x in (*empty.parameters(), *empty.buffers()):
        # What is not loaded below must not be right by accident.
        x.data.fill_(math.nan)
    empty.load_state_dict(module.state_dict())
    expected = outputs(entry, module.eval(), inputs)
    assert_all_equal(outputs(entry, empty.eval(), inputs), expected)


@each(placed=True)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_constructors_take_device_and_dtype(entry: Entry, dtype: torch.dtype) -> None:
    module = entry.build(device="meta", dtype=dtype)
    held = [*module.parameters(), *module.buffers()]
    assert all(x.is_meta and x.dtype == dtype for x in held)
    here = entry.build(device="cpu", dtype=dtype)
    assert all(x.device.type == "cpu" for x in here.parameters())
    shapes = [[x.shape for x in made.parameters()] for made in (here, module)]
    assert shapes[0] == shapes[1]


@each(placed=False)
def test_what_takes_no_device_has_nothing_to_place(entry: Entry) -> None:
    assert dict(entry.make().state_dict()) == {}


@each()
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_compute_the_same_and_share_nothing(entry: Entry, way: str) -> None:
    module, inputs = entry.make(), entry.example()
    copied = {
        "deepcopy": copy.deepcopy,
        "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    }
    twin = copied[way](module)
    assert_all_equal(outputs(entry, twin, inputs), outputs(entry, module, inputs))
    own = {x.data_ptr() for x in module.parameters()}
    assert own.isdisjoint(x.data_ptr() for x in twin.parameters())
    assert len(list(twin.parameters())) == len(list(module.parameters()))
    assert repr(twin) == repr(module)


@each()
def test_repr_shows_more_than_the_class(entry: Entry) -> None:
    module = entry.make()
    assert repr(module) != f"{type(module).__name__}()"


@pytest.mark.parametrize(
    ("module", "shown"),
    [
        (RelativePositionBias(2, 3), "RelativePositionBias(2, max_distance=3)"),
        (Alignment(5, 5, score="dot"), "Alignment(5, 5, score='dot')"),
        (FeedForward(5, 7, activation="gelu"), "FeedForward(\n  activation='gelu'\n"),
        (
            ZeroPaddedSelfAttention(SelfAttention(6), before=2, after=3),
            "ZeroPaddedSelfAttention(\n  before=2, after=3\n",
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_repr_shows_the_settings(module: nn.Module, shown: str) -> None:
    assert repr(module).startswith(shown)


# Values that cannot be read


@each()
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's kernel
@torch.no_grad()  # PyTorch's kernel has no gradient of a bias under vmap
def test_vectorized_calls_are_a_loop_of_calls(entry: Entry) -> None:
    module, inputs = entry.make(), [entry.example(), entry.example()]
    for name, described in entry.inputs.items():
        inputs[1][name] = described.make({**SIZES, **entry.sizes}, torch.float64)
    together = {name: torch.stack([x[name] for x in inputs]) for name in inputs[0]}
    found = vmap(lambda x: tuple(outputs(entry, module, x)))(together)
    for i, one in enumerate(inputs):
        assert_all_close([x[i] for x in found], outputs(entry, module, one))


@pytest.mark.unhooked
@each()
def test_make_fx_traces_what_is_computed(entry: Entry) -> None:
    module, inputs = entry.make(), entry.example()
    graph = make_fx(lambda x: outputs(entry, module, x))(inputs)
    others = {name: x.flip(0) for name, x in inputs.items()}
    assert_all_close(graph(others), outputs(entry, module, others))


@pytest.mark.unhooked
@each()
def test_fake_tensors_get_the_shapes_of_real_ones(entry: Entry) -> None:
    module, inputs = entry.make(), entry.example()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: mode.from_tensor(x) for name, x in inputs.items()}
        found = outputs(entry, module, fake)
    wanted = outputs(entry, module, inputs)
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in wanted]


@pytest.mark.unhooked
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
@pytest.mark.parametrize(
    "entry",
    [e for e in CATALOG if any(x.kind == "ids" for x in e.inputs.values())],
    ids=lambda entry: entry.name,
)
def test_ids_that_cannot_index_are_refused(entry: Entry, dtype: torch.dtype) -> None:
    module, inputs = entry.make(), entry.example()
    for name, described in entry.inputs.items():
        if described.kind == "ids":
            wrong = {**inputs, name: inputs[name].to(dtype)}
            with pytest.raises(TypeError, match=f"must be int64 or int32, got {dtype}"):
                outputs(entry, module, wrong)


# Half precision


@each()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_to_double(entry: Entry, dtype: torch.dtype) -> None:
    module = entry.make(dtype=dtype)
    inputs = entry.example(dtype=dtype)
    found, by = results(entry, module, inputs)
    double = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    expected, expected_by = results(entry, copy.deepcopy(module).double(), double)
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == dtype
        error = (x.double() - y).norm() / y.norm()
        assert error < 8 * torch.finfo(dtype).eps
    assert by.keys() == expected_by.keys()
    for name, x in by.items():
        assert x.isfinite().all(), name


# Compiling and exporting


@pytest.mark.unhooked
@pytest.mark.parametrize("entry", traced(), ids=lambda entry: entry.name)
def test_compiles_whole_and_seldom(entry: Entry) -> None:
    torch._dynamo.reset()
    called, counter = Called(entry, entry.make()), CompileCounter()
    compiled = torch.compile(called, backend=counter, fullgraph=True, dynamic=True)
    for inputs in entry.resized():
        assert_all_close(tensors(compiled(inputs)), tensors(called(inputs)))
    assert 1 <= counter.frame_count <= 2


@pytest.mark.unhooked
@pytest.mark.parametrize("entry", traced(), ids=lambda entry: entry.name)
def test_exports_with_free_batch_and_length(entry: Entry) -> None:
    called, shapes = Called(entry, entry.make().eval()), (entry.free_axes(),)
    exported = torch.export.export(
        called, (entry.example(),), dynamic_shapes=shapes, strict=True
    ).module()
    for inputs in entry.resized():
        assert_all_close(tensors(exported(inputs)), tensors(called(inputs)))
