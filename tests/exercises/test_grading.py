"""Other people's answers: a cohort with hostile ones among them, graded at once."""

import csv
import errno
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transformers_hw.exercises as book
from transformers_hw.exercises import (
    check,
    check_source,
    grading,
    isolation,
    load,
    stub,
    terminal,
)
from transformers_hw.exercises.grading import exercise_of, grade
from transformers_hw.exercises.isolation import Limits, check_file
from transformers_hw.exercises.kinds import Choice, Code, Outcome, decode, encode, plain
from transformers_hw_command import main

NAME, FILE = "attention/softmax", "attention__softmax.py"
RIGHT = """
import numpy as np
def softmax(scores, scale):
    powers = np.exp(scale * scores - np.max(scale * scores, -1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
LIMITS = Limits(seconds=2.0, megabytes=2000)


def forging(outcomes: object) -> str:
    """Return a file that sends a reply of its own."""
    reply = {"outcomes": outcomes, "answer": None, "error": None, "forbidden": None}
    text = f"\n{json.dumps(reply)}\n".encode().hex()
    return (
        f"import os\nreply = bytes.fromhex('{text}')\nfor fd in range(3, 20):\n"
        "    try: os.write(fd, reply)\n    except OSError: pass\nos._exit(0)"
    )


# Each a file, and what is said about it.
HOSTILE = {
    "loops": ("while True: pass", "did not end within 2 seconds"),
    "loops_when_called": (
        "def softmax(*a):\n    while True: pass",
        "did not end within 2 seconds",
    ),
    "sleeps": ("import time; time.sleep(1000)", "did not end within 2 seconds"),
    "exits": ("raise SystemExit(0)", "stopped with SystemExit"),
    "exits_at_once": ("import os; os._exit(0)", "ended the process before"),
    "prints": ("while True: print('x' * 10_000)", "did not end within 2 seconds"),
    "eats_memory": ("x = bytearray(10**12)", "MemoryError"),
    "writes": ("open('/tmp/owned', 'w')", "writes to '/tmp/owned'"),
    "removes": ("import os; os.remove('{victim}')", "calls os.remove"),
    "starts": ("import subprocess; subprocess.run(['true'])", "calls subprocess"),
    "forks": ("import os\nwhile True: os.fork()", "calls os.fork"),
    "connects": ("import socket; socket.create_connection(('x', 1))", "socket"),
    "imports_solution": (
        "from transformers_hw.exercises.attention.softmax import softmax",
        "imports the book's own code",
    ),
    "imports_and_hides_it": (
        "try:\n    import transformers_hw.exercises\nexcept Exception: pass" + RIGHT,
        "imports the book's own code",
    ),
    "reads_solution": ("text = open('{solution}').read()", "reads the exercises'"),
    "reads_it_as_bytes": ("text = open(b'{solution}').read()", "reads the exercises'"),
    "reads_it_as_a_path": (
        "import io, pathlib; io.FileIO(pathlib.Path('{solution}'))",
        "reads the exercises'",
    ),
    "reads_it_by_a_link": ("text = open('{link}').read()", "reads the exercises'"),
    "reads_it_from_a_folder": (
        "import os\nfolder = os.open('{package}', os.O_RDONLY)\n"
        "os.open('exercises/attention/softmax.py', os.O_RDONLY, dir_fd=folder)",
        "opens the folder",
    ),
    "writes_a_database": (
        "import sqlite3; sqlite3.connect('{new}').execute('create table t(x)')",
        "calls sqlite3.connect",
    ),
    "makes_a_pipe": ("import os; os.mkfifo('{new}')", "calls os.mkfifo"),
    "makes_a_node": ("import os; os.mknod('{new}')", "calls os.mknod"),
    "starts_below_the_library": (
        "import _posixsubprocess; _posixsubprocess.fork_exec(['true'])",
        "imports _posixsubprocess",
    ),
    "starts_inside_the_library": (
        "import subprocess; subprocess._fork_exec(['true'])",
        "calls subprocess._fork_exec",
    ),
    "lifts_a_limit": (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
        "calls resource.setrlimit",
    ),
    "patches": (
        "import sys\nk = sys.modules['kinds']\nk.alike = lambda *a: True\n"
        "k.run = lambda *a: [k.Outcome(0.0)] * 5\ndef softmax(s, b): return s",
        "The result has shape ()",
    ),
    "forges": (
        "import os\nfor fd in range(3, 20):\n    try:\n"
        "        os.write(fd, b'{{\"passed\": true}}\\n')\n    except OSError: pass\n"
        "os._exit(0)",
        "ended the process before",
    ),
    "returns_nonsense": ("def softmax(s, b): return object()", "a object was returned"),
    "pretends": (
        "class Yes:\n    def __eq__(self, other): return True\n    shape = (2, 3)\n"
        "def softmax(s, b): return Yes()",
        "a Yes was returned",
    ),
    "returns_records": (
        "import numpy as np\ndef softmax(s, b): return np.zeros(3, [('a', 'f8')])",
        "an array of dtype [('a', '<f8')] was returned",
    ),
    "returns_dates": (
        "import numpy as np\ndef softmax(s, b): return np.zeros(3, 'datetime64[s]')",
        "an array of dtype datetime64[s] was returned",
    ),
    "returns_bytes": (
        "import numpy as np\ndef softmax(s, b): return np.array([b'x'])",
        "an array of dtype |S1 was returned",
    ),
    "returns_complex": (
        "def softmax(s, b): return s * 1j",
        "The result is complex, and real numbers were expected",
    ),
    # What is said about it depends on the version of Python.
    "returns_a_nest": (
        "import sys\nsys.setrecursionlimit(10**5)\ndef softmax(s, b):\n    x = 1.0\n"
        "    for _ in range(800): x = [x]\n    return x",
        "",
    ),
    "raises_no_text": ("raise ValueError('\\ud800')", r"with ValueError: \ud800"),
    "raises_at_length": ("raise ValueError('no' * 10**6)", "nonono"),
    "raises_what_has_no_text": (
        "class E(Exception):\n    def __str__(self): return 1 / 0\nraise E",
        "The file stopped with E",
    ),
    "forges_a_reply": (forging(5), "cannot be checked: TypeError"),
    "forges_an_outcome": (
        forging([{"map": {"no": 1}}]),
        "cannot be checked: TypeError",
    ),
    "forges_long_text": (
        forging([{"array": ["x"] * 9, "type": "U99999999", "shape": [9]}]),
        "cannot be checked: ValueError: an array of dtype <U99999999",
    ),
    "is_large": ("x = 1\n" * 200_000, "larger than a megabyte"),
    "is_binary": ("\0\1\2", "source code"),
    "is_empty": ("", "defines no 'softmax'"),
    "has_no_function": ("softmax = 3", "TypeError"),
}
if sys.platform == "linux":
    HOSTILE["reads_it_through_proc"] = (
        "text = open('/proc/self/root{solution}').read()",
        "reads the exercises'",
    )
# Calls into PyTorch, which Python does not announce.
PYTORCH = {
    "saves": ("torch.save(torch.ones(2), '{victim}')", "calls torch.save"),
    "maps": (
        "torch.from_file('{victim}', shared=True, size=1).zero_()",
        "calls torch.from_file",
    ),
    "listens": (
        "torch.distributed.TCPStore('127.0.0.1', 29777, 1, True)",
        "calls torch.distributed.TCPStore",
    ),
}
BARE = """
import importlib.util, os, resource
spec = importlib.util.spec_from_file_location("child", {child!r})
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
"""


SOLUTION = Path(book.__file__).parent / "attention/softmax.py"


def fill(text: str, folder: Path) -> str:
    """Put paths of this test into a deed."""
    named = {
        "victim": folder / "victim",
        "spare": folder / "spare",
        "new": folder / "new",
        "link": folder / "link",
        "solution": SOLUTION,
        "package": SOLUTION.parents[2],
    }
    for name, path in named.items():
        text = text.replace(f"{{{name}}}", str(path))
    return text


def write(folder: Path, student: str, text: str) -> Path:
    path = folder / student / FILE
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.unhooked
def test_a_cohort_of_100_is_graded_and_contained(tmp_path: Path) -> None:
    cohort, victim = tmp_path / "cohort", tmp_path / "victim"
    victim.write_text("here")
    (tmp_path / "link").symlink_to(SOLUTION)
    expected: dict[str, tuple[bool, str]] = {}
    for name, (text, said) in HOSTILE.items():
        text = fill(text, tmp_path)
        write(cohort, name, text.replace("{{", "{").replace("}}", "}"))
        expected[name] = False, said
    exercise = load(NAME)
    assert isinstance(exercise, Code)
    sources = {name: source_of(name) for name in exercise.mistakes}
    for number in range(99 - len(HOSTILE)):
        student = f"student_{number:03}"
        kind = [None, *sources][number % (1 + len(sources))]
        write(cohort, student, RIGHT if kind is None else sources[kind])
        said = "agrees on all" if kind is None else exercise.mistakes[kind].sentence
        expected[student] = kind is None, said
    # More digits than a float's change nothing.
    write(
        cohort,
        "precise",
        RIGHT.replace("np.exp(scale", "np.exp(np.longdouble(1) * scale"),
    )
    expected["precise"] = True, "agrees on all"
    before = sorted(path for path in tmp_path.rglob("*"))
    grades = grade(cohort, limits=LIMITS)
    assert len(grades) == len(expected) == 100
    for one in grades:
        passed, said = expected[one.student]
        assert len(one.feedback.sentence) < 5000
        assert one.points == passed, (one.student, one.feedback)
        assert said in one.feedback.sentence, (one.student, one.feedback.sentence)
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert victim.read_text() == "here"
    assert not Path("/tmp/owned").exists()


@pytest.mark.unhooked
@pytest.mark.parametrize(("deed", "said"), PYTORCH.values(), ids=PYTORCH)
def test_pytorch_is_no_way_out(deed: str, said: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("here")
    text = f"import torch\n{fill(deed, tmp_path)}\n{RIGHT}"
    path = write(tmp_path, "student", text)
    feedback = check_file(NAME, path, limits=Limits(seconds=10.0))
    assert not feedback.passed
    assert said in feedback.sentence
    assert victim.read_text() == "here"


@pytest.mark.unhooked
def test_limits_keep_files_empty_and_processes_single(tmp_path: Path) -> None:
    path = tmp_path / "new"
    script = f"""{BARE.format(child=str(isolation.CHILD))}
