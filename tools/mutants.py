"""Change the code at random, one small change at a time, and see whether tests notice.

    python tools/mutants.py                 takes 40 changes of each file
    python tools/mutants.py attention.py    takes one file
    python tools/mutants.py --changes 10    takes fewer changes

A change that every test lets pass is a survivor: a test is missing, or the change
makes no difference. The record lists survivors. A reason why one makes no difference
is written there by hand, under "reason", and kept when the record is written again.

Changes are made in a copy of the repository. First the tests run once, to learn which
of them reach which line. Each change is then met by those alone, the quickest first,
in a process forked after PyTorch was imported.
"""

import argparse
import ast
import copy
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import coverage
import pytest

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/records/mutants.json"
BOOK = "src/transformers_hw"
# The files to change, by chapter: the tests of the chapter should notice,
CHAPTERS = {
    "attention": ("attention.py", "_engine/kernels.py"),
    "multi_head_attention": ("multi_head_attention.py",),
    "transformer": tuple(
        f"transformer/{part}.py" for part in ("layers", "parts", "stacks", "model")
    ),
    "vision_transformer": ("vision_transformer.py",),
    "attention_as_convolution": ("attention_as_convolution/gaussian.py",),
}
# or those of all modules.
EVERYWHERE = tuple(
    f"tests/everywhere/test_{name}.py" for name in ("fuzz", "failures", "invariants")
)
SEED = 0
HOOKS = {"hooked": (), "unhooked": ("--jaxtyping-packages=",)}
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0")
OPTIONS += ("-Wignore::pytest.PytestAssertRewriteWarning",)
# Swapping the arguments of these changes nothing.
SYMMETRIC = ("min", "max", "intersect", "torch.promote_types")
# What tests import and the sources do not change.
WARM = ("torch", "torch._dynamo", "torch.export", "torch.utils.flop_counter", "numpy")
WARM += ("einops", "jaxtyping", "beartype", "hypothesis", "safetensors.torch", "pytest")

PAIRS = "Add Sub, Mult Div, BitAnd BitOr, And Or, Lt LtE, Gt GtE, Eq NotEq, Is IsNot"
PAIRS += ", In NotIn, FloorDiv Mult, Mod Mult, Pow Mult"
OPERATORS: dict[type[ast.AST], type[ast.AST]] = {}
for one, other in (map(vars(ast).__getitem__, x.split()) for x in PAIRS.split(", ")):
    OPERATORS[one] = other
    OPERATORS.setdefault(other, one)


class Mutant(NamedTuple):
    """A change: which bytes of the source to replace, and where they are executed."""

    start: int
    end: int
    text: str
    lines: range | None  # None if they are executed when the module is imported


