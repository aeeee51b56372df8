"""average, average_half: the mean from a sum over ranks, where no coefficient can take 1/n.

    average        x = x / ranks                    behind a sum in FP32
    average_half   h = half(float32(h) / ranks)     before a sum in 16 bits, which then overflows
                                                    only where the mean does

Gradients need neither: the update's coefficient has 1/ranks in it.  8 and 4 bytes an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scalars import fp32_index
from rangeops.kernels.spec import Kernel, arguments_of, updated
from rangeops.launch.op import range_op
from rangeops.ops._cast import FLAGS, from_half, to_half

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


def _reference() -> Any:
    def reference(v, s, n):
        with np.errstate(all="ignore"):
            v[:] = v / s[RANKS]

    return reference


_WORDS = (updated("x", "f4"),)

average = range_op(
    "average",
    origin="(the scale kernel behind an all-reduce)",
    formula="x = x / ranks",
    operands=_WORDS,
    kernel=Kernel("average", arguments_of(_WORDS, "s"), ("n",), _gpu, _cpu, _reference),
    bytes_per_element=lambda flags: 8,
)


def _half_rule(x: Any, half: str) -> Any:
    """Return the device function of average_half: bits and ranks to bits."""
    rule = x.device(average_rule)
    widen, narrow = x.half(half)

    def mean(bits, ranks):
        return narrow(rule(widen(bits), ranks))

    return x.device(mean)


def _half_gpu(x: Any, *, half: str) -> Any:
    mean, thread, load8, store8 = _half_rule(x, half), x.thread, x.load8, x.store8
    int64 = x.int64

    def average(v, s, n):
        i = thread() * int64(8)
        left = n - i
        if left > 0:
            by, u = s[RANKS], load8(v, i, left)
            a, b, c, d = mean(u[0], by), mean(u[1], by), mean(u[2], by), mean(u[3], by)
            e, f, g, h = mean(u[4], by), mean(u[5], by), mean(u[6], by), mean(u[7], by)
            store8(v, i, (a, b, c, d, e, f, g, h), left)

    return average


def _half_cpu(x: Any, *, half: str) -> Any:
    mean = _half_rule(x, half)

    def average(v, s, n, start, stop):
        by, vs = s[RANKS], v[start:stop]
        for j in range(vs.size):
            vs[j] = mean(vs[j], by)

    return average


def _half_reference(*, half: str) -> Any:
    def reference(v, s, n):
        with np.errstate(all="ignore"):
            v[:] = to_half(from_half(v, half) / s[RANKS], half)

    return reference


_HALVES = (updated("x", "half"),)

average_half = range_op(
    "average_half",
    origin="(the scale kernel before an all-reduce)",
    formula="h = half(float32(h) / ranks)",
    operands=_HALVES,
    kernel=Kernel(
        "average_half",
        arguments_of(_HALVES, "s"),
        ("n",),
        _half_gpu,
        _half_cpu,
        _half_reference,
        per_thread=8,
    ),
    bytes_per_element=lambda flags: 4,
    flags=FLAGS,
)
