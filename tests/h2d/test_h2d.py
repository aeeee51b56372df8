"""Batches from the host: staging, zones, the prefetching loop, and what goes wrong in loaders."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from plan import DType, MemoryPlan, PlanConfig, PlanError
from rangeops import Arena
from rangeops.h2d import Prefetcher, h2d_copy
from tests import tolerance
from tests.device.gate import Gate
from tests.helpers import HAVE_GPU, host_bytes

SHAPE = (4, 2, 2, 3)


def inputs(device, dtype=DType.FP32, shape=SHAPE, half=None):
    plan = MemoryPlan(PlanConfig("none", half=half))
    plan.alloc_inputs(shape[0], shape, dtype)
    return Arena(plan.finalize(), device=device)


def batch(k, shape=SHAPE, dtype=np.float32):
    rng = np.random.default_rng(k)
    return rng.standard_normal(shape).astype(dtype), rng.integers(0, 9, shape[0])


def taken(arena, loader, **options):
    """Return what a loop saw: (zone, samples, data, label) of every batch, on the host."""
    out = []
    for found in Prefetcher(arena, loader, **options):
        data = arena.download(f"input_{found.zone}.data")
        out.append((found.zone, found.samples, data, arena.download(f"input_{found.zone}.label")))
    return out


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
def test_batches_arrive_in_order_in_the_zones_in_turn(device, dtype):
    arena = inputs(device, dtype)
    before = host_bytes(arena)
    found = taken(arena, [batch(k, dtype=np.float64) for k in range(7)])
    assert [zone for zone, *_ in found] == list("abababa")
    for k, (_, samples, data, label) in enumerate(found):
        want, labels = batch(k, dtype=np.float64)
        np.testing.assert_array_equal(data, want.astype(data.dtype))
        np.testing.assert_array_equal(label, labels)
        assert samples == 4
    for name in ("input_a.data", "input_a.label", "input_b.data", "input_b.label"):
        arena[name] = 0
    np.testing.assert_array_equal(host_bytes(arena), before)  # padding, also of channels, is zero


def test_a_loader_may_write_over_the_buffer_it_has_given(device):
    buffer, labels = np.empty(SHAPE, np.float32), np.empty(4, np.int64)

    def loader():
        for k in range(20):
            buffer[:], labels[:] = batch(k)
            yield buffer, labels
            buffer[:], labels[:] = np.nan, -7

    for k, (_, _, data, label) in enumerate(taken(inputs(device), loader())):
        np.testing.assert_array_equal(data, batch(k)[0])
        np.testing.assert_array_equal(label, batch(k)[1])


def test_a_slow_loader_is_waited_for(device):
    def loader():
        for k in range(5):
            time.sleep(0.03)
            yield batch(k)

    arena = inputs(device)
    prefetcher = Prefetcher(arena, loader())
    sums = [float(arena.download(f"input_{b.zone}.data").sum()) for b in prefetcher]
    assert sums == [float(batch(k)[0].sum()) for k in range(5)]
    assert prefetcher.waited > 0.1


def test_a_slow_consumer_is_never_overrun(device):
    drawn = []

    def loader():
        for k in range(12):
            drawn.append(k)
            yield batch(k)

    arena, ahead = inputs(device), []
    for k, found in enumerate(Prefetcher(arena, loader(), depth=3)):
        time.sleep(0.02)
        ahead.append(len(drawn) - k)
        np.testing.assert_array_equal(arena.download(f"input_{found.zone}.data"), batch(k)[0])
    assert max(ahead) <= 2 + 3 + 1  # two zones, three buffers, one in the loader's hand


def test_a_failing_loader_fails_the_loop_behind_the_batches_before(device):
    error = OSError("the file is gone")

    def loader():
        yield batch(0)
        yield batch(1)
        raise error

    seen = []
    with pytest.raises(OSError, match="the file is gone") as caught:
        for found in Prefetcher(inputs(device), loader()):
            seen.append(found.zone)
    assert caught.value is error and seen == ["a", "b"]


def test_a_batch_of_another_shape_is_refused_or_padded(device):
    arena = inputs(device)
    short = tuple(part[:3] for part in batch(1))
    with pytest.raises(ValueError, match=r"batch 1: data got shape \(3, 2, 2, 3\), expected \(4, "):
        taken(arena, [batch(0), short])
    zone, samples, data, label = taken(arena, [batch(0), short], pad=True)[1]
    assert (zone, samples) == ("b", 3)
    np.testing.assert_array_equal(data, np.concatenate([short[0], np.zeros((1, 2, 2, 3), "f4")]))
    np.testing.assert_array_equal(label, [*short[1], -1])
    larger = batch(2, (5, 2, 2, 3))
    with pytest.raises(ValueError, match="planned shape"):
        taken(arena, [larger], pad=True)
    with pytest.raises(ValueError, match="got 4 labels, expected 3 as there are samples"):
        taken(arena, [(short[0], batch(1)[1])], pad=True)
    with pytest.raises(ValueError, match="got 3 parts, expected"):
        taken(arena, [(*batch(0), 1)])
    with pytest.raises(TypeError, match="label got float64, expected int32; convert it"):
        taken(arena, [(batch(0)[0], np.zeros(4))])


def test_a_loop_that_ends_early_leaves_nothing_running(device):
    arena, closed = inputs(device), threading.Event()

    def loader():
        try:
            for k in range(1000):
                yield batch(k)
        finally:
            closed.set()

    class Again:
        def __iter__(self):
            return loader()

    prefetcher = Prefetcher(arena, Again())
    for _ in range(3):
        for k, found in enumerate(prefetcher):
            np.testing.assert_array_equal(arena.download(f"input_{found.zone}.data"), batch(k)[0])
            if k == 4:
                break
        assert closed.wait(5)
        closed.clear()
    for thread in threading.enumerate():
        if thread.name == "rangeops h2d":
            thread.join(5)
            assert not thread.is_alive()


def test_two_loops_over_the_same_zones_are_refused(device):
    prefetcher = Prefetcher(inputs(device), [batch(0), batch(1)])
    for _ in prefetcher:
        with pytest.raises(
            RuntimeError, match="second loop while one runs, expected one at a time"
        ):
            next(iter(prefetcher))
        break
    assert len(list(prefetcher)) == 2


def test_a_plan_without_inputs_is_refused(device):
    arena = Arena(MemoryPlan(PlanConfig("none")).finalize(), device=device)
    with pytest.raises(PlanError, match="zone 'a' has 0 tensors, expected one label and one data"):
        Prefetcher(arena, [])
    with pytest.raises(ValueError, match="depth got 0, expected 1 or more"):
        Prefetcher(inputs(device), [], depth=0)


COPIES = [
    ("fp32", DType.FP32, (3, 5), np.float64),
    ("int32", DType.INT32, (1000,), np.int64),
    ("int8", DType.INT8, (2, 2, 2, 3), np.int8),
    ("large", DType.FP32, (5_000_011,), np.float32),
]


@pytest.mark.parametrize(
    ("dtype", "shape", "source"), [c[1:] for c in COPIES], ids=[c[0] for c in COPIES]
)
def test_h2d_copy_to_one_tensor(device, dtype, shape, source):
    plan = MemoryPlan(PlanConfig("none"))
    tensor = (
        plan.alloc_temp(shape, dtype, "t")
        if dtype is not DType.INT8
        else plan.alloc_mask(shape, "t")
    )
    guard = plan.alloc_temp((7,), DType.FP32, "guard")
    arena = Arena(plan.finalize(), device=device)
    arena[guard] = 3.5
    values = np.random.default_rng(1).integers(-99, 99, shape).astype(source)
    h2d_copy(arena, tensor, values[..., ::-1])
    np.testing.assert_array_equal(
        arena.download("t"), values[..., ::-1].astype(arena.download("t").dtype)
    )
    arena[tensor], arena[guard] = 0, 0
    assert not host_bytes(arena)[tensor.offset : tensor.offset + tensor.slot_bytes].any()


def test_h2d_copy_to_a_zone_and_bf16_bits(device):
    arena = inputs(device, DType.BF16, half="bf16")
    bits = np.arange(48, dtype=np.uint16).reshape(SHAPE)
    h2d_copy(arena, "b", (bits, np.arange(4)))
    np.testing.assert_array_equal(arena.download("input_b.data"), bits)
    np.testing.assert_array_equal(arena.download("input_b.label"), np.arange(4))
    assert not arena.download("input_a.label").any()
    with pytest.raises(TypeError, match="data got float32, expected uint16 bits; convert it"):
        h2d_copy(arena, "a", batch(0))
    with pytest.raises(ValueError, match=r"input_a.label got shape \(3,\), expected \(4,\)"):
        h2d_copy(arena, "input_a.label", [1, 2, 3])
    with pytest.raises(KeyError, match="no tensor is named"):
        h2d_copy(arena, "c", bits)


def busy(stream, milliseconds=30):
    """Give a stream this much work, at the least, on a GPU that copies 5 TB/s."""
    import cupy

    source = cupy.empty(1 << 28, cupy.uint8)
    with stream:
        for _ in range(10 * milliseconds):
            source[: 1 << 27] = source[1 << 27 :]
    return source


@pytest.mark.gpu
@pytest.mark.parametrize("late", ["copies", "compute"])
@pytest.mark.parametrize("depth", [1, 3])
def test_no_buffer_and_no_zone_is_written_while_it_is_read(late, depth):
    import cupy

    shape = (64, 32, 32, 4)
    arena = inputs("cuda", shape=shape)
    sums = cupy.zeros(12, cupy.float64)
    stream = cupy.cuda.Stream(non_blocking=True)
    prefetcher = Prefetcher(arena, [batch(k, shape) for k in range(12)], depth=depth)
    with stream:
        cupy.sum(arena["input_a.data"], dtype=cupy.float64, out=sums[0])  # it is loaded now
    cupy.cuda.Device().synchronize()
    held = busy(prefetcher._lane.stream.native) if late == "copies" else Gate(stream)
    with stream:
        for k, found in enumerate(prefetcher):
            cupy.sum(found.data, dtype=cupy.float64, out=sums[k])
            if k == 0 and late == "compute":
                assert not stream.done, "the loop waited for the device"
                held.open()
    stream.synchronize()
    want = [batch(k, shape)[0].sum(dtype=np.float64) for k in range(12)]
    np.testing.assert_allclose(sums.get(), want, **tolerance.DOUBLES)
    del held


@pytest.mark.gpu
def test_pinned_batches_are_copied_from_where_they_lie_and_may_be_rewritten():
    import cupy

    shape = (64, 32, 32, 4)
    arena = inputs("cuda", shape=shape)
    sums = cupy.zeros(12, cupy.float64)
    slots = []
    for _ in range(3):
        data = np.frombuffer(cupy.cuda.alloc_pinned_memory(4 * 64 * 4096), np.float32, 64 * 4096)
        label = np.frombuffer(cupy.cuda.alloc_pinned_memory(256), np.int32, 64)
        slots.append((data.reshape(shape), label))

    def loader():
        for k in range(12):
            data, label = slots[k % 3]
            data[:], label[:] = batch(k, shape)
            yield (data, label) if k != 5 else batch(k, shape)

    prefetcher = Prefetcher(arena, loader(), pinned=True)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    held = busy(prefetcher._lane.stream.native)
    with stream:
        for k, found in enumerate(prefetcher):
            cupy.sum(found.data, dtype=cupy.float64, out=sums[k])
    stream.synchronize()
    want = [batch(k, shape)[0].sum(dtype=np.float64) for k in range(12)]
    np.testing.assert_allclose(sums.get(), want, **tolerance.DOUBLES)
    assert prefetcher._lane._held
    del held


@pytest.mark.gpu
def test_a_step_captured_for_each_zone_is_replayed():
    import cupy

    arena = inputs("cuda")
    total = cupy.zeros((4, 2, 2, 3), cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    graphs = {}
    with stream:
        for zone in "ab":
            view = arena[f"input_{zone}.data"]
            cupy.add(total, view, out=total)
            stream.begin_capture()
            cupy.add(total, view, out=total)
            graphs[zone] = stream.end_capture()
        total[...] = 0
        for found in Prefetcher(arena, [batch(k) for k in range(9)]):
            graphs[found.zone].launch(stream)
        want = np.zeros(SHAPE, np.float32)
        for k in range(9):
            want += batch(k)[0]
        np.testing.assert_array_equal(total.get(), want)
        loop = iter(Prefetcher(arena, [batch(0), batch(1)]))
        next(loop)
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="capturing, expected it outside; capture a step"):
            next(loop)
        with pytest.raises(
            RuntimeError, match="h2d_copy: got a copy while the stream is capturing"
        ):
            h2d_copy(arena, "a", batch(0))
        stream.end_capture()


@pytest.mark.gpu
def test_a_second_loop_on_another_stream_waits_for_the_first():
    import cupy

    shape = (64, 32, 32, 4)
    arena = inputs("cuda", shape=shape)
    sums = cupy.zeros(8, cupy.float64)
    prefetcher = Prefetcher(arena, [batch(k, shape) for k in range(4)])
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    for part, stream in enumerate(streams):
        with stream:
            for k, found in enumerate(prefetcher):
                held = busy(stream, 5) if k == 3 else None
                cupy.sum(found.data, dtype=cupy.float64, out=sums[4 * part + k])
    cupy.cuda.Device().synchronize()
    want = [batch(k, shape)[0].sum(dtype=np.float64) for k in range(4)] * 2
    np.testing.assert_allclose(sums.get(), want, **tolerance.DOUBLES)
    del held


@pytest.mark.skipif(not HAVE_GPU, reason="host and device arrays differ on a GPU only")
def test_device_arrays_are_refused():
    import cupy

    with pytest.raises(TypeError, match="data got ndarray, expected host values"):
        h2d_copy(inputs("cuda"), "a", (cupy.zeros(SHAPE), np.zeros(4, int)))
