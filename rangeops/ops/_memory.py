"""Byte ranges: clear and copy.

    clear   x = 0          1 byte an element (byte)
    copy    dst = src      2 bytes an element (byte); overlapping ranges are refused

A clear of the origin's G_BN_BIAS..G_DEEP_CONV_FP16 also zeroes R_RESULT, which lies between.
"""

from __future__ import annotations

from typing import Any

from rangeops.kernels.spec import Kernel, arguments_of, read, written
from rangeops.launch.op import range_op

VECTORS = 4
"""16-byte stores a thread of clear.  With one, 1 GB is half a million blocks and the H200 starts
blocks no faster than 1.6 a nanosecond: 3.3 TB/s instead of a memset's 4.5."""

BLOCK_BYTES = 128 * 16 * VECTORS


def _clear_gpu(x: Any) -> Any:
    thread, clear16, int64, uint8 = x.thread, x.clear16, x.int64, x.uint8

    def clear(dst, n):
        t = thread()
        base = (t >> int64(7)) * int64(BLOCK_BYTES) + (t & int64(127)) * int64(16)
        for r in range(VECTORS):
            i = base + int64(r) * int64(2048)
            if i + 16 <= n:
                clear16(dst, i)
            elif i < n:
                for j in range(i, n):
                    dst[j] = uint8(0)

    return clear


def _clear_cpu(x: Any) -> Any:
    uint8 = x.uint8

    def clear(dst, n, start, stop):
        for i in range(start, stop):
            dst[i] = uint8(0)

    return clear


def _clear_reference() -> Any:
    def reference(dst, n):
        dst[:] = 0

    return reference


_CLEAR = (written("dst", "u1"),)

clear = range_op(
    "clear",
    origin="RANGE_CLEAR",
    formula="x = 0",
    operands=_CLEAR,
    kernel=Kernel(
        "clear",
        arguments_of(_CLEAR),
        ("n",),
        _clear_gpu,
        _clear_cpu,
        _clear_reference,
        per_thread=16 * VECTORS,
    ),
    bytes_per_element=lambda flags: 1,
)


def _copy_gpu(x: Any) -> Any:
    thread, copy16, int64 = x.thread, x.copy16, x.int64

    def copy(dst, src, n):
        i = thread() * int64(16)
        if i + 16 <= n:
            copy16(dst, src, i)
        elif i < n:
            for j in range(i, n):
                dst[j] = src[j]

    return copy


def _copy_cpu(x: Any) -> Any:
    def copy(dst, src, n, start, stop):
        for i in range(start, stop):
            dst[i] = src[i]

    return copy


def _copy_reference() -> Any:
    def reference(dst, src, n):
        dst[:] = src

    return reference


_COPY = (written("dst", "u1"), read("src", "u1"))

copy = range_op(
    "copy",
    origin="RANGE_D2D_COPY",
    formula="dst = src",
    operands=_COPY,
    kernel=Kernel(
        "copy", arguments_of(_COPY), ("n",), _copy_gpu, _copy_cpu, _copy_reference, per_thread=16
    ),
    bytes_per_element=lambda flags: 2,
)
