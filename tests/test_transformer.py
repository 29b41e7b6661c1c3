"""Chapter 6 against nn.Transformer and its parts, formulas, and counting by hand."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from transformers_hw import (
    Decoder,
    DecoderCache,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    LearnedPositions,
    MultiHeadAttention,
    Transformer,
    gelu,
    label_smoothing_loss,
    layer_norm,
    padding_mask,
    transformer_learning_rate,
)

F64 = torch.float64
B, T, S, D, H, HIDDEN = 2, 5, 7, 12, 3, 17


def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    weights = theirs.in_proj_weight.chunk(3)
    biases = theirs.in_proj_bias.chunk(3)
    projections = (ours.query_proj, ours.key_proj, ours.value_proj)
    for projection, weight, bias in zip(projections, weights, biases, strict=True):
        projection.weight.copy_(weight)
        projection.bias.copy_(bias)
    ours.output_proj.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copy_layer(theirs: nn.Module, ours: EncoderLayer | DecoderLayer) -> None:
    """Give ours the weights of PyTorch's encoder or decoder layer."""
    for parameter in theirs.parameters():
        parameter.normal_(std=0.3)
    if isinstance(ours, EncoderLayer):
        copy_attention(theirs.self_attn, ours.attention)
        norms = (ours.attention_norm, ours.feed_forward_norm)
    else:
        copy_attention(theirs.self_attn, ours.self_attention)
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        norms = (
            ours.self_attention_norm,
            ours.cross_attention_norm,
            ours.feed_forward_norm,
        )
    ours.feed_forward.hidden_proj.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.output_proj.load_state_dict(theirs.linear2.state_dict())
    for i, norm in enumerate(norms, start=1):
        norm.load_state_dict(getattr(theirs, f"norm{i}").state_dict())


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Outputs and gradients agree to ten digits."""
    assert ours.std() > 0
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(ours.sin().sum(), inputs),
        torch.autograd.grad(theirs.sin().sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


# PyTorch says so of every nn.Transformer it makes.
quiet = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
SETTINGS = list(itertools.product(["pre", "post"], ["relu", "gelu"]))


# --- parts ------------------------------------------------------------------------


@pytest.mark.question("nyu-1.4e", "eth-2c")
@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm_matches_pytorch(bias):
    ours = LayerNorm(7, eps=1e-3, bias=bias, dtype=F64)
    theirs = nn.LayerNorm(7, eps=1e-3, bias=bias, dtype=F64)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = randn(2, 3, 7)
    assert_same(ours(x), theirs(x), [x])
    by_formula = layer_norm(x, ours.weight, ours.bias, eps=1e-3)
    assert_same(by_formula, theirs(x), [x, *ours.parameters()][:1])
    ours.reset_parameters()
    assert torch.allclose(ours(x), layer_norm(x, eps=1e-3))


@pytest.mark.question("nyu-1.4e")
def test_a_token_is_normalised_alone_with_its_biased_variance():
    x = torch.randn(5, 7, dtype=F64)
    y = layer_norm(x, eps=0.0)
    assert torch.allclose(y.mean(-1), torch.zeros(5, dtype=F64), atol=1e-12)
    assert torch.allclose(y.var(-1, correction=0), torch.ones(5, dtype=F64))
    changed = x.clone()
    changed[1:] += 100.0
    assert torch.equal(layer_norm(changed, eps=0.0)[0], y[0])


@pytest.mark.question("eth-2b")
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_matches_pytorch(approximate):
    x = torch.linspace(-9, 9, 1801, dtype=F64, requires_grad=True)
    ours, theirs = (f(x, approximate=approximate) for f in (gelu, F.gelu))
    assert_same(ours, theirs, [x])


@pytest.mark.question("eth-2b")
def test_the_two_gelus_differ_by_an_even_function_greatest_near_2_7():
    x = torch.linspace(0, 6, 600_001, dtype=F64)
    difference = gelu(x, approximate="tanh") - gelu(x)
    mirrored = gelu(-x, approximate="tanh") - gelu(-x)
    assert torch.allclose(difference, mirrored, rtol=0, atol=1e-14)
    worst = difference.abs().argmax()
    assert difference.abs()[worst].item() == pytest.approx(4.732e-4, abs=5e-8)
    assert x[worst].item() == pytest.approx(2.699, abs=5e-4)


@pytest.mark.question("nyu-1.4d")
def test_the_feed_forward_network_is_two_convolutions_of_kernel_size_one():
    network = FeedForward(D, HIDDEN, dtype=F64)
    x = randn(B, T, D)
    first, second = network.hidden_proj, network.output_proj
    hidden = F.conv1d(x.mT, first.weight[..., None], first.bias).relu()
    expected = F.conv1d(hidden, second.weight[..., None], second.bias).mT
    assert_same(network(x), expected, [x])


@pytest.mark.question("nyu-1.4d")
def test_the_feed_forward_network_is_shared_by_positions_and_mixes_none():
    network = FeedForward(D, HIDDEN, dtype=F64)
    x = torch.randn(T, D, dtype=F64)
    shuffle = torch.randperm(T)
    assert torch.allclose(network(x[shuffle]), network(x)[shuffle], atol=1e-15)
    changed = x.clone()
    changed[1:] = 0.0
    assert torch.allclose(network(changed)[0], network(x)[0], rtol=0, atol=1e-15)
    base = FeedForward(512, 2048, device="meta")
    assert sum(p.numel() for p in base.parameters()) == 2_099_712


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_inference_mode_changes_neither_outputs_nor_inputs(activation):
    network = FeedForward(D, HIDDEN, activation=activation, dtype=F64)
    x = torch.randn(2, 5, D, dtype=F64)
    before = x.clone()
    with torch.inference_mode():
        output = network(x)
    torch.testing.assert_close(output, network(x).detach(), rtol=0, atol=0)
    assert torch.equal(x, before)


@pytest.mark.parametrize(("ours", "theirs"), [("relu", F.relu), ("gelu", F.gelu)])
def test_activations_by_name(ours, theirs):
    network = FeedForward(D, HIDDEN, activation=ours, dtype=F64)
    x = randn(B, D)
    assert torch.equal(network(x), network.output_proj(theirs(network.hidden_proj(x))))
    tanh = FeedForward(D, HIDDEN, activation="gelu_tanh", dtype=F64)
    expected = tanh.output_proj(gelu(tanh.hidden_proj(x), approximate="tanh"))
    assert torch.allclose(tanh(x), expected, rtol=0, atol=1e-12)


# --- layers and stacks --------------------------------------------------------------


@pytest.mark.parametrize(("norm", "activation"), SETTINGS)
@pytest.mark.parametrize("masked", ["no", "causal", "padding"])
def test_encoder_layer_matches_pytorch(norm, activation, masked):
    ours = EncoderLayer(
        D, H, HIDDEN, norm=norm, activation=activation, eps=1e-4, dtype=F64
    )
    theirs = nn.TransformerEncoderLayer(
        D,
        H,
        HIDDEN,
        dropout=0.0,
        activation=activation,
        layer_norm_eps=1e-4,
        batch_first=True,
        norm_first=norm == "pre",
        dtype=F64,
    )
    copy_layer(theirs, ours)
    x, real = randn(B, T, D), padding_mask(torch.tensor([T, 3]))
    future = torch.ones(T, T).triu(1).bool()
    our_masks, their_masks = {
        "no": ({}, {}),
        "causal": ({"causal": True}, {"src_mask": future}),
        "padding": ({"padding_mask": real}, {"src_key_padding_mask": ~real}),
    }[masked]
    assert_same(ours(x, **our_masks), theirs(x, **their_masks), [x])


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("masked", ["no", "mask", "row", "padding", "bias"])
@pytest.mark.parametrize("first", [1, 3])
def test_tokens_that_are_not_asked_for_need_not_be_computed(norm, masked, first):
    """The first tokens of an encoder and all gradients are PyTorch's."""
    layer = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, batch_first=True, norm_first=norm == "pre", dtype=F64
    )
    theirs = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    ours = Encoder(D, H, HIDDEN, 2, norm=norm, final_norm=False, dtype=F64)
    for their_layer, our_layer in zip(theirs.layers, ours.layers, strict=True):
        copy_layer(their_layer, our_layer)
    x, real = randn(B, T, D), padding_mask(torch.tensor([T, 3]))
    seen, bias = torch.rand(T, T) > 0.3, torch.randn(T, T, dtype=F64)
    seen[:, 0] = True
    our_masks, their_masks = {
        "no": ({}, {}),
        "mask": ({"mask": seen}, {"mask": ~seen}),
        "row": ({"mask": seen[1:2]}, {"mask": ~seen[1:2].expand(T, T)}),
        "padding": ({"padding_mask": real}, {"src_key_padding_mask": ~real}),
        "bias": ({"bias": bias}, {"mask": bias}),
    }[masked]
    found, expected = ours(x, **our_masks, first=first), theirs(x, **their_masks)
    assert_same(found, expected[:, :first], [x])
    sizes = []
    with ours.layers[1].feed_forward.register_forward_hook(
        lambda *call: sizes.append(call[-1].shape)
    ):
        ours(x, first=first)
    assert sizes == [(B, first, D)]


