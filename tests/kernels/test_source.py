"""Generated texts are files: what ran can be read, and a traceback points into it."""

from __future__ import annotations

import ast
import linecache
import re
import traceback
from pathlib import Path

import numpy as np
import pytest

from rangeops import ops
from rangeops.kernels.generate import Stage, elementwise
from rangeops.kernels.spec import updated
from rangeops.kernels.stages import TEXT_NAMES
from tests.kernels.variants import kernels
from tests.ops.plain import CPU, GPU, Threads

WHOLE = {"half": "fp16", "half_grad": True, "half_copy": True, "ema": True, "clear_grad": True}


def plain_function(kernel, form, flags):
    """Return the generated function of a kernel, in plain Python."""
    return kernel.gpu(GPU, **flags) if form == "gpu" else kernel.cpu(CPU, **flags)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty cache directory of this test's own."""
    monkeypatch.setenv("RANGEOPS_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("form", ["gpu", "cpu"])
def test_the_file_behind_a_kernel_is_the_text_that_runs(folder, form):
    function = plain_function(ops.adam.kernel, form, WHOLE)
    code = function.__code__
    (file,) = (folder / "generated").iterdir()
    assert code.co_filename == str(file)
    assert re.fullmatch(r"adam-[0-9a-f]{12}\.py", file.name)
    again = {}
    exec(compile(file.read_text(), str(file), "exec"), again)
    assert again["adam"].__code__ == code


def test_the_name_of_the_file_follows_its_text(folder):
    names = set()
    for flags in ({**WHOLE, "half": "bf16"}, WHOLE, {**WHOLE, "ema": False}):
        names.add(plain_function(ops.adam.kernel, "gpu", flags).__code__.co_filename)
    assert len(names) == 2, "fp16 and bf16 have one text, with other conversions"
    assert len(list((folder / "generated").iterdir())) == 2


def failing_kernel():
    def raise_rule(x):
        raise ArithmeticError("the rule's own")

    return elementwise("failing", (updated("x", "f4"),), (Stage(("x",), raise_rule, raise_rule),))


@pytest.mark.parametrize("written", [True, False], ids=["file", "linecache"])
def test_a_traceback_points_into_the_text(tmp_path, monkeypatch, written):
    """Also where the cache directory cannot be written: then linecache keeps the text."""
    place = tmp_path if written else "/proc/none"
    monkeypatch.setenv("RANGEOPS_CACHE_DIR", str(place))
    monkeypatch.setattr(Threads, "now", 0)
    function = plain_function(failing_kernel(), "gpu", {})
    with pytest.raises(ArithmeticError) as caught:
        function(np.zeros(8, np.float32), 8)
    frames = traceback.extract_tb(caught.value.__traceback__)
    (frame,) = (f for f in frames if "/generated/failing-" in f.filename)
    assert frame.line == "x0 = raise_rule(x0)"
    assert (frame.filename in linecache.cache) or written


def text_of(function):
    """Return the text of a generated function's file."""
    return Path(function.__code__.co_filename).read_text()


def loads(text):
    """Return the names that a text gives what it reads from memory, and the names it uses."""
    tree = ast.parse(text)
    names = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    loaded = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            source = ast.unparse(node.value)
            if "[" in source or source.startswith(("load", "at(")):
                targets = ast.walk(node.targets[0])
                loaded |= {n.id for n in targets if isinstance(n, ast.Name)}
    return loaded, names


@pytest.mark.parametrize("form", ["gpu", "cpu"])
def test_generated_texts_read_only_what_they_use(folder, form):
    """A load that nobody needs costs memory's rate."""
    wasted, seen = set(), 0
    for op, flags in kernels():
        if op.kernel.operands and op.kernel.stages:
            loaded, used = loads(text_of(plain_function(op.kernel, form, flags)))
            wasted |= {(op.name, name) for name in loaded - used}
            seen += len(loaded)
    assert not wasted
    assert seen > 1000


def test_a_rule_without_a_name_is_refused_by_name():
    stage = Stage(("x",), lambda x: x, np.copy)
    with pytest.raises(ValueError, match="nameless: a rule is named <lambda>, .* with def"):
        plain_function(elementwise("nameless", (updated("x", "f4"),), (stage,)), "gpu", {})


@pytest.mark.parametrize("name", ["word", "tensor", "zero", "left", "grad", "x1"])
def test_a_scalar_named_as_the_text_names_something_is_refused(name):
    """The rule would be given the live word, or a lane, in place of the scalar."""
    space = {}
    exec(f"def shifted(x, {name}):\n    return x", space)
    stage = Stage(("x",), space["shifted"], np.copy)
    with pytest.raises(ValueError, match=f"named: a scalar is named {name}, expected"):
        elementwise("named", (updated("x", "f4"),), (stage,), gated=True, scalars=(name,))


def assigned(tree):
    """Return the names that a text gives values, but for constants."""
    names = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return {name for name in names if not name.isupper()}


@pytest.mark.parametrize("form", ["gpu", "cpu"])
def test_every_name_that_a_text_assigns_is_kept_from_scalars(folder, form):
    """But for those of its operands, temporaries and coefficients, and their lanes."""
    for op, flags in kernels():
        kernel = op.kernel
        if not (kernel.operands and kernel.stages) or kernel.count != "n":
            continue
        own = {operand.name for operand in kernel.operands}
        for stage in kernel.stages:
            own |= {*stage.arguments, *stage.targets, stage.when}
        tree = ast.parse(text_of(plain_function(kernel, form, flags)))
        others = {name for name in assigned(tree) - own if name.rstrip("01234567") not in own}
        assert others - {f"{name}_" for name in own} - {f"{name}_new" for name in own} <= TEXT_NAMES


def test_a_switch_without_swap_does_not_load_what_it_writes(folder):
    text = {}
    for swap in (False, True):
        flags = {"half": None, "half_copy": False, "swap": swap}
        text[swap] = text_of(plain_function(ops.sema_switch.kernel, "gpu", flags))
    assert "load4(p, " not in text[False] and "store4(e, " not in text[False]
    assert "load4(p, " in text[True] and "store4(e, " in text[True]
