"""The mutation run: what it changes, and how."""

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
mutants = importlib.import_module("mutants")


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("return a + b", ["return (a - b)"]),
        ("return a < b <= c", ["return (a <= b <= c)", "return (a < b < c)"]),
        ("return a is None", ["return (a is not None)"]),
        ("return a and not b", ["return (a or not b)", "return a and (b)"]),
        ("return 3 * x[-1]", ["return (3 / x[-1])", "return 4 * x[-1]",
                              "return 3 * x[(1)]", "return 3 * x[-2]"]),
        ("return f(a, b, key=True)", ["return (f(b, a, key=True))", "return (f(a, b))",
                                      "return f(a, b, key=False)"]),
        ("if a: raise f'{1 + 1}'", ["if (not (a)): raise f'{1 + 1}'", "if a: pass"]),
        ("x: Float[Tensor, 'a'] | None = 0.5", ["x: Float[Tensor, 'a'] | None = 1.5"]),
        ("'text'; import os; return x", []),
    ],
)  # fmt: skip
def test_each_operator_constant_argument_and_check_is_changed(statement, changed):
    source = f"def é(x: int | None):\n    {statement}\n"
    found = [mutants.apply(source, mutant) for mutant in mutants.mutants(source)]
    expected = [f"def é(x: int | None):\n    {one}\n" for one in changed]
    assert sorted(found) == sorted(expected)


def test_a_change_concerns_the_lines_of_its_statement():
    source = "N = 1\n\ndef f(x=2):\n    if x < 3:\n        y = (\n    4\n    )\n"
    found = {mutant.text: mutant.lines for mutant in mutants.mutants(source)}
    once, head, body = None, range(4, 5), range(5, 8)
    assert found == {"2": once, "3": once, "(x <= 3)": head, "4": head, "5": body}


def test_functions_get_the_code_of_a_changed_file(tmp_path, monkeypatch):
    source = "def twice(f): return lambda x: f(f(x))\n"
    source += "@twice\ndef add(x):\n    return x + 1\n"
    path = tmp_path / "some_module.py"
    path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("some_module")
    add = module.add
    assert mutants.renew(path, source, source.replace("x + 1", "x - 2"))
    assert module.add is add
    assert add(10) == 6
    # Another function cannot take the place of one that is in use.
    assert not mutants.renew(path, source, source.replace("def add", "def other"))
    assert add(10) == 6
