"""average, average_half: the mean from a sum over ranks, where no coefficient can take 1/n.

    average        x = x / ranks                    behind a sum in FP32
    average_half   h = half(float32(h) / ranks)     before a sum in 16 bits, which then overflows
                                                    only where the mean does

Gradients need neither: the update's coefficient has 1/ranks in it.  8 and 4 bytes an element.
"""

from __future__ import annotations

from rangeops.kernels.spec import updated
from rangeops.ops._cast import HALF_FORMATS
from rangeops.ops._elementwise import elementwise_op


def average_rule(x, ranks):
    """Return x / ranks."""
    return x / ranks


def average_reference(x, ranks):
    """Return x / ranks in NumPy."""
    return x / ranks


average = elementwise_op(
    "average",
    origin="(the scale kernel behind an all-reduce)",
    formula="x = x / ranks",
    operands=(updated("x", "f4"),),
    rule=average_rule,
    reference=average_reference,
)

average_half = elementwise_op(
    "average_half",
    origin="(the scale kernel before an all-reduce)",
    formula="h = half(float32(h) / ranks)",
    operands=(updated("x", "half"),),
    rule=average_rule,
    reference=average_reference,
    flags=HALF_FORMATS,
    per_thread=8,
)
