"""Casts between FP32 and the half format, flat over whole ranges.

    cast_fp32_to_fp16   h = half(x)     nearest even, subnormals kept, overflow to inf, NaN kept
    cast_fp16_to_fp32   x = float32(h)  exact

``half`` is fp16 or bf16.  6 bytes an element.  Source: IEEE 754-2019, 5.4.2; bf16 as fp32 cut to
its upper 16 bits with the same rounding.
"""

from __future__ import annotations

from rangeops.kernels.spec import HALVES, read, written
from rangeops.ops._elementwise import elementwise_op

HALF_FORMATS = {"half": HALVES}
"""The flags of an op that always moves halves."""


def cast_rule(src):
    """Return the value; loading widens and storing narrows."""
    return src


cast_fp32_to_fp16 = elementwise_op(
    "cast_fp32_to_fp16",
    origin="RANGE_CAST_FP32_TO_FP16",
    formula="h = half(x)",
    operands=(written("dst", "half", "A"), read("src", "f4", "W")),
    rule=cast_rule,
    reference=cast_rule,
    flags=HALF_FORMATS,
    per_thread=8,
)

# Four elements a thread: with eight, each store instruction of a warp leaves every other 16 bytes
# out and the write runs at 85 % of the copy rate (H200).
cast_fp16_to_fp32 = elementwise_op(
    "cast_fp16_to_fp32",
    origin="RANGE_CAST_FP16_TO_FP32",
    formula="x = float32(h)",
    operands=(written("dst", "f4", "G"), read("src", "half", "G")),
    rule=cast_rule,
    reference=cast_rule,
    flags=HALF_FORMATS,
)
