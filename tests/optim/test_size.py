"""Steps and ranges at size, on a GPU: ten million parameters, more than 2**31 elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from rangeops import REGISTRY, Arena, OptimizerStep, ops
from rangeops.verify import fill_random
from tests import tolerance
from tests.helpers import host_bytes
from tests.optim.launches import PLANNED, by_references, unfused_rest


def big_plan(name, half):
    """Return a plan of 10 million parameters over several kinds, awkwardly sized."""
    plan = MemoryPlan(PlanConfig(name, half=half, ema=True))
    shapes = (("fc_bias", 1001), ("fc_weight", 4_000_001), ("first_conv", 999), ("deep_conv", 129))
    for k, (kind, n) in enumerate((*shapes, ("deep_conv", 6_000_000))):
        plan.parameter(f"t{k}", kind, (n,))
    return plan.finalize()


@pytest.mark.gpu
@pytest.mark.parametrize("half", [None, "fp16", "bf16"])
@pytest.mark.parametrize("name", [*PLANNED, "lamb"])
def test_ten_million_fused_equals_unfused_equals_reference(name, half):
    """Two steps at size, groups and a frozen tensor in it: fused, op by op, by references."""
    import cupy

    plan, halves = big_plan(name, half), half is not None
    arenas = [Arena(plan), Arena(plan), Arena(plan, device="cpu")]
    fill_random(arenas[2], 3)
    for arena in arenas[:2]:
        arena.memory[...] = cupy.asarray(arenas[2].memory)
    options: dict[str, Any] = {
        "lr": 0.01, "weight_decay": 0.1, "ema_decay": 0.9, "loss_scale": 64.0,
    }  # fmt: skip
    for arena in arenas:
        arena.scalars.step = 3  # at the first step a fused average starts as the weights before it
    options |= {"clip_norm": 1e6, "scaling": False, "resume": True}
    steps = [OptimizerStep(a, clear_grad=a is not arenas[1], **options) for a in arenas]
    apart = steps[1]
    for arena in arenas:
        groups = arena.groups
        groups.add("fast", ["t1", "t3"], lr=4.0, weight_decay=0.5)
        groups.freeze("t2")
        if halves:
            ops.cast_fp32_to_fp16(arena)
    plain = {"half_grad": halves} if name != "lamb" else {}
    launches = [*apart.launches[:-1], REGISTRY[name].bind(arenas[1], **plain)]
    references = by_references(steps[2])
    for _ in range(2):
        for launch in launches:
            launch()
        unfused_rest(arenas[1], halves)
        steps[0](), references()
    fused, unfused, reference = map(host_bytes, arenas)
    assert arenas[0].scalars.step == 5
    np.testing.assert_array_equal(fused, unfused)
    np.testing.assert_array_equal(fused, reference)


@pytest.mark.gpu
def test_more_than_two_to_the_31_elements_in_one_range():
    import cupy

    from plan import Range

    n = 2**31 + 4096
    memory = cupy.empty(4 * n, cupy.uint8)
    arena = Arena.wrap(memory)
    values = memory.view(cupy.float32)
    ops.clear(arena, Range(0, 4 * n))
    assert not values[:: 2**20].any() and values[-1] == 0
    values[-3:] = cupy.array([1.0, 2.0, cupy.nan], cupy.float32)
    check = ops.check_nan.bind(arena, g=Range(0, 4 * n))
    check()
    assert check.scalars.found_inf == 1
    assert check.scalars.first_nonfinite == (n - 1) // 128
    half = cupy.zeros(2 * n + 4 * n, cupy.uint8)
    both = Arena.wrap(half)
    half[2 * n :].view(cupy.float32)[-2:] = cupy.array([0.5, -2.0], cupy.float32)
    ops.cast_fp32_to_fp16(both, dst=Range(0, 2 * n), src=Range(2 * n, 4 * n))
    tail = half[: 2 * n].view(cupy.float16)[-2:].get()
    np.testing.assert_array_equal(tail, np.array([0.5, -2.0], np.float16))
    del half, both
    target = cupy.empty(8 * n, cupy.uint8)
    target[4 * n :] = memory
    ops.copy(Arena.wrap(target), dst=Range(0, 4 * n), src=Range(4 * n, 4 * n))
    assert (target[: 4 * n : 2**16] == target[4 * n :: 2**16]).all()
    assert (target[4 * n - 16 : 4 * n] == target[-16:]).all()
    del target, memory, values
    state = cupy.zeros(16 * n, cupy.uint8)
    views = [state[4 * n * k : 4 * n * (k + 1)].view(cupy.float32) for k in range(4)]
    views[0][-1], views[1][-1] = 1.0, 0.1
    spans = {key: Range(4 * n * k, 4 * n) for k, key in enumerate("pgmv")}
    ops.adamw(Arena.wrap(state), **spans, lr=1e-3, step=1)
    assert float(views[0][-1]) == pytest.approx(0.999, rel=tolerance.STEP)
    assert not views[0][:: 2**16].any()
