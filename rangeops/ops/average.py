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


def _words(x: Any, half: str | None) -> Any:
    """Return (widen, narrow) of the element type; FP32 stays as it is."""
    if half is not None:
        return x.half(half)

    def same(value):
        return value

    return x.device(same), x.device(same)


def _gpu(x: Any, *, half: str | None = None) -> Any:
    rule, thread, load4, store4 = x.device(average_rule), x.thread, x.load4, x.store4
    int64 = x.int64
    widen, narrow = _words(x, half)

    def average(v, s, n):
        i = thread() * int64(4)
        left = n - i
        if left > 0:
            by, u = s[RANKS], load4(v, i, left)
            low = narrow(rule(widen(u[0]), by)), narrow(rule(widen(u[1]), by))
            high = narrow(rule(widen(u[2]), by)), narrow(rule(widen(u[3]), by))
            store4(v, i, (low[0], low[1], high[0], high[1]), left)

    return average


def _cpu(x: Any, *, half: str | None = None) -> Any:
    rule = x.device(average_rule)
    widen, narrow = _words(x, half)

    def average(v, s, n, start, stop):
        by, vs = s[RANKS], v[start:stop]
        for j in range(vs.size):
            vs[j] = narrow(rule(widen(vs[j]), by))

    return average


def _twin(*, half: str | None = None) -> Any:
    def twin(v, s, n):
        with np.errstate(all="ignore"):
            v[:] = v / s[RANKS] if half is None else to_half(from_half(v, half) / s[RANKS], half)

    return twin


def _declared(name: str, formula: str, seed: str, element: str, flags: dict[str, Any]) -> Any:
    operands = (updated("x", element),)
    return range_op(
        name,
        seed=seed,
        formula=formula,
        operands=operands,
        kernel=Kernel(name, arguments_of(operands, "s"), ("n",), _gpu, _cpu, _twin),
        bytes_per_element=lambda flags: 4 if element == "half" else 8,
        flags=flags,
    )


average = _declared("average", "x = x / ranks", "(the scale kernel behind an all-reduce)", "f4", {})
average_half = _declared(
    "average_half",
    "h = half(float32(h) / ranks)",
    "(the scale kernel before an all-reduce)",
    "half",
    FLAGS,
)
