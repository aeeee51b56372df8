"""trust_ratio: LARS's and LAMB's ratio of every tensor, from its fold sums into its row.

    lars    r = trust_coefficient*|p| / (|g| + wd*|p| + eps)
    lamb    r = |p| / |u|
    both    r = 1 where a norm is 0, where the tensor rests, or where its group does not adapt
    trust_clip     lamb: r = min(r, 1);  lars with lr_outside (LARC): r = min(r/lr, 1)
    row     scale = r*lr, or r with lr_outside;  ratio = r;  N_ tensor = |p|, |g| or |u|, r

|g| is that of the gradients as the update uses them: unscaled and clipped (the row's ``grad``).
In float64, rounded once.  Runs behind ``fold_norms(of=kind)`` and ``begin_step``; a skipped step
leaves rows and results.  Departure from You et al. 2017: a norm of 0 gives 1, not 0, so that
zero-initialised tensors learn.  Sources: You, Gitman, Ginsburg 2017, equation 6; You et al. 2020,
algorithm 2; NVIDIA Apex's LARC for the clip.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scalars import int32_index
from plan.scratch import BLOCK_FLOATS, NORM_STRIDE, ROW_FLOATS, SUM_ROWS, SUMS, row_index
from rangeops.kernels import tree
from rangeops.kernels.shells import per_tensor
from rangeops.launch import coefficients as at
from rangeops.launch.op import range_op

LR, DECAY, RATIO, SCALE = map(row_index, ("lr", "weight_decay", "ratio", "scale"))
GRAD, TRUST, EPS = map(row_index, ("grad", "trust", "eps"))
RATIO_READS = ("grad", "lr", "weight_decay", "trust", "eps", "scale", "ratio")
"""The coefficients by tensor that it reads or writes."""

SKIP_STEP, FOUND_INF = int32_index("skip_step"), int32_index("found_inf")


def _rule(kind: str) -> Any:
    """Return ``rule(weight, other, lr, decay, trust, eps, options)``: r from two norms, float64."""

    def lars(weight, other, lr, decay, trust, eps, options):
        ratio = trust * weight / (other + decay * weight + eps)
        if options & at.TRUST_CLIP:
            if options & at.LR_OUTSIDE:
                ratio = ratio / lr
            ratio = min(ratio, 1.0)
        return ratio

    def lamb(weight, other, lr, decay, trust, eps, options):
        ratio = weight / other
        if options & at.TRUST_CLIP:
            ratio = min(ratio, 1.0)
        return ratio

    return lars if kind == "lars" else lamb


def _row(x: Any, *, kind: str) -> Any:
    """Return ``row(i, ...)``: one tensor's ratio, compiled for a vocabulary."""
    int64, float32, float64, sqrt = x.int64, x.float32, x.float64, x.sqrt
    rule = x.device(_rule(kind))
    base = SUMS[kind][0]

    def row(i, k, c, live, fold_of, sums, norms, folds, biases, tensors, options):
        if (k[SKIP_STEP] | k[FOUND_INF]) != 0:
            return
        first, end = int64(fold_of[i]), int64(fold_of[i + 1])
        other = float64(0.0)
        weight = float64(0.0)
        for f in range(first, end):
            other = other + sums[base * folds + f]
            weight = weight + sums[(base + 1) * folds + f]
        weight = sqrt(weight)
        other = sqrt(other)
        j = int64(BLOCK_FLOATS) + int64(ROW_FLOATS) * int64(i)
        if kind == "lars":
            other = other * abs(float64(c[j + GRAD]))
        ratio = float64(1.0)
        trust = c[j + TRUST]
        if live[i] > 0 and trust >= float32(0.0) and weight > 0.0 and other > 0.0:
            rate, decay, eps = float64(c[j + LR]), float64(c[j + DECAY]), float64(c[j + EPS])
            ratio = rule(weight, other, rate, decay, float64(trust), eps, options)
        c[j + RATIO] = float32(ratio)
        if options & at.LR_OUTSIDE:
            c[j + SCALE] = float32(ratio)
        else:
            c[j + SCALE] = float32(ratio * float64(c[j + LR]))
        if i >= biases:
            n = (i - biases) * int64(NORM_STRIDE)
            norms[n] = float32(weight)
            norms[n + 1] = float32(other)
            norms[n + 2] = float32(ratio)

    return x.device(row)


def _reference(*, kind: str) -> Any:
    def ratios(weight, other, rate, decay, trust, eps, options):
        if kind == "lars":
            ratio = trust * weight / (other + decay * weight + eps)
            if options & at.LR_OUTSIDE and options & at.TRUST_CLIP:
                ratio = ratio / rate
        else:
            ratio = weight / other
        return np.minimum(ratio, 1) if options & at.TRUST_CLIP else ratio

    def reference(k, c, live, fold_of, sums, norms, folds, biases, tensors, options):
        if k[SKIP_STEP] or k[FOUND_INF]:
            return
        rows = c[BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)[:tensors]
        rate, decay, trust, eps, grad = rows[:, [LR, DECAY, TRUST, EPS, GRAD]].T.astype(np.float64)
        table, base = sums.reshape(SUM_ROWS, folds), SUMS[kind][0]
        other, weight = (
            np.sqrt(tree.tensors_reference(table[q], fold_of)) for q in (base, base + 1)
        )
        if kind == "lars":
            other = other * abs(grad)
        adapts = (live > 0) & (trust >= 0)
        with np.errstate(all="ignore"):
            found = ratios(weight, other, rate, decay, trust, eps, options)
            ratio = np.where(adapts & (weight > 0) & (other > 0), found, 1.0)
            rows[:, RATIO] = ratio
            rows[:, SCALE] = ratio if options & at.LR_OUTSIDE else ratio * rate
            results = norms.reshape(-1, NORM_STRIDE)
            results[:, 0], results[:, 1], results[:, 2] = (
                weight[biases:], other[biases:], ratio[biases:],
            )  # fmt: skip

    return reference


trust_ratio = range_op(
    "trust_ratio",
    origin="(LARS, N_ regions)",
    formula="r = tc*|p|/(|g| + wd*|p| + eps), or |p|/|u|; 1 for a norm of 0",
    operands=(),
    kernel=per_tensor(
        "trust_ratio",
        ("k", "c", "live", "fold_of", "sums", "norms"),
        ("folds", "biases", "tensors", "options"),
        _row,
        _reference,
    ),
    bytes_per_element=lambda flags: 0,
    flags={"kind": ("lars", "lamb")},
    options=("lr_outside", "trust_clip"),
    elementwise=False,
)
