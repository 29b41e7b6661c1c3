"""Chapter 5 against nn.RNN, nn.GRU, the equations in loops, and weights set by hand."""

import itertools
import math
import re
import string
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformers_hw.attention import padding_mask
from transformers_hw.seq2seq import GRU, RNN, Alignment, ChangeOfCase, Score, Seq2Seq

F64 = torch.float64
B, N, Q, D, H = 3, 7, 5, 11, 13
VOCABULARY = 17
SCORES = get_args(Score)
ATTENTIONS = [None, *SCORES]
TASK = ChangeOfCase()
PAIRS = [(RNN, nn.RNN), (GRU, nn.GRU)]
# tanh(20) is 1 in float64, so that units driven by half of this are exactly ±1.
LOUD = 40.0


def assert_equal(ours: Tensor, expected: Tensor, within: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=within)


def paired(ours: type[RNN], theirs: type[nn.RNN]) -> tuple[RNN, nn.Module]:
    """Give our layer and PyTorch's, with the same weights."""
    reference = theirs(D, H, batch_first=True, dtype=F64)
    layer = ours(D, H, dtype=F64)
    layer.load_state_dict(
        {k.removesuffix("_l0"): w for k, w in reference.state_dict().items()}
    )
    return layer, reference


def small_model(attention: Score | None, **options: Any) -> Seq2Seq:
    options = {"dtype": F64, "dim": D, "hidden_dim": H, **options}
    return Seq2Seq(VOCABULARY, attention=attention, **options)


def some_tokens() -> tuple[Tensor, Tensor]:
    """Give sources of lengths 4, 7 and 2, and target inputs."""
    source = torch.randint(1, VOCABULARY, (B, N))
    source[0, 4:] = source[2, 2:] = 0
    return source, torch.randint(1, VOCABULARY, (B, Q))


def speak(model: Seq2Seq, *sources: str, max_length: int = 30) -> list[str]:
    """Let a model answer."""
    tokens, _ = model.generate(
        TASK.batch(sources).source,
        begin=TASK.begin,
        end=TASK.end,
        max_length=max_length,
    )
    return [TASK.decode(row) for row in tokens]


# The recurrent layers


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_recurrent_layers_and_their_gradients_are_pytorchs(
    ours: type[RNN], theirs: type[nn.RNN], started: bool
) -> None:
    layer, reference = paired(ours, theirs)
    x = torch.randn(B, N, D, dtype=F64, requires_grad=True)
    state = torch.randn(B, H, dtype=F64, requires_grad=True)
    weight, last_weight = torch.randn(B, N, H, dtype=F64), torch.randn(B, H, dtype=F64)

    def compare(states: Tensor, last: Tensor, parameters: list) -> list[Tensor]:
        loss = (states * weight).sum() + (last * last_weight).sum()
        wanted = [x, *parameters, *([state] if started else [])]
        return [states, last, *torch.autograd.grad(loss, wanted)]

    states, last = layer(x, state if started else None)
    theirs_states, theirs_last = reference(x, state[None] if started else None)
    ours_all = compare(states, last, list(layer.parameters()))
    theirs_all = compare(theirs_states, theirs_last[0], list(reference.parameters()))
    for mine, expected in zip(ours_all, theirs_all, strict=True):
        assert_equal(mine, expected)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_padded_sequences_are_pytorchs_packed_ones(
    ours: type[RNN], theirs: type[nn.RNN]
) -> None:
    layer, reference = paired(ours, theirs)
    lengths = torch.tensor([4, 7, 1])
    real = padding_mask(lengths, N)
    x = torch.randn(B, N, D, dtype=F64)
    states, last = layer(x, padding_mask=real)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    unpacked, expected_last = reference(packed)
    expected, _ = pad_packed_sequence(unpacked, batch_first=True)
    assert_equal(states[real], expected[real])
    assert_equal(last, expected_last[0])
    mine = torch.autograd.grad(
        (states[real] ** 2).sum() + last.sum(), [*layer.parameters()]
    )
    loss = (expected[real] ** 2).sum() + expected_last.sum()
    for gradient, wanted in zip(
        mine, torch.autograd.grad(loss, [*reference.parameters()]), strict=True
    ):
        assert_equal(gradient, wanted)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.booleans(), min_size=1, max_size=9).filter(any),
    st.sampled_from([RNN, GRU]),
)
def test_padding_anywhere_is_as_if_it_were_not_there(
    real: list[bool], kind: type[RNN]
) -> None:
    layer, mask = kind(D, H, dtype=F64), torch.tensor([real])
    x = torch.randn(1, len(real), D, dtype=F64)
    states, last = layer(x, padding_mask=mask)
    expected, expected_last = layer(x[mask][None])
    assert_equal(states[mask][None], expected)
    assert_equal(last, expected_last)


@pytest.mark.parametrize("kind", [RNN, GRU])
def test_a_sequence_of_padding_keeps_its_first_state(kind: type[RNN]) -> None:
    layer = kind(D, H, dtype=F64)
    x = torch.full((2, N, D), math.nan, dtype=F64)
    x[1] = torch.randn(N, D)
    state = torch.randn(2, H, dtype=F64)
    states, last = layer(x, state, padding_mask=padding_mask(torch.tensor([0, N])))
    assert torch.equal(last[0], state[0])
    assert torch.equal(states[0], state[:1].expand(N, H))
    gradients = torch.autograd.grad(last.sum(), [*layer.parameters()])
    _, alone = layer(x[1:], state[1:])
    expected = torch.autograd.grad(alone.sum(), [*layer.parameters()])
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert_equal(gradient, wanted)


