"""Change the code at random, one small change at a time, and see whether tests notice.

    python tools/mutants.py                 takes 40 changes of each file
    python tools/mutants.py attention.py    takes one file
    python tools/mutants.py --changes 10    takes fewer changes

A change that every test lets pass is a survivor: a test is missing, or the change
makes no difference. The record lists survivors. A reason why one makes no difference
is written there by hand, under "reason", and kept when the record is written again.

Changes are made in a copy of the repository. First the tests run once, to learn which
of them reach which line. Each change is then met by the quickest of those, in a forked
process. The fork gives the functions that were changed their new code, so that
nothing is imported or collected again. Changes of what runs at import, such as
defaults, are written into the copy instead, and a new session imports it.
"""

import argparse
import ast
import copy
import gc
import importlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate, zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import coverage
import pytest
import torch

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/records/mutants.json"
BOOK = "src/transformers_hw"


def _files(package: str) -> tuple[str, ...]:
    found = sorted((ROOT / BOOK / package).glob("[!_]*.py"))
    return tuple(f"{package}/{path.name}" for path in found)


# The files to change, by chapter: the tests of the chapter should notice,
CHAPTERS: dict[str, tuple[str, ...]] = {
    "attention": ("attention.py", "_engine/kernels.py", "_engine/windows.py"),
    "multi_head_attention": ("multi_head_attention.py",),
    "transformer": _files("transformer"),
    "vision_transformer": _files("vision_transformer"),
    "attention_as_convolution": ("attention_as_convolution/gaussian.py",),
}
# or the cases that are drawn at random. Tests of all modules would notice more.
RANDOM = "tests/everywhere/test_fuzz.py"
SEED = 0
# How many seconds of tests a change must survive: its quickest, on an idle processor.
SECONDS = 20.0
TO_IMPORT, BROKEN = 99, 98
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


class Change(NamedTuple):
    """A change of a file, and which tests should notice it."""

    file: str
    chapter: str
    mutant: Mutant


def controls(changes: list[Change]) -> list[Change]:
    """Return a change of each file that changes nothing, and that must survive."""
    nothing = Mutant(0, 0, "", range(10_000))
    return [Change(*x, nothing) for x in dict.fromkeys(x[:2] for x in changes)]


class Session:
    """A pytest plugin that collects tests, and then does something else with them.

    Args:
        work: What to do with the session, once its tests are collected.
    """

    def __init__(self, work: "Callable[[Session], None]") -> None:
        self.work = work
        self.items: dict[str, pytest.Item] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed = False
        self.switch: Callable[[str], object] = str

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what calls a compiler: it would take longer than all others."""
        items[:] = [x for x in items if x.get_closest_marker("no_cover") is None]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Work, instead of running the tests."""
        if not session.testsfailed:
            self.items = {item.nodeid: item for item in session.items}
            self.work(self)
        return True

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin with a test."""
        self.switch(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note whether a test fails."""
        self.failed |= report.failed

    def run(self, names: list[str]) -> int:
        """Run some tests until one fails."""
        for name, following in zip_longest(names, names[1:]):
            item = self.items[name]
            after = self.items.get(following)
            start = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            self.seconds[name] += time.process_time() - start
            if self.failed:
                return 1
        return 0

    def watch(self, copied: "Copy") -> dict[str, Any]:
        """Run all tests; return their times, and which of them run which line."""
        told = copied.folder / "told.json"
        package = copied.folder / BOOK

        def work() -> int:
            tracer = coverage.Coverage(
                data_file=None, config_file=False, include=[f"{package}/*"]
            )
            tracer.start()
            self.switch = tracer.switch_context
            code = self.run(list(self.items))
            tracer.stop()
            data = tracer.get_data()
            lines = {
                file: data.contexts_by_lineno(str(package / file))
                for files in CHAPTERS.values()
                for file in files
            }
            found = {"seconds": self.seconds, "lines": lines}
            told.write_text(json.dumps(found), "utf-8")
            return code

        if copied.in_child(work, most=None) != 0:
            raise SystemExit("a test fails without a change")
        return json.loads(told.read_text("utf-8"))


