"""Exercises: tasks, hints, solutions, and checkers that know the usual mistakes.

    >>> import numpy as np
    >>> from transformers_hw.exercises import check
    >>> def softmax(scores, scale):
    ...     weights = np.exp(scale * scores)
    ...     return weights / weights.sum()
    >>> print(check("attention/softmax", softmax).sentence)
    You divide by the sum of all exponentials, so all weights together sum to 1. Every
    row needs its own sum: keep the last axis apart with axis=-1, keepdims=True.

In a terminal, `transformers-hw exercise` lists them, copies a file to fill in, and
checks it. Each exercise is one file of this package, in the folder of its chapter.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from transformers_hw.exercises.kinds import Choice, Code, Exercise, Feedback, Number

__all__ = [
    "Exercise",
    "Feedback",
    "check",
    "check_source",
    "load",
    "names",
    "solution",
    "stub",
]

FOLDER = Path(__file__).parent
CHAPTERS = (
    "attention",
    "positional_encoding",
    "multi_head_attention",
    "self_attention",
    "seq2seq",
    "transformer",
    "vision_transformer",
    "attention_as_convolution",
)
LEVELS = ("warm-up", "core", "challenge")


@cache
def names() -> tuple[str, ...]:
    """Return the names of all exercises, by chapter and level."""
    found = []
    for chapter in CHAPTERS:
        files = sorted(p.stem for p in (FOLDER / chapter).glob("[a-z]*.py"))
        own = [f"{chapter}/{stem}" for stem in files]
        found += sorted(own, key=lambda name: LEVELS.index(load(name).level))
    return tuple(found)


@cache
def load(name: str) -> Code | Choice:
    """Return an exercise.

    Args:
        name: Its chapter and file, such as `"attention/softmax"`.

    Raises:
        ValueError: There is no such exercise.
    """
    chapter, _, stem = name.partition("/")
    if chapter not in CHAPTERS or not (FOLDER / chapter / f"{stem}.py").is_file():
        raise ValueError(
            f"there is no exercise {name!r}; `transformers-hw exercise` lists them."
        )
    module = importlib.import_module(f"transformers_hw.exercises.{chapter}.{stem}")
    exercise = module.exercise
    title, _, task = inspect.cleandoc(module.__doc__ or "").partition("\n")
    exercise.name, exercise.title, exercise.task = name, title.rstrip("."), task.strip()
    return exercise


def check(name: str, submission: Any, *, seed: int = 0, array: Any = None) -> Feedback:
    """Check an answer, in this process.

    Args:
        name: Name of the exercise, such as `"attention/softmax"`.
        submission: The answer: a function, a number, or the letter of a choice.
        seed: Seed of the inputs.
        array: What makes a tensor of a NumPy array, such as `torch.tensor`, for
            functions that do not take NumPy arrays.

    Returns:
        What is right or wrong about it; it prints as text.

    Examples:
        >>> check("attention/softmax", lambda scores, scale: scores).passed
        False
    """
    return load(name).check(submission, seed=seed, array=array)


def check_source(name: str, source: str) -> Feedback:
    """Check the text of an answer: a file that defines the function, or a value.

    Args:
        name: Name of the exercise.
        source: Python that defines the function; for other exercises, what was typed.

    Returns:
        What is right or wrong about it.

    Examples:
        >>> print(check_source("attention/softmax", "def softmax(scores, scale)"))
        The text could not be run: SyntaxError: expected ':' (line 1)
    """
    exercise = load(name)
    if isinstance(exercise, Choice | Number):
        return exercise.check(source)
    defined: dict[str, Any] = {"__name__": "answer"}
    try:
        exec(compile(source, "answer", "exec"), defined)
    except SyntaxError as error:
        text = f"{type(error).__name__}: {error.msg} (line {error.lineno})"
        return Feedback(False, f"The text could not be run: {text}")
    except BaseException as error:
        return Feedback(False, f"The text stopped with {type(error).__name__}: {error}")
    if exercise.function_name not in defined:
        return Feedback(False, f"The text defines no {exercise.function_name!r}.")
    return exercise.check(defined[exercise.function_name])


def stub(name: str) -> str:
    """Return the file that a student fills in.

    Args:
        name: Name of the exercise.
    """
    exercise = load(name)
    stop = "" if exercise.title.endswith("?") else "."
    task = f"{exercise.title}{stop}\n\n{exercise.task}\n\nRead: {exercise.read}"
    head = '"""' + task.replace("\\", "\\\\") + '\n"""\n\n'
    if isinstance(exercise, Choice):
        options = "\n".join(
            f"# ({key}) {text}" for key, text in exercise.options.items()
        )
        return f'{head}{options}\n\nanswer = "?"\n'
    if isinstance(exercise, Number):
        return f"{head}answer = ...\n"
    function = _definition(exercise)
    text = ast.get_docstring(function) or ""
    function.body = [ast.Expr(ast.Constant(...))]
    signature = ast.unparse(function).rpartition("\n")[0]
    body = textwrap.indent(f'"""{text}"""\nraise NotImplementedError\n', "    ")
    imports = "import numpy as np\nfrom einops import einsum, rearrange, reduce\n\n\n"
    if "`math." in task or "(math." in task:
        imports = f"import math\n\n{imports}"
    return f"{head}{imports}{signature}\n{body}"


def solution(name: str) -> str:
    """Return the source of the solution, or the right answer and the reason for it.

    Args:
        name: Name of the exercise.
    """
    exercise = load(name)
    if isinstance(exercise, Choice):
        return f"({exercise.answer}) {exercise.reasons[exercise.answer]}\n"
    return _source(exercise)


def _definition(exercise: Code) -> ast.FunctionDef:
    tree = ast.parse(_source(exercise))
    (function,) = tree.body
    return function  # type: ignore[return-value]


def _source(exercise: Code) -> str:
    lines = inspect.getsource(exercise._answer).split("\n")
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[start:])
