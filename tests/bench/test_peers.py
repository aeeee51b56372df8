"""The loops that steps are timed against do the library's own steps."""

from __future__ import annotations

import numpy as np
import pytest

from bench.peers import hyper, numpy_loops
from bench.topics.steps import KINDS
from plan import PlanConfig
from plan.models import ParameterSpec, plan_model
from rangeops import Arena, OptimizerStep
from tests import tolerance

SPECS = [
    ParameterSpec("bias", "fc_bias", (65,)),
    ParameterSpec("weight", "fc_weight", (7, 65)),
    ParameterSpec("conv", "deep_conv", (4, 3, 3, 2)),
]


def stepped(kind: str, steps: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the weights after some steps: the library's, and the loop's."""
    model = numpy_loops.arrays(SPECS)
    arena = Arena(plan_model(SPECS, PlanConfig(kind)), device="cpu")
    for spec, one in zip(SPECS, model, strict=True):
        arena[spec.name] = one.p
        arena[arena.plan.parameters[spec.name].gradient] = one.g
    step = OptimizerStep(arena, clear_grad=False, **hyper.SCALARS)
    loop = numpy_loops.loop(kind, model)
    for _ in range(steps):
        step()
        loop()
    return [np.array(arena[spec.name]) for spec in SPECS], [one.p for one in model]


@pytest.mark.parametrize("kind", KINDS)
def test_a_numpy_loop_does_the_step_of_the_library(kind):
    start = [one.p for one in numpy_loops.arrays(SPECS)]
    for ours, theirs, before in zip(*stepped(kind, 3), start, strict=True):
        moved = np.abs(theirs - before).max()
        assert moved > 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance.PEERS * moved)


def test_every_optimizer_has_a_loop():
    assert set(numpy_loops.RULES) == set(KINDS)
