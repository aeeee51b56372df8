"""Kernels on a GPU: the driver names them, and both ways to launch give the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from rangeops import Arena, ops
from rangeops.device import cuda_kernels, linker
from tests.helpers import host_bytes, small_plan

pytestmark = pytest.mark.gpu


@pytest.fixture
def spied(monkeypatch):
    """Return the cubins and the names of the kernels that are loaded in a test."""
    found = []

    def only_kernel(loaded, code, plain=cuda_kernels._only_kernel):
        found.append((code, plain(loaded, code)))
        return found[-1][1]

    monkeypatch.setattr(cuda_kernels, "_only_kernel", only_kernel)
    return found


def test_the_driver_and_the_symbol_table_name_the_same_kernel(spied):
    from rangeops.kernels import build

    build.gpu_kernel.cache_clear()
    ops.adamw.bind(Arena(small_plan("adamw")))
    build.gpu_kernel.cache_clear()
    assert spied
    for code, name in spied:
        assert linker.entry_name(code) == name


def test_both_ways_to_launch_give_the_same_bits(monkeypatch):
    import cupy

    found = []
    for packed in (True, False):
        monkeypatch.setattr(cuda_kernels, "PACKED", packed)
        arena = Arena(small_plan("adamw"))
        for series in "WG":
            values = np.random.default_rng(ord(series)).standard_normal(
                arena.plan.series_range(series).size // 4, np.float32
            )
            arena.write(arena.plan.series_range(series).base_offset, values)
        begin, adamw = ops.begin_step.bind(arena), ops.adamw.bind(arena)
        stream = cupy.cuda.Stream(non_blocking=True)
        for handle in (stream.ptr, 0):
            begin(handle)
            adamw(handle)
            cupy.cuda.Device().synchronize()
        found.append(host_bytes(arena))
    np.testing.assert_array_equal(*found)
