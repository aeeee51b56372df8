"""accumulate_metrics: sums of loss, top1 and top5 that keep counting.

    sum += value * batch_size      for loss, top1, top5;    samples += batch_size

Each sum is a pair (high, low): Knuth's two-sum adds without loss, then the pair is renormalised
(without that, low itself drifts: 4e-5 after two million terms).  So 2**24 and then ones go on
counting; the value is high + low in float64.  A batch
in which one of the three is not finite is left out of every sum and of the samples, so that means
stay means of what was counted.  Source: Knuth, TAOCP 2, 4.2.2, theorem B; Dekker 1971 for
the renormalisation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan import Region
from plan.scalars import ACCUMULATED, RESULTS, SCALAR_STRIDE, int32_index
from rangeops.arena.arena import Arena
from rangeops.kernels.shells import once
from rangeops.launch.op import range_op

BATCH = int32_index("batch_size")
SUMS = len(ACCUMULATED)
VALUES = len(RESULTS)


def two_sum_rule(high, low, x):
    """Return the pair (high, low) with x added, |low| at most half an ulp of high again."""
    total = high + x
    part = total - high
    low = low + ((high - (total - part)) + (x - part))
    high = total + low
    return high, low - (high - total)


def _body(x: Any) -> Any:
    two_sum, float32 = x.device(two_sum_rule), x.float32

    def body(result, accumulated, k):
        batch = float32(k[BATCH])
        finite = True
        for j in range(VALUES):
            value = result[j * SCALAR_STRIDE] * batch
            finite = finite and value - value == float32(0)
        if finite:
            for j in range(SUMS):
                i = j * SCALAR_STRIDE
                term = batch
                if j < VALUES:
                    term = result[i] * batch
                high, low = two_sum(accumulated[i], accumulated[i + 1], term)
                accumulated[i] = high
                accumulated[i + 1] = low

    return x.device(body)


def _reference() -> Any:
    def reference(result, accumulated, k):
        with np.errstate(over="ignore"):
            terms = result[::SCALAR_STRIDE][:VALUES] * np.float32(k[BATCH])
        if not np.isfinite(terms).all():
            return
        terms = np.append(terms, np.float32(k[BATCH]))
        high, low = accumulated[::SCALAR_STRIDE].copy(), accumulated[1::SCALAR_STRIDE].copy()
        total = high + terms
        part = total - high
        carried = low + ((high - (total - part)) + (terms - part))
        accumulated[::SCALAR_STRIDE] = total + carried
        accumulated[1::SCALAR_STRIDE] = carried - ((total + carried) - total)

    return reference


accumulate_metrics = range_op(
    "accumulate_metrics",
    origin="RANGE_ACCUM_METRICS",
    formula="sum += value*batch_size (compensated)",
    operands=(),
    kernel=once("accumulate_metrics", ("result", "accumulated", "k"), _body, _reference),
    bytes_per_element=lambda flags: 0,
    elementwise=False,
)


def read_metrics(arena: Arena) -> dict[str, float]:
    """Return the means of loss, top1 and top5 and the number of samples counted (float64)."""
    assert arena.plan is not None
    span = arena.plan.range(Region.R_RESULT_ACCUMULATED)
    pairs = arena.read(span, "f4").reshape(SUMS, SCALAR_STRIDE)[:, :2].astype(np.float64)
    sums = dict(zip(ACCUMULATED, pairs.sum(axis=1).tolist(), strict=True))
    samples = sums.pop("samples")
    return {name: total / samples if samples else 0.0 for name, total in sums.items()} | {
        "samples": samples
    }
