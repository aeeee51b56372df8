"""bf16 and fp16 conversions in integer arithmetic, for every compiler that has no half type.

Both directions follow IEEE 754: round to nearest even, subnormals kept, overflow to infinity,
NaN stays NaN.  The conversions are functions of the caller's types, so that the same lines serve
the GPU (bf16), the simulator and the CPU loops.
"""

from __future__ import annotations


def bf16_rules(uint16, uint32, float_bits, bits_float):
    """Return (widen, narrow) of bf16 for a compiler with the given types and bit casts."""

    def widen(u):
        return bits_float(uint32(uint32(u) << uint32(16)))

    def narrow(x):
        u = float_bits(x)
        if (u & uint32(0x7FFFFFFF)) > uint32(0x7F800000):
            return uint16((u >> uint32(16)) | uint32(0x40))
        rounding = uint32(0x7FFF) + ((u >> uint32(16)) & uint32(1))
        return uint16((u + rounding) >> uint32(16))

    return widen, narrow


def fp16_rules(uint16, uint32, float_bits, bits_float, float32, scale, magic):
    """Return (widen, narrow) of fp16 for a compiler without a half type.

    Widening places the half's bits as a float32 that is 2**112 too small and multiplies, which
    also normalises subnormals.  Narrowing lets the float32 adder round subnormals by adding 0.5,
    whose last place is the half's smallest subnormal.  ``scale`` is 2**112, ``magic`` 0.5.
    """

    def widen(u):
        magnitude = uint32(u) & uint32(0x7FFF)
        sign = (uint32(u) & uint32(0x8000)) << uint32(16)
        finite = float_bits(bits_float(uint32(magnitude << uint32(13))) * scale)
        special = (magnitude << uint32(13)) | uint32(0x7F800000)
        bits = special if magnitude >= uint32(0x7C00) else finite
        return bits_float(uint32(bits | sign))

    def narrow(x):
        u = float_bits(x)
        sign = (u >> uint32(16)) & uint32(0x8000)
        a = uint32(u & uint32(0x7FFFFFFF))
        tiny = uint32(float_bits(float32(bits_float(a) + magic)) - float_bits(magic))
        rounded = uint32(a - uint32(112 << 23) + uint32(0xFFF) + ((a >> uint32(13)) & uint32(1)))
        normal = rounded >> uint32(13)
        big = uint32(0x7E00) if a > uint32(0x7F800000) else uint32(0x7C00)
        bits = normal if a >= uint32(113 << 23) else tiny
        # 65520, half of the last place above 65504, is the first value that rounds to infinity.
        bits = big if a >= uint32(0x477FF000) else bits
        return uint16(bits | sign)

    return widen, narrow