@pytest.mark.parametrize("kind", [RNN, GRU])
def test_reading_in_two_parts_is_reading_at_once(kind: type[RNN]) -> None:
    layer, x = kind(D, H, dtype=F64), torch.randn(B, N, D, dtype=F64)
    states, last = layer(x)
    first, state = layer(x[:, :3])
    second, end = layer(x[:, 3:], state)
    assert_equal(torch.cat([first, second], dim=1), states)
    assert_equal(end, last)


def test_an_open_update_gate_passes_the_state_on() -> None:
    layer = GRU(D, H, dtype=F64)
    with torch.no_grad():
        layer.bias_ih[H : 2 * H] = 1000.0
    state = torch.randn(B, H, dtype=F64)
    _, last = layer(torch.randn(B, N, D, dtype=F64), state)
    assert torch.equal(last, state)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_first_weights_are_drawn_as_pytorch_draws_them(
    ours: type[RNN], theirs: type[nn.RNN]
) -> None:
    torch.manual_seed(5)
    expected = list(theirs(D, H).parameters())
    torch.manual_seed(5)
    for parameter, wanted in zip(ours(D, H).parameters(), expected, strict=True):
        assert torch.equal(parameter, wanted)


@pytest.mark.parametrize("kind", [RNN, GRU])
def test_recurrent_layers_pass_gradcheck(kind: type[RNN]) -> None:
    layer = kind(2, 3, dtype=F64)
    x = torch.randn(2, 3, 2, dtype=F64, requires_grad=True)
    state = torch.randn(2, 3, dtype=F64, requires_grad=True)
    real = padding_mask(torch.tensor([3, 1]))

    def read(x: Tensor, state: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(layer.state_dict(), weights, strict=True))
        return torch.func.functional_call(
            layer, named, (x, state), {"padding_mask": real}
        )

    assert torch.autograd.gradcheck(read, (x, state, *layer.parameters()))
    assert torch.autograd.gradgradcheck(read, (x, state, *layer.parameters()))


@pytest.mark.parametrize("kind", [RNN, GRU])
def test_inputs_stay_as_they_are_and_may_be_strided(kind: type[RNN]) -> None:
    layer, x = kind(D, H, dtype=F64), torch.randn(N, D, B, dtype=F64)
    real = padding_mask(torch.tensor([4, 7, 2]))
    before, mask_before = x.clone(), real.clone()
    strided = x.permute(2, 0, 1)
    states, _ = layer(strided, padding_mask=real)
    assert torch.equal(states, layer(strided.contiguous(), padding_mask=real)[0])
    assert torch.equal(x, before)
    assert torch.equal(real, mask_before)


@pytest.mark.parametrize("kind", [RNN, GRU])
def test_under_autocast_a_state_may_come_from_outside(kind: type[RNN]) -> None:
    layer, x, state = kind(D, H), torch.randn(B, N, D), torch.randn(B, H)
    real = padding_mask(torch.tensor([4, 7, 2]))
    expected, _ = layer(x, state, padding_mask=real)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, last = layer(x, state, padding_mask=real)
    assert states.dtype == last.dtype == torch.bfloat16
    assert_equal(states.float(), expected, within=0.05)


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize(("kind", "gates"), [(RNN, 1), (GRU, 3)])
def test_recurrent_weights_are_d_plus_h_by_h(kind: type[RNN], gates: int) -> None:
    layer = kind(input_dim=11, hidden_dim=13)
    weights = layer.weight_ih.numel() + layer.weight_hh.numel()
    assert weights == gates * (11 + 13) * 13
    assert layer.bias_ih.numel() + layer.bias_hh.numel() == gates * 2 * 13


# Scores


def score_by_hand(layer: Alignment, s: Tensor, h: Tensor) -> Tensor:
    """Score a memory h for a query s, as the equations say."""
    if layer.score == "dot":
        return s.dot(h)
    key = layer.key_proj.weight @ h
    if layer.score == "bilinear":
        return s.dot(key)
    return layer.score_proj.weight[0].dot(torch.tanh(layer.query_proj.weight @ s + key))


@pytest.mark.question("eecs-1c")
@pytest.mark.parametrize("score", SCORES)
def test_a_context_is_the_weighted_sum_of_the_states(score: Score) -> None:
    layer = Alignment(H, H, score=score, dtype=F64).requires_grad_(False)
    query, memory = torch.randn(Q, H, dtype=F64), torch.randn(N, H, dtype=F64)
    context, weights = layer(query[None], memory[None])
    for i in range(Q):
        scores = [score_by_hand(layer, query[i], memory[j]) for j in range(N)]
        total = sum(math.exp(one) for one in scores)
        alignment = [math.exp(one) / total for one in scores]
        expected = sum(alignment[j] * memory[j] for j in range(N))
        assert_equal(weights[0, i], torch.tensor(alignment, dtype=F64))
        assert_equal(context[0, i], expected)


