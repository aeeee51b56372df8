"""tensor_stats: norm, max-abs and count of non-finite values of every tensor, in one read.

    chunk sums of x*x over finite x, the largest finite |x|, the number of NaN and +-inf

Behind it ``fold_norms(of="weight_report")`` or ``of="gradient_report"`` brings the chunks to folds,
in the tree of ``rangeops.ops.reduce``; ``rangeops.report`` reads the result by name.  4 (half: 2)
bytes an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plan.scratch import GRANULE
from rangeops.kernels.spec import HALF_GRAD, Kernel, arguments_of, half_where_used, read
from rangeops.launch.op import range_op
from rangeops.ops import _reduce


def _gpu(x: Any, *, half: str | None, half_grad: bool) -> Any:
    thread, warp_sum, warp_max = x.thread, x.warp_sum, x.warp_max
    int64, float64 = x.int64, x.float64

    def split(value):
        """Return (|value|, 0), or (0, 1) where it is not finite."""
        wide = abs(float64(value))
        if wide - wide != 0.0:
            return float64(0), float64(1)
        return wide, float64(0)

    split = x.device(split)

    four, chunk = _reduce.gradient(x, half, half_grad), _reduce.chunk_of(x)

    def stats(g, h, chunks, partials, half_start, count):
        w = thread() >> int64(5)
        if w >= count:
            return
        _, granules, start = chunk(chunks, w)
        zero = float64(0)
        total = largest = bad = zero
        for r in range(granules):
            u = four(g, h, start + r * int64(GRANULE), half_start)
            a, b, c, d = split(u[0]), split(u[1]), split(u[2]), split(u[3])
            total = total + ((a[0] * a[0] + b[0] * b[0]) + (c[0] * c[0] + d[0] * d[0]))
            largest = max(largest, max(max(a[0], b[0]), max(c[0], d[0])))
            bad = bad + ((a[1] + b[1]) + (c[1] + d[1]))
        total, largest, bad = warp_sum(total), warp_max(largest), warp_sum(bad)
        if (thread() & int64(31)) == 0:
            partials[w] = total
            partials[count + w] = largest
            partials[2 * count + w] = bad

    return stats


def _cpu(x: Any, *, half: str | None, half_grad: bool) -> Any:
    float64, widen = x.float64, x.half(half)[0]
    add, fold = _reduce.granule_cpu(x), _reduce.lanes_cpu(x, _reduce.add_rule)

    def stats(g, h, chunks, partials, half_start, count, start, stop):
        values, lanes = np.empty(GRANULE, np.float64), np.empty(_reduce.LANES, np.float64)
        for w in range(start, stop):
            lanes[:] = 0.0
            largest = 0.0
            bad = 0.0
            for granule in range(chunks[w], chunks[w + 1]):
                i = granule * GRANULE
                if half_grad and i >= half_start:
                    hs = h[i - half_start : i - half_start + GRANULE]
                    for j in range(GRANULE):
                        values[j] = abs(float64(widen(hs[j])))
                else:
                    gs = g[i : i + GRANULE]
                    for j in range(GRANULE):
                        values[j] = abs(float64(gs[j]))
                for j in range(GRANULE):
                    if values[j] - values[j] != 0.0:
                        values[j] = 0.0
                        bad += 1.0
                    largest = max(largest, values[j])
                    values[j] = values[j] * values[j]
                add(values, lanes)
            partials[w] = fold(lanes)
            partials[count + w] = largest
            partials[2 * count + w] = bad

    return stats


def _reference(*, half: str | None, half_grad: bool) -> Any:
    def reference(g, h, chunks, partials, half_start, count):
        values = np.abs(_reduce.granules_of(g, h, half_start, half).astype(np.float64))
        finite = np.isfinite(values)
        kept = np.where(finite, values, 0)
        first = chunks[:-1]
        partials[:count] = _reduce.chunks_reference(np.square(kept).__getitem__, chunks)
        partials[count : 2 * count] = np.maximum.reduceat(kept.max(axis=1), first)
        partials[2 * count : 3 * count] = np.add.reduceat((~finite).sum(axis=1), first)

    return reference


def _bytes(flags: Mapping[str, Any]) -> float:
    return 2 if flags["half_grad"] else 4


_STATS = (read("g", "f4", "G"), read("h", "half", "G", "half_grad"))

tensor_stats = range_op(
    "tensor_stats",
    origin="(beyond)",
    formula="per tensor: sum x*x, max |x|, count of NaN and inf",
    operands=_STATS,
    kernel=Kernel(
        "tensor_stats",
        arguments_of(_STATS, "chunks", "partials"),
        ("half_start", "chunks"),
        _gpu,
        _cpu,
        _reference,
        per_thread=1,
        count="chunks",
    ),
    bytes_per_element=_bytes,
    flags=HALF_GRAD,
    elementwise=False,
    valid=half_where_used,
)
