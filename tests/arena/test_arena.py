"""The arena: foreign memory, views, scalars, initial values."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from plan import DType, MemoryPlan, PlanConfig, PlanError, Range
from rangeops import Arena, ops
from rangeops.arena import Status, fields
from tests.helpers import get, host_bytes, put, small_plan


def spans(n):
    return {key: Range(4 * n * k, 4 * n) for k, key in enumerate("pgmv")}


def aligned(count):
    raw = np.zeros(count + 64, np.float32)
    start = -raw.ctypes.data % 256 // 4
    return raw[start : start + count]


def reference():
    data = aligned(4 * 300)
    data[:600] = 1.0
    ops.adamw(Arena.wrap(data), **spans(300), lr=0.5, step=3, weight_decay=0.25)
    return data


class Exporter:
    """An object that offers its memory by DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("kind", ["numpy", "2-d", "dlpack", "torch"])
def test_raw_use_of_anybodys_host_memory(kind):
    data = aligned(4 * 300)
    data[:600] = 1.0
    buffer = {"numpy": data, "2-d": data.reshape(4, 300), "dlpack": Exporter(data)}.get(kind)
    if kind == "torch":
        buffer = pytest.importorskip("torch", reason="torch is not installed").from_numpy(data)
    ops.adamw(buffer, **spans(300), lr=0.5, step=3, weight_decay=0.25)
    np.testing.assert_array_equal(data, reference())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_raw_use_of_anybodys_gpu_memory(kind):
    import cupy

    data = cupy.zeros(4 * 300, cupy.float32)
    data[:600] = 1.0
    buffer = data
    if kind == "torch":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        buffer = torch.from_dlpack(data)
    cupy.cuda.Device().synchronize()
    ops.adamw(buffer, **spans(300), lr=0.5, step=3, weight_decay=0.25)
    cupy.cuda.Device().synchronize()
    np.testing.assert_array_equal(data.get(), reference())


def test_the_second_raw_call_takes_other_hyper_parameters():
    data = aligned(512)
    data[256:] = 1.0
    where = {"p": Range(0, 1024), "g": Range(1024, 1024)}
    for lr in (0.5, 0.25):
        ops.sgd(data, **where, lr=lr)
    assert (data[:256] == -0.75).all()
    launch = ops.sgd.bind(data, **where, lr=1.0)
    launch.set(lr=2.0)
    launch()
    assert (data[:256] == -2.75).all()


def test_launches_may_share_a_state():
    data = aligned(512)
    data[256:] = np.nan
    check = ops.check_nan.bind(data, g=Range(1024, 1024))
    sgd = ops.sgd.bind(data, p=Range(0, 1024), g=Range(1024, 1024), state=check.state)
    check.scalars.lr = 1.0
    check()
    sgd()
    assert check.scalars.found_inf == 1 and not data[:256].any()


