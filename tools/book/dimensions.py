"""Griffe extension: show jaxtyping's dimension strings as they are written.

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
        self, *, node: Any, func: griffe.Function, **kwargs: Any
    ) -> None:
        """Restore a function's annotations."""
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        given = node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        for argument in [*named, given.vararg, given.kwarg]:
            if argument is not None and argument.annotation is not None:
                read = as_written(argument.annotation, func)
                func.parameters[argument.arg].annotation = read
        if node.returns is not None:
            func.returns = as_written(node.returns, func)

    def on_attribute_instance(
        self, *, node: Any, attr: griffe.Attribute, **kwargs: Any
    ) -> None:
        """Restore an attribute's annotation."""
        if isinstance(node, ast.AnnAssign):
            attr.annotation = as_written(node.annotation, attr)


def as_written(node: ast.expr, owner: griffe.Object) -> griffe.Expr | str | None:
    """Read one annotation in the scope where its owner stands."""
    if owner.parent is None:
        raise ValueError(f"{owner.path} stands in no module or class")
    read = griffe.get_expression(node, owner.parent, parse_strings=False)
    if isinstance(read, griffe.Expr):
        double_quotes(read)
    return read


def double_quotes(expression: griffe.Expr) -> None:
    """Quote strings as the source does; Griffe quotes them as `repr` does."""
    for field in dataclasses.fields(expression):
        value = getattr(expression, field.name)
        if isinstance(value, griffe.Expr):
            double_quotes(value)
        elif isinstance(value, list):
            setattr(expression, field.name, [requoted(one) for one in value])


def requoted(value: griffe.Expr | str) -> griffe.Expr | str:
    """Give one part of an expression, with double quotes."""
    if isinstance(value, griffe.Expr):
        double_quotes(value)
        return value
    return f'"{value[1:-1]}"' if value.startswith("'") else value
