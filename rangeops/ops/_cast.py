"""Casts between FP32 and the half format, flat over whole ranges.

    cast_fp32_to_fp16   h = half(x)     nearest even, subnormals kept, overflow to inf, NaN kept
    cast_fp16_to_fp32   x = float32(h)  exact

``half`` is fp16 or bf16.  6 bytes an element.  Source: IEEE 754-2019, 5.4.2; bf16 as fp32 cut to
its upper 16 bits with the same rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rangeops.kernels.spec import Kernel, arguments_of, read, written
from rangeops.launch.op import range_op

FLAGS = {"half": ("fp16", "bf16")}


def to_half(x: np.ndarray, half: str | None) -> np.ndarray:
    """Return the bits (uint16) of float32 ``x`` in a half format, in NumPy."""
    with np.errstate(all="ignore"):
        if half != "bf16":
            return x.astype(np.float16).view(np.uint16)
        high = x.view(np.uint32) >> 16
        low = x.view(np.uint32) & 0xFFFF
        up = (low > 0x8000) | ((low == 0x8000) & (high & 1 == 1))
        return np.where(np.isnan(x), high | 0x40, high + up).astype(np.uint16)


def from_half(bits: np.ndarray, half: str | None) -> np.ndarray:
    """Return the float32 values of half ``bits`` (uint16), in NumPy."""
    if half != "bf16":
        return bits.view(np.float16).astype(np.float32)
    return np.ascontiguousarray(bits.astype(np.uint32) << 16).view(np.float32)


def _narrow_reference(*, half: str) -> Any:
    def reference(dst, src, n):
        dst[:] = to_half(src, half)

    return reference


def _narrow_gpu(x: Any, *, half: str) -> Any:
    _, narrow = x.half(half)
    thread, load4, store8, int64 = x.thread, x.load4, x.store8, x.int64

    def cast(dst, src, n):
        i = thread() * int64(8)
        left = n - i
        if left >= 8:
            a = load4(src, i, left)
            b = load4(src, i + 4, left)
            low = narrow(a[0]), narrow(a[1]), narrow(a[2]), narrow(a[3])
            high = narrow(b[0]), narrow(b[1]), narrow(b[2]), narrow(b[3])
            store8(
                dst, i, (low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]), left
            )
        elif left > 0:
            for j in range(i, n):
                dst[j] = narrow(src[j])

    return cast


def _narrow_cpu(x: Any, *, half: str) -> Any:
    _, narrow = x.half(half)

    def cast(dst, src, n, start, stop):
        to, values = dst[start:stop], src[start:stop]
        for i in range(to.size):
            to[i] = narrow(values[i])

    return cast


_NARROW = (written("dst", "half", "A"), read("src", "f4", "W"))

cast_fp32_to_fp16 = range_op(
    "cast_fp32_to_fp16",
    origin="RANGE_CAST_FP32_TO_FP16",
    formula="h = half(x)",
    operands=_NARROW,
    kernel=Kernel(
        "cast_fp32_to_fp16",
        arguments_of(_NARROW),
        ("n",),
        gpu=_narrow_gpu,
        cpu=_narrow_cpu,
        reference=_narrow_reference,
        per_thread=8,
    ),
    bytes_per_element=lambda flags: 6,
    flags=FLAGS,
)


def _widen_reference(*, half: str) -> Any:
    def reference(dst, src, n):
        dst[:] = from_half(src, half)

    return reference


def _widen_gpu(x: Any, *, half: str) -> Any:
    widen, _ = x.half(half)
    thread, load4, store4, int64 = x.thread, x.load4, x.store4, x.int64

    def cast(dst, src, n):
        # Four elements a thread: with eight, each store instruction of a warp leaves every other
        # 16 bytes out and the write runs at 85 % of the copy rate (H200).
        i = thread() * int64(4)
        left = n - i
        if left > 0:
            u = load4(src, i, left)
            store4(dst, i, (widen(u[0]), widen(u[1]), widen(u[2]), widen(u[3])), left)

    return cast


def _widen_cpu(x: Any, *, half: str) -> Any:
    widen, _ = x.half(half)

    def cast(dst, src, n, start, stop):
        to, values = dst[start:stop], src[start:stop]
        for i in range(to.size):
            to[i] = widen(values[i])

    return cast


_WIDEN = (written("dst", "f4", "G"), read("src", "half", "G"))

cast_fp16_to_fp32 = range_op(
    "cast_fp16_to_fp32",
    origin="RANGE_CAST_FP16_TO_FP32",
    formula="x = float32(h)",
    operands=_WIDEN,
    kernel=Kernel(
        "cast_fp16_to_fp32",
        arguments_of(_WIDEN),
        ("n",),
        gpu=_widen_gpu,
        cpu=_widen_cpu,
        reference=_widen_reference,
        per_thread=4,
    ),
    bytes_per_element=lambda flags: 6,
    flags=FLAGS,
)
