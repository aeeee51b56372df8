"""tensor_stats: norm, max-abs and count of non-finite values of every tensor, in one read.

    chunk sums of x*x over finite x, the largest finite |x|, the number of NaN and +-inf

Behind it ``fold_norms(of="weight_report")`` or ``of="gradient_report"`` brings the chunks to folds,
in the tree of ``rangeops.kernels.tree``; ``rangeops.optim.report`` reads the result by name.  4
(half: 2) bytes an element.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rangeops.kernels.chunk_sums import chunk_sums
from rangeops.kernels.spec import HALF_GRAD, Stage, half_where_used, read
from rangeops.launch.op import range_op


def stats_rule(g):
    """Return (g*g, |g|, 0), or (0, 0, 1) where g is not finite."""
    wide = abs(g)
    bad = 0.0
    if wide - wide != 0.0:
        wide = 0.0
        bad = 1.0
    return wide * wide, wide, bad


def stats_reference(g):
    """Return the same three in NumPy."""
    finite = np.isfinite(g)
    wide = np.where(finite, np.abs(g), 0.0)
    return np.square(wide), wide, np.where(finite, 0.0, 1.0)


def _bytes(flags: Mapping[str, Any]) -> float:
    return 2 if flags["half_grad"] else 4


_STATS = (read("g", "f4", "G"), read("h", "half", "G", "half_grad", instead_of="g"))

tensor_stats = range_op(
    "tensor_stats",
    origin="(beyond)",
    formula="per tensor: sum x*x, max |x|, count of NaN and inf",
    operands=_STATS,
    kernel=chunk_sums(
        "tensor_stats",
        _STATS,
        (),
        Stage(("squares", "largest", "nonfinite"), stats_rule, stats_reference),
        maximum=1,
        scaled="g",
    ),
    bytes_per_element=_bytes,
    flags=HALF_GRAD,
    elementwise=False,
    valid=half_where_used,
)
