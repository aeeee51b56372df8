"""Bad input: subject, got, expected and remedy in one sentence, and no byte changed."""

# ruff: noqa: E501

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig, PlanError, Range, Region
from rangeops import Arena, ops, range_op
from rangeops.device.streams import handle_of
from tests.helpers import host_bytes, raw_arena, small_plan

R = Range


def four(size=1024, **changed):
    """Return p, g, m, v of adamw on a raw buffer, some of them replaced, and lr."""
    spans = {k: R(2048 * i, size) for i, k in enumerate("pgmv")}
    return {**spans, "lr": 1e-3, **changed}


RAW = [
    ("base not on 16 bytes", four(p=R(8, 1024)), ValueError,
     r"adamw: range p starts at byte 8, address \d+, expected a multiple of 16; start"),
    ("size not whole elements", four(p=R(0, 1022)), ValueError,
     r"adamw: range p got 1022 bytes, expected a multiple of 4, the element size; give whole"),
    ("past the arena", four(v=R(16384 - 512, 1024)), ValueError,
     r"adamw: range v got bytes 15872 .. 16896, the arena has 16384 bytes; give a range inside"),
    ("negative offset", four(v=R(-16, 1024)), ValueError,
     r"adamw: range v got bytes -16 .. 1008, the arena has 16384 bytes"),
    ("overlap", four(m=R(512, 1024)), ValueError,
     r"adamw: ranges p and m share 512 bytes, expected none; give ranges apart"),
    ("lengths differ", four(m=R(4096, 1000)), ValueError,
     r"adamw: range m holds 250 elements, p holds 256; give both the same regions"),
    ("range missing", {k: v for k, v in four().items() if k != "v"}, TypeError,
     r"adamw: range v is missing; give v=Range\(offset, size\)"),
    ("no lr", {k: v for k, v in four().items() if k != "lr"}, TypeError,
     r"adamw: got no lr for a buffer without a plan, expected lr="),
    ("lr negative", four(lr=-1e-3), ValueError, r"lr: got -0.001, expected >= 0; for ascent"),
    ("lr nan", four(lr=float("nan")), ValueError, r"lr: got nan, expected a finite number; check"),
    ("lr inf", four(lr=float("inf")), ValueError, r"lr: got inf, expected a finite number"),
    ("lr above float32", four(lr=1e39), ValueError, r"lr: got 1e\+39, expected at most 3.4e38"),
    ("eps zero", four(eps=0.0), ValueError, r"eps: got 0.0, expected > 0 in float32; give at"),
    ("beta one", four(beta1=1.0), ValueError, r"beta1: got 1.0, expected 0 <= beta1 < 1; give"),
    ("decay of EMA", four(ema_decay=1.5), ValueError, r"ema_decay: got 1.5, expected 0 <= ema"),
    ("step zero", four(step=0), ValueError, r"adamw: step got 0, expected 1 .. 2\*\*31-1; count"),
    ("unknown name", four(learning_rate=1), TypeError,
     r"adamw: got unknown learning_rate, expected p, g, h, m, v, e, a,"),
    ("bad flag", four(ema="yes"), ValueError, r"adamw: ema got 'yes', expected one of False, True"),
    ("bad decay", four(decay="l2"), ValueError, r"adamw: decay got 'l2', expected one of 'decou"),
    ("bad half", four(a=R(10240, 512), half="fp8"), ValueError,
     r"adamw: half got 'fp8', expected 'fp16' or 'bf16'"),
    ("bad part", four(part="biases"), ValueError,
     r"adamw: part got 'biases', expected 'all', 'bias' or 'weight'"),
    ("no range", four(p=7), TypeError, r"adamw: range p got 7, expected Range\(base_offset, size"),
    ("fraction", four(p=R(0.5, 1024)), TypeError, r"adamw: range p got .*, expected Range"),
    ("region without plan", four(p=Region.W_FC_WEIGHT), PlanError,
     r"adamw: range p got a region, the arena has no plan; give bytes"),
    ("halves of another length", four(h=R(10240, 300), half="fp16"), ValueError,
     r"adamw: range h holds 150 elements, p holds 256; give both the same regions"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error", "message"), [c[1:] for c in RAW], ids=[c[0] for c in RAW]
)
def test_raw_refusals_change_nothing(arguments, error, message):
    arena = raw_arena(16384, "cpu", 0x3C)
    with pytest.raises(error, match=message):
        ops.adamw(arena, **arguments)
    assert (host_bytes(arena) == 0x3C).all()


def test_copy_refuses_overlap_and_itself():
    arena = raw_arena(4096, "cpu", 0x3C)
    for src in (R(0, 512), R(256, 512)):
        with pytest.raises(ValueError, match="copy: ranges dst and src share .* bytes"):
            ops.copy(arena, R(0, 512), src)
    with pytest.raises(ValueError, match="range src holds 256 elements, dst holds 512"):
        ops.copy(arena, R(0, 512), R(512, 256))
    assert (host_bytes(arena) == 0x3C).all()


def test_too_many_ranges_and_ranges_twice():
    arena = raw_arena(4096, "cpu")
    with pytest.raises(TypeError, match="clear: got 2 ranges, expected at most 1"):
        ops.clear(arena, R(0, 16), R(16, 16))
    with pytest.raises(TypeError, match="clear: range dst got two values, expected one"):
        ops.clear(arena, R(0, 16), dst=R(16, 16))


# fmt: off
PLANNED = [
    (ops.ema, {}, PlanError, r"ema: range e is region E_FC_WEIGHT, which the plan disables; .*ema=T"),
    (ops.momentum, {"half_copy": True}, PlanError,
     r"momentum: range a is region A_FC_WEIGHT, which the plan disables; expected half='fp16'"),
    (ops.momentum, {"ema": True}, PlanError, r"momentum: range e is region E_FC_WEIGHT"),
    (ops.adamw, {}, PlanError, r"adamw: range v \(series V\) is empty in a plan for momentum; plan"),
    (ops.momentum, {"set": 1}, TypeError, r"momentum: got unknown set"),
    (ops.check_nan, {"half_grad": True}, PlanError, r"check_nan: range h is region G_FC_WEIGHT_FP16"),
    (ops.clear, {}, TypeError, r"clear: range dst is missing; give dst=Range"),
    (ops.cast_fp32_to_fp16, {}, PlanError, r"cast_fp32_to_fp16: range dst is region A_FC_WEIGHT"),
    (ops.clear, {"dst": "nothing"}, KeyError, r"no tensor is named 'nothing'"),
    (ops.clear, {"dst": (Region.G_DEEP_CONV, Region.G_BN_BIAS)}, PlanError, r"address order; swap"),
    (ops.sgd, {"half": "bf16", "half_copy": True}, PlanError, r"sgd: range a is region A_FC"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "arguments", "error", "message"), PLANNED)
def test_planned_refusals_change_nothing(op, arguments, error, message):
    arena = Arena(small_plan("momentum"), device="cpu")
    before = host_bytes(arena)
    with pytest.raises(error, match=message):
        op(arena, **arguments)
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_a_range_of_another_dtype_is_refused():
    arena = Arena(small_plan("momentum", half="fp16"), device="cpu")
    before = host_bytes(arena)
    for given, name, dtype in (
        ("scalar.step", "scalar.step", "int32"),
        (Region.A_FC_WEIGHT, "A_FC_WEIGHT", "half"),
        ((Region.G_FC_WEIGHT_FP16, Region.G_DEEP_CONV_FP16), "G_FC_WEIGHT_FP16", "half"),
    ):
        with pytest.raises(
            ValueError,
            match=f"range p got {name}, which holds {dtype}, expected fp32; give a range",
        ):
            ops.momentum(arena, p=given)
    with pytest.raises(
        ValueError, match="range a got W_FC_WEIGHT, which holds fp32, expected half"
    ):
        ops.momentum(arena, a=Region.W_FC_WEIGHT, half_grad=True)
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_half_of_another_kind_than_the_plan():
    arena = Arena(small_plan(half="bf16"), device="cpu")
    with pytest.raises(ValueError, match="half got 'fp16', the plan's halves are bf16; leave"):
        ops.adamw(arena, half_copy=True, half="fp16")
    with pytest.raises(ValueError, match="part='bias' got half ranges, expected none"):
        ops.adamw(arena, half_copy=True, part="bias")
    with pytest.raises(TypeError, match="ema: got half='fp16', expected none; it moves no halves"):
        ops.ema(arena, half="fp16")


def test_arenas():
    plan = MemoryPlan()
    with pytest.raises(PlanError, match=r"not finalized, call plan.finalize\(\) first"):
        Arena(plan)
    plan.parameter("w", "fc_weight", (9,))
    plan.finalize()
    with pytest.raises(PlanError, match=f"holds 64 bytes, the plan needs {plan.total_bytes}; give"):
        Arena(plan, buffer=np.zeros(64, np.uint8))
    with pytest.raises(ValueError, match="device got 'tpu', expected 'cuda', 'cuda:N' or 'cpu'"):
        Arena(plan, device="tpu")
    with pytest.raises(TypeError, match="Arena.wrap: got list, expected a NumPy or CuPy array"):
        Arena.wrap([1, 2])
    with pytest.raises(ValueError, match="got strides .* expected contiguous memory; wrap a cont"):
        Arena.wrap(np.zeros((4, 4))[:, ::2])
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only array, expected one that ops may write"):
        Arena.wrap(frozen)
    raw = raw_arena(64, "cpu")
    with pytest.raises(PlanError, match="wraps a buffer and has no plan; give hyper-parameters"):
        raw.scalars  # noqa: B018
    with pytest.raises(PlanError, match="wraps a buffer, it has no tensors"):
        raw["w"]


def test_scalars_refuse_and_write_nothing():
    arena = Arena(small_plan(), device="cpu")
    before = host_bytes(arena)
    for values, error, message in (
        ({"lr": 1.0, "eps": -1.0}, ValueError, "eps: got -1.0, expected >= 0"),
        ({"lr": 1.0, "rubbish": 1}, TypeError, "scalars: got 'rubbish', expected one of"),
        ({"batch_size": 0}, ValueError, "batch_size: got 0, expected a whole number >= 1"),
        ({"growth_interval": 2.5}, ValueError, "growth_interval: got 2.5, expected a whole"),
        ({"loss_scale": 0.0}, ValueError, "loss_scale: got 0.0, expected > 0 in float32"),
    ):
        with pytest.raises(error, match=message):
            arena.scalars.set(**values)
    with pytest.raises(TypeError, match="scalars: got 'lrate'"):
        arena.scalars.lrate = 1.0
    with pytest.raises(AttributeError, match="no scalar is named 'lrate'"):
        arena.scalars.lrate  # noqa: B018
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_set_on_a_planned_launch_says_where_to_write():
    arena = Arena(small_plan(), device="cpu")
    with pytest.raises(
        TypeError, match=r"adamw: set\(\) got a launch of a planned arena, expected"
    ):
        ops.adamw.bind(arena).set(lr=0.5)


def test_a_state_of_another_device_is_refused():
    one, two = raw_arena(8192, "cpu"), raw_arena(8192, "cuda")
    check = ops.check_nan.bind(two, g=R(0, 512))
    with pytest.raises(
        ValueError, match="adamw: state got .*, expected the state of a launch on cpu"
    ):
        ops.adamw.bind(one, **four(), state=check.state)


def test_an_unknown_stream_type_is_refused():
    with pytest.raises(
        TypeError, match="stream: got str, expected a CuPy, torch, numba or cuda.core"
    ):
        handle_of("stream")
    assert handle_of(7) == 7


def test_ops_are_declared_once():
    with pytest.raises(ValueError, match="got name 'sgd' twice, expected a new one"):
        range_op("sgd")


def test_a_plan_without_parameters_has_no_coefficients():
    arena = Arena(MemoryPlan(PlanConfig("none")).finalize(), device="cpu")
    with pytest.raises(
        PlanError, match="begin_step: the plan has no parameters, expected at least"
    ):
        ops.begin_step(arena)


@pytest.mark.gpu
def test_a_wrong_device_is_refused():
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        with pytest.raises(ValueError, match="device got 'cuda:1', the driver offers 1; give"):
            Arena(small_plan(), device="cuda:1")
        return
    arena = Arena(small_plan(), device="cuda:1")
    with pytest.raises(ValueError, match="the arena lies on cuda:1, the current device is cuda:0"):
        ops.adamw.bind(arena)