def renew(path: Path, source: str, changed: str) -> bool:
    """Give the functions of an imported file the code of a changed one, if possible."""
    (module,) = (
        x for x in sys.modules.values() if getattr(x, "__file__", 0) == str(path)
    )
    loader: Any = module.__spec__.loader  # type: ignore[union-attr]

    def compiled(text: str) -> list[CodeType]:
        # The hook that checks types changes the code; pytest's changes assertions only.
        hooked = getattr(loader, "source_to_code", None)
        found = (
            hooked(text.encode(), str(path))
            if hooked
            else compile(text, str(path), "exec")
        )
        return list(_codes(found))

    old, new = compiled(source), compiled(changed)
    places = [(code.co_qualname, code.co_firstlineno) for code in old]
    same = [code.co_qualname for code in new] == [name for name, _ in places]
    if not same or len(set(places)) < len(places):
        return False
    codes = dict(zip(places, new, strict=True))
    try:
        for x in functions(path):
            x.__code__ = codes[x.__code__.co_qualname, x.__code__.co_firstlineno]
    except (KeyError, ValueError):  # other variables of an outer function
        return False
    return True


@cache
def functions(path: Path) -> list[FunctionType]:
    """Return all functions whose code stands in a file, wherever they are kept."""
    return [
        x
        for x in gc.get_objects()
        if type(x) is FunctionType and x.__code__.co_filename == str(path)
    ]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield x
            yield from _codes(x)