@pytest.mark.parametrize(("norm", "activation"), SETTINGS)
def test_decoder_layer_matches_pytorch(norm, activation):
    ours = DecoderLayer(D, H, HIDDEN, norm=norm, activation=activation, dtype=F64)
    theirs = nn.TransformerDecoderLayer(
        D,
        H,
        HIDDEN,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm == "pre",
        dtype=F64,
    )
    copy_layer(theirs, ours)
    x, memory = randn(B, T, D), randn(B, S, D)
    real, memory_real = (padding_mask(torch.tensor([n, 3])) for n in (T, S))
    memory_mask = torch.rand(T, S) > 0.3
    memory_mask[:, 0] = True
    found = ours(
        x,
        memory,
        padding_mask=real,
        memory_mask=memory_mask,
        memory_padding_mask=memory_real,
    )
    expected = theirs(
        x,
        memory,
        tgt_mask=torch.ones(T, T).triu(1).bool(),
        tgt_key_padding_mask=~real,
        memory_mask=~memory_mask,
        memory_key_padding_mask=~memory_real,
    )
    assert_same(found, expected, [x, memory])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_matches_pytorch(norm):
    layer = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, batch_first=True, norm_first=norm == "pre", dtype=F64
    )
    theirs = nn.TransformerEncoder(
        layer,
        num_layers=3,
        norm=nn.LayerNorm(D, dtype=F64) if norm == "pre" else None,
        enable_nested_tensor=False,
    )
    ours = Encoder(D, H, HIDDEN, 3, norm=norm, dtype=F64)
    for their_layer, our_layer in zip(theirs.layers, ours.layers, strict=True):
        copy_layer(their_layer, our_layer)
    x, real = randn(B, T, D), padding_mask(torch.tensor([T, 3]))
    expected = theirs(x, src_key_padding_mask=~real)
    assert_same(ours(x, padding_mask=real), expected, [x])


