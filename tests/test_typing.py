"""A type checker refuses a wrong word and accepts the right ones: one run of mypy over snippets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rangeops import ops
from rangeops.launch.stubs import stub

ROOT = Path(__file__).parent.parent

HEAD = """
import numpy as np
from plan.models import mlp, plan_model
from rangeops import Arena, MemoryPlan, OptimizerStep, PlanConfig, Range, Region, ops
plan = MemoryPlan(PlanConfig("adamw", half="fp16"))
arena = Arena(plan_model(mlp((4, 3))), device="cpu")
raw = np.zeros(1024, np.uint8)
"""

GOOD = """
plan.finalize().range(Region.W_FC_WEIGHT)
arena.scalars.lr = 1e-3
arena.scalars.set(lr=1e-3, beta1=0.9)
ops.adamw(arena)
ops.adamw(arena, half_copy=True, stream=0)
ops.adamw(raw, Range(0, 256), (256, 256), "m", Region.M_FC_WEIGHT, lr=1e-3, maximize=True)
launch = ops.adamw.bind(raw, p=Range(0, 256), lr=1e-3, ema_decay=0.9, step=3)
launch.set(lr=0.5, step=4)
ops.sgd.bind(arena, decay="decoupled", part="bias")
ops.begin_step.bind(arena, loss_scaling=True, decay="decoupled")(stream=None)
ops.fold_norms(arena, of="lars")
ops.read_norms(arena)
OptimizerStep(arena, lr=1e-3)
"""

BAD = {
    "plan.finalise()": '"MemoryPlan" has no attribute "finalise"',
    "arena.scalars.lrr": '"Scalars" has no attribute "lrr"',
    "arena.scalars.lrr = 1.0": '"Scalars" has no attribute "lrr"',
    "ops.adamw(arena, learning_rate=1)": 'Unexpected keyword argument "learning_rate"',
    "ops.adamw.bind(arena, learning_rate=1)": 'Unexpected keyword argument "learning_rate"',
    'ops.adamw(arena, lr="x")': 'Argument "lr" .* incompatible type "str"; expected "float"',
    "ops.adamw(arena, half_copy=3)": 'Argument "half_copy" .* incompatible type "int"',
    'ops.sgd.bind(arena, decay="wd")': 'Argument "decay" .* incompatible type',
    "ops.clear(arena, Range(0, 16), Range(16, 16))": "Too many positional arguments",
    "ops.ema(arena, half_grad=True)": 'Unexpected keyword argument "half_grad"',
}
"""A line and what a type checker has to say of it."""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Return what mypy says, by the number of the line, of all snippets in one run."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    file = tmp_path_factory.mktemp("typing") / "snippets.py"
    file.write_text("\n".join([HEAD, GOOD, *BAD]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for line, text in re.findall(r"snippets\.py:(\d+): error: (.*)", done.stdout):
        found[int(line)] = found.get(int(line), "") + text
    return found


def test_right_calls_are_accepted(said):
    last = (HEAD + "\n" + GOOD).count("\n") + 1
    assert not {line: text for line, text in said.items() if line <= last}


@pytest.mark.parametrize("snippet", BAD)
def test_wrong_words_are_refused(snippet, said):
    line = (HEAD + "\n" + GOOD).count("\n") + 2 + list(BAD).index(snippet)
    assert re.search(BAD[snippet], said.get(line, "")), said.get(line)


def test_the_stub_of_the_ops_is_the_generated_one():
    assert (ROOT / "rangeops/ops/__init__.pyi").read_text() == stub(ops), (
        "run python -m rangeops.ops"
    )
