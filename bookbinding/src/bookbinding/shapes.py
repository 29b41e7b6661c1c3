"""Show jaxtyping's dimension strings as they are written: a Griffe extension.

Griffe takes a string inside an annotation for a forward reference if it can, so that
`Float[Tensor, "n"]` would lose its quotes and `"*batch q d"` would change them.
"""

from __future__ import annotations

import ast
import dataclasses
from typing import Any

import griffe


class Dimensions(griffe.Extension):
    """Read the annotations again, leaving strings alone."""

    def on_function_instance(
        self, *, node: Any, func: griffe.Function, **_: Any
    ) -> None:
        """Restore a function's annotations."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg) and argument.annotation:
                    read = as_written(argument.annotation, func)
                    func.parameters[argument.arg].annotation = read
            if node.returns:
                func.returns = as_written(node.returns, func)

    def on_attribute_instance(
        self, *, node: Any, attr: griffe.Attribute, **_: Any
    ) -> None:
        """Restore an attribute's annotation."""
        if isinstance(node, ast.AnnAssign):
            attr.annotation = as_written(node.annotation, attr)


def as_written(node: ast.expr, owner: griffe.Object) -> Any:
    """Read one annotation in the scope of its owner."""
    scope: Any = owner.parent
    return double_quoted(griffe.get_expression(node, scope, parse_strings=False))


def double_quoted(part: Any) -> Any:
    """Quote the strings of an expression as the source does; Griffe uses `repr`."""
    if isinstance(part, str) and part.startswith("'"):
        return f'"{part[1:-1]}"'
    if isinstance(part, list):
        return [double_quoted(one) for one in part]
    if isinstance(part, griffe.Expr):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, griffe.Expr | list):
                setattr(part, field.name, double_quoted(value))
    return part