@quiet
@pytest.mark.parametrize(("norm", "activation"), SETTINGS)
def test_encoder_and_decoder_match_nn_transformer(norm, activation):
    theirs = nn.Transformer(
        D,
        H,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dim_feedforward=HIDDEN,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm == "pre",
        dtype=F64,
    )
    ours = Transformer(
        11,
        dim=D,
        heads=H,
        hidden_dim=HIDDEN,
        depth=2,
        norm=norm,
        activation=activation,
        final_norm=True,
        dtype=F64,
    )
    for mine, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for our_layer, their_layer in zip(mine.layers, other.layers, strict=True):
            copy_layer(their_layer, our_layer)
    source, target = randn(B, S, D), randn(B, T, D)
    real = padding_mask(torch.tensor([S, 4]))
    memory = ours.encoder(source, padding_mask=real)
    found = ours.decoder(target, memory, memory_padding_mask=real)
    expected = theirs(
        source,
        target,
        tgt_mask=torch.ones(T, T).triu(1).bool(),
        src_key_padding_mask=~real,
        memory_key_padding_mask=~real,
    )
    assert_same(found, expected, [source, target])


@quiet
@pytest.mark.question("nyu-1.4e", "quiz-2.1")
def test_the_base_model_has_thirty_layer_norms_where_nn_transformer_has_thirty_two():
    def norms(model: nn.Module, kind: type[nn.Module]) -> int:
        return sum(isinstance(module, kind) for module in model.modules())

    paper = Transformer(37_000, norm="post", device="meta")
    assert norms(paper, LayerNorm) == 6 * 2 + 6 * 3 == 30
    assert norms(nn.Transformer(device="meta"), nn.LayerNorm) == 32


