"""Assignments: notebooks with blanks, and a check for each part of them.

The notebooks are in `docs/assignments`. A part is checked like an exercise, and often
is one. Parts that are modules are built, given fixed weights in double precision, and
compared with the book's module of the same weights.

    >>> import torch
    >>> from transformers_hw.exercises.assignments import Assignment
    >>> assignment = Assignment("vision_transformer")
    >>> def attention(query, key, value):
    ...     return torch.softmax(query @ key.mT, dim=-1) @ value
    >>> print(assignment.check("attention", attention).sentence)
    The scores are not scaled. Divide them by √d, the square root of the width of a
    query, before the softmax; without it, the weights sharpen as d grows.

Unlike `transformers_hw.exercises`, this needs PyTorch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from transformers_hw.exercises import load
from transformers_hw.exercises.kinds import Code, Feedback, Function

__all__ = ["Assignment", "Part"]

NAMES = ("vision_transformer", "attention_as_convolution")
BLANK = "NotImplementedError: "


@dataclass(frozen=True)
class Part:
    """One part of an assignment.

    Attributes:
        points: Points it gives.
        exercise: The exercise that checks it, or its name.
        adapt: What makes the exercise's function of what the student wrote.
        needs: Earlier parts that it calls.
    """

    points: int
    exercise: Code | str
    adapt: Callable[[Any], Function] = lambda written: written
    needs: tuple[str, ...] = ()

    @property
    def code(self) -> Code:
        """The exercise itself."""
        found = load(self.exercise) if isinstance(self.exercise, str) else self.exercise
        if not isinstance(found, Code):
            raise TypeError(f"{self.exercise!r} has no function to check.")
        return found

    def check(self, written: Any) -> Feedback:
        """Check what a student wrote: a function or a class."""
        return self.code.check(self.adapt(written), array=torch.tensor)


class Assignment:
    """Check the parts of an assignment, and keep count of them.

    Args:
        name: `"vision_transformer"` or `"attention_as_convolution"`.

    Attributes:
        parts: The parts, by name, in the order of the notebook.
        feedback: The last feedback for each part that was checked.

    Raises:
        ValueError: If there is no such assignment.
    """

    def __init__(self, name: str) -> None:
        if name not in NAMES:
            raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}.")
        module = importlib.import_module(f"{__name__}.{name}")
        self.parts: Mapping[str, Part] = module.PARTS
        self.feedback: dict[str, Feedback] = {}
        self._hints_given: dict[str, int] = {}

    def check(self, part: str, written: Any) -> Feedback:
        """Check one part.

        Args:
            part: Its name.
            written: The function or class that was filled in.

        Returns:
            What is right or wrong about it; it prints as text.

        Raises:
            ValueError: If there is no such part.
        """
        feedback, points = self._part(part).check(written), self.parts[part].points
        if feedback.passed:
            feedback = Feedback(True, f"{points} point{'s' * (points > 1)}.")
        elif BLANK in feedback.sentence:
            blank = feedback.sentence.partition(BLANK)[2]
            feedback = Feedback(False, f"Not filled in yet: {blank}")
        elif first := self._to_mend_first(part):
            sentence = f"{feedback.sentence} It uses {first}: mend that first."
            feedback = replace(feedback, sentence=sentence)
        self.feedback[part] = feedback
        return feedback

    def hint(self, part: str) -> str:
        """Return the next hint for a part; after the last one, all of them.

        Args:
            part: Its name.

        Raises:
            ValueError: If there is no such part.
        """
        hints, given = self._part(part).code.hints, self._hints_given.get(part, 0)
        if given >= len(hints):
            return "\n".join([*hints, "That was the last hint."])
        self._hints_given[part] = given + 1
        return f"Hint {given + 1} of {len(hints)}: {hints[given]}"

    def summary(self) -> str:
        """Return a table of all parts, with their points."""
        lines, total = [], 0
        for name, part in self.parts.items():
            feedback = self.feedback.get(name)
            got = part.points if feedback is not None and feedback.passed else 0
            state = "right" if got else "not checked" if feedback is None else "not yet"
            lines.append(f"{name:20} {got} of {part.points}  {state}")
            total += got
        of = sum(part.points for part in self.parts.values())
        return "\n".join([*lines, f"{total} of {of} points"])

    def _part(self, name: str) -> Part:
        if name not in self.parts:
            wanted = ", ".join(self.parts)
            raise ValueError(f"part must be one of {wanted}, got {name!r}.")
        return self.parts[name]

    def _to_mend_first(self, part: str) -> str | None:
        wrong = {name for name, x in self.feedback.items() if not x.passed}
        return next((name for name in self._part(part).needs if name in wrong), None)


def filled(module: nn.Module, like: nn.Module | None = None) -> nn.Module:
    """Fix all parameters of a module, in double precision.

    Args:
        module: The module; equal names of parameters get equal numbers.
        like: A module whose parameters it must have, by name and shape.

    Returns:
        The module.

    Raises:
        ValueError: If its parameters are not those of `like`.
    """
    module = module.double().eval()
    if like is not None:
        have, want = _shapes(module), _shapes(like)
        if have != want:
            names = sorted(
                x for x in have.keys() | want.keys() if have.get(x) != want.get(x)
            )
            raise ValueError(
                "the parameters are not those that __init__ had; leave it as it was. "
                f"Different: {', '.join(names)}."
            )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn.double() / 2)
    return module


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in module.named_parameters()}


def tensor(x: Any) -> Tensor:
    """Return an array as a tensor; the solutions get NumPy's."""
    return torch.as_tensor(x)
