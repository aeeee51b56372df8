"""average, average_half: the mean from a sum over ranks, where no coefficient can take 1/n.

    average        x = x / ranks                    behind a sum in FP32
    average_half   h = half(float32(h) / ranks)     before a sum in 16 bits, which then overflows
                                                    only where the mean does

Gradients need neither: the update's coefficient has 1/ranks in it.  8 and 4 bytes an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.baseline import fp32_index
from rangeops.op import Kernel, arguments_of, range_op, updated
from rangeops.ops.cast import FLAGS, from_half, to_half

RANKS = fp32_index("ranks")


def average_rule(x, ranks):
    """X / ranks."""
    return x / ranks


def _gpu(x: Any) -> Any:
    rule, thread, load4, store4 = x.device(average_rule), x.thread, x.load4, x.store4
    int64 = x.int64

    def average(v, s, n):
        i = thread() * int64(4)
        left = n - i
        if left > 0:
            by, u = s[RANKS], load4(v, i, left)
            store4(v, i, (rule(u[0], by), rule(u[1], by), rule(u[2], by), rule(u[3], by)), left)

    return average


def _cpu(x: Any) -> Any:
    rule = x.device(average_rule)

    def average(v, s, n, start, stop):
        by, vs = s[RANKS], v[start:stop]
        for j in range(vs.size):
            vs[j] = rule(vs[j], by)

    return average


def _twin() -> Any:
    def twin(v, s, n):
        with np.errstate(all="ignore"):
            v /= s[RANKS]

    return twin


_AVERAGE = (updated("x", "f4"),)

average = range_op(
    "average",
    seed="(the scale kernel behind an all-reduce)",
    formula="x = x / ranks",
    operands=_AVERAGE,
    kernel=Kernel("average", arguments_of(_AVERAGE, "s"), ("n",), _gpu, _cpu, _twin),
    bytes_per_element=lambda flags: 8,
)


def _half_gpu(x: Any, *, half: str) -> Any:
    rule, thread, load4, store4 = x.device(average_rule), x.thread, x.load4, x.store4
    int64 = x.int64
    widen, narrow = x.half(half)

    def average(h, s, n):
        i = thread() * int64(4)
        left = n - i
        if left > 0:
            by, u = s[RANKS], load4(h, i, left)
            low = narrow(rule(widen(u[0]), by)), narrow(rule(widen(u[1]), by))
            high = narrow(rule(widen(u[2]), by)), narrow(rule(widen(u[3]), by))
            store4(h, i, (low[0], low[1], high[0], high[1]), left)

    return average


def _half_cpu(x: Any, *, half: str) -> Any:
    rule = x.device(average_rule)
    widen, narrow = x.half(half)

    def average(h, s, n, start, stop):
        by, hs = s[RANKS], h[start:stop]
        for j in range(hs.size):
            hs[j] = narrow(rule(widen(hs[j]), by))

    return average


def _half_twin(*, half: str) -> Any:
    def twin(h, s, n):
        with np.errstate(all="ignore"):
            h[:] = to_half(from_half(h, half) / s[RANKS], half)

    return twin


_AVERAGE_HALF = (updated("x", "half"),)

average_half = range_op(
    "average_half",
    seed="(the scale kernel before an all-reduce)",
    formula="h = half(float32(h) / ranks)",
    operands=_AVERAGE_HALF,
    kernel=Kernel(
        "average_half", arguments_of(_AVERAGE_HALF, "s"), ("n",), _half_gpu, _half_cpu, _half_twin
    ),
    bytes_per_element=lambda flags: 4,
    flags=FLAGS,
)
