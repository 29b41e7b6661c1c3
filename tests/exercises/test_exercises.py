"""Every exercise: right answers pass, wrong ones get their sentence."""

import ast
import json
import re

import numpy as np
import pytest

from transformers_hw.exercises import CHAPTERS, check, load, names, solution, stub
from transformers_hw.exercises.kinds import Choice, Code, Number, decode, encode, run
from transformers_hw_command import CHAPTERS as ALL_CHAPTERS

SEEDS = (0, 1)
CODE = [n for n in names() if type(load(n)) is Code]
NUMBERS = [n for n in names() if isinstance(load(n), Number)]
CHOICES = [n for n in names() if isinstance(load(n), Choice)]
MISTAKES = [(n, m) for n in CODE + NUMBERS for m in load(n).mistakes]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CODE)
def test_every_right_answer_passes(name, seed):
    exercise = load(name)
    for function in (exercise.answer, *exercise.variants):
        feedback = exercise.check(function, seed=seed)
        assert feedback.passed, f"{function.__name__}: {feedback}"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_every_wrong_answer_gets_its_own_sentence(name, mistake, seed):
    exercise = load(name)
    wrong = exercise.mistakes[mistake]
    given = wrong.answer() if name in NUMBERS else wrong.answer
    feedback = exercise.check(given, seed=seed)
    assert not feedback.passed
    assert (feedback.mistake, feedback.sentence) == (mistake, wrong.sentence)


@pytest.mark.parametrize("name", CODE)
def test_wrong_answers_are_recognized_in_single_precision(name):
    # Students compute in other ways: their results agree with ours up to rounding.
    exercise = load(name)

    def rounded(value):
        if isinstance(value, np.ndarray) and value.dtype == np.float64:
            return value.astype(np.float32)
        return value

    def of(function):
        return lambda *arguments: rounded(function(*arguments))

    assert exercise.check(of(exercise.answer)).passed
    for mistake, wrong in exercise.mistakes.items():
        assert exercise.check(of(wrong.answer)).mistake == mistake


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_right_up_to_their_tolerance_only(name):
    exercise = load(name)
    answer = exercise.answer()
    assert check(name, answer + 0.9 * exercise.tolerance).passed
    assert not check(name, answer + 1.1 * exercise.tolerance).passed
    assert not check(name, "two").passed


@pytest.mark.parametrize("name", CHOICES)
def test_choices_have_one_right_answer_and_a_reason_for_each(name):
    exercise = load(name)
    for letter in exercise.options:
        feedback = check(name, letter)
        assert feedback.passed == (letter == exercise.answer)
        assert feedback.sentence == exercise.reasons[letter]
    assert len(set(exercise.reasons.values())) == len(exercise.options) >= 3
    assert "expected, got 'z'" in check(name, "z").sentence


@pytest.mark.parametrize("name", names())
def test_texts_are_whole(name):
    exercise = load(name)
    assert exercise.title
    assert len(exercise.task) > 80
    assert 2 <= len(exercise.hints) <= 5
    sentences = list(exercise.hints)
    if isinstance(exercise, Code):
        sentences += [wrong.sentence for wrong in exercise.mistakes.values()]
    for sentence in sentences:
        assert re.search(r"[.?!][`)]?$", sentence), sentence
        assert len(sentence) > 30
    assert len(set(sentences)) == len(sentences)
    ast.parse(stub(name))
    assert solution(name)


@pytest.mark.parametrize("name", CODE)
def test_the_stub_is_a_file_without_the_solution(name):
    names_of_stub: dict = {}
    exec(stub(name), names_of_stub)
    exercise = load(name)
    feedback = check(name, names_of_stub[exercise.function_name])
    assert "NotImplementedError" in feedback.sentence
    last = solution(name).strip().split("\n")[-1].strip()
    assert last not in stub(name)


@pytest.mark.parametrize("name", CODE)
def test_inputs_survive_the_way_to_another_process(name):
    exercise = load(name)
    cases = exercise.inputs()
    again = [tuple(case) for case in decode(json.loads(json.dumps(encode(cases))))]
    outcomes = run(exercise.answer, again, exercise.arguments)
    assert exercise.feedback(cases, outcomes).passed


def test_there_are_enough_of_them(capsys):
    assert CHAPTERS == ALL_CHAPTERS
    per_chapter = {c: sum(n.startswith(f"{c}/") for n in names()) for c in CHAPTERS}
    wrong = len(MISTAKES) + sum(len(load(n).options) - 1 for n in CHOICES)
    right = {n: 1 + len(load(n).variants) for n in CODE}
    with capsys.disabled():
        print(
            f"\n{len(names())} exercises ({len(CODE)} code, {len(NUMBERS)} numbers, "
            f"{len(CHOICES)} choices), {wrong} wrong answers with a sentence each, "
            f"{sum(right.values())} right ones"
        )
    assert min(per_chapter.values()) >= 6
    assert len(names()) >= 48
    assert wrong >= 200
    assert min(right.values()) >= 3
    for chapter in CHAPTERS:
        own = [load(n) for n in names() if n.startswith(f"{chapter}/")]
        assert {x.level for x in own} == {"warm-up", "core", "challenge"}