@pytest.mark.parametrize("score", ["bilinear", "additive"])
def test_queries_and_memories_may_differ_in_width(score: Score) -> None:
    layer = Alignment(D, H, score=score, dtype=F64)
    query, memory = torch.randn(B, Q, D, dtype=F64), torch.randn(B, N, H, dtype=F64)
    context, weights = layer(query, memory)
    assert context.shape == (B, Q, H)
    scores = [score_by_hand(layer, query[1, 2], memory[1, j]) for j in range(N)]
    assert_equal(weights[1, 2], torch.stack(scores).softmax(dim=0))


@pytest.mark.question("eecs-1c")
@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_over_the_real_tokens(score: Score) -> None:
    real = padding_mask(torch.tensor([4, 7, 1]))
    _, weights = Alignment(H, H, score=score, dtype=F64)(
        torch.randn(B, Q, H, dtype=F64),
        torch.randn(B, N, H, dtype=F64),
        mask=real[:, None],
    )
    assert_equal(weights.sum(dim=-1), torch.ones(B, Q, dtype=F64))
    assert weights[~real[:, None].expand_as(weights)].eq(0.0).all()
    assert weights[real[:, None].expand_as(weights)].gt(0.0).all()


@pytest.mark.parametrize("score", SCORES)
def test_a_query_that_sees_nothing_gets_zero_and_harms_nobody(score: Score) -> None:
    layer = Alignment(H, H, score=score, dtype=F64)
    query = torch.randn(2, Q, H, dtype=F64, requires_grad=True)
    memory = torch.randn(2, N, H, dtype=F64, requires_grad=True)
    real = padding_mask(torch.tensor([0, N]))
    context, weights = layer(query, memory, mask=real[:, None])
    assert context[0].eq(0.0).all()
    assert weights[0].eq(0.0).all()
    ((blind, seeing),) = torch.autograd.grad((context**2).sum(), query)
    alone, _ = layer(query[1:], memory[1:])
    assert blind.eq(0.0).all()
    assert_equal(seeing, torch.autograd.grad((alone**2).sum(), query)[0][1])


@pytest.mark.parametrize("score", SCORES)
def test_scores_pass_gradcheck(score: Score) -> None:
    layer = Alignment(3, 3, score=score, dtype=F64)
    query = torch.randn(2, 2, 3, dtype=F64, requires_grad=True)
    memory = torch.randn(2, 4, 3, dtype=F64, requires_grad=True)
    mask = padding_mask(torch.tensor([3, 4]))[:, None]

    def look(query: Tensor, memory: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(layer.state_dict(), weights, strict=True))
        return torch.func.functional_call(layer, named, (query, memory), {"mask": mask})

    assert torch.autograd.gradcheck(look, (query, memory, *layer.parameters()))
    assert torch.autograd.gradgradcheck(look, (query, memory, *layer.parameters()))


# The encoder–decoder


def translate_by_hand(model: Seq2Seq, source: Tensor, target_inputs: Tensor) -> Tensor:
    """Compute logits sentence by sentence, with PyTorch's GRU and no padding."""
    layers = []
    for ours in (model.encoder, model.decoder):
        theirs = nn.GRU(D, H, batch_first=True, dtype=F64)
        theirs.load_state_dict({f"{k}_l0": w for k, w in ours.state_dict().items()})
        layers.append(theirs)
    encoder, decoder = layers
    logits = []
    for words, inputs in zip(source, target_inputs, strict=True):
        read, last = encoder(model.source_embedding(words[words != 0])[None])
        written, _ = decoder(model.target_embedding(inputs)[None], last)
        for s in written[0]:
            seen = s
            if model.alignment is not None:
                scores = [score_by_hand(model.alignment, s, h) for h in read[0]]
                seen = torch.cat([s, torch.stack(scores).softmax(dim=0) @ read[0]])
            logits.append(model.readout.weight @ seen + model.readout.bias)
    return torch.stack(logits).unflatten(0, target_inputs.shape)


@pytest.mark.question("eecs-1c")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_readout_sees_the_state_and_with_attention_the_context(
    attention: Score | None,
) -> None:
    model, (source, target_inputs) = small_model(attention), some_tokens()
    logits, weights = model(source, target_inputs)
    assert_equal(logits, translate_by_hand(model, source, target_inputs))
    assert model.readout.in_features == (H if attention is None else 2 * H)
    assert (weights is None) == (attention is None)


@pytest.mark.question("eecs-1c")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_of_a_source_has_no_influence(attention: Score | None) -> None:
    model, (source, target_inputs) = small_model(attention), some_tokens()
    longer = F.pad(source, (0, 4))
    with torch.no_grad():
        before, _ = model(source, target_inputs)
        model.source_embedding.weight[0] = math.nan
        after, _ = model(longer, target_inputs)
    assert_equal(after, before, within=1e-14)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_decoding_step_by_step_is_teacher_forcing_on_its_own_words(
    attention: Score | None, cell: str
) -> None:
    model, (source, _) = small_model(attention, cell=cell), some_tokens()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
        tokens, step_weights = model.generate(source, begin=1, end=2, max_length=9)
        inputs = F.pad(tokens[:, :-1], (1, 0), value=1)
        logits, weights = model(source, inputs)
        memory, state = model.encode(source)
        steps = []
        for token in inputs.split(1, dim=1):
            step, state, _ = model.decode(token, state, memory, source)
            steps.append(step)
    assert_equal(torch.cat(steps, dim=1), logits)
    written = (tokens == 2).cumsum(dim=1) - (tokens == 2).long() == 0
    assert torch.equal(logits.argmax(dim=-1)[written], tokens[written])
    assert len(tokens.unique()) > 1
    if attention is not None:
        assert_equal(step_weights[written], weights[written])


