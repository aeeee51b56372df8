"""bf16 and fp16 conversions: in integer arithmetic for compilers without a half type, and in NumPy.

Both directions follow IEEE 754: round to nearest even, subnormals kept, overflow to infinity,
NaN stays NaN.  The rules are functions of a vocabulary, so that the same lines serve the GPU
(bf16), the simulator and the CPU loops; they choose by values, never by branches, so that CPU
loops vectorize.  ``to_half`` and ``from_half`` are the references' own spelling: NumPy's float16,
and ml_dtypes for bf16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from plan import DType


def bf16_rules(x: Any) -> tuple[Any, Any]:
    """Return (widen, narrow) of bf16 in the words of vocabulary ``x``."""
    uint16, uint32, float_bits, bits_float = x.uint16, x.uint32, x.float_bits, x.bits_float

    def widen(u):
        return bits_float(uint32(uint32(u) << uint32(16)))

    def narrow(x):
        u = float_bits(x)
        high = uint32(u >> uint32(16))
        # The addition overflows for some NaN alone, whose sum is not used.
        rounded = uint32(uint32(u + uint32(0x7FFF)) + (high & uint32(1))) >> uint32(16)
        nan = (u & uint32(0x7FFFFFFF)) > uint32(0x7F800000)
        return uint16((high | uint32(0x40)) if nan else rounded)

    return widen, narrow


def fp16_rules(x: Any) -> tuple[Any, Any]:
    """Return (widen, narrow) of fp16 in the words of vocabulary ``x``, without a half type.

    Subnormals go through the float32 adder, with no subnormal float32 on the way, for which some
    CPUs take a hundred cycles.  Widening subtracts 2**-14 from 2**-14 + subnormal; narrowing adds
    0.5, whose last place is the half's smallest subnormal.
    """
    uint16, uint32, float32 = x.uint16, x.uint32, x.float32
    float_bits, bits_float = x.float_bits, x.bits_float

    def widen(u):
        magnitude = uint32(u) & uint32(0x7FFF)
        sign = (uint32(u) & uint32(0x8000)) << uint32(16)
        moved = uint32(magnitude << uint32(13))
        least = bits_float(uint32(113 << 23))
        tiny = float_bits(float32(bits_float(uint32(moved + uint32(113 << 23))) - least))
        bits = tiny if magnitude < uint32(0x400) else uint32(moved + uint32(112 << 23))
        bits = uint32(moved | uint32(0x7F800000)) if magnitude >= uint32(0x7C00) else bits
        return bits_float(uint32(bits | sign))

    def narrow(x):
        u = float_bits(x)
        sign = (u >> uint32(16)) & uint32(0x8000)
        a = uint32(u & uint32(0x7FFFFFFF))
        half = uint32(126 << 23)
        tiny = uint32(float_bits(float32(bits_float(a) + bits_float(half))) - half)
        odd = (a >> uint32(13)) & uint32(1)
        normal = uint32(uint32(a - uint32((112 << 23) - 0xFFF)) + odd) >> uint32(13)
        big = uint32(0x7E00) if a > uint32(0x7F800000) else uint32(0x7C00)
        bits = normal if a >= uint32(113 << 23) else tiny
        # 65520, half of the last place above 65504, is the first value that rounds to infinity.
        bits = big if a >= uint32(0x477FF000) else bits
        return uint16(bits | sign)

    return widen, narrow


class Format(NamedTuple):
    """A half format: its rules, and the bits of its exponent."""

    rules: Callable[[Any], tuple[Any, Any]]
    exponent: int


FORMATS = {"fp16": Format(fp16_rules, 0x7C00), "bf16": Format(bf16_rules, 0x7F80)}
"""The half formats by the labels of ``plan.DType``."""


def format_of(half: str | None) -> Format:
    """Return a format; where a kernel moves no halves, any will do."""
    return FORMATS[half or "fp16"]


def to_half(x: np.ndarray, half: str | None) -> np.ndarray:
    """Return the bits (uint16) of float32 ``x`` in a half format, in NumPy."""
    with np.errstate(all="ignore"):
        return x.astype(numpy_type(half)).view(np.uint16)


def from_half(bits: np.ndarray, half: str | None) -> np.ndarray:
    """Return the float32 values of half ``bits`` (uint16), in NumPy."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(bits).view(numpy_type(half)).astype(np.float32)


def numpy_type(half: str | None) -> Any:
    """Return the array type of a half format: NumPy's own, or that of ml_dtypes where it has none.

    Where no halves are meant (None), any will do.
    """
    dtype = DType.named(half or "fp16")
    if dtype.numpy != dtype.bits:
        return np.dtype(dtype.numpy)
    import ml_dtypes

    return getattr(ml_dtypes, dtype.full_name)
