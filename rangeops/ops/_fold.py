"""fold_norms, total_norm: chunk sums to fold sums, and those of the gradients to a global sum.

    fold_norms    fold sums, from which a tensor's norm is sqrt(its folds added in order)
    total_norm    sums of 512 fold sums of the gradients, for the global norm

``of`` says what the pass before was for, and so which rows the folds go to: "gradient", "lars"
(gradient, weight), "lamb" (direction, weight), "weight_report" or "gradient_report" (sum, maximum,
count).  Sums of gradients are 0 where the tensor is not trained this step, whatever its old
gradient holds.  A warp a fold; a fold of one chunk is copied.  The tree is that of
``rangeops.kernels.tree``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scratch import FOLD_CHUNKS, SUM_ROWS, SUMS, TRAINED_ONLY
from rangeops.kernels import tree
from rangeops.kernels.spec import Kernel, arguments_of
from rangeops.launch.op import range_op


def _fold_gpu(x: Any, *, of: str) -> Any:
    thread, int64, float64 = x.thread, x.int64, x.float64
    row, quantities, maximum = SUMS[of]
    trained_only = of in TRAINED_ONLY
    summed = tree.fold_gpu(x, tree.add_rule, x.warp_sum)
    largest = tree.fold_gpu(x, tree.max_rule, x.warp_max)

    def fold(table, partials, tensor_of, live, sums, chunks, folds):
        w = thread() >> int64(5)
        if w >= folds:
            return
        a, b = int64(table[w]), int64(table[w + 1])
        counts = not trained_only or live[tensor_of[w]] > 0
        for q in range(quantities):
            if q == maximum:
                total = largest(partials, a + q * chunks, b + q * chunks)
            else:
                total = summed(partials, a + q * chunks, b + q * chunks)
            if (thread() & int64(31)) == 0:
                sums[(row + q) * folds + w] = total if counts else float64(0)

    return fold


def _fold_cpu(x: Any, *, of: str) -> Any:
    row, quantities, maximum = SUMS[of]
    summed = tree.fold_cpu(x, tree.add_rule)
    largest = tree.fold_cpu(x, tree.max_rule)
    local, float64, lanes = x.local, x.float64, tree.LANES
    trained_only = of in TRAINED_ONLY

    def fold(table, partials, tensor_of, live, sums, chunks, folds, start, stop):
        scratch = local(lanes, float64)
        for w in range(start, stop):
            counts = not trained_only or live[tensor_of[w]] > 0
            for q in range(quantities):
                a, b = q * chunks + table[w], q * chunks + table[w + 1]
                if not counts:
                    sums[(row + q) * folds + w] = float64(0)
                elif q == maximum:
                    sums[(row + q) * folds + w] = largest(partials, a, b, scratch)
                else:
                    sums[(row + q) * folds + w] = summed(partials, a, b, scratch)

    return fold


def _fold_reference(*, of: str) -> Any:
    row, quantities, maximum = SUMS[of]

    def reference(table, partials, tensor_of, live, sums, chunks, folds):
        counts = live[tensor_of] > 0 if of in TRAINED_ONLY else True
        rows = sums.reshape(SUM_ROWS, folds)
        with np.errstate(invalid="ignore"):
            for q in range(quantities):
                combine = np.maximum if q == maximum else np.add
                part = partials[q * chunks : (q + 1) * chunks]
                folded = tree.folds_reference(part, table, combine)
                rows[row + q] = np.where(counts, folded, 0.0)

    return reference


fold_norms = range_op(
    "fold_norms",
    origin="(with the N_ regions)",
    formula="fold sums of chunk sums, float64",
    operands=(),
    kernel=Kernel(
        "fold_norms",
        arguments_of((), "folds", "partials", "tensor_of", "live", "sums"),
        ("chunks", "folds"),
        _fold_gpu,
        _fold_cpu,
        _fold_reference,
        per_thread=1,
        count="folds",
    ),
    bytes_per_element=lambda flags: 0,
    flags={"of": tuple(SUMS)},
    elementwise=False,
)


def _total_gpu(x: Any) -> Any:
    thread, int64 = x.thread, x.int64
    summed = tree.fold_gpu(x, tree.add_rule, x.warp_sum)

    def total(sums, totals, folds, count):
        w = thread() >> int64(5)
        if w >= count:
            return
        a = w * int64(FOLD_CHUNKS)
        value = summed(sums, a, min(a + int64(FOLD_CHUNKS), folds))
        if (thread() & int64(31)) == 0:
            totals[w] = value

    return total


def _total_cpu(x: Any) -> Any:
    summed = tree.fold_cpu(x, tree.add_rule)
    local, float64, lanes = x.local, x.float64, tree.LANES

    def total(sums, totals, folds, count, start, stop):
        scratch = local(lanes, float64)
        for w in range(start, stop):
            a = w * FOLD_CHUNKS
            totals[w] = summed(sums, a, min(a + FOLD_CHUNKS, folds), scratch)

    return total


def _total_reference() -> Any:
    def reference(sums, totals, folds, count):
        borders = np.append(np.arange(0, folds, FOLD_CHUNKS), folds)
        with np.errstate(invalid="ignore"):
            totals[:] = tree.folds_reference(sums[:folds], borders)

    return reference


total_norm = range_op(
    "total_norm",
    origin="(global norm)",
    formula="sums of 512 fold sums, float64",
    operands=(),
    kernel=Kernel(
        "total_norm",
        arguments_of((), "sums", "totals"),
        ("folds", "totals"),
        _total_gpu,
        _total_cpu,
        _total_reference,
        per_thread=1,
        count="totals",
    ),
    bytes_per_element=lambda flags: 0,
    elementwise=False,
)
