"""The vocabulary in Numba's simulator: every thread is a Python thread, a block one warp of 32."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda

float32, float64, int32, int64 = np.float32, np.float64, np.int32, np.int64
uint8, uint16, uint32 = np.uint8, np.uint16, np.uint32


def device(function):
    """Return ``function`` as kernels call it."""
    return function


def thread():
    """Return the index of this thread in the grid."""
    return cuda.grid(1)


def block_index():
    """Return (thread in block, block, blocks)."""
    return cuda.threadIdx.x, cuda.blockIdx.x, cuda.gridDim.x


def syncthreads():
    """Wait for every thread of the block."""
    cuda.syncthreads()


def load4(a, i, left):
    """Return the elements i .. i+3 of ``a``; lanes that do not exist repeat the last."""
    return tuple(a[i + min(k, left - 1)] for k in range(4))


def load8(a, i, left):
    """Return the elements i .. i+7 of ``a``; lanes that do not exist repeat the last."""
    return tuple(a[i + min(k, left - 1)] for k in range(8))


def store4(a, i, lanes, left):
    """Write lanes to the elements i .. i+3 of ``a`` that exist."""
    for k in range(min(4, left)):
        a[i + k] = lanes[k]


def store8(a, i, lanes, left):
    """Write lanes to the elements i .. i+7 of ``a`` that exist."""
    for k in range(min(8, left)):
        a[i + k] = lanes[k]


def row4(a, i):
    """Return the elements i .. i+3 of ``a``."""
    return tuple(a[i + k] for k in range(4))


def clear16(a, i):
    """Write 16 zero bytes from byte i of ``a``."""
    a[i : i + 16] = 0


def copy16(a, b, i):
    """Copy 16 bytes from byte i of ``b`` to byte i of ``a``."""
    a[i : i + 16] = b[i : i + 16]


def float_bits(x):
    """Return the 32 bits of a float32 as uint32."""
    return np.float32(x).view(np.uint32)


def bits_float(u):
    """Return the float32 with the bits of a uint32."""
    return np.uint32(u).view(np.float32)


def _widen_fp16(u):
    return np.float32(np.uint16(u).view(np.float16))


def _narrow_fp16(x):
    return np.float16(x).view(np.uint16)


def atomic_min(a, i, value):
    """Lower the int32 ``a[i]`` to ``value``."""
    cuda.atomic.min(a, i, value)


def atomic_add(a, i, value):
    """Add to the int32 ``a[i]`` and return what it was."""
    return cuda.atomic.add(a, i, value)


fp16 = _widen_fp16, _narrow_fp16
sqrt = math.sqrt


def _exchange(x):
    """Return the values of all threads of the block, one warp; there are no shuffles here."""
    shared = cuda.shared.array(32, np.float64)
    shared[cuda.threadIdx.x] = x
    cuda.syncthreads()
    values = np.array(shared)
    cuda.syncthreads()
    return values


def warp_sum(x):
    """Return the float64 sum over the warp: lane k + lane k+16, then +8, +4, +2, +1."""
    values = _exchange(x)
    while values.size > 1:
        values = values[: values.size // 2] + values[values.size // 2 :]
    return values[0]


def warp_max(x):
    """Return the largest float64 of the warp."""
    return np.max(_exchange(x))


def simulate(function, grid, block, arrays, integers):
    """Run a kernel in the simulator on NumPy arrays, in place."""

    def kernel(*arguments):
        with np.errstate(all="ignore"):
            function(*arguments)

    views = [cuda.as_cuda_array(a) if hasattr(a, "__cuda_array_interface__") else a for a in arrays]
    cuda.jit(kernel)[grid, block](*views, *integers)
