"""A wrong rule is noticed: every small change in what an op computes gives a difference.

Each operation, term, factor, comparison and number of every rule, body and loop is changed in
turn.  The changed op runs as plain Python on a small model whose every coefficient matters, and
``rangeops.verify.check`` compares it with the unchanged reference.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

import numpy as np
import pytest

from rangeops import REGISTRY
from rangeops.kernels import build, chunk_sums, generate, tree
from rangeops.launch import coefficients
from rangeops.launch import op as declared
from rangeops.verify import check
from tests.helpers import put
from tests.kernels.variants import OPS
from tests.ops.mutants import mutants
from tests.ops.plain import CPU, GPU, PlainLaunch
from tests.ops.worlds import planned_trials, raw_trials

MODULES = sorted({op.__module__ for op in OPS})


def noticed(op, kernel):
    """Return whether the check of an op whose kernel is replaced finds a difference."""
    for launch, start in (*planned_trials(op), *raw_trials(op)):
        put(launch.binding.arena, 0, start)
        try:
            plain = PlainLaunch(launch, kernel.cpu(CPU, **launch.binding.flags))
            with np.errstate(all="ignore"):
                if check(plain).difference is not None:
                    return True
        except (IndexError, ValueError, ZeroDivisionError, OverflowError):
            return True
    return False


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_as_plain_python_every_op_equals_its_reference(op):
    """Without a change nothing is noticed, or what follows would show nothing."""
    assert planned_trials(op)
    assert not noticed(op, op.kernel)


FIRST = "the gradient's factor is a row's first coefficient, in its first four"

EQUIVALENT = {
    "_begin": {
        "_row: i == 0 -> i != 0": "every row would write the same block",
        "_row: 0 -> 1": "every row would write the same block",
    },
    "adam-cpu": {"adam: row + GRAD -> row - GRAD": FIRST, "adam: row + GRAD -> row": FIRST},
    "adam-gpu": {
        "adam: row + int64(0) -> row - int64(0)": FIRST,
        "adam: row + int64(0) -> row": FIRST,
    },
    "sema_switch-cpu": {"sema_switch: 0 -> 1": "nothing reads zero"},
    "tensor_stats-cpu": {
        "tensor_stats: 0 -> 1": "nothing reads zero",
        "tensor_stats: 1 * chunk_count -> chunk_count": "a product with 1",
    },
    "lamb_moments-cpu": {
        "lamb_moments: 1 * chunk_count -> chunk_count": "a product with 1",
        "lamb_moments: row + GRAD -> row - GRAD": FIRST,
        "lamb_moments: row + GRAD -> row": FIRST,
    },
    "cast_fp32_to_fp16-gpu": {
        "cast_fp32_to_fp16: 8 -> 9": "one by one gives the same",
        "cast_fp32_to_fp16: left - 4 -> left + 4": "eight are left there",
        "cast_fp32_to_fp16: left - 4 -> left": "eight are left there",
    },
    "coefficients": {"clip_rule: 1.0 -> 2.0": "a clip that begins at 2 becomes 1 as well"},
    "_ratio": {"_row: j + GRAD -> j - GRAD": FIRST, "_row: j + GRAD -> j": FIRST},
}
"""Changes that change nothing, by module, with the reason."""

MINE = {name: [op for op in OPS if op.__module__ == name] for name in MODULES}


def redeclared(name, changed, monkeypatch):
    """Return the ops that the changed text of a module declares."""
    registry = {}
    module = ModuleType(name)
    with monkeypatch.context() as patch:
        patch.setattr(declared, "REGISTRY", registry)
        exec(compile(changed, f"<{name}>", "exec"), vars(module))
    return registry


def unnoticed(name, monkeypatch):
    """Return the mutants of an op module that no check of its ops notices."""
    found = set()
    for mutant in mutants(inspect.getsource(importlib.import_module(name))):
        ops = redeclared(name, mutant.tree, monkeypatch)
        if not any(noticed(op, ops[op.name].kernel) for op in MINE[name]):
            found.add(str(mutant))
    return found


@pytest.mark.parametrize("name", MODULES)
def test_every_change_in_an_op_is_noticed(name, monkeypatch):
    known = EQUIVALENT.get(name.rpartition(".")[2], {})
    assert unnoticed(name, monkeypatch) == set(known)


SHARED = {
    "tree": (tree, ("grad_norm", "fold_norms", "tensor_stats")),
    "coefficients": (coefficients, ("begin_step",)),
}


def refused(suffix, key, make):
    raise AssertionError("a changed rule was about to be built and kept")


@pytest.mark.parametrize("name", SHARED)
def test_every_change_in_a_shared_rule_is_noticed(name, monkeypatch):
    """The tree of sums and the coefficients, through ops that take all of it."""
    module, names = SHARED[name]
    found = set()
    # Built before anything is changed: built code is kept by the content of files, on the disk too.
    assert not any(noticed(REGISTRY[op], REGISTRY[op].kernel) for op in names)
    monkeypatch.setattr(build, "cached", refused)
    for mutant in mutants(inspect.getsource(module)):
        if not mutant.function.endswith(("_rule", "_cpu")):
            continue
        changed = ModuleType(module.__name__)
        exec(compile(mutant.tree, f"<{name}>", "exec"), vars(changed))
        with monkeypatch.context() as patch:
            patch.setattr(module, mutant.function, getattr(changed, mutant.function))
            if not any(noticed(REGISTRY[op], REGISTRY[op].kernel) for op in names):
                found.add(str(mutant))
    assert found == set(EQUIVALENT.get(name, {}))


GENERATED = (
    "adam",
    "sema_switch",
    "cast_fp32_to_fp16",
    "average_half",
    "tensor_stats",
    "lamb_moments",
)
"""Ops whose generated texts are changed: with all that is split, gated, scaled, summed."""


def changed_texts(monkeypatch, op, flags, x):
    """Yield (what was changed, function) of an op's generated text."""
    texts = []
    plain = generate.function_of

    def seen(name, text, constants, words, rules):
        texts.append((name, text, {**constants, **words}))
        return plain(name, text, constants, words, rules)

    for module in (generate, chunk_sums):
        monkeypatch.setattr(module, "function_of", seen)
    (op.kernel.cpu if x is CPU else op.kernel.gpu)(x, **flags)
    monkeypatch.undo()
    (name, text, scope) = texts[-1]
    for mutant in mutants(text):
        space = dict(scope)
        exec(compile(mutant.tree, f"<{name}>", "exec"), space)
        yield str(mutant), space[name]


def noticed_text(op, flags, function, threads):
    for launch, start in (*planned_trials(op), *raw_trials(op)):
        if launch.binding.flags != flags:
            continue
        put(launch.binding.arena, 0, start)
        count = -(-launch.count // op.kernel.per_thread) + 3 if threads else 0
        try:
            with np.errstate(all="ignore"):
                if check(PlainLaunch(launch, function, count)).difference is not None:
                    return True
        except (IndexError, ValueError, ZeroDivisionError, OverflowError, NameError):
            return True
    return False


@pytest.mark.parametrize("form", ["gpu", "cpu"])
@pytest.mark.parametrize("name", GENERATED)
def test_every_change_in_a_generated_text_is_noticed(name, form, monkeypatch):
    op = REGISTRY[name]
    if form == "gpu" and op.kernel.count != "n":
        pytest.skip("lanes of a warp wait for each other; the simulator runs these kernels")
    flags = dict(planned_trials(op)[-1][0].binding.flags)
    found = [
        what
        for what, function in changed_texts(monkeypatch, op, flags, CPU if form == "cpu" else GPU)
        if not noticed_text(op, flags, function, form == "gpu")
    ]
    assert set(found) == set(EQUIVALENT.get(f"{name}-{form}", {}))