def mutants(source: str) -> list[Mutant]:
    """List all changes of a source that leave it a different, valid program."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    tree = ast.parse(source)
    for node, lines in _nodes(tree, None):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        for changed in _changes(node):
            mutant = Mutant(start, end, changed, lines)
            try:
                same = ast.dump(ast.parse(apply(source, mutant))) == ast.dump(tree)
            except SyntaxError:
                continue
            if not same:
                found.append(mutant)
    return sorted(set(found), key=lambda mutant: mutant[:3])


def apply(source: str, mutant: Mutant) -> str:
    """Return the changed source."""
    content = source.encode()
    changed = content[: mutant.start] + mutant.text.encode() + content[mutant.end :]
    return changed.decode()


def _nodes(node: ast.AST, lines: range | None) -> Iterator[tuple[Any, range | None]]:
    """Yield expressions and statements that may be changed, and when they run."""
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.FunctionDef):
        if any("overload" in ast.unparse(x) for x in node.decorator_list):
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from _nodes(default, None)
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
        inside = isinstance(node, ast.FunctionDef)
        for statement in node.body:
            yield from _nodes(statement, range(0) if inside else None)
        return
    if isinstance(node, ast.stmt) and lines is not None:
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno
        lines = range(node.lineno, max(node.lineno, last or 0) + 1)
    if isinstance(node, ast.stmt | ast.expr):
        yield node, lines
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test.decides = True  # type: ignore[attr-defined]
    for field, child in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.AST):
                    yield from _nodes(one, lines)


def _changes(node: ast.AST) -> Iterator[str]:
    """Yield what may stand in place of a node."""

    def edited(edit: Callable[[Any], object]) -> str:
        changed = copy.deepcopy(node)
        edit(changed)
        return f"({ast.unparse(changed)})"

    if getattr(node, "decides", False) and not isinstance(node, ast.Compare):
        yield f"(not ({ast.unparse(node)}))"
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS:
            yield edited(lambda x: setattr(x, "op", OPERATORS[type(op)]()))
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                other = OPERATORS[type(op)]()
                yield edited(lambda x, i=i, o=other: x.ops.__setitem__(i, o))
        case ast.UnaryOp(operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield repr(value + 1 if abs(value) < 1e3 else 10 * value)
        case ast.Call(func=func, args=args, keywords=keywords):
            starred = any(isinstance(x, ast.Starred) for x in args[:2])
            symmetric = ast.unparse(func) in SYMMETRIC
            if len(args) > 1 and not starred and not symmetric:
                yield edited(lambda x: x.args.insert(0, x.args.pop(1)))
            for i, keyword in enumerate(keywords):
                if keyword.arg is not None:
                    yield edited(lambda x, i=i: x.keywords.pop(i))
        case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Assign(targets=[ast.Attribute()]):
            yield "pass"
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            names = (x.id for x in ast.walk(value) if isinstance(x, ast.Name))
            if name in names:
                yield "pass"


class Watch:
    """A pytest plugin that notes how long each test takes, and which lines it runs."""

    def __init__(self, package: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[f"{package}/*"]
        )
        self.coverage.start()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what calls a compiler: it would take longer than all others."""
        items[:] = [x for x in items if x.get_closest_marker("no_cover") is None]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin with a test."""
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a test's set-up, call or tear-down."""
        before = self.seconds.get(report.nodeid, 0.0)
        self.seconds[report.nodeid] = before + report.duration

    def lines(self, file: Path) -> dict[int, list[str]]:
        """Return the tests that run each line of a file."""
        self.coverage.stop()
        return self.coverage.get_data().contexts_by_lineno(str(file))


