"""Chapter 5 against nn.RNN, nn.GRU, the equations in loops, and weights set by hand."""

import itertools
import json
import math
import string
from dataclasses import asdict
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from bad_calls import assert_refused, bad_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from transformers_hw.attention import padding_mask
from transformers_hw.lab.change_of_case import ChangeOfCase
from transformers_hw.seq2seq import GRU, RNN, Alignment, Score, Seq2Seq

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


def small_model(attention: Score | None, **options: Any) -> Seq2Seq:
    options = {"dtype": F64, "dim": D, "hidden_dim": H, **options}
    return Seq2Seq(VOCABULARY, attention=attention, **options)


def some_tokens() -> tuple[Tensor, Tensor]:
    """Give sources of lengths 4, 7 and 2, and target inputs."""
    source = torch.randint(1, VOCABULARY, (B, N))
    source[0, 4:] = source[2, 2:] = 0
    return source, torch.randint(1, VOCABULARY, (B, Q))


def speak(model: Seq2Seq, *sources: str) -> list[str]:
    """Let a model answer."""
    source, options = TASK.batch(sources).source, {"begin": TASK.begin, "end": TASK.end}
    return [TASK.decode(x) for x in model.generate(source, **options, max_length=30)]


# The recurrent layers


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("lengths", [[N, N, N], [4, N, 1]], ids=["full", "padded"])
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_recurrent_layers_and_their_gradients_are_pytorchs(
    ours, theirs, lengths, started
):
    reference = theirs(D, H, batch_first=True, dtype=F64)
    layer, names = ours(D, H, dtype=F64), reference.state_dict().items()
    layer.load_state_dict({k.removesuffix("_l0"): w for k, w in names})
    x = torch.randn(B, N, D, dtype=F64, requires_grad=True)
    state = torch.randn(B, H, dtype=F64, requires_grad=True) if started else None
    real = padding_mask(torch.tensor(lengths), N)
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    expected, end = reference(packed, state[None] if started else None)
    expected, _ = pad_packed_sequence(expected, batch_first=True)
    states, last = layer(x, state, padding_mask=None if real.all() else real)
    weight, last_weight = torch.randn(B, N, H, dtype=F64), torch.randn(B, H, dtype=F64)

    def with_gradients(states, last, parameters):
        loss = (states * weight)[real].sum() + (last * last_weight).sum()
        leaves = [x, *parameters, *([state] if started else [])]
        return [states[real], last, *torch.autograd.grad(loss, leaves)]

    found = with_gradients(states, last, layer.parameters())
    wanted = with_gradients(expected, end[0], reference.parameters())
    for one, other in zip(found, wanted, strict=True):
        assert_equal(one, other)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.booleans(), min_size=1, max_size=9).filter(any),
    st.sampled_from([RNN, GRU]),
)
def test_padding_anywhere_has_no_effect(real, kind):
    layer, mask = kind(D, H, dtype=F64), torch.tensor([real])
    x = torch.randn(1, len(real), D, dtype=F64)
    states, last = layer(x, padding_mask=mask)
    expected, expected_last = layer(x[mask][None])
    assert_equal(states[mask][None], expected)
    assert_equal(last, expected_last)


@pytest.mark.filterwarnings("ignore:padding_mask hides every token")
@pytest.mark.parametrize("kind", [RNN, GRU])
def test_a_sequence_of_padding_keeps_its_initial_state(kind):
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
def test_reading_in_two_parts_is_reading_at_once(kind):
    layer, x = kind(D, H, dtype=F64), torch.randn(B, N, D, dtype=F64)
    states, last = layer(x)
    first, state = layer(x[:, :3])
    second, end = layer(x[:, 3:], state)
    assert_equal(torch.cat([first, second], dim=1), states)
    assert_equal(end, last)


def test_an_open_update_gate_passes_the_state_on():
    layer = GRU(D, H, dtype=F64)
    with torch.no_grad():
        layer.bias_ih[H : 2 * H] = 1000.0
    state = torch.randn(B, H, dtype=F64)
    _, last = layer(torch.randn(B, N, D, dtype=F64), state)
    assert torch.equal(last, state)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_initial_weights_are_drawn_like_pytorchs(ours, theirs):
    torch.manual_seed(5)
    expected = list(theirs(D, H).parameters())
    torch.manual_seed(5)
    for parameter, wanted in zip(ours(D, H).parameters(), expected, strict=True):
        assert torch.equal(parameter, wanted)