def test_generation_stops_for_each_sentence_and_pads_after_it() -> None:
    source, _, target = TASK.batch(["<U> abc", "<L> I am", "<U> x"])
    tokens, weights = counting_model(9).generate(
        source, begin=TASK.begin, end=TASK.end, max_length=8
    )
    assert torch.equal(tokens, target)
    assert tokens.tolist()[2] == [TASK.names.index("X"), TASK.end, 0, 0, 0]
    assert torch.equal(weights.sum(dim=-1).round(), (target != TASK.pad).to(F64))
    assert weights[2, 2:].eq(0.0).all()


def test_generation_goes_no_further_than_told() -> None:
    model = counting_model(9)
    assert speak(model, "<U> abcdef", max_length=4) == ["ABCD"]
    source = TASK.batch(["<U> abcdef"]).source
    tokens, weights = model.generate(source, begin=1, end=2, max_length=4)
    assert tokens.shape == (1, 4)
    assert weights.shape == (1, 4, 8)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_sentence_is_answered_alike_alone_and_in_a_batch(
    attention: Score | None,
) -> None:
    model, (source, _) = small_model(attention), some_tokens()
    together, weights = model.generate(source, begin=1, end=2, max_length=9)
    assert weights is None or not weights.requires_grad
    for words, answer in zip(source, together, strict=True):
        alone, _ = model.generate(words[words != 0][None], begin=1, end=2, max_length=9)
        assert torch.equal(F.pad(alone[0], (0, len(answer) - alone.shape[1])), answer)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_source_of_padding_alone_is_answered_from_zero_states(
    attention: Score | None,
) -> None:
    model, (source, target_inputs) = small_model(attention), some_tokens()
    source[1] = 0
    memory, last = model.encode(source)
    logits, _ = model(source, target_inputs)
    assert last[1].eq(0.0).all()
    assert memory[1].eq(0.0).all()
    states, _ = model.decoder(model.target_embedding(target_inputs[1:2]))
    by_state = model.readout.weight[:, :H]
    assert_equal(logits[1], states[0] @ by_state.T + model.readout.bias)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_evaluation_is_training_and_repeats_itself(attention: Score | None) -> None:
    model, tokens = small_model(attention), some_tokens()
    trained, _ = model.train()(*tokens)
    evaluated, _ = model.eval()(*tokens)
    assert torch.equal(trained, evaluated)
    assert torch.equal(model(*tokens)[0], evaluated)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_double(
    attention: Score | None, dtype: torch.dtype
) -> None:
    model, (source, target_inputs) = small_model(attention), some_tokens()
    expected, _ = model(source, target_inputs)
    with torch.autocast("cpu", dtype=dtype):
        autocast, _ = model.float()(source, target_inputs)
    logits, _ = model.to(dtype)(source, target_inputs)
    assert logits.dtype == dtype
    assert_equal(logits.double(), expected, within=0.05)
    assert_equal(autocast.double(), expected, within=0.05)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_model_made_without_storage_can_be_filled(
    attention: Score | None, cell: str
) -> None:
    model, tokens = small_model(attention, cell=cell), some_tokens()
    with torch.device("meta"):
        empty = small_model(attention, cell=cell)
    assert all(parameter.is_meta for parameter in empty.parameters())
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    assert torch.equal(filled(*tokens)[0], model(*tokens)[0])


def test_names_of_weights_stay() -> None:
    recurrent = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    plain = [
        "source_embedding.weight",
        *(f"encoder.{name}" for name in recurrent),
        "target_embedding.weight",
        *(f"decoder.{name}" for name in recurrent),
    ]
    readout = ["readout.weight", "readout.bias"]
    scores = {
        None: [],
        "dot": [],
        "bilinear": ["key_proj"],
        "additive": ["key_proj", "query_proj", "score_proj"],
    }
    for attention, projections in scores.items():
        names = [f"alignment.{name}.weight" for name in projections]
        model = small_model(attention)
        assert list(model.state_dict()) == [*plain, *names, *readout]


def test_the_loss_of_a_padded_batch_is_that_of_its_sentences() -> None:
    model = Seq2Seq(len(TASK), dim=D, hidden_dim=H, attention="dot", dtype=F64)
    texts = ["<U> abc", "<L> I am a student", "<U> x"]
    source, target_inputs, target = TASK.batch(texts)
    logits, _ = model(source, target_inputs)
    loss = F.cross_entropy(logits.mT, target, ignore_index=TASK.pad)
    alone = [
        F.cross_entropy(
            model(one.source, one.target_inputs)[0][0], one.target[0], reduction="none"
        )
        for one in (TASK.batch([text]) for text in texts)
    ]
    assert_equal(loss, torch.cat(alone).mean())


