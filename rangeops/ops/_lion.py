"""Lion.

    u = m + (1-b1) * (g - m)
    p = p*keep - lr * sign(u)
    m += (1-b2) * (g - m)

sign(0) = 0, so padding and untouched weights stay.  keep = 1 - lr*wd.  Departure from the paper:
moments move by a difference, which rounds once less.  Source: Chen et al. 2023, algorithm 2.
"""

from __future__ import annotations

import numpy as np

from rangeops.launch.coefficients import KEEP, LR, ONE_MINUS_BETA1, ONE_MINUS_BETA2
from rangeops.ops._optimizer import optimizer


def lion_coefficients(c, row):
    """Return (1-b1, 1-b2, lr, keep)."""
    return c[ONE_MINUS_BETA1], c[ONE_MINUS_BETA2], c[row + LR], c[row + KEEP]


def lion_reference(p, g, m, v, c):
    """Lion in NumPy."""
    one_minus_b1, one_minus_b2, lr, keep = c
    u = m + one_minus_b1 * (g - m)
    move = np.where(u > 0, lr, np.where(u < 0, -lr, u))
    return p * keep - move, m + one_minus_b2 * (g - m), v


def lion_rule(p, g, m, v, c):
    """Lion."""
    move = m + c[0] * (g - m)
    if move > 0:
        move = c[2]
    elif move < 0:
        move = -c[2]
    return p * c[3] - move, m + c[1] * (g - m), v


lion = optimizer(
    "lion",
    origin="(beyond)",
    formula="u = m + (1-b1)*(g-m); p = p*keep - lr*sign(u); m += (1-b2)*(g-m)",
    rules={"decoupled": (lion_rule, lion_reference, lion_coefficients)},
    moments=1,
    hyper=("lr", "beta1", "beta2", "weight_decay"),
)