class Copy:
    """A copy of sources and tests, in which a file may be changed and tests be run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = 0
        for name in ("src", "tests", "docs", "examples"):
            ignored = shutil.ignore_patterns("__pycache__", "figures", "notebooks")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def write(self, file: str, source: str) -> None:
        """Replace a file, with a date of its own: bytecode of another one is stale."""
        self.changes += 1
        path = self.folder / BOOK / file
        path.write_text(source, "utf-8")
        then = path.stat().st_mtime + self.changes
        os.utime(path, (then, then))

    def matching(self, chapter: str) -> tuple[str, ...]:
        """Return the files whose tests, or doctests, should notice a change."""
        module = f"{BOOK}/{chapter}"
        module += "" if (self.folder / module).is_dir() else ".py"
        return (module, f"tests/chapters/test_{chapter}.py", *EVERYWHERE)

    def watch(self, chapters: list[str], hook: str) -> dict[str, Any]:
        """Run the tests once; return their times, and which of them run which line."""
        told, log = self.folder / "told.json", self.folder / "log.txt"
        tests = dict.fromkeys(x for one in chapters for x in self.matching(one))

        def work() -> int:
            plugin = Watch(self.folder / BOOK)
            code = self._pytest([*HOOKS[hook], *tests], plugin)
            lines = {
                file: plugin.lines(self.folder / BOOK / file)
                for chapter in chapters
                for file in CHAPTERS[chapter]
            }
            found = {"seconds": plugin.seconds, "lines": lines}
            told.write_text(json.dumps(found), "utf-8")
            return code

        if not self._in_child(work, 3600.0):
            raise SystemExit(f"tests must pass before a change, got {log.read_text()}")
        return json.loads(told.read_text("utf-8"))

    def passes(self, chapter: str, file: str, lines: range | None, told: Any) -> bool:
        """Return whether matching tests of some lines pass, and in time."""
        for hook, watched in told.items():
            seconds, reached = watched["seconds"], watched["lines"][file]
            tests = {x for x in seconds if x.startswith(self.matching(chapter))}
            if lines is not None:
                tests &= {x for n in lines for x in reached.get(str(n), ())}
            quickest = sorted(tests, key=seconds.__getitem__)
            limit = 30.0 + 5.0 * sum(seconds[test] for test in tests)
            arguments = [*HOOKS[hook], *quickest]
            if tests and not self._in_child(lambda: self._pytest(arguments), limit):  # noqa: B023
                return False
        return True

    def _pytest(self, arguments: list[str], *plugins: object) -> int:
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder / "src"))
        return int(pytest.main([*OPTIONS, *arguments], plugins=plugins))

    def _in_child(self, work: Callable[[], int], limit: float) -> bool:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setsid()
                log = os.open(self.folder / "log.txt", os.O_WRONLY | os.O_CREAT)
                os.ftruncate(log, 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = work()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status == 0
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False


def measure(
    copied: Copy, chapter: str, file: str, told: Any, changes: int, reasons: Any
) -> dict[str, Any]:
    """Make some changes of a file, and report which ones the tests let pass."""
    start, source = time.monotonic(), (copied.folder / BOOK / file).read_text("utf-8")
    candidates = mutants(source)
    chosen = random.Random(SEED).sample(candidates, min(changes, len(candidates)))
    survivors = []
    for mutant in sorted(chosen, key=lambda mutant: mutant.start):
        copied.write(file, apply(source, mutant))
        survived = copied.passes(chapter, file, mutant.lines, told)
        shown = describe(source, mutant)
        print(f"{file}:{shown['line']}", "SURVIVED" if survived else "killed")
        print(f"    {shown['before']}\n    {shown['after']}", flush=True)
        if survived:
            known = reasons.get((file, shown["before"], shown["after"]), "")
            survivors.append({**shown, "reason": known})
    copied.write(file, source)
    killed = len(chosen) - len(survivors)
    return {
        "seed": SEED,
        "seconds": round(time.monotonic() - start),
        "possible": len(candidates),
        "mutants": len(chosen),
        "killed": killed,
        "score": round(killed / len(chosen), 3),
        "survivors": survivors,
    }


def describe(source: str, mutant: Mutant) -> dict[str, Any]:
    """Show the lines that a change changes, before and after."""
    before = source.encode()
    line = before.count(b"\n", 0, mutant.start)
    begin = before.rfind(b"\n", 0, mutant.start) + 1
    end = before.find(b"\n", mutant.end)
    after = before[begin : mutant.start] + mutant.text.encode()
    after += before[mutant.end : end]
    return {
        "line": line + 1,
        "before": " ".join(before[begin:end].decode().split()),
        "after": " ".join(after.decode().split()),
    }


def main() -> None:
    """Measure the files that are named, or all, and write the record."""
    parser = argparse.ArgumentParser(description="Change the code, and run the tests.")
    parser.add_argument("files", nargs="*", help="such as transformer/layers.py")
    parser.add_argument("--changes", type=int, default=40, help="changes of each file")
    given = parser.parse_args()
    every = [file for files in CHAPTERS.values() for file in files]
    if not set(given.files) <= set(every):
        raise SystemExit(f"files must be among {every}, got {given.files}.")
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    reasons = {
        (file, survivor["before"], survivor["after"]): survivor["reason"]
        for file, found in record.items()
        for survivor in found["survivors"]
    }
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        copied = Copy(Path(folder).resolve())
        wanted = set(given.files or every)
        chapters = [x for x, files in CHAPTERS.items() if wanted & set(files)]
        told = {hook: copied.watch(chapters, hook) for hook in HOOKS}
        for chapter in chapters:
            for file in CHAPTERS[chapter]:
                if file not in wanted:
                    continue
                found = measure(copied, chapter, file, told, given.changes, reasons)
                print(f"{file}: {found['killed']} of {found['mutants']} killed")
                record[file] = found
                known = {name: record[name] for name in every if name in record}
                RECORD.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