@pytest.mark.parametrize("kind", [RNN, GRU])
def test_under_autocast_a_state_may_come_from_outside(kind):
    layer, x, state = kind(D, H), torch.randn(B, N, D), torch.randn(B, H)
    real = padding_mask(torch.tensor([4, 7, 2]))
    expected, _ = layer(x, state, padding_mask=real)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, last = layer(x, state, padding_mask=real)
    assert states.dtype == last.dtype == torch.bfloat16
    assert_equal(states.float(), expected, within=0.05)


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize(("kind", "gates"), [(RNN, 1), (GRU, 3)])
def test_recurrent_weights_are_d_plus_h_by_h(kind, gates):
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
def test_a_context_is_the_weighted_sum_of_the_states(score):
    width = H if score == "dot" else D
    layer = Alignment(width, H, score=score, dtype=F64).requires_grad_(False)
    query, memory = torch.randn(Q, width, dtype=F64), torch.randn(N, H, dtype=F64)
    context, weights = layer(query[None], memory[None], return_weights=True)
    for i in range(Q):
        scores = [score_by_hand(layer, query[i], memory[j]) for j in range(N)]
        total = sum(math.exp(one) for one in scores)
        alignment = [math.exp(one) / total for one in scores]
        expected = sum(alignment[j] * memory[j] for j in range(N))
        assert_equal(weights[0, i], torch.tensor(alignment, dtype=F64))
        assert_equal(context[0, i], expected)


@pytest.mark.question("eecs-1c")
@pytest.mark.parametrize("score", SCORES)
def test_weights_sum_to_one_over_the_real_tokens(score):
    real = padding_mask(torch.tensor([4, 7, 1]))
    _, weights = Alignment(H, H, score=score, dtype=F64)(
        torch.randn(B, Q, H, dtype=F64),
        torch.randn(B, N, H, dtype=F64),
        mask=real[:, None],
        return_weights=True,
    )
    assert_equal(weights.sum(dim=-1), torch.ones(B, Q, dtype=F64))
    assert weights[~real[:, None].expand_as(weights)].eq(0.0).all()
    assert weights[real[:, None].expand_as(weights)].gt(0.0).all()


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
def test_the_readout_sees_the_state_and_with_attention_the_context(attention):
    model, (source, target_inputs) = small_model(attention), some_tokens()
    logits = model(source, target_inputs)
    assert_equal(logits, translate_by_hand(model, source, target_inputs))
    assert model.readout.in_features == (H if attention is None else 2 * H)


@pytest.mark.question("eecs-1c")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_of_a_source_has_no_influence(attention):
    model, (source, target_inputs) = small_model(attention), some_tokens()
    longer = F.pad(source, (0, 4))
    with torch.no_grad():
        before = model(source, target_inputs)
        model.source_embedding.weight[0] = math.nan
        after = model(longer, target_inputs)
    assert_equal(after, before, within=1e-14)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_decoding_step_by_step_is_teacher_forcing_on_its_own_words(attention, cell):
    model, (source, _) = small_model(attention, cell=cell), some_tokens()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
        tokens = model.generate(source, begin=1, end=2, max_length=9)
        inputs = F.pad(tokens[:, :-1], (1, 0), value=1)
        logits = model(source, inputs)
        memory, state = model.encode(source)
        steps = []
        for token in inputs.split(1, dim=1):
            step, state = model.decode(token, state, memory, source)
            steps.append(step)
    assert_equal(torch.cat(steps, dim=1), logits)
    written = (tokens == 2).cumsum(dim=1) - (tokens == 2).long() == 0
    assert torch.equal(logits.argmax(dim=-1)[written], tokens[written])
    assert len(tokens.unique()) > 1
    if attention is not None:
        again, step_weights = model.generate(
            source, begin=1, end=2, max_length=9, return_weights=True
        )
        assert torch.equal(again, tokens)
        _, weights = model(source, inputs, return_weights=True)
        assert_equal(step_weights[written], weights[written])