# What is stored where


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_inference_changes_states_and_no_weight(attention: Score | None) -> None:
    model, (source, _) = small_model(attention), some_tokens()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    _, last = model.encode(source)
    model.generate(source, begin=1, end=2, max_length=9)
    _, other = model.encode(source.flip(0))
    assert not torch.equal(last, other)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_reach_the_encoder_through_its_last_state_or_by_attention(
    attention: Score | None,
) -> None:
    model, (source, target_inputs) = small_model(attention), some_tokens()
    memory, last = (x.detach().requires_grad_() for x in model.encode(source))
    logits, _, _ = model.decode(target_inputs, last, memory, source)
    by_state, by_memory = torch.autograd.grad(
        logits.logsumexp(dim=-1).sum(), [last, memory], allow_unused=True
    )
    assert by_state.ne(0.0).all()
    if attention is None:
        assert by_memory is None
    else:
        assert torch.equal(by_memory.ne(0.0).any(dim=-1), source != 0)


@pytest.mark.question("eecs-1a")
def test_the_encoder_learns_by_the_gradient_of_the_decoders_first_state() -> None:
    model, (source, target_inputs) = small_model(None), some_tokens()
    target = torch.randint(1, VOCABULARY, target_inputs.shape)
    weights = list(model.encoder.parameters())
    logits, _ = model(source, target_inputs)
    whole = torch.autograd.grad(F.cross_entropy(logits.mT, target), weights)
    memory, last = model.encode(source)
    first = last.detach().requires_grad_()
    logits, _, _ = model.decode(target_inputs, first, memory, source)
    (handed_back,) = torch.autograd.grad(F.cross_entropy(logits.mT, target), first)
    in_two_parts = torch.autograd.grad(last, weights, grad_outputs=handed_back)
    for gradient, expected in zip(in_two_parts, whole, strict=True):
        assert_equal(gradient, expected)


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_teacher_forcing_predicts_from_the_given_words_before(
    attention: Score | None,
) -> None:
    model, (source, target_inputs) = small_model(attention), some_tokens()
    changed = target_inputs.clone()
    changed[:, 3] = changed[:, 3] % (VOCABULARY - 1) + 1
    before, after = model(source, target_inputs)[0], model(source, changed)[0]
    assert torch.equal(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().amax(dim=-1).gt(1e-6).all()


# The bottleneck


@pytest.mark.question("eecs-1b")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_without_attention_sources_with_one_last_state_get_one_answer(
    attention: Score | None,
) -> None:
    model = Seq2Seq(
        len(TASK), dim=D, hidden_dim=H, cell="rnn", attention=attention, dtype=F64
    )
    # An encoder that forgets: its last state tells of the end token alone.
    nn.init.zeros_(model.encoder.weight_hh)
    source, _, _ = TASK.batch(["<U> I am a student", "<L> so ARE we all"])
    target_inputs = TASK.batch(["<U> whatever", "<U> whatever"]).target_inputs
    _, last = model.encode(source)
    logits, _ = model(source, target_inputs)
    assert torch.equal(last[0], last[1])
    difference = (logits[0] - logits[1]).abs().max()
    assert difference < 1e-12 if attention is None else difference > 1e-2


@pytest.mark.question("eecs-1b")
@pytest.mark.parametrize("length", [1, 2])
def test_the_bottleneck_must_tell_answers_apart_not_sources(length: int) -> None:
    texts = [
        "".join(x) for x in itertools.product(" " + string.ascii_letters, repeat=length)
    ]
    sources = [prompt + text for prompt in ("<U> ", "<L> ") for text in texts]
    answers = {TASK.answer(source) for source in sources}
    # 26 letters and the space, in two cases; spaces alone look alike in both.
    assert len(sources) == 2 * 53**length
    assert len(answers) == 2 * 27**length - 1


def case_of(sign: str) -> Tensor:
    """Mark the letters of one case, among all tokens."""
    case = str.isupper if sign == "upper" else str.islower
    return torch.tensor([len(x) == 1 and case(x) for x in TASK.names], dtype=F64)


def same_letter() -> Tensor:
    """Mark the pairs of tokens that are equal but for their case."""
    tokens = list(enumerate(TASK.names))
    return torch.tensor(
        [[i == j or a.lower() == b.lower() != "" for j, b in tokens] for i, a in tokens]
    ).to(F64)


def blank_model(hidden_dim: int, attention: Score | None) -> Seq2Seq:
    """Give a model whose weights are zero, and whose tokens are one-hot."""
    tokens = len(TASK)
    model = Seq2Seq(
        tokens,
        dim=tokens,
        hidden_dim=hidden_dim,
        cell="rnn",
        attention=attention,
        dtype=F64,
    ).requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    nn.init.eye_(model.source_embedding.weight)
    nn.init.eye_(model.target_embedding.weight)
    return model


def queue_model(length: int) -> Seq2Seq:
    """Give a model without attention that answers texts of this length.

    Its state is a queue of tokens and a unit for "upper". The encoder puts each
    character in at the front, its case changed; the decoder, which does not see the
    unit for "upper", moves the queue on and reads what comes out at the back.
    """
    tokens, slots = len(TASK), length + 2
    model, queue = blank_model(slots * tokens + 1, None), slice(0, slots * tokens)
    move_on = torch.diag(torch.ones(slots - 1, dtype=F64), -1)
    for layer in (model.encoder, model.decoder):
        layer.weight_hh[queue, queue] = LOUD * torch.kron(move_on, torch.eye(tokens))
    encoder, front = model.encoder, slice(0, tokens)
    encoder.weight_ih[-1, TASK.upper] = encoder.weight_hh[-1, -1] = LOUD
    # "A" is put in if a or A came and "upper" is on: 2 + 1 > 2.5 > 2.
    # "a" is put in if a or A came and "upper" is off: 2 > 1.5 > 2 - 1.
    encoder.weight_ih[front] = 2.0 * LOUD * same_letter()
    encoder.weight_ih[front, [TASK.upper, TASK.lower]] = 0.0
    encoder.weight_hh[front, -1] = LOUD * (case_of("upper") - case_of("lower"))
    encoder.bias_ih[front] = -LOUD * (1.5 + case_of("upper"))
    model.readout.weight[:, (slots - 1) * tokens : slots * tokens] = torch.eye(tokens)
    return model


@pytest.mark.question("eecs-1b")
def test_the_last_state_may_store_the_answer_and_not_the_task() -> None:
    model = queue_model(length=4)
    assert speak(model, "<U> I am", "<L> I am") == ["I AM", "i am"]
    source, target_inputs, target = TASK.batch(["<U> Ab d", "<U> aB D", "<L> Ab d"])
    memory, last = model.encode(source)
    # Sources with one answer have one last state.
    assert torch.equal(last[0], last[1])
    assert not torch.equal(last[0], last[2])
    # The unit that told the tasks apart is of no use to the decoder.
    last[:, -1] = 1.0 - last[:, -1]
    logits, _, _ = model.decode(target_inputs, last, memory, source)
    assert torch.equal(logits.argmax(dim=-1), target)


@pytest.mark.question("eecs-1b")
def test_a_longer_text_does_not_pass_the_bottleneck() -> None:
    model = queue_model(length=4)
    assert speak(model, "<U> abcd", "<U> abcde") == ["ABCD", "BCDE"]
    assert speak(model, "<L> ABCDEF") == ["cdef"]


# Around the bottleneck


def counting_model(places: int) -> Seq2Seq:
    """Give a model with attention that answers texts of fewer characters than places.

    The units of a state tell the token just read, its place in the source, how far
    the decoder has counted, and whether the task is "upper".
    """
    tokens = len(TASK)
    hidden = tokens + 2 * places + 1
    model = blank_model(hidden, "bilinear")
    token, place = slice(0, tokens), slice(tokens, tokens + places)
    count = slice(tokens + places, tokens + 2 * places)
    one_on = torch.diag(torch.ones(places - 1, dtype=F64), -1)
    encoder, decoder = model.encoder, model.decoder
    # The encoder notes the token, counts from the prompt on, and recalls the task.
    encoder.weight_ih[token] = LOUD * torch.eye(tokens)
    encoder.weight_ih[place.start, [TASK.upper, TASK.lower]] = LOUD
    encoder.weight_hh[place, place] = LOUD * one_on
    encoder.weight_ih[-1, TASK.upper] = encoder.weight_hh[-1, -1] = LOUD
    # The decoder counts from the begin token on, and does nothing else.
    decoder.weight_ih[count.start, TASK.begin] = LOUD
    decoder.weight_hh[count, count] = LOUD * one_on
    # Count i is compared with place i + 1, since the prompt has the first place.
    assert model.alignment is not None
    model.alignment.key_proj.weight[count, place] = LOUD * one_on.T
    # The letter counts two, the case one.
    model.readout.weight[:, hidden : hidden + tokens] = 2.0 * same_letter()
    model.readout.weight[:, -1] = case_of("upper") - case_of("lower")
    model.readout.bias[:] = case_of("lower")
    return model


@pytest.mark.question("eecs-1d")
def test_counting_and_looking_up_changes_the_case() -> None:
    model, sources = counting_model(places=16), ["<U> I am a student", "<L> Me TOO"]
    assert speak(model, *sources) == ["I AM A STUDENT", "me too"]


@pytest.mark.question("eecs-1d")
def test_token_i_of_the_answer_looks_at_token_i_plus_one_of_the_source() -> None:
    source, target_inputs, target = TASK.batch(["<U> I am a student"])
    _, weights = counting_model(places=16)(source, target_inputs)
    answer, read = target.shape[1], source.shape[1]
    # The end token of the answer, too, looks at the end token of the source.
    assert read == answer + 1
    assert_equal(weights[0], torch.eye(read, dtype=F64)[1:])


@pytest.mark.question("eecs-1d")
def test_with_attention_the_last_state_need_not_store_anything() -> None:
    model = counting_model(places=16)
    source, target_inputs, target = TASK.batch(["<U> I am a student", "<L> Me TOO"])
    memory, last = model.encode(source)
    for stored in (0.0, 1.0, -1.0):
        state = torch.full_like(last, stored)
        # Here the decoder counts, from zero on.
        state[:, -17:-1] = 0.0
        logits, _, _ = model.decode(target_inputs, state, memory, source)
        real = target != TASK.pad
        assert torch.equal(logits.argmax(dim=-1)[real], target[real])


@pytest.mark.question("eecs-1d")
@pytest.mark.parametrize("erased", ["nothing", "character", "place"])
def test_an_encoder_state_must_hold_the_character_and_its_place(erased: str) -> None:
    model, tokens, places = counting_model(places=16), len(TASK), 16
    source, target_inputs, target = TASK.batch(["<U> I am a student"])
    memory, last = model.encode(source)
    units = {
        "nothing": slice(0, 0),
        "character": slice(0, tokens),
        "place": slice(tokens, tokens + places),
    }
    memory[..., units[erased]] = 0.0
    logits, _, _ = model.decode(target_inputs, last, memory, source)
    assert torch.equal(logits.argmax(dim=-1), target) == (erased == "nothing")


@pytest.mark.question("eecs-1d")
def test_a_gru_with_attention_learns_to_look_one_token_on() -> None:
    draws = torch.Generator().manual_seed(0)
    model = Seq2Seq(len(TASK), dim=32, hidden_dim=64, attention="additive")
    steps = 150
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
    for _ in range(steps):
        source, target_inputs, target = TASK.sample(
            64, min_length=1, max_length=4, generator=draws
        )
        logits, _ = model(source, target_inputs)
        loss = F.cross_entropy(logits.mT, target, ignore_index=TASK.pad)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    source, target_inputs, target = TASK.sample(
        200, min_length=1, max_length=4, generator=draws
    )
    logits, weights = model.eval()(source, target_inputs)
    real = target != TASK.pad
    right = (logits.argmax(dim=-1) == target)[real].double().mean()
    one_on = (weights.argmax(dim=-1) == torch.arange(1, 6))[real].double().mean()
    assert right > 0.95
    assert one_on > 0.75


# The task


sources = st.tuples(
    st.sampled_from(["<U> ", "<L> "]), st.text(" " + string.ascii_letters, max_size=12)
)


@settings(deadline=None, max_examples=25)
@given(sources)
def test_encoding_can_be_undone(source: tuple[str, str]) -> None:
    prompt, text = source
    assert TASK.decode(TASK.encode(prompt + text)) == prompt + text
    assert TASK.decode(TASK.encode(text)) == text
    assert len(TASK.encode(prompt + text)) == len(text) + 2


@settings(deadline=None, max_examples=25)
@given(sources)
def test_answers_are_in_the_case_asked_for(source: tuple[str, str]) -> None:
    prompt, text = source
    # Upper and lower case of an ASCII letter differ in the bit of value 32.
    codes = [
        ord(x) if x == " " else ord(x) & ~32 | 32 * (prompt == "<L> ") for x in text
    ]
    assert TASK.answer(prompt + text) == "".join(map(chr, codes))


def test_tokens_are_numbered_for_good() -> None:
    assert (TASK.pad, TASK.begin, TASK.end, TASK.upper, TASK.lower) == (0, 1, 2, 3, 4)
    assert len(TASK) == 5 + 1 + 26 + 26
    assert TASK.encode("<U> aZ ").tolist() == [3, 6, 57, 5, 2]
    assert TASK.encode("<L> ").tolist() == [4, 2]
    assert TASK.decode(torch.tensor([1, 6, 57, 2, 7, 0])) == "aZ"


def test_a_batch_shifts_the_target_by_the_begin_token() -> None:
    source, target_inputs, target = TASK.batch(["<U> aB", "<L> C"])
    a, b, c = 32, 33, 8
    assert source.tolist() == [[3, 6, 33, 2], [4, 34, 2, 0]]
    assert target.tolist() == [[a, b, 2], [c, 2, 0]]
    assert target_inputs.tolist() == [[1, a, b], [1, c, 2]]


def test_samples_are_sources_with_their_answers() -> None:
    draws = torch.Generator().manual_seed(3)
    source, target_inputs, target = TASK.sample(
        500, min_length=2, max_length=5, generator=draws
    )
    texts = [TASK.decode(row) for row in source]
    for text, row in zip(texts, target, strict=True):
        changed = text[4:].upper() if text[:4] == "<U> " else text[4:].lower()
        assert TASK.decode(row) == changed
    assert {len(text) - 4 for text in texts} == {2, 3, 4, 5}
    assert {text[:4] for text in texts} == {"<U> ", "<L> "}
    assert set("".join(text[4:] for text in texts)) == {" ", *string.ascii_letters}
    assert torch.equal(target_inputs[:, 1:], target[:, :-1])


def test_samples_can_be_repeated() -> None:
    def drawn(seed: int) -> Tensor:
        draws = torch.Generator().manual_seed(seed)
        return TASK.sample(5, min_length=3, max_length=7, generator=draws).source

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


# Compilers


COMPILED = [(None, "gru"), ("dot", "rnn"), ("bilinear", "gru"), ("additive", "rnn")]


def short_tokens() -> tuple[Tensor, Tensor]:
    source, target_inputs = some_tokens()
    return source[:, :3].contiguous(), target_inputs[:, :2].contiguous()


@pytest.mark.unhooked
@pytest.mark.parametrize(("attention", "cell"), COMPILED)
def test_a_model_compiles_to_one_graph(attention: Score | None, cell: str) -> None:
    model, tokens = small_model(attention, cell=cell), short_tokens()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_equal(compiled(*tokens)[0], model(*tokens)[0])


@pytest.mark.unhooked
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("attention", "cell"), COMPILED)
def test_an_exported_model_takes_any_batch(
    attention: Score | None, cell: str, strict: bool
) -> None:
    model, tokens = small_model(attention, cell=cell), short_tokens()
    batch = torch.export.Dim("batch")
    exported = torch.export.export(
        model, tokens, dynamic_shapes=({0: batch}, {0: batch}), strict=strict
    )
    more = tuple(torch.cat([x, x.flip(0)]) for x in tokens)
    assert_equal(exported.module()(*more)[0], model(*more)[0])