def test_an_arena_over_a_buffer_of_the_callers(device):
    plan = small_plan()
    memory = aligned(plan.total_bytes // 4 + 64)
    memory[:] = 7.0
    arena = Arena(plan, device="simulator" if device == "cuda" else None, buffer=memory)
    assert arena.ptr == memory.ctypes.data
    assert not memory[: plan.range(6).size // 4].any()
    assert (memory[plan.total_bytes // 4 :] == 7.0).all()
    arena["fc.bias"] = 3.0
    offset = plan.tensors["fc.bias"].offset // 4
    assert (memory[offset : offset + 128] == 3.0).all()
    assert arena.ptr_at(256) == arena.ptr + 256


def test_views_have_the_logical_shape_and_skip_channel_padding(device):
    plan = MemoryPlan(PlanConfig("none", half="fp16"))
    _, data, _, _ = plan.alloc_inputs((2,), (2, 2, 2, 3), DType.FP16)
    arena = Arena(plan.finalize(), device=device)
    arena[data] = np.arange(24, dtype=np.float16).reshape(2, 2, 2, 3)
    assert arena[data].shape == (2, 2, 2, 3)
    flat = arena.read(Range(data.offset, data.nbytes), "f2").reshape(-1, 4)
    np.testing.assert_array_equal(flat[:, :3].ravel(), np.arange(24))
    assert not flat[:, 3].any()
    np.testing.assert_array_equal(arena.download(data).ravel(), np.arange(24))


def test_initial_values(device):
    plan = MemoryPlan(PlanConfig("sgd", ema=True))
    plan.parameter("scale", "bn_weight", (3,))
    plan.parameter("shift", "bn_bias", (3,))
    plan.alloc_bn_stats(3, "bn")
    arena = Arena(plan.finalize(), device=device)
    assert not arena.download("scale").any()
    arena.initialize()
    ones = {t.name for t in plan if t.numel == 3 and (arena.download(t) == 1).all()}
    assert ones == {"scale", "scale#E", "bn.prev_var", "bn.next_var"}
    pad = host_bytes(arena)[plan.tensors["scale"].offset + 12 :][:500]
    assert not pad.any()


def test_scalars_are_read_back_and_complements_come_from_python_floats(device):
    arena = Arena(small_plan(), device=device)
    arena.scalars.set(beta1=0.9, ema_decay=0.9999, dampening=0.25, step=41)
    assert arena.scalars.one_minus_beta1 == float(np.float32(1 - 0.9))
    assert arena.scalars.one_minus_ema_decay == float(np.float32(1 - 0.9999))
    assert arena.scalars.one_minus_dampening == 0.75
    assert arena.scalars.step == 41
    arena.scalars.loss_scale = 8.0
    assert arena.scalars.grad_scale == 8.0


def test_one_upload_for_several_scalars_spares_those_of_the_device(monkeypatch):
    arena = Arena(small_plan(), device="cpu")
    arena.scalars.loss_scale = 64.0
    arena.memory[arena.plan.tensors["scalar.loss_scale"].offset :][:4].view("f4")[0] = 32.0
    writes = []
    monkeypatch.setattr(
        arena, "write", lambda o, v, plain=arena.write: (writes.append(o), plain(o, v))
    )
    arena.scalars.set(lr=0.5, eps=1e-6, momentum=0.5, bn_eps=1e-3)
    assert len(writes) == 1
    assert arena.scalars.loss_scale == 32.0


def test_a_raw_ema_has_its_default_decay():
    data = aligned(512)
    data[256:] = 1.0
    ops.ema(data, e=Range(0, 1024), p=Range(1024, 1024))
    assert (data[:256] == np.float32(1 - 0.9999)).all()


def test_convenience_calls_keep_no_arena_alive():
    import gc
    import weakref

    arena = Arena(small_plan(), device="cpu")
    ops.begin_step(arena)
    ops.adamw(arena)
    gone = weakref.ref(arena)
    del arena
    gc.collect()
    assert gone() is None


def test_convenience_calls_keep_few_foreign_buffers():
    from rangeops.launch import launch

    for _ in range(launch.FOREIGN_BINDINGS + 8):
        ops.clear(aligned(64), Range(0, 256))
    assert len(launch._foreign) <= launch.FOREIGN_BINDINGS


def test_what_others_keep_with_an_arena_is_made_once_and_goes_with_it():
    import gc
    import weakref

    arena, made = Arena(small_plan(), device="cpu"), []

    class Kept:
        def __init__(self):
            made.append(weakref.ref(self))

    assert arena.keep("ring", Kept) is arena.keep("ring", Kept)
    assert arena.keep(("ring", 2), Kept) is not arena.keep("ring", Kept)
    assert len(made) == 2
    del arena
    gc.collect()
    assert [kept() for kept in made] == [None, None]


def test_who_needs_a_plan_says_so():
    arena = Arena.wrap(aligned(64))
    for call, name in [
        (lambda: Status(arena), "status"),
        (arena.initialize, "arena.initialize"),
        (arena.nonfinite_tensor, "arena.nonfinite_tensor"),
        (lambda: arena.planned("mine", "do so"), "mine"),
    ]:
        with pytest.raises(PlanError, match=f"{name}: got an arena without a plan, expected Arena"):
            call()
    planned = Arena(small_plan(), device="cpu")
    assert planned.planned("mine") is planned.plan


def test_bytes_outside_the_arena_are_refused(device):
    arena = Arena(small_plan(), device=device)
    before = host_bytes(arena)
    for offset in (-4, arena.nbytes - 4, arena.nbytes):
        with pytest.raises(PlanError, match=f"write got bytes {offset} .. {offset + 8}, expected"):
            arena.write(offset, np.ones(2, np.float32))
        with pytest.raises(PlanError, match="read got bytes .* give a range of this arena"):
            arena.read(Range(offset, 8))
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_views_and_reads_are_of_whole_elements_inside_the_arena(device):
    arena = Arena(small_plan(), device=device)
    for span in (Range(-16, 8), Range(arena.nbytes - 8, 16), Range(arena.nbytes, 16), Range(8, -8)):
        for use, name in ((arena.view, "view"), (arena.read, "read")):
            with pytest.raises(PlanError, match=f"arena: {name} got bytes {span.base_offset} .. "):
                use(span)
    for use, name in ((arena.view, "view"), (arena.read, "read")):
        with pytest.raises(
            PlanError, match=f"arena: {name} got 10 bytes as f4, expected a multiple of 4; give who"
        ):
            use(Range(0, 10), "f4")
    assert arena.view(Range(arena.nbytes, 0)).size == 0
    assert arena.view(Range(arena.nbytes - 16, 16), "f4").size == 4
    with pytest.raises(PlanError, match="write got bytes -32 .. -28, expected them inside 0 .. "):
        arena.write(-32, np.ones(1, np.float32))


def strangers():
    """Return descriptors that are none of ``small_plan()``: by place, name, type, and too early."""
    other = MemoryPlan(PlanConfig("sgd"))
    moved = other.parameter("fc.weight", "fc_weight", (5, 5)).weight
    unknown = other.alloc_temp((3,), DType.FP32, "mine")
    elsewhere = other.alloc_temp((3, 100), DType.FP32, "fc.bias")
    other.finalize()
    early = MemoryPlan(PlanConfig("adamw")).parameter("fc.weight", "fc_weight", (3, 100)).weight
    return {"moved": moved, "unknown": unknown, "elsewhere": elsewhere, "early": early}


@pytest.mark.parametrize("kind", strangers())
def test_a_descriptor_of_another_plan_is_refused_by_name(kind, device):
    arena, tensor = Arena(small_plan(), device=device), strangers()[kind]
    before = host_bytes(arena)

    def write():
        arena[tensor] = 9.0

    for use in (write, lambda: arena[tensor], lambda: arena.tensor(tensor),
                lambda: arena.download(tensor)):  # fmt: skip
        with pytest.raises(
            PlanError,
            match=rf"arena\['{tensor.name}'\]: got <DTensor {tensor.name}: .* of another plan, ex",
        ):
            use()
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_a_descriptor_of_an_equal_plan_is_one_of_the_plan(device):
    arena = Arena(small_plan(half="fp16"), device=device)
    tensor = small_plan(half="fp16").parameters["fc.weight"].weight
    arena[tensor] = 2.0
    assert (arena.download("fc.weight") == 2.0).all() and arena.tensor(tensor) is tensor
    half = small_plan(half="bf16").parameters["fc.weight"].half_copy
    with pytest.raises(
        PlanError, match="of another plan, expected one of this plan, which has <DT"
    ):
        arena[half] = 0
    with pytest.raises(KeyError, match=r"arena\['nothing'\]: no tensor is named 'nothing'"):
        arena["nothing"]


NO_NUMBERS = (
    10**400, -(10**400), 10**5000, "1", b"1", None, 1j, [1.0], {}, np.ones(1), object(),
)  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS, ids=range(len(NO_NUMBERS)))
def test_what_is_no_number_is_one_sentence(value):
    arena = Arena(small_plan(), device="cpu")
    before = host_bytes(arena)
    for name in ("lr", "beta1", "eps", "step", "loss_scale", "batch_size"):
        with pytest.raises(
            ValueError, match=f"{name}: got .*, expected a finite number; check the"
        ):
            arena.scalars.set(**{"momentum": 0.5, name: value})
    np.testing.assert_array_equal(host_bytes(arena), before)


@pytest.mark.parametrize("value", [1.5, 3.4e38, -0.5, 0.0, 1e-60])
def test_complements_are_bounded_as_what_they_complement(value):
    arena = Arena(small_plan(), device="cpu")
    for name in ("one_minus_beta1", "one_minus_beta2"):
        with pytest.raises(ValueError, match=re.escape(f"{name}: got {value}, expected")):
            arena.scalars.set(**{name: value})
        arena.scalars.set(**{name: 1.0})
        arena.scalars.set(**{name: 1e-6})


def test_the_last_step_that_an_int32_holds_may_be_set():
    data = aligned(512)
    launch = ops.sgd.bind(data, p=Range(0, 1024), g=Range(1024, 1024), lr=0.5)
    launch.set(step=2**31 - 1)
    for step in (2**31, 10**400, 10**5000, 0, -1):
        with pytest.raises(ValueError, match="sgd: step got .*, expected 1 .. 2\\*\\*31-1; count"):
            launch.set(step=step)


def test_in_one_line_each_says_what_it_is(device):
    arena = Arena(small_plan("adamw", half="fp16", ema=True), device=device)
    count = len(arena.plan.tensors)
    assert repr(arena) == (
        f"<Arena on {arena.device}: {arena.nbytes:,} bytes, plan for adamw fp16 ema, "
        f"{count} tensors>"
    )
    assert repr(Arena.wrap(aligned(64))) == "<Arena on cpu: 256 bytes, no plan>"
    assert repr(arena.scalars).endswith("all as in a fresh arena>")
    arena.scalars.set(lr=0.5, growth_interval=7)
    assert repr(arena.scalars).endswith("; lr=0.5, growth_interval=7>")
    groups, status = arena.groups, Status(arena)
    groups.freeze("*.bias")
    assert repr(groups) == f"<Groups on {arena.device}: decay 5, no_decay 3 tensors, 2 frozen>"
    assert repr(status) == f"<Status of {arena.device}: 0 posted, latest None>"
    status.post()
    assert status.read().step == 0
    assert "1 posted, latest Snapshot(step=0, " in repr(status)


def test_the_stub_of_the_scalars_is_made_of_the_plans_table():
    text = Path(fields.__file__).with_suffix(".pyi").read_text()
    assert text == fields.stub(), "make it anew; rangeops/arena/fields.py says how"


def test_no_other_name_is_a_scalar_or_a_field():
    arena = Arena(small_plan(), device="cpu")
    with pytest.raises(TypeError, match="scalars: got 'lrr', expected one of"):
        arena.scalars.lrr = 1
    with pytest.raises(AttributeError, match="no scalar is named 'lrr'"):
        _ = arena.scalars.lrr
    with pytest.raises(AttributeError, match="no field is named 'stepp'"):
        _ = Status(arena).stepp
    assert "beta1" in dir(arena.scalars)


def test_a_plans_own_scalars_lie_behind_the_devices_and_spare_them(device):
    config = PlanConfig("none", scalars={"gamma": 0.25, "delta": -2})
    arena = Arena(MemoryPlan(config).finalize(), device=device)
    scalars = arena.scalars
    assert (scalars.gamma, scalars.get("delta"), scalars.lr) == (0.25, -2.0, np.float32(1e-3))
    offset, dtype = arena.plan.scalar("grad_norm")
    put(arena, offset, np.array([7.0], dtype))
    scalars.set(gamma=0.5, lr=0.75)
    scalars.delta = 3.0
    assert scalars.grad_norm == 7.0
    stored = [get(arena, arena.plan.scalar(n)[0], 1)[0] for n in ("gamma", "delta", "lr")]
    assert stored == [0.5, 3.0, 0.75]
    assert repr(scalars).endswith("; lr=0.75, delta=3, gamma=0.5>")
    with pytest.raises(ValueError, match="gamma: got nan, expected a finite float32"):
        scalars.set(lr=0.5, gamma=float("nan"))
    assert scalars.lr == 0.75
    with pytest.raises(TypeError, match="scalars: got 'gamma', expected one of"):
        Arena(small_plan(), device="cpu").scalars.set(gamma=1.0)
