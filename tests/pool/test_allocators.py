"""The caching pool under CuPy, cuda.core, Numba and an arena, on a GPU: transparent, in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plan import PlanConfig
from plan.models import mlp, plan_model
from rangeops import Arena, OptimizerStep
from rangeops.pool import CachingPool, OutOfMemory, memory_resource
from rangeops.pool.adapters import cupy_allocator
from tests import tolerance
from tests.helpers import host_bytes

pytestmark = pytest.mark.gpu


@pytest.fixture
def pool():
    """Return a pool under CuPy in this test, given back afterwards."""
    import cupy

    found = CachingPool()
    with cupy.cuda.using_allocator(cupy_allocator(found)):
        yield found
    cupy.cuda.Device().synchronize()
    found.trim(captured=True)


def late(stream):
    """Give a stream about 10 ms of copies; return what they hold."""
    import cupy

    block = cupy.cuda.alloc(1 << 28)
    half = 1 << 27
    for _ in range(160):
        cupy.cuda.runtime.memcpyAsync(block.ptr, block.ptr + half, half, 3, stream.ptr)
    return block


def test_arrays_come_from_the_pool_and_a_loop_reaches_no_driver(pool):
    import cupy

    def work(k):
        x = cupy.arange(10_000, dtype=cupy.float32) + k
        return float((x * 2).sum())

    want = [float(((np.arange(10_000, dtype=np.float32) + k) * 2).sum()) for k in range(20)]
    first = work(0)
    misses = pool.statistics()[0].misses
    assert [first] + [work(k) for k in range(1, 20)] == pytest.approx(want, rel=tolerance.STEP)
    assert pool.statistics()[0].misses == misses > 0
    assert pool.statistics()[0].live_bytes == 0


def test_zeros_come_in_order_of_the_stream_and_no_further_than_asked(pool):
    import cupy

    runtime, found = cupy.cuda.runtime, np.empty(1024, np.uint8)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        dirty = pool.acquire(1000)
        busy = late(stream)
        runtime.memsetAsync(dirty.pointer, 0xAB, 1024, stream.ptr)
        pool.release(dirty)
        clean = pool.acquire(1000, zero=True)
        assert clean.pointer == dirty.pointer
        runtime.memcpyAsync(found.ctypes.data, clean.pointer, 1024, 2, stream.ptr)
        stream.synchronize()
        pool.release(clean)
        del busy
    assert not found[:1000].any() and (found[1000:] == 0xAB).all()


def test_a_released_array_that_a_stream_still_reads_is_not_handed_to_another(pool):
    import cupy

    one, two = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    out = cupy.zeros(1 << 20, cupy.float32)
    cupy.cuda.Device().synchronize()
    with one:
        held = late(one)
        x = cupy.full(1 << 20, 3, cupy.float32)
        out += x
        del x
    with two:
        y = cupy.full(1 << 20, 9, cupy.float32)
    cupy.cuda.Device().synchronize()
    assert (out == 3).all() and (y == 9).all()
    del held


def test_s25_a_capture_takes_cached_blocks_and_keeps_them(pool):
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    x, out = cupy.arange(5000, dtype=cupy.float32), cupy.zeros(5000, cupy.float32)

    def work():
        cupy.add(x * 2 + 1, 0, out=out)

    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="no cached block of .* while the stream is captur"):
            work()
        stream.end_capture()
        work()  # warm
        stream.begin_capture()
        work()
        graph = stream.end_capture()
        eager = [cupy.full(5000, -1, cupy.float32) for _ in range(4)]
        for k in range(3):
            x += 1
            graph.launch(stream)
            want = 2 * (np.arange(5000, dtype=np.float32) + k + 1) + 1
            np.testing.assert_array_equal(out.get(), want)
        assert all((e == -1).all() for e in eager)
    assert pool.statistics()[0].captured_bytes > 0


def test_out_of_memory_gives_the_cache_back():
    pool = CachingPool()
    pool.release(pool.acquire(1 << 20))
    assert pool.statistics()[0].cached_bytes == 1 << 20
    with pytest.raises(OutOfMemory, match="bytes free, expected"):
        pool.acquire(1 << 46)
    found = pool.statistics()[0]
    assert (found.cached_bytes, found.reserved_bytes, found.misses) == (0, 0, 1)


def test_cuda_core_buffers_come_from_the_pool_and_wait_for_the_closing_stream():
    import cupy
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    pool = CachingPool()
    resource = memory_resource(pool)
    one, two = device.create_stream(), device.create_stream()
    buffer = resource.allocate(1 << 20, stream=one)
    first = int(buffer.handle)
    assert (buffer.size, buffer.memory_resource, buffer.is_device_accessible) == (
        1 << 20, resource, True,
    )  # fmt: skip
    other = cupy.cuda.Stream.from_external(two)
    held = late(other)
    view = cupy.ndarray(
        1 << 20, cupy.uint8, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(first, 1 << 20, 0), 0)
    )
    with other:
        copy = view.copy()
        view[:] = 5
    buffer.close(two)
    again = resource.allocate(1 << 20, stream=one)
    assert int(again.handle) == first
    with cupy.cuda.Stream.from_external(one):
        view[:] = 7  # behind stream two's work on it
    device.sync()
    assert (view == 7).all()
    again.close(one)
    assert pool.statistics()[0].live_bytes == 0
    del held, copy


@pytest.mark.parametrize("graph", [False, True])
def test_an_arena_in_the_pool_trains_to_the_same_bits(pool, graph):
    import cupy

    plan = plan_model(mlp((40, 30)), PlanConfig("adamw", half="fp16", ema=True))
    pool.release(pool.acquire(plan.total_bytes))
    stale = cupy.full(plan.total_bytes, 0xCD, cupy.uint8)
    del stale
    found = []
    for arena in (Arena(plan), Arena(plan, buffer=cupy.empty(plan.total_bytes, cupy.uint8))):
        rng = np.random.default_rng(5)
        for tensor in plan.weights():
            arena[tensor] = rng.standard_normal(tensor.shape).astype(np.float32)
        step = OptimizerStep(arena, lr=1e-2, weight_decay=0.1, clip_norm=1.0, loss_scale=8.0)
        run = step.capture().replay if graph else step
        for _ in range(5):
            for tensor in plan:
                if tensor.name.endswith(("#G", "#G16")):
                    kind = np.float16 if tensor.dtype.is_half else np.float32
                    arena[tensor] = rng.standard_normal(tensor.shape).astype(kind)
            run()
        found.append(host_bytes(arena)[: plan.total_bytes])
    np.testing.assert_array_equal(*found)


NUMBA = """
import numpy as np
from numba import cuda
from plan import Range
from rangeops import ops
from rangeops.pool import CachingPool, use_in_cupy, use_in_numba

pool = CachingPool()
use_in_numba(pool)
use_in_cupy(pool)
want = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
data = cuda.to_device(want)
ops.clear(data, Range(0, 4096))
ops.copy(data, Range(8192, 4096), Range(4096, 4096))
got = data.copy_to_host()
assert not got[:1024].any() and (got[2048:3072] == want[1024:2048]).all(), got
warm = pool.statistics()[0]
for k in range(5):
    other = cuda.device_array(50_000, np.float32)
    del other
found = pool.statistics()[0]
print(warm.live_bytes, found.misses - warm.misses, found.hits - warm.hits)
"""


def test_numba_arrays_come_from_the_pool():
    done = subprocess.run(
        [sys.executable, "-c", NUMBA], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    live, misses, hits = map(int, done.stdout.split())
    assert live >= 4 * 4096 and (misses, hits) == (1, 4)
