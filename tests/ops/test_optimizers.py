"""Failures that others met: optimizer numerics and the EMA (S14 to S20, S24)."""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from rangeops import Arena, ops
from tests import tolerance
from tests.ops.steps import block_of, rows_of


def one(optimizer, device="cpu", **options):
    """Return an arena with one weight of four elements, and its parameter."""
    plan = MemoryPlan(PlanConfig(optimizer, **options))
    p = plan.parameter("w", "fc_weight", (4,))
    return Arena(plan.finalize(), device=device), p


def step(arena, name, **options):
    ops.begin_step(arena)
    getattr(ops, name)(arena, **options)
    return float(arena.download("w")[0])


def coefficient(arena, name):
    """Return a coefficient of the first tensor, or of all."""
    return (block_of(arena) | rows_of(arena)["w"])[name]


@pytest.mark.parametrize("half", [None, "fp16", "bf16"])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_s14_zero_gradients_move_nothing(name, half, device):
    arena, _ = one(name, device, half=half)
    start = np.array([1, -2, 0.5, 0], np.float32)
    arena["w"] = start
    for _ in range(3):
        step(arena, name, half_grad=half is not None, half_copy=half is not None)
    np.testing.assert_array_equal(arena.download("w"), start)
    assert arena.scalars.eps == np.float32(1e-8)


@pytest.mark.parametrize("eps", [0.0, 1e-60])
def test_s14_an_eps_that_is_zero_in_float32_is_refused(eps):
    arena, _ = one("adamw")
    with pytest.raises(ValueError, match="eps: got .* expected > 0 in float32"):
        arena.scalars.eps = eps


def test_s15_eps_stands_outside_the_root_after_the_correction(device):
    arena, p = one("adamw", device)
    arena["w"], arena[p.gradient] = 0.0, 1e-8
    got = step(arena, "adamw")
    assert got == pytest.approx(-5.0e-4, rel=tolerance.STEP)
    assert arena.download(p.v)[0] == pytest.approx(1e-19, rel=tolerance.STEP)


@pytest.mark.parametrize("lr", [0.0, 1e-45, 1e-38, 1e-20])
@pytest.mark.parametrize("v", [0.0, 1.0])
@pytest.mark.parametrize("m", [0.0, 0.1])
def test_s16_tiny_learning_rates_give_no_nan(lr, v, m, device):
    arena, p = one("adamw", device)
    arena["w"], arena[p.m], arena[p.v] = 1.0, m, v
    arena[p.gradient] = 0.5
    arena.scalars.lr = lr
    assert step(arena, "adamw") == 1.0
    assert np.isfinite(arena.download(p.m)).all() and arena.download(p.m)[0] != np.float32(m)
    assert arena.download(p.v)[0] != np.float32(v)


def test_s17_the_first_step_is_step_one(device):
    arena, p = one("adamw", device)
    arena["w"], arena[p.gradient] = 1.0, 0.1
    assert step(arena, "adamw") == pytest.approx(0.9990000001, rel=tolerance.STEP)
    assert arena.scalars.step == 1


@pytest.mark.parametrize("start", [2048, 16_777_216, 2**31 - 4])
def test_s17_the_counter_counts_exactly(start, device):
    arena, _ = one("adamw", device)
    arena.scalars.step = start
    ops.begin_step(arena)
    ops.begin_step(arena)
    assert arena.scalars.step == start + 2
    if start > 2**20:
        assert coefficient(arena, "inv_sqrt_bc2") == 1.0


def test_s17_the_correction_at_step_1000():
    arena, _ = one("adamw")
    arena.scalars.step = 999
    ops.begin_step(arena)
    correction = 1 / coefficient(arena, "inv_sqrt_bc2") ** 2
    assert correction == pytest.approx(0.6323, abs=tolerance.FOUR_DIGITS)


@pytest.mark.parametrize(
    ("name", "values", "p0", "g", "want"),
    [
        ("nesterov", {"momentum": 0.9}, 1, 1, [0.81, 0.539, 0.1951]),
        ("momentum", {"momentum": 0.9, "dampening": 0.5}, 1, 1, [0.9, 0.76, 0.584]),
        ("sgd", {"weight_decay": 0.1}, 1, 0, [0.99, 0.9801]),
        ("momentum", {"momentum": 0.9, "weight_decay": 0.1}, 2, 1, [1.88, 1.6532]),
    ],
)
def test_s18_sgd_as_torch_does_it(name, values, p0, g, want, device):
    arena, p = one(name, device)
    arena["w"], arena[p.gradient] = float(p0), float(g)
    arena.scalars.set(lr=0.1, **values)
    assert [step(arena, name) for _ in want] == pytest.approx(want, rel=tolerance.STEP)