def test_generation_stops_at_each_end_token_or_at_max_length():
    source, _, target = TASK.batch(["<U> abc", "<L> I am", "<U> x"])
    model, options = counting_model(9), {"begin": TASK.begin, "end": TASK.end}
    tokens, weights = model.generate(
        source, **options, max_length=8, return_weights=True
    )
    assert torch.equal(tokens, target)
    assert tokens.tolist()[2] == [TASK.names.index("X"), TASK.end, 0, 0, 0]
    assert torch.equal(weights.sum(dim=-1).round(), (target != TASK.pad).to(F64))
    assert weights[2, 2:].eq(0.0).all()
    short = model.generate(source, **options, max_length=2)
    assert torch.equal(short, target[:, :2])


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_sentence_gets_the_same_answer_alone_and_in_a_batch(attention):
    model, (source, _) = small_model(attention), some_tokens()
    together = model.generate(source, begin=1, end=2, max_length=9)
    for words, answer in zip(source, together, strict=True):
        alone = model.generate(words[words != 0][None], begin=1, end=2, max_length=9)
        assert torch.equal(F.pad(alone[0], (0, len(answer) - alone.shape[1])), answer)


# What is stored where


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize(("size", "explodes"), [(0.5, False), (2.0, True)])
def test_the_gradient_through_time_is_a_product_of_jacobians(size, explodes):
    rnn, steps = RNN(D, H, dtype=F64), 11
    with torch.no_grad():
        nn.init.orthogonal_(rnn.weight_hh, gain=size)
        nn.init.zeros_(rnn.bias_ih)
        nn.init.zeros_(rnn.bias_hh)
    x = 1e-3 * torch.randn(1, steps, D, dtype=F64)
    first = torch.zeros(1, H, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(lambda h: rnn(x, h)[1], first)
    states, _ = rnn(x, first)
    expected = torch.eye(H, dtype=F64)
    for state in states[0]:
        expected = (1 - state**2)[:, None] * rnn.weight_hh @ expected
    assert_equal(jacobian[0, :, 0], expected)
    # A factor of about `size` at every step: the gradient vanishes or explodes.
    assert (expected.norm() > 100) == explodes
    assert (expected.norm() < 0.01) == (not explodes)


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize("inputs", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("norm", [0.8, 1.25])
def test_the_gradient_through_time_is_at_most_a_power_of_the_norm(norm, inputs):
    rnn, steps = RNN(D, H, dtype=F64), 11
    with torch.no_grad():
        rnn.weight_hh *= norm / torch.linalg.matrix_norm(rnn.weight_hh, ord=2)
    x = inputs * torch.randn(1, steps, D, dtype=F64)
    first = torch.zeros(1, H, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(lambda h: rnn(x, h)[1], first)
    size = torch.linalg.matrix_norm(jacobian[0, :, 0], ord=2)
    assert size <= norm**steps


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_gradients_reach_the_encoder_through_its_last_state_or_by_attention(attention):
    model, (source, target_inputs) = small_model(attention), some_tokens()
    memory, last = (x.detach().requires_grad_() for x in model.encode(source))
    logits, _ = model.decode(target_inputs, last, memory, source)
    by_state, by_memory = torch.autograd.grad(
        logits.logsumexp(dim=-1).sum(), [last, memory], allow_unused=True
    )
    assert by_state.ne(0.0).all()
    if attention is None:
        assert by_memory is None
    else:
        assert torch.equal(by_memory.ne(0.0).any(dim=-1), source != 0)


@pytest.mark.question("eecs-1a")
def test_the_encoder_learns_by_the_gradient_of_the_decoders_first_state():
    model, (source, target_inputs) = small_model(None), some_tokens()
    target = torch.randint(1, VOCABULARY, target_inputs.shape)
    weights = list(model.encoder.parameters())
    logits = model(source, target_inputs)
    whole = torch.autograd.grad(F.cross_entropy(logits.mT, target), weights)
    memory, last = model.encode(source)
    first = last.detach().requires_grad_()
    logits, _ = model.decode(target_inputs, first, memory, source)
    (handed_back,) = torch.autograd.grad(F.cross_entropy(logits.mT, target), first)
    in_two_parts = torch.autograd.grad(last, weights, grad_outputs=handed_back)
    for gradient, expected in zip(in_two_parts, whole, strict=True):
        assert_equal(gradient, expected)


@pytest.mark.question("eecs-1a")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_teacher_forcing_predicts_from_the_given_words_before(attention):
    model, (source, target_inputs) = small_model(attention), some_tokens()
    changed = target_inputs.clone()
    changed[:, 3] = changed[:, 3] % (VOCABULARY - 1) + 1
    before, after = model(source, target_inputs), model(source, changed)
    assert torch.equal(after[:, :3], before[:, :3])
    assert (after[:, 3:] - before[:, 3:]).abs().amax(dim=-1).gt(1e-6).all()


# The bottleneck


@pytest.mark.question("eecs-1b")
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_without_attention_sources_with_one_last_state_get_one_answer(attention):
    model = Seq2Seq(
        len(TASK), dim=D, hidden_dim=H, cell="rnn", attention=attention, dtype=F64
    )
    # An encoder that forgets: its last state tells of the end token alone.
    nn.init.zeros_(model.encoder.weight_hh)
    source, _, _ = TASK.batch(["<U> I am a student", "<L> so ARE we all"])
    target_inputs = TASK.batch(["<U> whatever", "<U> whatever"]).target_inputs
    _, last = model.encode(source)
    logits = model(source, target_inputs)
    assert torch.equal(last[0], last[1])
    difference = (logits[0] - logits[1]).abs().max()
    assert difference < 1e-12 if attention is None else difference > 1e-2


@pytest.mark.question("eecs-1b")
@pytest.mark.parametrize("length", [1, 2])
def test_the_bottleneck_must_tell_answers_apart_not_sources(length):
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
def test_the_last_state_may_store_the_answer_and_not_the_task():
    model = queue_model(length=4)
    assert speak(model, "<U> I am", "<L> I am") == ["I AM", "i am"]
    source, target_inputs, target = TASK.batch(["<U> Ab d", "<U> aB D", "<L> Ab d"])
    memory, last = model.encode(source)
    # Sources with one answer have one last state.
    assert torch.equal(last[0], last[1])
    assert not torch.equal(last[0], last[2])
    # The unit that told the tasks apart is of no use to the decoder.
    last[:, -1] = 1.0 - last[:, -1]
    logits, _ = model.decode(target_inputs, last, memory, source)
    assert torch.equal(logits.argmax(dim=-1), target)


@pytest.mark.question("eecs-1b")
def test_a_longer_text_does_not_pass_the_bottleneck():
    model = queue_model(length=4)
    assert speak(model, "<U> abcd", "<U> abcde") == ["ABCD", "BCDE"]
    assert speak(model, "<L> ABCDEF") == ["cdef"]


@pytest.mark.question("eecs-1b")
def test_in_a_queue_a_shorter_text_arrives_late():
    model, source = queue_model(length=4), TASK.batch(["<U> ab"]).source
    tokens = model.generate(source, begin=TASK.begin, end=TASK.end, max_length=9)
    wanted = [TASK.pad, TASK.pad, *TASK.encode("AB")]
    assert tokens.tolist() == [wanted]


# Around the bottleneck


def counting_model(positions: int, *, ahead: int = 1) -> Seq2Seq:
    """Give a model with attention that answers texts shorter than `positions`.

    The units of a state tell the token just read, its position in the source, how far
    the decoder has counted, and whether the task is "upper". Step i attends to the
    token that is so many ahead of i.
    """
    tokens = len(TASK)
    hidden = tokens + 2 * positions + 1
    model = blank_model(hidden, "bilinear")
    token, position = slice(0, tokens), slice(tokens, tokens + positions)
    count = slice(tokens + positions, tokens + 2 * positions)
    one_on = torch.diag(torch.ones(positions - 1, dtype=F64), -1)
    encoder, decoder = model.encoder, model.decoder
    # The encoder notes the token, counts from the prompt on, and recalls the task.
    encoder.weight_ih[token] = LOUD * torch.eye(tokens)
    encoder.weight_ih[position.start, [TASK.upper, TASK.lower]] = LOUD
    encoder.weight_hh[position, position] = LOUD * one_on
    encoder.weight_ih[-1, TASK.upper] = encoder.weight_hh[-1, -1] = LOUD
    # The decoder counts from the begin token on, and does nothing else.
    decoder.weight_ih[count.start, TASK.begin] = LOUD
    decoder.weight_hh[count, count] = LOUD * one_on
    # Count i is compared with position i + 1, since the prompt has the first.
    assert model.alignment is not None
    offset = torch.linalg.matrix_power(one_on, ahead)
    model.alignment.key_proj.weight[count, position] = LOUD * offset.T
    # The letter counts two, the case one.
    model.readout.weight[:, hidden : hidden + tokens] = 2.0 * same_letter()
    model.readout.weight[:, -1] = case_of("upper") - case_of("lower")
    model.readout.bias[:] = case_of("lower")
    return model


@pytest.mark.question("eecs-1d")
def test_counting_and_looking_up_changes_the_case():
    model, sources = counting_model(positions=16), ["<U> I am a student", "<L> Me TOO"]
    assert speak(model, *sources) == ["I AM A STUDENT", "me too"]


@pytest.mark.question("eecs-1d")
@pytest.mark.parametrize("ahead", [0, 2])
def test_the_built_model_fails_when_it_attends_one_token_off(ahead):
    model = counting_model(positions=16, ahead=ahead)
    source, target_inputs, target = TASK.batch(["<U> I am a student"])
    written = model(source, target_inputs).argmax(dim=-1)
    assert not torch.equal(written, target)
    # What it writes is the answer one step late, or one step early.
    late, early = (slice(None), slice(1, None)), (slice(None), slice(None, -1))
    one, other = (late, early) if ahead == 0 else (early, late)
    assert torch.equal(written[one], target[other])


@pytest.mark.question("eecs-1d")
@pytest.mark.parametrize("cell", ["rnn", "gru"])
@pytest.mark.parametrize("reach", [0, 1])
def test_up_to_the_same_index_no_state_knows_the_wanted_character(cell, reach):
    model = Seq2Seq(len(TASK), dim=D, hidden_dim=H, cell=cell, dtype=F64)
    alignment = Alignment(H, H, score="additive", dtype=F64)
    one, other = TASK.batch(["<U> abcdef", "<U> abcxyz"]).source.split(1)
    # Step i, from 0 on, may attend to the states up to i + reach.
    steps, keys = torch.arange(7)[:, None], torch.arange(8)
    mask, query = (keys <= steps + reach)[None], torch.randn(1, 7, H, dtype=F64)
    contexts = [alignment(query, model.encode(x)[0], mask=mask) for x in (one, other)]
    difference = (contexts[0] - contexts[1]).abs().amax(dim=-1)[0]
    # The sources first differ in the fourth character, which is their fifth token.
    assert difference[:3].eq(0.0).all()
    assert (difference[3] > 1e-6) == (reach == 1)


@pytest.mark.question("eecs-1d")
def test_the_built_model_copies_the_text_if_nothing_changes_the_case():
    model, tokens = counting_model(positions=16), len(TASK)
    hidden = model.config.hidden_dim
    # The readout copies the token it finds, and ignores the task.
    model.readout.weight.zero_()
    model.readout.bias.zero_()
    model.readout.weight[:, hidden : hidden + tokens] = torch.eye(tokens)
    assert speak(model, "<U> I am", "<L> I am") == ["I am", "I am"]


@pytest.mark.question("eecs-1c")
def test_in_the_built_model_the_readout_needs_the_context_alone():
    model, sources = counting_model(positions=16), ["<U> I am a student", "<L> Me TOO"]
    model.readout.weight[:, : model.config.hidden_dim] = 0.0
    assert speak(model, *sources) == ["I AM A STUDENT", "me too"]


@pytest.mark.question("eecs-1c")
@pytest.mark.parametrize("attention", SCORES)
def test_the_memory_is_stored_before_any_query_selects_from_it(attention):
    model, (source, target_inputs) = small_model(attention), some_tokens()
    memory, last = model.encode(source)
    assert memory.shape == (*source.shape, H)
    other = target_inputs % (VOCABULARY - 1) + 1
    _, _, first = model.decode(target_inputs, last, memory, source, return_weights=True)
    _, _, second = model.decode(other, last, memory, source, return_weights=True)
    # Other queries select differently from the same states, and drop none of them.
    assert (first - second).abs().amax() > 1e-6
    real = (source != 0)[:, None].expand_as(first)
    assert first[real].gt(0.0).all()
    assert second[real].gt(0.0).all()


@pytest.mark.question("eecs-1d")
def test_with_attention_the_last_state_need_not_store_anything():
    model = counting_model(positions=16)
    source, target_inputs, target = TASK.batch(["<U> I am a student", "<L> Me TOO"])
    memory, last = model.encode(source)
    for stored in (0.0, 1.0, -1.0):
        state = torch.full_like(last, stored)
        # Here the decoder counts, from zero on.
        state[:, -17:-1] = 0.0
        logits, _ = model.decode(target_inputs, state, memory, source)
        real = target != TASK.pad
        assert torch.equal(logits.argmax(dim=-1)[real], target[real])


@pytest.mark.question("eecs-1d")
@pytest.mark.parametrize("erased", ["nothing", "character", "position"])
def test_the_built_model_needs_both_the_character_and_its_position(erased):
    model, tokens, positions = counting_model(positions=16), len(TASK), 16
    source, target_inputs, target = TASK.batch(["<U> I am a student"])
    memory, last = model.encode(source)
    units = {
        "nothing": slice(0, 0),
        "character": slice(0, tokens),
        "position": slice(tokens, tokens + positions),
    }
    memory[..., units[erased]] = 0.0
    logits, _ = model.decode(target_inputs, last, memory, source)
    assert torch.equal(logits.argmax(dim=-1), target) == (erased == "nothing")


@pytest.mark.question("eecs-1d")
def test_a_gru_with_attention_learns_to_attend_one_token_ahead():
    draws = torch.Generator().manual_seed(0)
    model = Seq2Seq(len(TASK), dim=32, hidden_dim=64, attention="additive")
    steps = 150
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)
    for _ in range(steps):
        source, target_inputs, target = TASK.sample(
            64, min_length=1, max_length=4, generator=draws
        )
        logits = model(source, target_inputs)
        loss = F.cross_entropy(logits.mT, target, ignore_index=TASK.pad)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    source, target_inputs, target = TASK.sample(
        200, min_length=1, max_length=4, generator=draws
    )
    logits, weights = model.eval()(source, target_inputs, return_weights=True)
    real = target != TASK.pad
    right = (logits.argmax(dim=-1) == target)[real].double().mean()
    one_on = (weights.argmax(dim=-1) == torch.arange(1, 6))[real].double().mean()
    assert right > 0.97
    assert one_on > 0.85


# Compilers


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("attention", "cell"),
    [(None, "gru"), ("dot", "rnn"), ("bilinear", "gru"), ("additive", "rnn")],
)
def test_a_model_compiles_to_one_graph_and_exports_for_any_batch(attention, cell):
    model, (source, target_inputs) = small_model(attention, cell=cell), some_tokens()
    tokens = source[:, :3].contiguous(), target_inputs[:, :2].contiguous()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_equal(compiled(*tokens), model(*tokens))
    batch = torch.export.Dim("batch")
    exported = torch.export.export(
        model, tokens, dynamic_shapes=({0: batch}, {0: batch}), strict=True
    )
    more = tuple(torch.cat([x, x.flip(0)]) for x in tokens)
    assert_equal(exported.module()(*more), model(*more))


# Settings and malformed calls


@pytest.mark.parametrize(("attention", "cell"), [(None, "rnn"), ("additive", "gru")])
def test_a_model_is_rebuilt_from_its_config(attention, cell):
    model, tokens = small_model(attention, cell=cell, padding_token=3), some_tokens()
    settings = json.loads(json.dumps(asdict(model.config)))
    again = Seq2Seq(**settings, dtype=F64)
    again.load_state_dict(model.state_dict())
    assert again.config == model.config
    assert torch.equal(again(*tokens), model(*tokens))


X, TOKENS = torch.randn(B, N, D), torch.ones(B, N).long()
MODEL = Seq2Seq(VOCABULARY, dim=D, hidden_dim=H)


@pytest.mark.unhooked
@bad_calls(
    ("an argument of another library", lambda: GRU(D, H, num_layers=2),
     TypeError, "GRU() has no argument 'num_layers'"),
    ("a sequence without steps", lambda: RNN(D, H)(X[:, :0]),
     ValueError, "length must be a positive integer, got 0"),
    ("inputs of another width", lambda: RNN(H, H)(X),
     ValueError, "x must be (b, n, 13), got shape (3, 7, 11)"),
    ("an unknown score", lambda: Alignment(D, H, score="other"),
     ValueError, "score must be one of ('dot', 'bilinear', 'additive'), got 'other'"),
    ("dot products of two widths", lambda: Alignment(D, H, score="dot"),
     ValueError, "dot needs one width, got 11 and 13"),
    ("an unknown cell", lambda: small_model(None, cell="lstm"),
     ValueError, "cell must be one of ('gru', 'rnn'), got 'lstm'"),
    ("padding outside the vocabulary", lambda: small_model(None, padding_token=17),
     ValueError, "padding_token must be a token from 0 to 16, got 17"),
    ("a source outside the vocabulary", lambda: MODEL(TOKENS * 17, TOKENS),
     ValueError, "source must be from 0 to 16, got 17 to 17"),
    ("a target for another batch", lambda: MODEL(TOKENS, TOKENS[:2]),
     ValueError, "target_inputs must be (3, q), got shape (2, 7)"),
    ("weights without attention", lambda: MODEL(TOKENS, TOKENS, return_weights=True),
     ValueError, "return_weights needs attention, got attention=None"),
    ("a beginning outside the vocabulary",
     lambda: MODEL.generate(TOKENS, begin=17, end=2, max_length=3),
     ValueError, "begin must be a token from 0 to 16, got 17"),
)  # fmt: skip
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)