@pytest.mark.question("nyu-1.4e")
def test_post_norm_normalises_the_sum_and_pre_norm_the_input_of_a_sublayer():
    x = torch.randn(B, T, D, dtype=F64)
    for norm in ("pre", "post"):
        layer = EncoderLayer(D, H, HIDDEN, norm=norm, dtype=F64)
        n1, n2 = layer.attention_norm, layer.feed_forward_norm
        if norm == "post":
            y = n1(x + layer.attention(x)[0])
            expected = n2(y + layer.feed_forward(y))
        else:
            y = x + layer.attention(n1(x))[0]
            expected = y + layer.feed_forward(n2(y))
        assert torch.allclose(layer(x), expected, rtol=0, atol=1e-12)


# --- the model ------------------------------------------------------------------------


def small_model(**options: object) -> Transformer:
    sizes = {"dim": D, "heads": H, "hidden_dim": HIDDEN, "depth": 2}
    return Transformer(11, **(sizes | {"dtype": F64} | options))  # type: ignore[arg-type]


SOURCE = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 0, 0, 0]])
TARGET = torch.tensor([[1, 5, 4, 3, 10], [1, 7, 6, 0, 0]])


@pytest.mark.question("quiz-2.1", "quiz-2.9")
def test_the_decoder_is_autoregressive_and_the_encoder_is_not():
    model = small_model()
    logits = model(SOURCE, TARGET)
    changed = TARGET.clone()
    changed[0, 3:] = 8
    assert torch.equal(model(SOURCE, changed)[0, :3], logits[0, :3])
    assert not torch.allclose(model(SOURCE, changed)[0, 3:], logits[0, 3:])
    changed = SOURCE.clone()
    changed[0, -1] = 3
    memory = model.encode(SOURCE)
    assert not torch.allclose(model.encode(changed)[0, 0], memory[0, 0])


@pytest.mark.question("quiz-2.4", "quiz-2.1")
def test_the_three_uses_of_attention_differ_in_who_asks_whom():
    model = small_model()
    kinds: dict[str, list[tuple[int, int]]] = {}

    def note(kind):
        def hook(module, args, kwargs, output):
            query, context = args[0], args[-1]
            kinds.setdefault(kind, []).append((query.shape[1], context.shape[1]))

        return hook

    for layer in model.encoder.layers:
        layer.attention.register_forward_hook(note("encoder"), with_kwargs=True)
    for layer in model.decoder.layers:
        layer.self_attention.register_forward_hook(note("decoder"), with_kwargs=True)
        layer.cross_attention.register_forward_hook(note("cross"), with_kwargs=True)
    model(SOURCE, TARGET)
    assert kinds == {
        "encoder": [(7, 7)] * 2,
        "decoder": [(5, 5)] * 2,
        "cross": [(5, 7)] * 2,
    }


@pytest.mark.question("nyu-1.4b", "nyu-1.4a")
def test_one_layer_joins_the_first_token_with_the_last_and_without_order():
    layer = EncoderLayer(D, H, HIDDEN, dtype=F64)
    x = randn(1, 50, D)
    reach = torch.autograd.grad(layer(x)[0, -1].sum(), x)[0][0].norm(dim=-1)
    assert (reach > 0).all()
    shuffle = torch.randperm(50)
    assert torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1e-12)


@pytest.mark.question("nyu-1.4a")
def test_a_recurrent_network_needs_as_many_steps_as_tokens_lie_between():
    rnn = nn.RNN(D, D, batch_first=True, dtype=F64)
    x = randn(1, 50, D)
    reach = torch.autograd.grad(rnn(x)[0][0, -1].sum(), x)[0][0].norm(dim=-1)
    # Each step multiplies by the same Jacobian, here a contraction.
    assert reach[0] < 1e-6 * reach[-1]


