"""average, average_half: the mean from a sum over ranks, where no coefficient can take 1/n.

    average        x = x / ranks                    behind a sum in FP32
    average_half   h = half(float32(h) / ranks)     before a sum in 16 bits, which then overflows
                                                    only where the mean does

Gradients need neither: the update's coefficient has 1/ranks in it.  8 and 4 bytes an element.
"""

from __future__ import annotations

from rangeops.kernels.generate import Stage, elementwise
from rangeops.kernels.spec import updated
from rangeops.launch.op import range_op
from rangeops.ops._cast import HALF_FORMATS


def average_rule(x, ranks):
    """Return x / ranks."""
    return x / ranks


def average_reference(x, ranks):
    """Return x / ranks in NumPy."""
    return x / ranks


_STAGES = (Stage(("x",), average_rule, average_reference),)
_WORDS, _HALVES = (updated("x", "f4"),), (updated("x", "half"),)

average = range_op(
    "average",
    origin="(the scale kernel behind an all-reduce)",
    formula="x = x / ranks",
    operands=_WORDS,
    kernel=elementwise("average", _WORDS, _STAGES),
    bytes_per_element=lambda flags: 8,
)

average_half = range_op(
    "average_half",
    origin="(the scale kernel before an all-reduce)",
    formula="h = half(float32(h) / ranks)",
    operands=_HALVES,
    kernel=elementwise("average_half", _HALVES, _STAGES, per_thread=8),
    bytes_per_element=lambda flags: 4,
    flags=HALF_FORMATS,
)
