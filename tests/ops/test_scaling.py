"""Failures that others met: the scaler and the finite check (S06 to S12)."""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig, Range
from rangeops import Arena, OptimizerStep, ops
from rangeops.kernels.half import to_half
from tests.device.gate import Gate
from tests.helpers import host_bytes, put, raw_arena, small_plan
from tests.ops.steps import rows_of


def scaler(device="cpu", **values):
    arena = Arena(small_plan(), device=device)
    arena.scalars.set(**values)
    return arena, ops.grad_scaling.bind(arena)


def test_s06_the_scale_stays_at_its_largest_finite_value(device):
    arena, update = scaler(device, loss_scale=2.0**127, growth_interval=1)
    update()
    assert arena.scalars.loss_scale == 1.7014118346046923e38
    assert arena.scalars.growth_tracker == 0


def test_s06_doubling_from_65536_meets_the_cap_after_111_steps():
    arena, update = scaler(loss_scale=65536.0, growth_interval=1)
    scales = []
    for _ in range(150):
        update()
        scales.append(arena.scalars.loss_scale)
    assert scales[109] == 2.0**126 and scales[110:] == [2.0**127] * 40


def test_s07_the_scale_never_reaches_zero():
    arena, update = scaler(loss_scale=65536.0)
    arena.scalars.skip_step = 1
    for _ in range(200):
        update()
    assert arena.scalars.loss_scale == 1.0
    assert arena.scalars.floor_hits == 200 - 15
    arena.scalars.set(min_loss_scale=2.0**-126)
    for _ in range(200):
        update()
    assert arena.scalars.loss_scale == 2.0**-126
    assert np.isfinite(np.float32(1) / np.float32(arena.scalars.loss_scale))


def test_the_scale_grows_at_the_interval_and_backs_off_with_hysteresis(device):
    arena, update = scaler(device, loss_scale=4.0, growth_interval=3, hysteresis=2)
    arena.scalars.hysteresis_tracker = 2
    for _ in range(3):
        update()
    assert (arena.scalars.loss_scale, arena.scalars.growth_tracker) == (8.0, 0)
    arena.scalars.skip_step = 1
    update()
    assert arena.scalars.loss_scale == 8.0
    update()
    assert arena.scalars.loss_scale == 4.0


def test_the_rule_of_the_origin_is_a_setting():
    arena, update = scaler(loss_scale=8.0, growth_factor=1.0, growth_interval=1)
    update()
    assert arena.scalars.loss_scale == 8.0
    arena.scalars.skip_step = 1
    for want in (4.0, 2.0, 1.0, 1.0):
        update()
        assert arena.scalars.loss_scale == want


def test_s09_small_half_gradients_survive_the_unscaling(device):
    plan = MemoryPlan(PlanConfig("sgd", half="fp16"))
    p = plan.parameter("w", "fc_weight", (4,))
    arena = Arena(plan.finalize(), device=device)
    put(arena, p.half_gradient.offset, np.full(4, 0x1400, np.uint16))
    arena.scalars.set(lr=1.0, loss_scale=65536.0)
    ops.begin_step(arena)
    ops.sgd(arena, half_grad=True)
    np.testing.assert_array_equal(arena.download("w"), np.full(4, -(2.0**-26), np.float32))
    arena.scalars.loss_scale = 2.0**25
    ops.begin_step(arena)
    assert rows_of(arena)["w"]["grad"] == 2.0**-25


HALF_BAD = (0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF)
HALF_GOOD = (0x7BFF, 0xFBFF, 0x0001, 0x8000)


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ([3e38] * 4, 0),
        ([np.inf, -np.inf], 1),
        ([np.nan], 1),
        ([-np.inf], 1),
        ([], 0),
    ],
)
def test_s10_s11_fp32_patterns(values, flag, device):
    arena = raw_arena(4096, device)
    data = np.array(values, np.float32)
    put(arena, 256, data)
    check = ops.check_nan.bind(arena, g=Range(256, data.nbytes))
    before = host_bytes(arena)
    check()
    assert check.scalars.found_inf == flag
    np.testing.assert_array_equal(host_bytes(arena), before)


@pytest.mark.parametrize("place", [0, 500, 999])
@pytest.mark.parametrize("bits", HALF_BAD + HALF_GOOD)
def test_s10_s11_fp16_patterns(bits, place, device):
    arena = raw_arena(8192, device)
    data = np.full(1000, 0x7BFF, np.uint16)
    data[place] = bits
    put(arena, 4096, data)
    check = ops.check_nan.bind(arena, g=Range(0, 4000), h=Range(4096, 2000), half="fp16")
    check()
    assert check.scalars.found_inf == int(bits in HALF_BAD)


def test_the_first_nonfinite_tensor_is_named(device):
    plan = small_plan("sgd", half="fp16")
    arena = Arena(plan, device=device)
    check, begin = ops.check_nan.bind(arena, half_grad=True), ops.begin_step.bind(arena)
    assert arena.nonfinite_tensor() is None
    for name in ("conv2.weight", "conv1.weight"):
        tensor = plan.parameters[name].half_gradient
        put(arena, tensor.offset + 2 * (tensor.numel - 1), np.array([0xFC00], np.uint16))
    check()
    assert arena.nonfinite_tensor() == "conv1.weight"
    put(arena, plan.parameters["norm.weight"].gradient.offset, np.array([np.nan], np.float32))
    check()
    begin()
    assert arena.nonfinite_tensor() == "norm.weight"
    assert arena.scalars.skip_step == 1


