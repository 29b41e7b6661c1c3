"""Running other people's answers: apart, with limits, and with nothing to patch.

A submission runs in a process of its own, which gets the inputs and sends back what it
computed. All comparing happens here, in the parent, so that a submission can neither
read the solution nor change the checker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers_hw.exercises import load
from transformers_hw.exercises.kinds import (
    Code,
    Feedback,
    Number,
    Outcome,
    decode,
    encode,
)

CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Limits:
    """What a submission may use.

    Attributes:
        seconds: Time, of the clock and of the processor.
        megabytes: Memory; PyTorch alone maps several thousand.
    """

    seconds: float = 10.0
    megabytes: int = 6000


def check_file(
    name: str, path: Path, *, seed: int = 0, limits: Limits | None = None
) -> Feedback:
    """Check the answer in a file, in a process of its own.

    Args:
        name: Name of the exercise.
        path: The file: it defines the function, or `answer`.
        seed: Seed of the inputs.
        limits: What the file may use.

    Returns:
        What is right or wrong about it. A file that loops, exits or misbehaves gets an
        answer, too.
    """
    exercise, limits = load(name), limits or Limits()
    wanted, arguments, cases = "answer", None, []
    if isinstance(exercise, Code) and not isinstance(exercise, Number):
        wanted, arguments = exercise.function_name, exercise.arguments
        cases = exercise.inputs(seed)
    request = {
        "file": str(path.resolve()),
        "name": wanted,
        "arguments": arguments,
        "cases": encode(cases),
        "seconds": limits.seconds,
        "megabytes": limits.megabytes,
        "hidden": str(CHILD.parent),
    }
    reply = _run_child(request, limits)
    if isinstance(reply, str):
        return Feedback(False, reply)
    if reply["forbidden"]:
        return Feedback(False, f"The file {reply['forbidden']}, which is not allowed.")
    if reply["error"]:
        return Feedback(False, reply["error"])
    if not isinstance(exercise, Code) or arguments is None:
        return exercise.check(decode(reply["answer"]))
    outcomes = [Outcome(**decode(x)) for x in reply["outcomes"]]
    if len(outcomes) != len(cases):
        return Feedback(False, "The file did not answer all inputs.")
    return exercise.feedback(cases, outcomes)


def _run_child(request: dict[str, Any], limits: Limits) -> dict[str, Any] | str:
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
        )
        try:
            # Importing NumPy or PyTorch takes time, too, and is not counted.
            text, _ = process.communicate(
                json.dumps(request).encode(), timeout=limits.seconds + 20
            )
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return _too_long(limits)
    if process.returncode in (-24, -14):  # SIGXCPU, SIGALRM
        return _too_long(limits)
    try:
        reply = json.loads(text.splitlines()[-1])
        if set(reply) != {"outcomes", "answer", "error", "forbidden"}:
            raise ValueError("not a reply")
    except (IndexError, ValueError, TypeError, RecursionError):
        return "The file ended the process before it gave an answer."
    return reply


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        # What it may have started goes, too: it could hold the pipe that is read next.
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _too_long(limits: Limits) -> str:
    return (
        f"It did not end within {limits.seconds:g} seconds. Is there a loop that never "
        "stops?"
    )
