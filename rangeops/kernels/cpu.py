"""The loop vocabulary of the CPU arena: numba.njit rules, run over all cores.

A loop is a function ``loop(*arrays, *integers, start, stop)`` over elements ``start .. stop-1``;
``run`` gives every core a piece whose borders are whole granules; threads call the compiled loop
with the GIL released, so that a loop is plain serial code and needs no ``prange``.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from llvmlite import ir
from numba import float32, float64, int32, int64, njit, types, uint16, uint32
from numba.extending import intrinsic
from numba.np import arrayobj

from plan.scratch import CHUNK_GRANULES, GRANULE
from rangeops.kernels.half import bf16_rules, fp16_rules

__all__ = ["device", "float32", "float64", "half", "int32", "int64", "sqrt", "uint16", "uint32"]

PIECE = 1 << 14
"""Elements a further thread has to get: below, handing over costs more than it brings."""

CHUNK = CHUNK_GRANULES * GRANULE

_ARRAYS = {
    "u1": types.uint8,
    "u2": types.uint16,
    "u4": types.uint32,
    "i4": types.int32,
    "f4": types.float32,
    "f8": types.float64,
}

sqrt = math.sqrt


def device(function):
    """Return ``function`` as loops call it: inlined, NumPy's division, no contraction."""
    return njit(inline="always", error_model="numpy")(function)


@intrinsic
def float_bits(typingctx, value):
    """Return the 32 bits of a float32 as uint32."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), codegen


@intrinsic
def bits_float(typingctx, value):
    """Return the float32 with the bits of a uint32."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), codegen


@intrinsic
def atomic_min(typingctx, array, index, value):
    """Lower the int32 ``array[index]`` to ``value``; loops of several cores may meet there."""

    def codegen(context, builder, sig, args):
        data = arrayobj.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("min", builder.gep(data, [args[1]]), args[2], "monotonic")

    return types.int32(array, types.int64, types.int32), codegen


_SCALE, _MAGIC = np.uint32(239 << 23).view(np.float32), np.uint32(126 << 23).view(np.float32)


def half(dtype):
    """Return (widen, narrow) of a half format: uint16 -> float32 and back, nearest even."""
    if dtype == "bf16":
        rules = bf16_rules(uint16, uint32, float_bits, bits_float)
    else:
        rules = fp16_rules(uint16, uint32, float_bits, bits_float, float32, _SCALE, _MAGIC)
    return tuple(device(rule) for rule in rules)


def compile_loop(function, pointers, integers):
    """Compile a loop for the given element types and number of int64 arguments."""
    compiled = njit(nogil=True, error_model="numpy")(function)
    arrays = [types.Array(_ARRAYS[t], 1, "C") for t in pointers]
    compiled.compile(types.void(*arrays, *[types.int64] * (integers + 2)))
    return compiled


@cache
def _pool():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return ThreadPoolExecutor(cores), cores


def run(compiled, arguments, count, unit):
    """Run a compiled loop over ``count`` items on all cores, a piece being whole units.

    ``unit`` is 128 for elements, 1 for chunks (of 2,048 elements), 0 for one piece.
    """
    pool, cores = _pool()
    pieces = min(cores, count * (CHUNK if unit == 1 else 1) // PIECE) if unit else 1
    if pieces <= 1:
        compiled(*arguments, 0, count)
        return
    step = -(-count // (pieces * unit)) * unit
    borders = range(0, count, step)
    jobs = [pool.submit(compiled, *arguments, b, min(count, b + step)) for b in borders]
    for job in jobs:
        job.result()
