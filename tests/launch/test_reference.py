"""Every op documents itself: signature, documentation, one-line repr, all from its declaration."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import rangeops.launch.op
from rangeops import REGISTRY, Arena, ops
from rangeops.launch.coefficients import OPTIONS
from rangeops.launch.reference import WORDS
from tests.helpers import small_plan

OWN = {n: op for n, op in REGISTRY.items() if op.__module__.startswith("rangeops.")}
"""The library's own ops; a test may have declared others."""


@pytest.mark.parametrize("name", OWN)
def test_help_says_all_that_an_op_takes(name):
    op = OWN[name]
    text = pydoc.render_doc(op, renderer=pydoc.plaintext)
    assert op.formula in text and op.origin in text and op.source in text
    assert f"in module {op.__module__}" in text
    family = inspect.getdoc(inspect.getmodule(op))
    assert family.splitlines()[0] in text
    words = {*text.replace(",", " ").replace("=", " ").replace("(", " ").split()}
    asked = {*(o.name for o in op.operands), *op.flags, *op.options, *op.hyper, *op.scalars}
    assert asked <= words
    assert max(map(len, op.__doc__.splitlines())) <= 100


@pytest.mark.parametrize("name", OWN)
def test_name_signature_and_repr(name):
    op = OWN[name]
    assert op.__name__ == name
    parameters = list(inspect.signature(op).parameters)
    assert parameters[: 1 + len(op.operands)] == ["arena", *(o.name for o in op.operands)]
    assert parameters[-2:] == ["stream", "scalars"]
    assert repr(op).startswith(f"<range op {name}(") and len(repr(op)) < 80


def test_every_flag_and_option_is_explained_and_nothing_else():
    flags = {flag for op in OWN.values() for flag in op.flags if flag != "half"}
    assert set(WORDS) == flags | set(OPTIONS)


def test_flags_and_options_are_told_apart_in_one_place():
    text = inspect.getdoc(rangeops.launch.op.RangeOp)
    assert "flags: choices at compile time" in text and "options: choices at run time" in text


def test_a_launch_says_what_it_is_in_one_line():
    launch = ops.adamw.bind(Arena(small_plan(ema=True), device="cpu"), ema=True)
    count = launch.count
    assert repr(launch) == (
        f"<launch of adamw(ema): {count:,} elements, {launch.nbytes:,} bytes, on cpu>"
    )
