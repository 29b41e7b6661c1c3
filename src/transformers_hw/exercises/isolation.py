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
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers_hw.exercises import load
from transformers_hw.exercises.kinds import (
    Case,
    Choice,
    Code,
    Feedback,
    Number,
    Outcome,
    decode,
    encode,
)

CHILD = Path(__file__).with_name("child.py")
# What the child sees of the environment: how to find libraries, and no secrets. Threads
# of libraries would begin before it is confined.
KEPT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "ONEDNN_MAX_CPU_ISA")
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
STARTING = 20  # seconds that importing NumPy or PyTorch may take, too
MEGABYTE = 1 << 20
MOST = 16 * MEGABYTE  # of a reply; right ones have less than one


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
    try:
        if path.stat().st_size > MEGABYTE:
            return Feedback(False, "The file is larger than a megabyte.")
        found = _judge(exercise, cases, _run_child(request, limits))
    except Exception as error:
        # Of results that no exercise expects, and of replies that the file forged.
        said = f"What came back cannot be checked: {type(error).__name__}: {error}"
        found = Feedback(False, said)
    return replace(
        found, sentence=_printable(found.sentence), detail=_printable(found.detail)
    )


def _judge(
    exercise: Code | Choice, cases: list[Case], reply: dict[str, Any] | str
) -> Feedback:
    if isinstance(reply, str):
        return Feedback(False, reply)
    if reply["forbidden"]:
        return Feedback(False, f"The file {reply['forbidden']}, which is not allowed.")
    if reply["error"]:
        return Feedback(False, str(reply["error"]))
    if isinstance(exercise, Choice | Number):
        return exercise.check(decode(reply["answer"]))
    outcomes = [Outcome(**decode(x)) for x in reply["outcomes"]]
    if len(outcomes) != len(cases):
        return Feedback(False, "The file did not answer all inputs.")
    return exercise.feedback(cases, outcomes)


def _printable(text: str, most: int = 4000) -> str:
    # Files say what they like: neither terminals nor tables should stumble over it.
    safe = (c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[:most])
    return "".join(safe) + "…" * (len(text) > most)


def _run_child(request: dict[str, Any], limits: Limits) -> dict[str, Any] | str:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as asked:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-W", "ignore", str(CHILD)],
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={x: os.environ[x] for x in KEPT if x in os.environ} | THREADS,
            start_new_session=True,
        )
        late = threading.Event()

        def stop() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(limits.seconds + STARTING, stop)
        timer.start()
        with process:
            text = process.stdout.read(MOST + 1)  # type: ignore[union-attr]
            if len(text) > MOST:
                _kill(process)
        timer.cancel()
    if late.is_set() or process.returncode in (-24, -14):  # SIGXCPU, SIGALRM
        return (
            f"It did not end within {limits.seconds:g} seconds. Is there a loop that "
            "never stops?"
        )
    if len(text) > MOST:
        return f"What it returned takes more than {MOST // MEGABYTE} MB."
    try:
        reply = json.loads(text.splitlines()[-1])
        if set(reply) != {"outcomes", "answer", "error", "forbidden"}:
            raise ValueError("not a reply")
    except (IndexError, ValueError, TypeError, RecursionError):
        return "The file ended the process before it gave an answer."
    return reply


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # it has just ended
        if hasattr(os, "killpg"):
            # What it may have started goes, too: it could hold the pipe that is read.
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
