"""Change of case: a small task for sequence-to-sequence models.

A text with a prompt goes in, and the same text in upper or lower case comes out, so
that both what a model must remember and where it should attend are known.
"""

import string
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transformers_hw._engine.arguments import check_below, check_choice, check_sizes
from transformers_hw._engine.shapes import checked


class CaseBatch(NamedTuple):
    """Sources, inputs of the decoder, and targets; all padded."""

    source: Int[Tensor, "b k"]
    target_inputs: Int[Tensor, "b q"]
    target: Int[Tensor, "b q"]


class ChangeOfCase:
    """Write a text in upper case after the prompt `<U>`, in lower case after `<L>`.

    The first five tokens are padding, begin, end and the two prompts; the others are
    characters. Since the prompt comes first, token $i$ of the answer depends on token
    $i + 1$ of the source, and on the prompt.

    Examples:
        >>> task = ChangeOfCase()
        >>> task.answer("<U> I am a student")
        'I AM A STUDENT'
        >>> task.encode("<U> Ab")
        tensor([ 3, 32,  7,  2])
        >>> seeded = torch.Generator().manual_seed(0)
        >>> source, *_ = task.sample(2, min_length=1, max_length=5, generator=seeded)
        >>> [task.decode(tokens) for tokens in source]
        ['<U> Bu', '<L> Jergh']
    """

    pad, begin, end, upper, lower = range(5)
    prompts = ("<U> ", "<L> ")
    names = ("", "", "", *prompts, " ", *string.ascii_letters)

    def __init__(self) -> None:
        # Tokens of the characters in upper case, and in lower case.
        characters = "".join(self.names[self.lower + 1 :])
        changed = (characters.upper(), characters.lower())
        self.changed = torch.tensor([[*map(self.names.index, x)] for x in changed])

    def __len__(self) -> int:
        return len(self.names)

    def answer(self, source: str) -> str:
        """Return the answer to a source, which begins with a prompt."""
        check_choice("prompt", source[:4], self.prompts)
        return source[4:].upper() if source[1] == "U" else source[4:].lower()

    def encode(self, text: str) -> Int[Tensor, " n"]:
        """Return the tokens of a text, which may begin with a prompt, and an end."""
        names = [text[:4], *text[4:]] if text.startswith(self.prompts) else [*text]
        for name in names:
            if name not in self.names:
                raise ValueError(
                    f"text must consist of a–z, A–Z and spaces, got {name!r}."
                )
        return torch.tensor([*map(self.names.index, names), self.end])

    @checked
    def decode(self, tokens: Int[Tensor, " n"]) -> str:
        """Return the text of tokens, up to the first end."""
        check_below("tokens", tokens, len(self))
        written = takewhile(lambda token: token != self.end, tokens.tolist())
        return "".join(self.names[token] for token in written)

    def batch(self, sources: Sequence[str]) -> CaseBatch:
        """Return sources and their answers as tokens, for teacher forcing."""
        check_sizes(sources=len(sources))
        questions = [self.encode(source) for source in sources]
        answers = [self.encode(self.answer(source)) for source in sources]
        source = pad_sequence(questions, True, self.pad)
        return self._teacher_forcing(source, pad_sequence(answers, True, self.pad))

    def sample(
        self,
        batch: int,
        *,
        min_length: int,
        max_length: int,
        generator: torch.Generator | None = None,
    ) -> CaseBatch:
        """Draw prompts, lengths and characters, each from a uniform distribution."""
        check_sizes(batch=batch, min_length=min_length)
        if max_length < min_length:
            raise ValueError(f"max_length must be >= {min_length}, got {max_length}.")

        def draw(low: int, high: int, *shape: int) -> Tensor:
            return torch.randint(low, high, shape, generator=generator)

        prompts = draw(self.upper, self.lower + 1, batch, 1)
        texts = draw(self.lower + 1, len(self), batch, max_length)
        ends = draw(min_length + 1, max_length + 2, batch, 1)
        answers = self.changed[prompts - self.upper, texts - self.lower - 1]
        source = self._ended(torch.cat([prompts, texts], dim=1), ends)
        return self._teacher_forcing(source, self._ended(answers, ends - 1))

    def _ended(self, tokens: Tensor, ends: Tensor) -> Tensor:
        index = torch.arange(int(ends.max()) + 1)
        tokens = F.pad(tokens, (0, 1))[:, : len(index)]
        return tokens.where(index < ends, self.pad).where(index != ends, self.end)

    def _teacher_forcing(self, source: Tensor, target: Tensor) -> CaseBatch:
        target_inputs = F.pad(target[:, :-1], (1, 0), value=self.begin)
        return CaseBatch(source, target_inputs, target)