file = os.open({str(path)!r}, os.O_WRONLY | os.O_CREAT)
if os.geteuid() == 0:
    os.setuid(65534)  # the number of processes does not bind root
child._limit(10.0, 6000)
for deed in (lambda: os.write(file, b"x"), lambda: os.fork() or os._exit(0)):
    try:
        deed()
    except OSError as error:
        print(error.strerror)
"""
    ran = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == [
        os.strerror(errno.EFBIG),
        os.strerror(errno.EAGAIN),
    ]
    assert path.read_bytes() == b""


@pytest.mark.unhooked
def test_what_a_file_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child.py"
    child.write_text("import os, time\nos.fork()\ntime.sleep(60)")
    monkeypatch.setattr(isolation, "CHILD", child)
    began = time.monotonic()
    path = write(tmp_path, "student", RIGHT)
    # A second, beside the twenty that importing may take.
    feedback = check_file(NAME, path, limits=Limits(seconds=-19.0))
    assert "did not end" in feedback.sentence
    assert time.monotonic() - began < 30


def source_of(mistake: str) -> str:
    """Return a mistake of the exercise as a student would have written it."""
    text = SOLUTION.read_text("utf-8")
    (body,) = re.findall(rf"^def {mistake}\(.*?(?=^@|\Z)", text, re.S | re.M)
    return f"import numpy as np\n{body.replace(f'def {mistake}', 'def softmax')}"


@pytest.mark.unhooked
def test_the_command_lists_starts_checks_hints_and_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def say(*arguments: str) -> tuple[int, str]:
        status = main(["exercise", *arguments])
        return status, capsys.readouterr().out

    assert "0 of " in say()[1]
    assert say("start", NAME)[0] == 0
    status, text = say("check", FILE)
    assert status == 1
    assert "NotImplementedError" in text
    assert f"hint {NAME}" in text
    hints = load(NAME).hints
    assert hints[0] in say("hint", NAME)[1]
    assert hints[1] in say("hint", NAME)[1]
    assert "def softmax" in say("solution", NAME)[1]
    Path(FILE).write_text(RIGHT)
    assert say("check", FILE) == (0, "Right. It agrees on all 5 inputs.\n")
    assert re.search(r"✓ softmax .*\n", say()[1])
    Path("mine.py").write_text(RIGHT)
    assert say("check", "mine.py", "--exercise", NAME)[0] == 0
    for wrong, said in (
        (("start", NAME), "exists; it was left as it is"),
        (("check", "mine.py"), "no exercise belongs to a file named mine.py"),
        (("check", "none.py"), "there is no file none.py"),
        (("hint", "attention/no"), "there is no exercise 'attention/no'"),
    ):
        with pytest.raises(SystemExit):
            main(["exercise", *wrong])
        assert said in capsys.readouterr().err
    # A damaged record of progress is no progress, and nothing is lost with it.
    for damage in ("{", "[]", '{"a": 1}', "[" * 10**5):
        Path(".exercises.json").write_text(damage)
        assert "0 of " in say()[1]
    for seen in ('"x"', "-9", "true", "1e3"):
        noted = f'{{"{NAME}": {{"passed": true, "hints": {seen}}}}}'
        Path(".exercises.json").write_text(noted)
        assert hints[0] in say("hint", NAME)[1]
    while "last hint" not in say("hint", NAME)[1]:
        pass


@pytest.mark.unhooked
def test_the_command_grades_a_folder_and_writes_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "anna", RIGHT)
    write(tmp_path, "=cmd()<b>", "softmax = None")
    (tmp_path / "late").mkdir()
    assert main(["grade", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "3 students, 1 exercise: " in capsys.readouterr().out
    with (tmp_path / "out/grades.csv").open(encoding="utf-8") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["anna"]["points"] == "1"
    assert rows["'=cmd()<b>"]["points"] == "0"
    assert rows["late"]["feedback"] == "Not handed in."
    page = (tmp_path / "out/grades.html").read_text("utf-8")
    assert "&lt;b&gt;" in page
    assert "<td class=right><b>1 of 1</b> It agrees" in page
    assert "<td><b>0 of 1</b> Not handed in." in page
    for folder, said in ((tmp_path / "none", "must have a subfolder"),
                         (tmp_path / "out", "must have a subfolder")):  # fmt: skip
        with pytest.raises(SystemExit):
            main(["grade", str(folder)])
        assert said in capsys.readouterr().err
    (tmp_path / "empty/student").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"no file in .* is named like an exercise"):
        grade(tmp_path / "empty")
    with pytest.raises(SystemExit):
        main(["grade", str(tmp_path), "--seconds", "-1"])
    assert "must be a positive number, got '-1'" in capsys.readouterr().err


@pytest.mark.unhooked
def test_tables_are_written_whole_whatever_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "anna", "raise ValueError('\\ud800\\x1b[2J')")
    students = {"anna", "berta"}
    write(tmp_path, "berta", RIGHT)
    if sys.platform == "linux":  # where names of folders are bytes
        students.add("\\udcff")
        write(tmp_path, os.fsdecode(b"\xff"), RIGHT)
    assert main(["grade", str(tmp_path)]) == 0
    with (tmp_path / "grades.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows.keys() == students
    assert rows["anna"]["feedback"].endswith(r"with ValueError: \ud800\x1b[2J")
    assert "</table></html>" in (tmp_path / "grades.html").read_text("utf-8")
    assert main(["exercise", "check", str(path)]) == 1
    assert r"ValueError: \ud800\x1b[2J" in capsys.readouterr().out

    # If a table cannot be written to its end, the one before stays.
    def fails(_: object) -> str:
        raise OSError("no space left")

    kept = (tmp_path / "grades.csv").read_bytes()
    monkeypatch.setattr(grading, "_harmless", fails)
    with pytest.raises(OSError, match="no space left"):
        grading.write_csv([grading.Grade("a", NAME, 0, 1, grading.MISSING)] * 9,
                          tmp_path / "grades.csv")  # fmt: skip
    assert (tmp_path / "grades.csv").read_bytes() == kept


@pytest.mark.unhooked
def test_numbers_and_choices_are_checked_from_files(tmp_path: Path) -> None:
    choice = next(n for n in book.names() if isinstance(load(n), Choice))
    path = tmp_path / "answer.py"
    exercise = load(choice)
    assert isinstance(exercise, Choice)
    path.write_text(f"answer = '({exercise.answer.upper()})'")
    assert check_file(choice, path).passed
    path.write_text("answer = 'z'")
    assert "was expected, got 'z'" in check_file(choice, path).sentence
    path.write_text("answer = ...")
    assert "There is no answer yet" in check_file(choice, path).sentence
    path.write_text("")
    assert "defines no 'answer'" in check_file(choice, path).sentence
    path.write_text("answer = 10**400")
    number = "multi_head_attention/parameters"
    assert check_file(number, path).sentence.startswith("The number is too large")


@pytest.mark.unhooked
def test_a_file_may_compute_with_pytorch(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "torch",
        "import torch\narray = torch.tensor\n"
        "def softmax(scores, scale): return torch.softmax(scale * scores, -1)\n",
    )
    assert check_file(NAME, path, limits=Limits(seconds=10.0)).passed


def test_answers_are_explained_whatever_they_return() -> None:
    def said(function) -> str:
        return str(check(NAME, function))

    assert "returned None" in said(lambda scores, scale: None)
    assert "has shape (3,), and (2, 3)" in said(lambda scores, scale: scores[0])
    assert "not finite" in said(lambda scores, scale: scores * np.nan)
    assert "differs" in said(lambda scores, scale: scores)
    assert "ZeroDivisionError" in said(lambda scores, scale: 1 / 0)
    assert "TypeError" in said(lambda scores: scores)

    def careless(scores, scale):
        scores *= scale
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        return scores / scores.sum(-1, keepdims=True)

    assert "changes its argument scores" in said(careless)
    text = "def softmax(scores, scale):\n    return scores"
    assert not check_source(NAME, text).passed
    assert "defines no 'softmax'" in check_source(NAME, "x = 1").sentence
    assert "ValueError: no" in check_source(NAME, "raise ValueError('no')").sentence


def test_numbers_may_have_separators_and_near_misses_are_told() -> None:
    name = "multi_head_attention/parameters"
    assert check_source(name, "1,050,624").passed
    assert "such as 2.5 was expected" in check_source(name, "1,05").sentence
    assert "1050112 is close" in check_source(name, "1050112").sentence
    assert check_source(name, "12").sentence == "12 is not the number."


def test_results_of_another_type_are_named() -> None:
    def said(name: str, result: Any) -> str:
        return check(name, lambda *_: result).sentence

    assert "is complex" in said(NAME, np.zeros((2, 3), complex))
    assert "holds numbers" in said("attention/causal_mask", np.full((3, 3), -np.inf))
    assert "True or False" in said("self_attention/equivariance", False)

    def careless(scores: Any, scale: Any) -> Any:
        scores += 1
        return scores

    assert "also changes its argument scores" in check(NAME, careless).sentence


def test_a_question_in_a_title_gets_no_full_stop() -> None:
    assert stub("attention/why_scale").startswith('"""Why divide by √d?\n')
    assert stub(NAME).startswith('"""Softmax with a scale.\n')


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda first, second: first, "A list of 2 results was expected, and only one"),
        (lambda first, second: [first] * 3, "of 2 results was expected, and 3 came"),
        (lambda first, second: (second, first), "right, but their order is reversed"),
        (lambda first, second: [first.T, second], "Result 1 of 2 is transposed"),
        (lambda first, second: [first, second[:1]], "Result 2 of 2 has shape (1, 7)"),
        (lambda first, second: [[[1.0], [1.0, 2.0]], second], "different lengths"),
        (lambda first, second: [first, -second], "Result 2 of 2 has the wrong sign"),
        (lambda first, second: [first.astype(int), second], "lost its decimals"),
        (lambda first, second: [first + np.inf, second], "Result 1 of 2 is not finite"),
        (lambda first, second: [first, second + 1], "Result 2 of 2 differs"),
        (lambda first, second: [first, "second"], "Result 2 of 2 has shape ()"),
        (lambda first, second: None, "returned None"),
        (lambda first, second: [], "and 0 came"),
    ],
)
def test_the_result_that_differs_is_named(spoil: Any, sentence: str) -> None:
    exercise = load("transformer/tied_table")
    assert isinstance(exercise, Code)
    answer = exercise.answer
    assert answer is not None
    said = exercise.check(lambda *arguments: spoil(*answer(*arguments)))
    assert not said.passed
    assert sentence in said.sentence


