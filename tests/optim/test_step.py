"""OptimizerStep, groups and graphs: fused equals unfused equals reference, over many steps."""

from __future__ import annotations

import numpy as np
import pytest

from plan import PlanConfig, PlanError
from plan.models import mlp, plan_model
from rangeops import REGISTRY, Arena, OptimizerStep, ops
from rangeops.verify import fill_random
from tests.helpers import HAVE_GPU, host_bytes, put, small_plan
from tests.optim.launches import PLANNED, by_references, unfused_rest


def filled(name, device, half, ema=True, seed=5):
    arena = Arena(small_plan(name, half=half, ema=ema), device=device)
    fill_random(arena, seed)
    arena.scalars.set(lr=0.01, weight_decay=0.1, ema_decay=0.9, loss_scale=64.0, step=3)
    return arena


HALVES = [None, "fp16", "bf16"] if HAVE_GPU else [None, "fp16"]
"""bf16 where kernels run at speed; it differs by the two conversions, which test_every_op runs."""


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", PLANNED)
def test_fused_equals_unfused(name, half, device):
    """One fused launch gives the bytes of update, EMA, cast and clear one after the other."""
    fused, apart = (filled(name, device, half) for _ in range(2))
    for arena in (fused, apart):
        groups = arena.groups
        groups.add("fast", ["fc.*", "conv1.weight"], lr=4.0, weight_decay=0.5)
        groups.freeze("conv2.weight")
        if half is not None:  # the copies of frozen tensors are those of their weights
            ops.cast_fp32_to_fp16(arena)
        ops.begin_step(arena)
    halves = half is not None
    op = REGISTRY[name]
    op(fused, half_grad=halves, half_copy=halves, ema=True, clear_grad=True)
    op(apart, half_grad=halves)
    unfused_rest(apart, halves)
    np.testing.assert_array_equal(host_bytes(fused), host_bytes(apart))


@pytest.mark.parametrize("half", HALVES)
def test_fused_lamb_equals_unfused(half, device):
    fused, apart = (filled("lamb", device, half) for _ in range(2))
    halves = half is not None
    for arena in (fused, apart):
        arena.groups.freeze("conv2.weight")
        if halves:
            ops.cast_fp32_to_fp16(arena)
        ops.begin_step(arena)
        ops.lamb_moments(arena, half_grad=halves, clear_grad=arena is fused)
        ops.fold_norms(arena, of="lamb")
        ops.trust_ratio(arena, kind="lamb")
    ops.lamb(fused, half_copy=halves, ema=True)
    ops.lamb(apart)
    unfused_rest(apart, halves)
    np.testing.assert_array_equal(host_bytes(fused), host_bytes(apart))


@pytest.mark.parametrize("half", [None, "fp16"])
def test_a_group_changes_by_upload_alone(half, device):
    arena = filled("sgd", device, half)
    step = OptimizerStep(arena, lr=1.0, weight_decay=0.0, loss_scale=1.0)
    step.groups.add("one", "one.weight", lr=0.5)
    p = arena.plan.parameters["one.weight"]
    moved = []
    for lr in (0.5, 0.25):
        step.groups.set("one", lr=lr)
        arena["one.weight"] = 0.0
        arena[p.half_gradient if half else p.gradient] = 1.0
        step()
        moved.append(float(arena.download("one.weight")[0]))
    assert moved == [-0.5, -0.25]


def test_freezing_and_unfreezing():
    groups = Arena(small_plan(), device="cpu").groups
    groups.freeze(lambda t: t.region.kind == "fc_weight")
    assert groups.frozen == ("fc.weight", "empty.weight", "one.weight")
    groups.freeze("one.weight")
    groups.add("late", "fc.weight", lr=2.0)
    assert groups.of("fc.weight") == "late" and "fc.weight" in groups.frozen
    groups.unfreeze(["fc.*", "empty.weight"])
    assert groups.frozen == ("one.weight",)
    assert (groups.of("one.weight"), groups.of("fc.bias")) == ("decay", "no_decay")


