"""Ratios by tensor: LARS, LARC, LAMB and Lion against their papers' formulas (S21, S22)."""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from rangeops import Arena, OptimizerStep, ops
from tests import tolerance
from tests.helpers import host_bytes, small_plan

TINY = 1e-38
"""An eps that vanishes beside any norm; 0 is refused."""


def one(values, gradient, device, optimizer="lars", half=None, **hyper):
    plan = MemoryPlan(PlanConfig(optimizer, half=half))
    p = plan.parameter("w", "fc_weight", (len(values),))
    arena = Arena(plan.finalize(), device=device)
    arena["w"] = np.array(values, np.float32)
    if half:
        arena[p.half_gradient] = np.array(gradient, np.float16)
    else:
        arena[p.gradient] = np.array(gradient, np.float32)
    return arena, OptimizerStep(arena, **hyper)


LARS = {"lr": 0.1, "trust_coefficient": 1e-3, "eps": TINY, "momentum": 0.0}


@pytest.mark.parametrize(
    ("weight", "gradient", "want"),
    [
        ([0, 0], [3, 4], [-0.3, -0.4]),
        ([3, 4], [0, 0], [3, 4]),
        ([0, 0], [0, 0], [0, 0]),
    ],
)
def test_s21_a_zero_norm_gives_ratio_one(weight, gradient, want, device):
    arena, step = one(weight, gradient, device, weight_decay=0.0, **LARS)
    step()
    np.testing.assert_allclose(
        arena.download("w"), np.array(want, np.float32), rtol=tolerance.STORED
    )
    assert arena.download("w#N")[2] == 1.0


def test_s21_the_normal_ratio(device):
    arena, step = one([3, 4], [0.6, 0.8], device, weight_decay=1e-4, **LARS)
    step()
    weight, gradient, ratio, _ = arena.download("w#N")
    assert (weight, gradient) == (5.0, pytest.approx(1.0, rel=tolerance.STORED))
    assert ratio == pytest.approx(0.0049975012, rel=tolerance.STORED)


@pytest.mark.parametrize("half", [None, "fp16"])
def test_s22_the_ratio_is_of_the_unscaled_gradient(half, device):
    scale = 65536.0 if half is None else 1024.0  # 0.8 * 65536 is beyond the halves
    gradient = np.array([0.6, 0.8]) * scale
    arena, step = one(
        [3, 4], gradient, device, half=half, weight_decay=1e-4, loss_scale=scale, **LARS
    )
    step()
    assert arena.download("w#N")[2] == pytest.approx(
        0.0049975012, rel=tolerance.FP16 if half else tolerance.STORED
    )
    np.testing.assert_allclose(arena.download("w"), [2.9997, 3.9996], rtol=tolerance.STEP)


def test_decay_with_a_zero_gradient_still_shrinks_the_weight(device):
    """A zero norm makes the ratio 1; L2 decay is part of the direction and goes on with it."""
    arena, step = one([3, 4], [0, 0], device, weight_decay=0.01, **LARS)
    step()
    np.testing.assert_allclose(arena.download("w"), np.array([3, 4]) * 0.999, rtol=tolerance.STEP)


def test_biases_and_norms_do_not_adapt_unless_a_group_says_so(device):
    plan = small_plan("lars")
    arena = Arena(plan, device=device)
    for p in plan.parameters.values():
        arena[p.weight], arena[p.gradient] = 2.0, 1.0
    step = OptimizerStep(arena, **LARS, weight_decay=0.0, clear_grad=False)
    step.groups.add("flat", "conv2.weight", adapt=False)
    step()
    assert arena.download("fc.bias")[0] == np.float32(2) - np.float32(0.1)
    assert arena.download("conv2.weight")[0] == np.float32(2) - np.float32(0.1)
    assert arena.download("fc.weight")[0, 0] == pytest.approx(
        2 - 0.1 * 1e-3 * 2, rel=tolerance.STORED
    )
    step.groups.set("flat", adapt=True)
    step()
    assert arena.download("conv2.weight")[0] == pytest.approx(
        1.9 - 0.1 * 1e-3 * 1.9, rel=tolerance.STEP
    )


def sequence(optimizer, device, steps=12, **hyper):
    """Return weights after some steps with fresh gradients, and the (weight, gradients) fed."""
    rng = np.random.default_rng(6)
    start = rng.standard_normal(3000)
    plan = MemoryPlan(PlanConfig(optimizer))
    p = plan.parameter("w", "fc_weight", (3000,))
    arena = Arena(plan.finalize(), device=device)
    arena["w"] = start.astype(np.float32)
    step = OptimizerStep(arena, **hyper)
    fed = []
    for _ in range(steps):
        g = (rng.standard_normal(3000) * 0.1).astype(np.float32)
        arena[p.gradient] = g
        fed.append(g.astype(np.float64))
        step()
    return arena.download("w"), start.astype(np.float32).astype(np.float64), fed


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("outside", "clip"), [(False, False), (True, False), (True, True)])
def test_lars_and_larc_follow_their_papers(nesterov, outside, clip):
    lr, mu, wd, tc, eps = 0.2, 0.9, 0.01, 0.02, 1e-8
    got, p, fed = sequence(
        "lars", "cpu", lr=lr, momentum=mu, weight_decay=wd, trust_coefficient=tc, eps=eps,
        nesterov=nesterov, lr_outside=outside, trust_clip=clip,
    )  # fmt: skip
    m = np.zeros_like(p)
    for g in fed:
        r = tc * np.linalg.norm(p) / (np.linalg.norm(g) + wd * np.linalg.norm(p) + eps)
        r = min(r / lr, 1.0) if clip else r
        d = (r if outside else lr * r) * (g + wd * p)
        m = mu * m + d
        p = p - (lr if outside else 1.0) * (d + mu * m if nesterov else m)
    np.testing.assert_allclose(got, p, **tolerance.SEQUENCE)


