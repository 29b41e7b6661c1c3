"""Exercises with checkers that recognize mistakes.

An exercise holds its solution, other right answers, and the wrong answers people give,
each with a sentence that explains the mistake. A submission is run on the same inputs
as all of these. If its results are those of a known wrong answer, the checker gives
that answer's sentence; otherwise it shows the input, what was expected and what the
submission returned.

This file and the exercises need NumPy and einops alone, so that they also run in a
browser.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

Level = Literal["warm-up", "core", "challenge"]
Function = Callable[..., Any]
Case = tuple[Any, ...]
MISFIT = "what was returned does not fit"


@dataclass(frozen=True)
class Outcome:
    """What a submission did with one input.

    Attributes:
        result: What it returned, as NumPy arrays and plain Python values.
        error: What it raised instead, as text.
        changed: Name of an argument that it changed in place.
    """

    result: Any = None
    error: str | None = None
    changed: str | None = None


@dataclass(frozen=True)
class Feedback:
    """The answer to a submission.

    Attributes:
        passed: Whether it is right.
        sentence: What is right or wrong, in a sentence or two.
        detail: The input, what was expected, and what was returned.
        mistake: Name of the wrong answer that was recognized.
    """

    passed: bool
    sentence: str
    detail: str = ""
    mistake: str | None = None

    def __str__(self) -> str:
        return "\n".join(
            filter(None, ("Right. " * self.passed + self.sentence, self.detail))
        )


@dataclass(frozen=True)
class Wrong:
    """A wrong answer, and the sentence that explains the mistake."""

    answer: Any
    sentence: str


@dataclass
class Exercise:
    """What all exercises have.

    Attributes:
        level: `"warm-up"`, `"core"` or `"challenge"`.
        read: Where to read about it: a chapter and an anchor, `"attention#masks"`.
        hints: Hints, from a nudge to nearly the solution.
        points: Points it gives.
        questions: Assignment questions it practices.
        name: Chapter and file, `"attention/softmax"`; set when it is loaded.
        title: First line of its file's docstring.
        task: The rest of the docstring, Markdown.
    """

    level: Level
    read: str
    hints: Sequence[str]
    points: int = 1
    questions: Sequence[str] = ()
    name: str = field(default="", init=False)
    title: str = field(default="", init=False)
    task: str = field(default="", init=False)

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            wanted = ", ".join(get_args(Level))
            raise ValueError(f"level must be one of {wanted}, got {self.level!r}.")


@dataclass
class Code(Exercise):
    """An exercise whose answer is a function.

    The decorators `solution`, `right`, `wrong`, `cases` and `view` say which function
    of the file is what.

    Attributes:
        rtol: Largest relative error of a right answer, in double precision.
    """

    rtol: float = 1e-6
    answer: Function | None = field(default=None, init=False)
    variants: list[Function] = field(default_factory=list, init=False)
    mistakes: dict[str, Wrong] = field(default_factory=dict, init=False)
    _cases: Callable[[np.random.Generator], Iterator[Any]] | None = field(
        default=None, init=False
    )
    _view: Function | None = field(default=None, init=False)

    def solution(self, function: Function) -> Function:
        """Declare the solution, whose name and arguments a submission must have."""
        self.answer = function
        return function

    def right(self, function: Function) -> Function:
        """Declare another right answer."""
        self.variants.append(function)
        return function

    def wrong(self, sentence: str) -> Callable[[Function], Function]:
        """Declare a wrong answer, and what to tell whoever gives it."""

        def declare(function: Function) -> Function:
            self.mistakes[function.__name__] = Wrong(function, sentence)
            return function

        return declare

    def cases(self, function: Callable[[np.random.Generator], Iterator[Any]]) -> Any:
        """Declare the inputs: arguments, or tuples of them, small ones first."""
        self._cases = function
        return function

    def view(self, function: Function) -> Function:
        """Declare what is compared: a function of a result and of the arguments.

        Without it, results themselves are compared. With it, several results can be
        right, such as all weights with which a layer computes the same.
        """
        self._view = function
        return function

    @property
    def function_name(self) -> str:
        """The name that a submission's function must have."""
        return self._answer.__name__

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(inspect.signature(self._answer).parameters)

    @property
    def _answer(self) -> Function:
        if self.answer is None:
            raise ValueError(f"exercise {self.name!r} has no solution.")
        return self.answer

    def inputs(self, seed: int = 0) -> list[Case]:
        """Return the inputs that submissions are run on.

        Args:
            seed: Seed of random numbers in them.
        """
        if self._cases is None:
            raise ValueError(f"exercise {self.name!r} has no cases.")
        found = self._cases(np.random.default_rng(seed))
        return [case if isinstance(case, tuple) else (case,) for case in found]

    def check(
        self, submission: Function, *, seed: int = 0, array: Function | None = None
    ) -> Feedback:
        """Check a function, in this process.

        Args:
            submission: The function.
            seed: Seed of the inputs.
            array: What makes a tensor of a NumPy array, such as `torch.tensor`, if the
                function does not take NumPy arrays.

        Returns:
            What is right or wrong about it.
        """
        cases = self.inputs(seed)
        return self.feedback(cases, run(submission, cases, self.arguments, array))

    def feedback(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Feedback:
        """Compare what a submission did with what was expected.

        Args:
            cases: The inputs.
            outcomes: What the submission did with each of them.

        Returns:
            What is right or wrong about it.
        """
        expected = [self._seen(self._answer, case) for case in cases]
        found = [
            self._looked_at(x, case) for x, case in zip(outcomes, cases, strict=True)
        ]
        failing = [
            i
            for i, (x, want) in enumerate(zip(found, expected, strict=True))
            if not alike(x, want, self.rtol)
        ]
        changed = next((x.changed for x in outcomes if x.changed), None)
        if not failing and changed is None:
            return Feedback(True, f"It agrees on all {len(cases)} inputs.")
        if not failing:
            return Feedback(
                False,
                "The results are right, but the function changes its argument "
                f"{changed}. Work on a copy, so that the caller's array is kept.",
            )
        recognized = self._recognize(cases, found, failing)
        first = failing[0]
        detail = self._describe(cases[first], expected[first], found[first])
        if recognized is not None:
            sentence = self.mistakes[recognized].sentence
            return Feedback(False, sentence, detail, recognized)
        complaint = _complaint(found[first], expected[first], self.rtol)
        if changed is not None:
            complaint += f" The function also changes its argument {changed}."
        return Feedback(False, complaint, detail)

    def _seen(self, function: Function, case: Case) -> Outcome:
        (outcome,) = run(function, [case], self.arguments)
        return self._looked_at(outcome, case)

    def _looked_at(self, outcome: Outcome, case: Case) -> Outcome:
        # What is compared. A result that cannot be looked at is an error, too.
        if self._view is None or outcome.error is not None or outcome.result is None:
            return outcome
        try:
            result = self._view(outcome.result, *copy.deepcopy(case))
        except Exception as error:
            shown = f"{MISFIT}: {type(error).__name__}: {error}"
            return Outcome(error=shown, changed=outcome.changed)
        return Outcome(plain(result), changed=outcome.changed)

    def _recognize(
        self, cases: Sequence[Case], found: Sequence[Outcome], failing: Sequence[int]
    ) -> str | None:
        # The wrong answer that explains the first failure and at least half of them.
        # People make several mistakes at once: this is the one to mend first.
        best, most = None, -1
        for name, mistake in self.mistakes.items():
            same = [
                alike(x, self._seen(mistake.answer, case), self.rtol)
                for x, case in zip(found, cases, strict=True)
            ]
            explained = sum(same[i] for i in failing)
            enough = same[failing[0]] and 2 * explained >= len(failing)
            if enough and sum(same) > most:
                best, most = name, sum(same)
        return best

    def _describe(self, case: Case, want: Outcome, got: Outcome) -> str:
        lines = [
            f"{name} = {show(value)}"
            for name, value in zip(self.arguments, case, strict=True)
        ]
        came = got.error if got.error is not None else show(got.result)
        of = " (computed from the answer)" if self._view else ""
        return "\n".join(
            [
                "Input",
                *_indent(lines),
                f"Expected{of}",
                *_indent([show(want.result)]),
                f"Yours{of}",
                *_indent([came]),
            ]
        )


@dataclass
class Number(Code):
    """An exercise whose answer is a number; the solution takes no arguments.

    Attributes:
        tolerance: Largest difference of a right answer.
    """

    tolerance: float = 0.005

    def inputs(self, seed: int = 0) -> list[Case]:
        """Return the only input: none."""
        return [()]

    def check(
        self, submission: Any, *, seed: int = 0, array: Function | None = None
    ) -> Feedback:
        """Check a number."""
        try:
            given = float(_without_separators(submission))
        except OverflowError:
            return Feedback(
                False, "The number is too large: its size is 1e308 or more."
            )
        except (TypeError, ValueError):
            said = f"A number such as 2.5 was expected, got {submission!r}."
            return Feedback(False, said)
        close = [
            name
            for name, mistake in self.mistakes.items()
            if abs(given - mistake.answer()) <= self.tolerance
        ]
        answer = self._answer()
        if abs(given - answer) <= self.tolerance:
            return Feedback(True, "That is the number.")
        if close:
            return Feedback(False, self.mistakes[close[0]].sentence, "", close[0])
        if abs(given - answer) <= 0.01 * abs(answer):
            return Feedback(
                False,
                f"{given:.12g} is close, but not close enough. Round only at the end, "
                "and check that no small term is missing.",
            )
        return Feedback(False, f"{given:.12g} is not the number.")


@dataclass
class Choice(Exercise):
    """An exercise with several answers to choose from.

    Attributes:
        options: Text of each answer, by letter.
        answer: Letter of the right one.
        reasons: Why each answer is right or wrong, by letter.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answer not in self.options or set(self.options) != set(self.reasons):
            raise ValueError(
                "answer must be one of the options, and each must have a reason, got "
                f"{self.answer!r}, {sorted(self.options)} and {sorted(self.reasons)}."
            )

    def check(self, submission: Any, **_: Any) -> Feedback:
        """Check a letter."""
        given = str(submission).strip().strip("()").lower()
        if given not in self.options:
            wanted = ", ".join(self.options)
            return Feedback(False, f"One of {wanted} was expected, got {submission!r}.")
        reason = self.reasons[given]
        if given == self.answer:
            return Feedback(True, reason)
        return Feedback(False, reason, "", given)


def run(
    function: Function,
    cases: Sequence[Case],
    arguments: Sequence[str],
    array: Function | None = None,
) -> list[Outcome]:
    """Run a function on copies of all inputs, and note what it returned or raised.

    Args:
        function: The function.
        cases: Tuples of arguments.
        arguments: Names of the arguments.
        array: What makes a tensor of a NumPy array, if the function needs one.
    """
    outcomes = []
    for case in cases:
        given = copy.deepcopy(case)
        if array is not None:
            given = tuple(array(x) if isinstance(x, np.ndarray) else x for x in given)
        try:
            with np.errstate(all="ignore"):
                result = plain(function(*given))
        except Exception as error:
            text = f"{type(error).__name__}: {error}".removesuffix(": ")
            outcomes.append(Outcome(error=text))
            continue
        changed = next(
            (
                name
                for name, before, after in zip(arguments, case, given, strict=True)
                if isinstance(before, np.ndarray)
                and not np.array_equal(before, plain(after), equal_nan=True)
            ),
            None,
        )
        outcomes.append(Outcome(result, changed=changed))
    return outcomes


def plain(value: Any) -> Any:
    """Return a value with arrays of any library as NumPy arrays, tuples as lists."""
    if hasattr(value, "detach"):
        value = np.asarray(value.detach().cpu())
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype in (np.longdouble, np.clongdouble):
            # Not every system has them, and more digits than a float's do not count.
            return array.astype(complex if array.dtype.kind == "c" else float)
        if array.dtype.kind == "U":
            return array.tolist()
        if array.dtype.kind not in "biufc":
            raise TypeError(
                f"an array of dtype {array.dtype} was returned; numbers were expected."
            )
        return array
    if isinstance(value, Mapping):
        return {str(key): plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} was returned.")


def encode(value: Any) -> Any:
    """Return arrays and plain values as what JSON can hold."""
    if isinstance(value, np.ndarray):
        # A complex number goes as two.
        flat = value.ravel()
        flat = flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat
        return {"array": flat.tolist(), "type": str(value.dtype), "shape": value.shape}
    if isinstance(value, list | tuple):
        return [encode(x) for x in value]
    if isinstance(value, dict):
        return {"map": {key: encode(x) for key, x in value.items()}}
    return value


def decode(value: Any) -> Any:
    """Return what `encode` was given."""
    if isinstance(value, dict) and "array" in value:
        dtype = np.dtype(value["type"])
        if dtype.kind not in "biufc":  # no text, whose length would be up to the dtype
            raise ValueError(f"an array of dtype {dtype}")
        pairs = dtype.kind == "c"
        flat = np.array(value["array"], f"f{dtype.itemsize // 2}" if pairs else dtype)
        return flat.view(dtype).reshape(value["shape"])
    if isinstance(value, dict):
        return {key: decode(x) for key, x in value["map"].items()}
    if isinstance(value, list):
        return [decode(x) for x in value]
    return value


def alike(got: Outcome, want: Outcome, rtol: float) -> bool:
    """Return whether two outcomes are the same, up to rounding."""
    if got.error is not None or want.error is not None:
        # Of errors, the kind is compared: messages depend on versions.
        kinds = [x.error and x.error.partition(":")[0] for x in (got, want)]
        return kinds[0] == kinds[1]
    return _same(got.result, want.result, rtol)


def _same(got: Any, want: Any, rtol: float) -> bool:
    if isinstance(want, dict):
        if not isinstance(got, dict) or got.keys() != want.keys():
            return False
        return all(_same(got[key], want[key], rtol) for key in want)
    if isinstance(want, list):
        try:
            got = list(got)
        except TypeError:
            return False
        if len(got) != len(want):
            return False
        return all(_same(x, y, rtol) for x, y in zip(got, want, strict=True))
    if want is None or isinstance(want, str):
        return bool(np.ndim(got) == 0) and got == want
    if got is None or isinstance(got, str | dict):
        return False
    try:
        x, y = np.asarray(got), np.asarray(want)
    except ValueError:  # rows of different lengths
        return False
    if x.shape != y.shape or x.dtype.kind not in "biuf":
        return False
    single = x.dtype.kind == "f" and x.dtype.itemsize < 8
    rtol = max(rtol, 1e-4) if single else rtol
    return np.allclose(x, y, rtol=rtol, atol=rtol, equal_nan=True)


def _complaint(got: Outcome, want: Outcome, rtol: float) -> str:
    if got.error is not None and got.error.startswith(MISFIT):
        return f"{got.error[0].upper()}{got.error[1:]}"
    if got.error == "NotImplementedError":
        return "The function is not written yet: it raises NotImplementedError."
    if got.error is not None:
        return f"The function stopped with an error: {got.error}"
    if got.result is None:
        return "The function returned None. Does it end in a return statement?"
    return _difference(got.result, want.result, rtol, "The result")


def _difference(got: Any, want: Any, rtol: float, what: str) -> str:
    # What can be said of any wrong result, from the coarse to the fine.
    if isinstance(want, list) and any(isinstance(x, list | np.ndarray) for x in want):
        return _difference_of_lists(got, want, rtol)
    if not isinstance(want, list | np.ndarray | bool | int | float):
        return f"{what} differs from what was expected."
    try:
        x, y = np.asarray(got), np.asarray(want)
    except ValueError:
        return f"{what} is not an array: its rows have different lengths."
    if x.ndim == y.ndim == 2 and _same(x.T, y, rtol):
        return f"{what} is transposed: its rows should be its columns."
    if x.shape != y.shape:
        return f"{what} has shape {x.shape}, and {y.shape} was expected."
    if x.dtype.kind == "c":
        return f"{what} is complex, and real numbers were expected."
    if x.dtype.kind == "b" and y.dtype.kind == "f" and not y.shape:
        return f"{what} is True or False, and a number was expected."
    if y.dtype.kind == "b" and not np.isin(x, (0, 1)).all():
        return f"{what} holds numbers, and True and False were expected."
    if not {x.dtype.kind, y.dtype.kind} <= set("biuf"):
        return f"{what} differs from what was expected."
    if x.dtype.kind == "f" and (~np.isfinite(x) & np.isfinite(y)).any():
        return f"{what} is not finite (NaN or infinity) where it should be."
    if x.dtype.kind in "iu" and y.dtype.kind == "f" and (x == np.trunc(y)).all():
        return (
            f"{what} has lost its decimals: it is stored as integers. Let the array "
            "that you fill hold floats."
        )
    if x.dtype.kind in "if" and _same(-x, y, rtol):
        return f"{what} has the wrong sign."
    return f"{what} differs from what was expected."


def _difference_of_lists(got: Any, want: list[Any], rtol: float) -> str:
    size = len(want)
    if not isinstance(got, list):
        return f"A list of {size} results was expected, and only one came."
    if len(got) != size:
        return f"A list of {size} results was expected, and {len(got)} came."
    if _same(got[::-1], want, rtol):
        return "The results are right, but their order is reversed."
    pairs = enumerate(zip(got, want, strict=True))
    first = next(i for i, (x, y) in pairs if not _same(x, y, rtol))
    what = f"Result {first + 1} of {size}"
    return _difference(got[first], want[first], rtol, what)


def _without_separators(value: Any) -> Any:
    # 1,050,624 is a number, too; what 2,72 means is not certain.
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,3}(,\d{3})+\s*", value):
        return value.replace(",", "")
    return value


def show(value: Any) -> str:
    """Return a value as short text."""
    if isinstance(value, np.ndarray):
        text = np.array2string(value, precision=4, suppress_small=True, threshold=40)
        return text if value.size <= 40 else f"{text}, shape {value.shape}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    return repr(value)


def _indent(lines: Sequence[str]) -> list[str]:
    return ["    " + part for line in lines for part in line.split("\n")]