def test_refusals_of_groups_and_steps():
    arena = Arena(small_plan(), device="cpu")
    groups = arena.groups
    before = host_bytes(arena)
    for call, message in (
        (lambda: groups.add("x", "nothing*"), "matches no parameter, expected at least one"),
        (lambda: groups.add("decay", "*"), "got 'decay', which exists, expected a new name"),
        (lambda: groups.add("x", "*", beta1=1.0), "beta1: got 1.0, expected 0 <= beta1 < 1"),
        (lambda: groups.set("decay", decay="l1"), "decay='l1' for adamw, expected 'l2' or 'decou"),
        (lambda: groups.set("decay", maximize=2), "maximize got 2, expected True, False or None"),
        (lambda: groups.set("x", lr=1.0), "got 'x', expected one of decay, no_decay"),
        (lambda: groups.add("x", "*", lr=-1.0), "lr: got -1.0, expected >= 0"),
        (lambda: groups.set("decay", weight_decay=float("nan")), "weight_decay: got nan"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    np.testing.assert_array_equal(host_bytes(arena), before)
    with pytest.raises(PlanError, match="without trainable parameters, expected a plan for an opt"):
        OptimizerStep(Arena(plan_model(mlp((2, 2)), PlanConfig("none")), device="cpu"))
    with pytest.raises(PlanError, match="accumulate got True for a plan with half=None and no"):
        OptimizerStep(Arena(plan_model(mlp((2, 2))), device="cpu"), accumulate=True)
    with pytest.raises(TypeError, match="got 'trust_clip', expected one of"):
        OptimizerStep(Arena(plan_model(mlp((2, 2))), device="cpu"), trust_clip=True)


def scheduled(step, k):
    """Change what may change between steps: lr every step, scale, group decay, EMA decay rarely."""
    step.arena.scalars.lr = 1e-3 * (1 + k % 7)
    if k % 100 == 50:
        step.groups.set("fast", weight_decay=0.25 * (k % 3), lr=1.0 + k % 2)
        step.arena.scalars.ema_decay = 0.9 + 0.001 * (k % 5)
    if k == 700:
        step.arena.scalars.loss_scale = 256.0


def gradients(arena, rng, k):
    """Write fresh half gradients; steps 1, 2 and 500 overflow."""
    for p in arena.plan.parameters.values():
        tensor = p.half_gradient or p.gradient
        values = rng.standard_normal(tensor.shape).astype(np.float16 if p.half_gradient else "f4")
        if k in (1, 2, 500) and p.name == "fc.weight":
            values[0, 0] = np.inf
        arena[tensor] = values


def run_steps(arena, advance, count):
    step = OptimizerStep(arena, weight_decay=0.01, loss_scale=1024.0, growth_interval=40)
    step.groups.add("fast", "conv*", lr=2.0)
    go = advance(step)
    rng = np.random.default_rng(9)
    for k in range(1, count + 1):
        scheduled(step, k)
        gradients(arena, rng, k)
        go()
    return host_bytes(arena)


def eager(step):
    return step


def replayed(step):
    return step.capture().replay


def test_many_steps_of_loops_equal_references():
    """1,000 steps on the CPU, overflows included, against 1,000 steps of the references."""
    loops, references = (
        run_steps(Arena(small_plan(half="fp16", ema=True), device="cpu"), how, 1000)
        for how in (eager, by_references)
    )
    np.testing.assert_array_equal(loops, references)


@pytest.mark.gpu
def test_a_thousand_replays_equal_eager_steps_and_references():
    plan = small_plan(half="fp16", ema=True)
    captured = run_steps(Arena(plan), replayed, 1000)
    np.testing.assert_array_equal(captured, run_steps(Arena(plan), eager, 1000))
    np.testing.assert_array_equal(
        captured, run_steps(Arena(plan, device="cpu"), by_references, 1000)
    )


def test_a_few_steps_of_kernels_equal_references():
    plan = small_plan(half="bf16", ema=True)
    count = 20 if HAVE_GPU else 3
    arenas = Arena(plan, device="cuda"), Arena(plan, device="cpu")
    rng = np.random.default_rng(1)
    steps = [OptimizerStep(a, lr=0.01, weight_decay=0.01, loss_scale=8.0) for a in arenas]
    references = by_references(steps[1])
    for k in range(count):
        for p in plan.parameters.values():
            bits = rng.integers(0x3C00, 0x4100, p.weight.numel, np.uint16)
            for arena in arenas:
                if p.half_gradient is not None:
                    put(arena, p.half_gradient.offset, bits)
                else:
                    arena[p.gradient] = float(k)
        steps[0](), references()
    np.testing.assert_array_equal(host_bytes(arenas[0]), host_bytes(arenas[1]))


def test_several_steps_and_own_work_in_one_capture(device):
    arena = Arena(small_plan("sgd"), device=device)
    step = OptimizerStep(arena, lr=0.5, clear_grad=False)
    p = arena.plan.parameters["one.weight"]
    seen = []

    def own():
        seen.append(1)
        arena[p.gradient] = 1.0

    graph = step.capture(steps=3, before=[own])
    graph.replay()
    graph.replay()
    assert float(arena.download("one.weight")[0]) == -3.0
    assert arena.scalars.step == 6 and seen