# Refusals


X, TOKENS, WORDS = (
    torch.randn(B, N, D),
    torch.ones(B, N).long(),
    torch.ones(B, Q).long(),
)
QUERY, MEMORY = torch.randn(B, Q, D), torch.randn(B, N, H)
LAYER, LOOK = RNN(D, H), Alignment(D, H, score="additive")
MODEL = Seq2Seq(VOCABULARY, dim=D, hidden_dim=H)
UNKNOWN: Any = "other"
WHOLE = "must be a whole number from 1 on, got"


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RNN(0, H), f"input_dim {WHOLE} 0"),
        (lambda: GRU(D, -1), f"hidden_dim {WHOLE} -1"),
        (lambda: LAYER(X[:, :0]), f"length {WHOLE} 0"),
        (lambda: LAYER(X[0]), r"x must be (batch, length, 11), got shape (7, 11)"),
        (lambda: LAYER(MEMORY), r"x must be (batch, length, 11), got shape (3, 7, 13)"),
        (
            lambda: LAYER(X, torch.zeros(2, H)),
            "state must be (3, 13), got shape (2, 13)",
        ),
        (
            lambda: LAYER(X, padding_mask=torch.ones(B, 4).bool()),
            "padding_mask must be (3, 7), got shape (3, 4)",
        ),
        (
            lambda: LAYER(X, padding_mask=padding_mask(torch.tensor([7, 9, 1]), N)),
            "between 0 and the common length 7, got [7, 9, 1]",
        ),
        (
            lambda: Alignment(D, H, score=UNKNOWN),
            "score must be one of ('dot', 'bilinear', 'additive'), got 'other'",
        ),
        (
            lambda: Alignment(D, H, score="dot"),
            "dot needs one width, got 11 and 13",
        ),
        (lambda: Alignment(0, H, score="additive"), f"query_dim {WHOLE} 0"),
        (
            lambda: LOOK(MEMORY, MEMORY),
            "query must be (batch, queries, 11), got shape (3, 7, 13)",
        ),
        (
            lambda: LOOK(QUERY, MEMORY[:2]),
            "memory must be (3, keys, 13), got shape (2, 7, 13)",
        ),
        (
            lambda: small_model(None, cell="lstm"),
            "cell must be one of ('gru', 'rnn'), got 'lstm'",
        ),
        (
            lambda: small_model(UNKNOWN),
            "one of (None, 'dot', 'bilinear', 'additive'), got 'other'",
        ),
        (lambda: Seq2Seq(0, dim=D, hidden_dim=H), f"vocabulary {WHOLE} 0"),
        (lambda: small_model(None, dim=0), f"dim {WHOLE} 0"),
        (
            lambda: small_model(None, padding_token=17),
            "padding_token must be a token from 0 to 16, got 17",
        ),
        (
            lambda: MODEL(TOKENS * 17, WORDS),
            "source must be from 0 to 16, got 17 to 17",
        ),
        (
            lambda: MODEL(TOKENS, WORDS - 2),
            "target_inputs must be from 0 to 16, got -1 to -1",
        ),
        (
            lambda: MODEL(TOKENS[0], WORDS),
            "source must be (batch, length), got shape (7,)",
        ),
        (
            lambda: MODEL(TOKENS, WORDS[:2]),
            "target_inputs must be (3, length), got shape (2, 5)",
        ),
        (
            lambda: MODEL.generate(TOKENS, begin=1, end=2, max_length=0),
            f"max_length {WHOLE} 0",
        ),
        (
            lambda: MODEL.generate(TOKENS, begin=17, end=2, max_length=3),
            "begin must be a token from 0 to 16, got 17",
        ),
        (
            lambda: MODEL.generate(TOKENS, begin=1, end=-1, max_length=3),
            "end must be a token from 0 to 16, got -1",
        ),
        (lambda: TASK.encode("<U> wait!"), "a–z, A–Z and spaces, got '!'"),
        (
            lambda: TASK.answer("I am"),
            "prompt must be one of ('<U> ', '<L> '), got 'I am'",
        ),
        (
            lambda: TASK.decode(torch.tensor([3, 58])),
            "tokens must be from 0 to 57, got 3 to 58",
        ),
        (lambda: TASK.batch([]), f"sources {WHOLE} 0"),
        (lambda: TASK.sample(0, min_length=2, max_length=5), f"batch {WHOLE} 0"),
        (lambda: TASK.sample(2, min_length=0, max_length=5), f"min_length {WHOLE} 0"),
        (
            lambda: TASK.sample(2, min_length=3, max_length=2),
            "max_length must be >= 3, got 2",
        ),
    ],
)
def test_a_wrong_value_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LAYER(X.long()), "x must be a floating-point tensor, got torch.int64"),
        (
            lambda: LAYER(X, padding_mask=torch.ones(B, N).long()),
            "boolean tensor (True = a real step), got torch.int64",
        ),
        (
            lambda: LOOK(QUERY, MEMORY, mask=torch.ones(N)),
            "mask must be a boolean tensor",
        ),
        (
            lambda: MODEL(TOKENS.float(), WORDS),
            "source must be a tensor of integers, got torch.float32",
        ),
    ],
)
def test_a_wrong_type_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        call()