def test_clip_by_value_works_on_scaled_gradients_after_the_flag(device):
    plan = small_plan("sgd")
    arena = Arena(plan, device=device)
    values = np.array([-3e4, 5.0, np.inf, 2e4, -np.inf], np.float32)
    arena["norm.bias#G"] = values
    arena.scalars.set(clip_value=2.0, loss_scale=1024.0)
    ops.check_nan(arena, clip=True)
    np.testing.assert_array_equal(
        arena.download("norm.bias#G"), np.array([-2048, 5, 2048, 2048, -2048], np.float32)
    )
    assert arena.scalars.found_inf == 1


@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "adamw"])
def test_s12_an_overflow_leaves_every_bit_and_the_next_step_counts(name, device):
    plan = small_plan(name)
    arena = Arena(plan, device=device)
    assert arena.scalars.found_inf == 0, "first use"
    for series in "WGMV":
        span = plan.series_range(series)
        if span.size:
            for t in plan:
                if t.region.series == series:
                    arena[t] = 0.5
    arena["fc.weight#G"] = np.full((3, 100), 0.25, np.float32)
    bad = arena.download("fc.weight#G")
    bad[1, 7] = np.inf
    arena["fc.weight#G"] = bad
    check, begin, update = (
        op.bind(arena) for op in (ops.check_nan, ops.begin_step, getattr(ops, name))
    )
    before = {s: arena.read(plan.series_range(s)) for s in "WMV" if plan.series_range(s).size}
    check(), begin(), update()
    for series, bytes_before in before.items():
        np.testing.assert_array_equal(arena.read(plan.series_range(series)), bytes_before)
    assert (arena.scalars.step, arena.scalars.skipped_steps, arena.scalars.skip_step) == (0, 1, 1)
    arena["fc.weight#G"] = np.full((3, 100), 0.25, np.float32)
    check(), begin(), update()
    assert (arena.scalars.step, arena.scalars.skipped_steps, arena.scalars.skip_step) == (1, 1, 0)
    assert (arena.download("fc.weight") != 0.5).all()


def test_s08_a_second_unscale_and_the_step_divide_by_nothing_more(device):
    plan = small_plan("sgd")
    arena = Arena(plan, device=device)
    step = OptimizerStep(arena, lr=1.0, loss_scale=1024.0, clear_grad=False)
    gradient = plan.parameters["one.weight"].gradient
    for _ in range(2):  # a new iteration clears the state
        arena["one.weight"], arena[gradient] = 10.0, 2048.0
        ops.unscale(arena)
        assert arena.download(gradient)[0] == 2.0
        ops.unscale(arena)
        assert arena.download(gradient)[0] == 2.0
        step()
        assert arena.download("one.weight")[0] == 8.0
    arena["one.weight"], arena[gradient] = 10.0, 2048.0
    step()
    assert arena.download("one.weight")[0] == 8.0


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_gradients_of_micro_batches_are_unscaled_once(half, device):
    """Three micro-batches of half gradients, one of them below what a half sum would keep."""
    plan = small_plan("sgd", half=half, accumulate=True)
    arena = Arena(plan, device=device)
    step = OptimizerStep(arena, lr=1.0, loss_scale=256.0, accumulate=True, scaling=False)
    p = plan.parameters["fc.weight"]
    arena[p.weight] = 0.0
    for value in (256.0, 512.0, 2.0**-6):
        bits = np.full(p.weight.numel, value, np.float32)
        put(arena, p.half_gradient.offset, to_half(bits, half))
        step.accumulate()
        assert not arena.download(p.half_gradient).any()
    step()
    want = -(np.float32(768.0 + 2.0**-6) / np.float32(256))
    np.testing.assert_array_equal(arena.download(p.weight), np.full(p.weight.shape, want, "f4"))
    assert not arena.download(p.gradient).any()


def test_the_status_is_read_without_stopping(device):
    arena = Arena(small_plan("sgd", half="fp16"), device=device)
    step = OptimizerStep(arena, loss_scale=1024.0, growth_interval=2)
    seen = []
    for k in range(6):
        if k == 3:
            arena["fc.weight#G16"] = np.float16(np.nan)
        step()
        status = step.status()
        seen.append((status.step, status.skip_step, status.skipped_steps, status.loss_scale))
    assert seen == [
        (1, 0, 0, 1024.0), (2, 0, 0, 2048.0), (3, 0, 0, 2048.0),
        (3, 1, 1, 1024.0), (4, 0, 1, 1024.0), (5, 0, 1, 2048.0),
    ]  # fmt: skip
    assert status.latest() == status.read()


@pytest.mark.gpu
def test_the_status_never_waits_for_the_work_behind_it():
    import cupy

    arena = Arena(small_plan("sgd", half="fp16"))
    step = OptimizerStep(arena, loss_scale=8.0)
    step()
    assert step.status().step == 1
    stream = cupy.cuda.Stream(non_blocking=True)
    gate = Gate(stream)
    with stream:
        step()
        status = step.status()
        first = status.latest()
        assert first.step == 1 and not stream.done
        gate.open()
        assert status.step == 2
    for _ in range(9):  # more snapshots than slots
        status = step.status()
    assert status.step == 2