def test_a_result_that_does_not_fit_is_not_called_an_error() -> None:
    def said(result: Any) -> str:
        return check(
            "attention_as_convolution/score_vectors", lambda *_: result
        ).sentence

    assert said(np.eye(3)).startswith("What was returned does not fit: ValueError")
    assert "returned None" in said(None)


def test_results_survive_the_way_between_processes() -> None:
    numbers = [np.eye(2), np.array([True]), 1.5, None, "x"]
    value = {"a": numbers, "b": np.zeros((0, 3)), "c": np.array([["x", "yy"]])}
    again = decode(json.loads(json.dumps(encode(plain(value)))))
    assert again["a"][0].dtype == np.float64
    assert (again["a"][0] == np.eye(2)).all()
    assert again["a"][1].dtype == bool
    assert again["a"][2:] == [1.5, None, "x"]
    assert again["b"].shape == (0, 3)
    assert again["c"] == [["x", "yy"]]
    for dtype in (np.longdouble, np.clongdouble, np.complex64, np.float16):
        array = plain(np.array([[0.5, 1.5]], dtype) * 3)
        there = decode(json.loads(json.dumps(encode(array))))
        assert there.dtype == array.dtype
        assert (there == [[1.5, 4.5]]).all()
    for dtype in ("m8[s]", "O", "V8"):
        with pytest.raises(TypeError, match=r"an array of dtype .* was returned"):
            plain(np.zeros(1, dtype))
    assert decode(encode(vars(Outcome(error="x")))) == vars(Outcome(error="x"))


@pytest.mark.unhooked
def test_unknown_exercises_and_broken_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no exercise 'attention/none'"):
        load("attention/none")
    with pytest.raises(ValueError, match=r"no exercise belongs to .* x.py"):
        exercise_of(Path("x.py"))
    with pytest.raises(ValueError, match=r"level must be one of .*, got 'easy'"):
        Code(level="easy", read="", hints=())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="answer must be one of the options"):
        Choice(level="core", read="", hints=(), options={"a": ""}, answer="b")
    empty = Code(level="core", read="", hints=())
    with pytest.raises(ValueError, match="has no cases"):
        empty.inputs()
    with pytest.raises(ValueError, match="has no solution"):
        _ = empty.arguments
    assert terminal.PROGRESS.name == ".exercises.json"