@pytest.mark.parametrize("averaging", [True, False])
@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("clip", [True, False])
def test_lamb_follows_its_paper(averaging, correction, clip):
    lr, b1, b2, eps, wd = 0.01, 0.9, 0.99, 1e-6, 0.01
    got, p, fed = sequence(
        "lamb", "cpu", lr=lr, beta1=b1, beta2=b2, eps=eps, weight_decay=wd,
        grad_averaging=averaging, bias_correction=correction, trust_clip=clip,
    )  # fmt: skip
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(fed, 1):
        m = b1 * m + (1 - b1 if averaging else 1.0) * g
        v = b2 * v + (1 - b2) * g * g
        c1, c2 = (1 - b1**t, 1 - b2**t) if correction else (1.0, 1.0)
        u = (m / c1) / (np.sqrt(v / c2) + eps) + wd * p
        r = np.linalg.norm(p) / np.linalg.norm(u)
        p = p - lr * (min(r, 1.0) if clip else r) * u
    np.testing.assert_allclose(got, p, **tolerance.SEQUENCE)


def test_lion_follows_its_paper():
    lr, b1, b2, wd = 1e-3, 0.9, 0.99, 0.1
    got, p, fed = sequence("lion", "cpu", lr=lr, beta1=b1, beta2=b2, weight_decay=wd)
    m = np.zeros_like(p)
    for g in fed:
        p = p * (1 - lr * wd) - lr * np.sign(b1 * m + (1 - b1) * g)
        m = b2 * m + (1 - b2) * g
    np.testing.assert_allclose(got, p, **tolerance.SEQUENCE)


@pytest.mark.parametrize("optimizer", ["lars", "lamb", "lion"])
def test_zero_gradients_and_empty_regions_move_nothing(optimizer, device):
    """All zero: weights, gradients, one-element and empty tensors; nothing becomes NaN."""
    plan = small_plan(optimizer)
    arena = Arena(plan, device=device)
    step = OptimizerStep(arena, lr=0.1, weight_decay=0.0)
    step()
    for series in "WM":
        span = plan.series_range(series)
        assert not arena.read(span, "u4").any()
    empty = MemoryPlan(PlanConfig(optimizer))
    bias = empty.parameter("b", "fc_bias", (3,))
    small = Arena(empty.finalize(), device=device)
    small[bias.gradient] = 1.0
    OptimizerStep(small, lr=0.1)()
    moved = small.download("b")
    assert np.isfinite(moved).all() and (moved < 0).all()


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_a_skipped_step_leaves_ratios_and_rows(optimizer, device):
    plan = small_plan(optimizer, half="fp16")
    arena = Arena(plan, device=device)
    for p in plan.parameters.values():
        arena[p.weight] = 1.0
        arena[p.half_gradient or p.gradient] = np.float16(0.5)
    step = OptimizerStep(arena, lr=0.1, clear_grad=False, scaling=False)
    step()
    arena["fc.weight#G16"] = np.float16(np.inf)
    before = host_bytes(arena)
    step()
    after = host_bytes(arena)
    for series in "WMVNA":
        for half in (False, True):
            if (series == "A") == half:
                span = plan.series_range(series, "all", half)
                np.testing.assert_array_equal(after[span.base_offset : span.end],
                                              before[span.base_offset : span.end])  # fmt: skip
    assert step.status().skipped_steps == 1


def test_ratio_ops_refuse_what_they_cannot_do():
    import re

    from plan import PlanError

    adamw = Arena(small_plan("adamw"), device="cpu")
    with pytest.raises(PlanError, match="the plan for adamw keeps no norms"):
        ops.trust_ratio.bind(adamw, kind="lars")
    with pytest.raises(PlanError, match="grad_norm: got no plan, expected all parameters"):
        ops.grad_norm.bind(np.zeros(64, np.float32), g=(0, 256))
    with pytest.raises(PlanError, match=re.escape("grad_norm: got part='bias'")):
        ops.grad_norm.bind(adamw, part="bias")
    with pytest.raises(ValueError, match="tensor_stats: range g holds .* a whole series"):
        ops.tensor_stats.bind(adamw, adamw.plan.series_range("W", "weight"))
