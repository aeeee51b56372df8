"""An op of a user's own: verified by the library's means, planned, stepped, and driven from torch.

The ops are declared in a process of their own: the registry of this one is walked by other tests.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


def run(code: str, **environment: str) -> str:
    """Run a script of a user's, who has no GPU and no tests of ours; return what it prints."""
    clean = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    path = os.pathsep.join([str(HERE), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_imports_declared_public_names_alone():
    import rangeops

    tree = ast.parse((HERE / "tiger.py").read_text())
    names = [a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert modules == {"__future__", "rangeops"}
    assert set(names) - {"annotations"} <= set(rangeops.__all__)


VERIFY = """
from tiger import limit, tiger
from rangeops.verify import verify_op
found = [v for op in (tiger, limit) for v in verify_op(op, device={device!r}, sizes={sizes})]
assert all(v.difference is None for v in found), [v for v in found if v.difference]
print(len(found), {{v.op for v in found}} == {{"tiger", "limit"}})
"""


def test_it_is_verified_without_a_gpu():
    count, both = run(VERIFY.format(device="cpu", sizes=(0, 1, 127, 129))).split()
    # 28 variants of the optimizer: every combination of halves, average and clearing.
    assert int(count) >= 28 * 4 and both == "True"


def test_its_kernels_run_in_the_simulator():
    code = VERIFY.format(device="simulator", sizes=(5,))
    count, both = run(code, NUMBA_ENABLE_CUDASIM="1").split()
    assert int(count) >= 28 and both == "True"


WRONG = """
import tiger as mine
from rangeops import optimizer
from rangeops.verify import verify_op
wrong = optimizer("wrong", formula="", rule=mine.tiger_rule, moments="m", hyper=("lr", "beta1"),
    reference=lambda p, g, m, one_minus_beta1, lr, keep, softness: (p * keep - lr * m, m),
    scalars={"softness": 1e-3})
print(sum(v.difference is not None for v in verify_op(wrong, sizes=(129,))) > 0)
"""


def test_a_wrong_rule_is_found():
    assert run(WRONG).strip() == "True"


STEP = """
import numpy as np
import tiger
from rangeops import Arena, MemoryPlan, OptimizerStep, PlanConfig, from_json, to_json
plan = MemoryPlan(PlanConfig("tiger", half="fp16", ema=True))
w = plan.parameter("w", "fc_weight", (3, 50))
arena = Arena(from_json(to_json(plan.finalize())), device="cpu")
arena["w"] = 1.0
step = OptimizerStep(arena, lr=0.5, beta1=0.5, weight_decay=0.1, softness=0.25, loss_scale=8.0)
arena[w.half_gradient] = np.float16(8.0)
step()
# m = 0.5 * 1;  p = 1 * (1 - 0.05) - 0.5 * 0.5 / 0.75
print(float(arena["w"][0, 0]), 0.95 - 0.5 * 0.5 / 0.75, arena.scalars.softness)
"""


def test_it_is_planned_and_stepped_with_a_scalar_of_its_own():
    got, want, softness = map(float, run(STEP).split())
    assert abs(got - want) < 1e-6 and softness == 0.25


CLAMP = """
import numpy as np
from tiger import limit
from rangeops import Arena, MemoryPlan, PlanConfig, PlanError
x = np.array([-3.0, -0.5, 0.5, 3.0], np.float32)
limit(x, (0, 16), bound=2.0)
print(x.tolist())
plan = MemoryPlan(PlanConfig("sgd", scalars={"bound": 0.25}))
w = plan.parameter("w", "fc_weight", (5,)).weight
arena = Arena(plan.finalize(), device="cpu")
arena["w"] = [-1.0, 1.0, 0.125, 0.0, -0.25]
limit(arena, "w")
arena.scalars.bound = 0.0625
limit(arena, (w.offset, 16))
print(arena["w"].tolist())
bare = MemoryPlan(PlanConfig("sgd"))
bare.parameter("w", "fc_weight", (5,))
try:
    limit(Arena(bare.finalize(), device="cpu"), "w")
except PlanError as error:
    print(error)
"""


def test_a_clamp_works_on_anybodys_memory_and_on_a_plan():
    raw, planned, refused = run(CLAMP).splitlines()
    assert raw == "[-2.0, -0.5, 0.5, 2.0]"
    assert planned == "[-0.0625, 0.0625, 0.0625, 0.0, -0.25]"
    assert "bound" in refused and "PlanConfig" in refused


TORCH = """
import torch
import rangeops.torch as ranged
import tiger

class Tiger(ranged.RangeOptimizer):
    kinds = ("tiger",)
    state_names = (("exp_avg", "m"),)
    settings = ("beta1", "softness")

    def __init__(self, params, lr=1e-3, beta1=0.965, weight_decay=0.0, softness=1e-3, **own):
        defaults = dict(lr=lr, beta1=beta1, weight_decay=weight_decay, softness=softness)
        super().__init__(params, defaults, **own)

torch.manual_seed(0)
model = torch.nn.Linear(20, 3)
start = model.weight.detach().clone()
ranged.adopt(model, "tiger")
optimizer = Tiger(model.parameters(), lr=0.1, beta1=0.5, softness=0.5)
model(torch.ones(2, 20)).sum().backward()
grad = model.weight.grad.clone()
optimizer.step()
m = 0.5 * grad
print(float((model.weight.detach() - (start - 0.1 * m / (m.abs() + 0.5))).abs().max()))
"""


def test_it_is_driven_from_torch():
    pytest.importorskip("torch", reason="drives torch's adapter")
    assert float(run(TORCH)) < 1e-6
