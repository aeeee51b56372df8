"""Wrong versions of source text: one change each, to see whether the tests would notice it."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Div: ast.Mult}
TURNED = {
    ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}  # fmt: skip

SKIPPED = ("reference", "_gpu", "bytes", "read_", "_power")
"""Words in the names of functions that are not what runs: other spellings, and host code."""


class Mutant(NamedTuple):
    """Where one change was made and which, and the whole module's tree with it."""

    function: str
    before: str
    after: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"{self.function}: {self.before} -> {self.after}"


def variations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in a node's place: a swap, a term or factor less, an off-by-one."""
    if isinstance(node, ast.BinOp):
        if type(node.op) in SWAPPED:
            yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            yield node.left
        if isinstance(node.op, ast.Add | ast.Mult):
            yield node.right
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
        yield ast.Compare(node.left, [TURNED[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield ast.Constant(node.value + 1)


def mutants(text: str) -> Iterator[Mutant]:
    """Yield every mutant of a module's functions."""
    tree = ast.parse(text)
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and not skipped(function):
            for before, after in changes(function):
                changed = ast.fix_missing_locations(copy.deepcopy(tree))
                yield Mutant(function.name, before, after, changed)


def skipped(node: ast.AST) -> bool:
    """Return whether a function is another spelling, or host code."""
    return isinstance(node, ast.FunctionDef) and any(word in node.name for word in SKIPPED)


def changes(parent: ast.AST) -> Iterator[tuple[str, str]]:
    """Make each change below ``parent`` in turn; while it stands, yield what was and what is."""
    for field, value in ast.iter_fields(parent):
        places = value if isinstance(value, list) else [value]
        for index, node in enumerate(places):
            if not isinstance(node, ast.AST | ast.arguments) or skipped(node):
                continue
            for other in variations(node):
                put(parent, field, index, other)
                yield ast.unparse(node), ast.unparse(other)
                put(parent, field, index, node)
            yield from changes(node)


def put(parent: ast.AST, field: str, index: int, node: ast.AST) -> None:
    """Set a child of a node."""
    if isinstance(getattr(parent, field), list):
        getattr(parent, field)[index] = node
    else:
        setattr(parent, field, node)