class Copy:
    """A copy of sources and tests, in which a file may be changed and tests be run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        self.changes = 0
        for name in ("src", "tests", "docs", "examples"):
            ignored = shutil.ignore_patterns("__pycache__", "figures", "notebooks")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def read(self, file: str) -> str:
        """Return a file as it is."""
        return (self.folder / BOOK / file).read_text("utf-8")

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
        return (module, f"tests/chapters/test_{chapter}.py", RANDOM)

    def session(self, hook: str, tests: Any, work: Callable[[Session], None]) -> int:
        """Collect tests, and work with them."""
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder / "src"))
        arguments = [*OPTIONS, *HOOKS[hook], *tests]
        return int(pytest.main(arguments, plugins=[Session(work)]))

    def survivors(
        self, hook: str, chapters: list[str], changes: list[Change]
    ) -> tuple[list[bool | None], Any]:
        """Return which changes the tests let pass, and which lines the tests reach.

        `None` stands for a change that must be imported.
        """
        tests = dict.fromkeys(x for one in chapters for x in self.matching(one))
        answer, out = self.folder / "answer.json", os.dup(1)

        def work(session: Session) -> None:
            watched, found = session.watch(self), []
            for file in {change.file for change in changes}:
                functions(self.folder / BOOK / file)
            gc.freeze()  # or each fork would copy what it counts
            for change in controls(changes):
                if not self._survives(session, change, watched):
                    raise RuntimeError(f"{change.file} fails without a change")
            for change in changes:
                found.append(self._survives(session, change, watched))
                line = f"{hook}: {show(self, change, found[-1])}\n"
                os.write(out, line.encode())
            answer.write_text(json.dumps([found, watched]), "utf-8")

        if self.in_child(lambda: self.session(hook, tests, work), most=None) != 0:
            raise SystemExit(f"tests must pass before a change: {self.log.read_text()}")
        return json.loads(answer.read_text("utf-8"))

    def _survives(self, session: Session, change: Change, watched: Any) -> bool | None:
        if change.mutant.lines is None:
            return None
        source = self.read(change.file)
        names = self.reached(change, watched)
        path = self.folder / BOOK / change.file

        def work() -> int:
            renewed = renew(path, source, apply(source, change.mutant))
            return session.run(names) if renewed else TO_IMPORT

        code = self.in_child(work)
        return None if code == TO_IMPORT else code == 0

    def imported(self, hook: str, change: Change, watched: Any) -> bool:
        """Tell whether tests let a change pass that is imported anew."""
        source = self.read(change.file)
        names = self.reached(change, watched)
        self.write(change.file, apply(source, change.mutant))

        def work(session: Session) -> None:
            known = [name for name in names if name in session.items]
            os._exit(session.run(known) if len(known) == len(names) else 1)

        files = dict.fromkeys(name.split("::")[0] for name in names)
        code = self.in_child(lambda: self.session(hook, files, work))
        self.write(change.file, source)
        return code == 0

    def reached(self, change: Change, watched: Any) -> list[str]:
        """Return the tests of a change, the quickest first."""
        seconds, lines = watched["seconds"], watched["lines"][change.file]
        tests = {x for x in seconds if x.startswith(self.matching(change.chapter))}
        if change.mutant.lines is not None:
            tests &= {x for n in change.mutant.lines for x in lines.get(str(n), ())}
        quickest = sorted(tests, key=seconds.__getitem__)
        total = accumulate(seconds[test] for test in quickest)
        return [x for x, sum_ in zip(quickest, total, strict=True) if sum_ <= SECONDS]

    def in_child(self, work: Callable[[], int], most: int | None = 300) -> int:
        """Work in another process; return its exit status.

        It may take `most` seconds of a processor: a change can make a loop endless.
        """
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                if most is not None:
                    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
                log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.ftruncate(log, 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                code = work()
            except BaseException:
                traceback.print_exc()
                code = BROKEN
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == BROKEN:
            raise RuntimeError(self.log.read_text("utf-8"))
        return code


def show(copied: Copy, change: Change, survived: bool | None) -> str:
    """Describe a change, and what came of it."""
    told = describe(copied.read(change.file), change.mutant)
    result = {None: "later", True: "SURVIVED", False: "killed"}[survived]
    place = f"{change.file}:{told['line']} {result}"
    return f"{place}\n    {told['before']}\n    {told['after']}"


def measure(copied: Copy, changes: list[Change]) -> list[Change]:
    """Return the changes that no test notices."""
    chapters = list(dict.fromkeys(change.chapter for change in changes))
    left = changes
    for hook in HOOKS:
        found, watched = copied.survivors(hook, chapters, left)
        results = dict(zip(left, found, strict=True))
        to_import = [change for change in left if results[change] is None]
        for change in controls(to_import):
            if not copied.imported(hook, change, watched):
                raise RuntimeError(f"{change.file} fails without a change")
        for change, survived in results.items():
            if survived is None:
                results[change] = copied.imported(hook, change, watched)
                told = show(copied, change, results[change])
                print(f"{hook}, imported: {told}", flush=True)
        left = [change for change in left if results[change]]
    return left


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
    torch.set_num_threads(1)  # a fork has no other threads
    wanted, count = set(given.files or every), given.changes
    with tempfile.TemporaryDirectory() as folder:
        copied = Copy(Path(folder).resolve())
        changes: list[Change] = []
        possible: dict[str, tuple[int, int]] = {}
        for chapter, files in CHAPTERS.items():
            for file in filter(wanted.__contains__, files):
                found = mutants(copied.read(file))
                chosen = random.Random(SEED).sample(found, min(count, len(found)))
                chosen.sort(key=lambda mutant: mutant.start)
                changes += [Change(file, chapter, mutant) for mutant in chosen]
                possible[file] = len(found), len(chosen)
        left = measure(copied, changes)
        for file, sizes in possible.items():
            survivors = [
                describe(copied.read(file), change.mutant)
                for change in left
                if change.file == file
            ]
            for one in survivors:
                key = file, one["before"], one["after"]
                one["reason"] = reasons.get(key, "")
            record[file] = summary(*sizes, survivors)
            print(f"{file}: {record[file]['killed']} of {sizes[1]} killed")
    known = {name: record[name] for name in every if name in record}
    RECORD.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def summary(possible: int, made: int, survivors: list[Any]) -> dict[str, Any]:
    """Return the record of a file."""
    killed = made - len(survivors)
    return {
        "seed": SEED,
        "possible": possible,
        "mutants": made,
        "killed": killed,
        "score": round(killed / made, 3),
        "survivors": survivors,
    }


if __name__ == "__main__":
    main()
