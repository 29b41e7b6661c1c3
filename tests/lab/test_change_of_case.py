"""The task of changing the case: tokens, answers, batches and samples."""

import string
from collections.abc import Callable

import pytest
import torch
from bad_calls import assert_refused, bad_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transformers_hw.lab.change_of_case import ChangeOfCase

TASK = ChangeOfCase()
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


@pytest.mark.unhooked
@bad_calls(
    (
        "a character without a token",
        lambda: TASK.encode("<U> wait!"),
        ValueError,
        "text must consist of a–z, A–Z and spaces, got '!'",
    ),
    (
        "a source without a prompt",
        lambda: TASK.answer("I am"),
        ValueError,
        "prompt must be one of ('<U> ', '<L> '), got 'I am'",
    ),
    (
        "an unknown token",
        lambda: TASK.decode(torch.tensor([3, 58])),
        ValueError,
        "tokens must be from 0 to 57, got 3 to 58",
    ),
    (
        "a batch of nothing",
        lambda: TASK.batch([]),
        ValueError,
        "sources must be a positive integer, got 0",
    ),
    (
        "texts without characters",
        lambda: TASK.sample(2, min_length=0, max_length=5),
        ValueError,
        "min_length must be a positive integer, got 0",
    ),
    (
        "lengths in the wrong order",
        lambda: TASK.sample(2, min_length=3, max_length=2),
        ValueError,
        "max_length must be >= 3, got 2",
    ),
)
def test_malformed_calls_get_clear_errors(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    assert_refused(call, error, message)