def test_s19_no_contraction_and_no_flush_to_zero(device):
    # p - lr*(g + wd*p) with lr*(..) = (1+2**-12)**2 and p = 1+2**-11: 0 without FMA.
    arena, p = one("sgd", device)
    a = 1 + 2.0**-12
    arena["w"], arena[p.gradient] = 1 + 2.0**-11, a
    arena.scalars.lr = a
    assert step(arena, "sgd") == 0.0
    # 1.1754944e-38 * 0.5 is subnormal and stays so.
    arena["w"], arena[p.gradient] = 0.0, 1.1754944e-38
    arena.scalars.lr = 0.5
    step(arena, "sgd")
    assert arena.download("w").view(np.uint32)[0] == 0x80400000
    # A scale of 2**127 has a subnormal inverse.
    arena["w"], arena[p.gradient] = 0.0, 2.0**127
    arena.scalars.set(lr=1.0, loss_scale=2.0**127)
    assert step(arena, "sgd") == -1.0


def test_s20_decay_reaches_weights_only_and_frozen_tensors_keep_every_bit(device):
    kinds = {"weight": "fc_weight", "bias": "fc_bias", "scale": "bn_weight",
             "frozen": "fc_weight", "unused": "deep_conv"}  # fmt: skip
    for name in ("adamw", "momentum"):
        plan = MemoryPlan(PlanConfig(name, ema=True))
        for key, kind in kinds.items():
            plan.parameter(key, kind, (3,))
        arena = Arena(plan.finalize(), device=device)
        for key in kinds:
            arena[key] = 1.0
            arena[plan.parameters[key].m] = 1.0 if name == "momentum" else 0.0
        arena.scalars.set(lr=0.1, weight_decay=0.1, momentum=0.0, ema_decay=0.75, step=1)
        arena.groups.freeze("frozen")
        arena.groups.rest(["unused"])
        ops.begin_step(arena, decoupled=True)
        getattr(ops, name)(arena, ema=True)
        got = {key: float(arena.download(key)[0]) for key in kinds}
        assert got == pytest.approx(
            {"weight": 0.99, "bias": 1.0, "scale": 1.0, "frozen": 1.0, "unused": 1.0},
            rel=tolerance.STORED,
        )
        for key in ("frozen", "unused"):
            q = plan.parameters[key]
            assert got[key] == 1.0
            assert (arena.download(q.m) == (1.0 if name == "momentum" else 0.0)).all()
            assert (arena.download(q.ema) == 0.25).all()


@pytest.mark.parametrize(
    ("t", "decay"),
    [(0, 0.1), (1, 0.181818), (10, 0.55), (100, 0.918182), (1000, 0.991089), (100_000, 0.9999)],
)
def test_s24_ema_warm_up_is_never_stored(t, decay, device):
    arena, _ = one("adamw", device, ema=True)
    arena.scalars.set(ema_decay=0.9999, step=t)
    ops.begin_step(arena, ema_warmup=True)
    warmed = 1 - coefficient(arena, "one_minus_ema_decay")
    assert warmed == pytest.approx(decay, abs=tolerance.SIX_DIGITS)
    assert arena.scalars.ema_decay == pytest.approx(0.9999, rel=tolerance.STORED)


def test_s24_the_warm_up_never_falls():
    arena, _ = one("adamw", ema=True)
    arena.scalars.ema_decay = 0.999
    last = 0.0
    for _ in range(40):
        ops.begin_step(arena, ema_warmup=True)
        decay = 1 - coefficient(arena, "one_minus_ema_decay")
        assert decay > last
        last = decay


def test_s24_switching_to_ema_and_back_restores_every_bit(device, rng):
    arena, p = one("adamw", device, half="fp16", ema=True)
    live, averaged = rng.standard_normal((2, 4)).astype(np.float32)
    arena["w"], arena[p.ema] = live, averaged
    ops.cast_fp32_to_fp16(arena)
    ops.sema_switch(arena, swap=True, half_copy=True)
    np.testing.assert_array_equal(arena.download("w"), averaged)
    np.testing.assert_array_equal(arena.download(p.half_copy), averaged.astype(np.float16))
    ops.sema_switch(arena, swap=True, half_copy=True)
    np.testing.assert_array_equal(arena.download("w"), live)
    np.testing.assert_array_equal(arena.download(p.ema), averaged)
    np.testing.assert_array_equal(arena.download(p.half_copy), live.astype(np.float16))
    ops.sema_switch(arena)
    np.testing.assert_array_equal(arena.download("w"), averaged)