def test_padding_changes_nothing():
    model = small_model()
    logits = model(SOURCE, TARGET)
    alone = model(SOURCE[1:, :4], TARGET[1:, :3])
    assert torch.allclose(logits[1:, :3], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("source_vocabulary", [None, 13])
def test_tied_embeddings_are_one_tensor(tied, source_vocabulary):
    model = small_model(tied=tied, source_vocabulary=source_vocabulary)
    tables = {name: p for name, p in model.state_dict().items() if p.shape[-1] == D}
    vocabularies = sorted(
        len(p) for name, p in tables.items() if "layers" not in name and p.dim() == 2
    )
    other = source_vocabulary or 11
    expected = {
        (True, None): [11],
        (True, 13): [11, 13],
    }.get((tied, source_vocabulary), sorted([11, 11, other]))
    assert vocabularies == expected
    assert len({p.data_ptr() for p in tables.values()}) == len(tables)
    x = model.decoder(randn(B, T, D), randn(B, S, D))
    assert x.shape == (B, T, D)
    weight = model.embedding.weight if tied else model.readout.weight
    memory = model.encode(SOURCE)
    embedded = model.positions(model.embedding(TARGET) * math.sqrt(D))
    by_hand = model.decoder(
        embedded, memory, padding_mask=TARGET != 0, memory_padding_mask=SOURCE != 0
    )
    assert torch.allclose(model(SOURCE, TARGET), by_hand @ weight.T, atol=1e-12)


def test_embedded_tokens_begin_with_variance_one():
    model = Transformer(500, dim=256, heads=4, hidden_dim=32, depth=1)
    embedded = model.embedding.weight * math.sqrt(256)
    assert embedded.var().item() == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoding_step_by_step_equals_the_whole(norm):
    model = small_model(norm=norm).eval()
    memory = model.encode(SOURCE)
    target = torch.randint(1, 11, (B, 6))
    whole = model.decode(target, memory, SOURCE)
    for steps in ([1] * 6, [2, 3, 1]):
        cache = DecoderCache(2)
        with torch.no_grad():
            pieces = [
                model.decode(piece, memory, SOURCE, cache=cache)
                for piece in target.split(steps, dim=1)
            ]
        assert cache.length == 6
        assert torch.allclose(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-12)


@pytest.mark.question("quiz-2.9")
def test_greedy_decoding_takes_the_likeliest_token_each_time():
    model = small_model().eval()
    found = model.generate(SOURCE, begin=1, end=2, max_length=9)
    for row in range(B):
        tokens = [1]
        while len(tokens) < 10 and tokens[-1] != 2:
            logits = model(SOURCE[row : row + 1], torch.tensor([tokens]))[0, -1]
            logits[0] = -math.inf  # padding is never written
            tokens.append(int(logits.argmax()))
        expected = tokens[1:] + [0] * (found.shape[1] - len(tokens) + 1)
        assert found[row].tolist() == expected


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_a_beam_wide_enough_finds_the_best_of_all_sequences(length_penalty):
    torch.manual_seed(5)
    model = Transformer(
        4, dim=8, heads=2, hidden_dim=16, depth=1, dtype=F64, norm="post"
    ).eval()
    begin, end, longest = 1, 2, 3
    source = torch.tensor([[3, 1, 3]])

    def score(sequence: tuple[int, ...]) -> float:
        target = torch.tensor([[begin, *sequence[:-1]]])
        gains = model(source, target).log_softmax(-1)[0]
        total = sum(gains[i, token].item() for i, token in enumerate(sequence))
        return total / ((5 + len(sequence)) / 6) ** length_penalty

    # Token 0 is padding, which is never written.
    ended = [
        s
        for n in range(1, longest + 1)
        for s in itertools.product((1, 2, 3), repeat=n)
        if end not in s[:-1] and (s[-1] == end or n == longest)
    ]
    best = max(ended, key=score)
    found = model.generate(
        source,
        begin=begin,
        end=end,
        max_length=longest,
        beams=64,
        length_penalty=length_penalty,
    )
    assert tuple(t for t in found[0].tolist() if t) == best


def test_beams_of_a_batch_do_not_mix():
    model = small_model().eval()
    together = model.generate(SOURCE, begin=1, end=2, max_length=6, beams=3)
    for row, source in enumerate((SOURCE[:1], SOURCE[1:, :4])):
        alone = model.generate(source, begin=1, end=2, max_length=6, beams=3)
        written = together[row][: alone.shape[1]]
        assert torch.equal(written, alone[0])
        assert (together[row][alone.shape[1] :] == 0).all()


def test_generation_stops_when_all_have_ended():
    model = small_model().eval()
    with torch.no_grad():
        model.embedding.weight[:] = 0.0
        model.embedding.weight[2] = 1.0
        model.decoder.final_norm.bias.fill_(1.0)  # the end token always wins
    found = model.generate(SOURCE, begin=1, end=2, max_length=9)
    assert found.tolist() == [[2], [2]]


def test_positions_can_be_learnt_or_left_out():
    without = small_model(positions=None)
    learned = small_model(positions=LearnedPositions(7, D, dtype=F64))
    assert without(SOURCE, TARGET).shape == (B, T, 11)
    shuffle = torch.tensor([2, 0, 1, 3, 6, 5, 4])
    source = SOURCE[:1]
    memory = without.encode(source)
    assert torch.allclose(without.encode(source[:, shuffle]), memory[:, shuffle])
    memory = learned.encode(source)
    assert not torch.allclose(learned.encode(source[:, shuffle]), memory[:, shuffle])


def test_final_norm_by_default_follows_the_place_of_the_norm():
    assert isinstance(Encoder(D, H, HIDDEN, 1).final_norm, LayerNorm)
    assert isinstance(Decoder(D, H, HIDDEN, 1, norm="post").final_norm, nn.Identity)
    forced = Encoder(D, H, HIDDEN, 1, norm="post", final_norm=True, eps=0.5)
    assert isinstance(forced.final_norm, LayerNorm)
    assert forced.final_norm.eps == 0.5
    assert repr(forced.final_norm) == "LayerNorm(12, eps=0.5, bias=True)"


# --- training -----------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_label_smoothing_without_padding_is_pytorchs(smoothing):
    logits, targets = randn(2, 5, 7), torch.randint(0, 7, (2, 5))
    found = label_smoothing_loss(
        logits, targets, smoothing=smoothing, padding_token=None
    )
    expected = F.cross_entropy(
        rearrange(logits, "b t c -> b c t"), targets, label_smoothing=smoothing
    )
    assert_same(found + logits.detach(), expected + logits.detach(), [logits])


def test_label_smoothing_leaves_padding_out_of_everything():
    logits, targets = randn(2, 5, 7), torch.randint(1, 7, (2, 5))
    targets[1, 3:] = 0
    loss = label_smoothing_loss(logits, targets, smoothing=0.2)
    real = [label_smoothing_loss(logits[0], targets[0], smoothing=0.2) * 5]
    real += [label_smoothing_loss(logits[1, :3], targets[1, :3], smoothing=0.2) * 3]
    assert torch.allclose(loss, (real[0] + real[1]) / 8, rtol=0, atol=1e-12)
    # By hand for one target: 0.8 + 0.2/6 on the right class, 0.2/6 on five others.
    log_p = logits[0, 0].log_softmax(-1)
    wanted = torch.full((7,), 0.2 / 6, dtype=F64)
    wanted[0] = 0.0
    wanted[targets[0, 0]] += 0.8
    one = label_smoothing_loss(logits[0, :1], targets[0, :1], smoothing=0.2)
    assert torch.allclose(one, -(wanted * log_p).sum())
    gradient = torch.autograd.grad(loss, logits)[0]
    assert (gradient[1, 3:] == 0).all()


def test_the_loss_of_nothing_but_padding_is_zero():
    logits = randn(2, 3, 7)
    loss = label_smoothing_loss(logits, torch.zeros(2, 3, dtype=torch.int64))
    assert loss.item() == 0.0
    assert (torch.autograd.grad(loss, logits)[0] == 0).all()


def test_the_learning_rate_rises_to_the_warm_up_and_falls_as_the_papers():
    rates = [transformer_learning_rate(t, dim=512, warmup=40) for t in range(1, 200)]
    assert max(rates) == rates[39] == pytest.approx((512 * 40) ** -0.5)
    for t, rate in enumerate(rates, start=1):
        assert rate == pytest.approx(512**-0.5 * min(t**-0.5, t * 40**-1.5))


@pytest.mark.question("nyu-1.4a", "nyu-1.4b")
def test_a_small_transformer_learns_to_reverse():
    torch.manual_seed(0)
    model = Transformer(10, dim=32, heads=4, hidden_dim=64, depth=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(250):
        source = torch.randint(3, 10, (64, 5))
        answer = source.flip(1)
        begin = torch.full((64, 1), 1)
        logits = model(source, torch.cat([begin, answer[:, :-1]], dim=1))
        loss = label_smoothing_loss(logits, answer, smoothing=0.0)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    source = torch.randint(3, 10, (100, 5))
    found = model.eval().generate(source, begin=1, end=2, max_length=5)
    assert (found == source.flip(1)).float().mean() > 0.95
