"""Lion.

    u = m + (1-b1) * (g - m)
    p = p*keep - lr * sign(u)
    m += (1-b2) * (g - m)

sign(0) = 0, so padding and untouched weights stay.  keep = 1 - lr*wd.  Departure from the paper:
moments move by a difference, which rounds once less.
"""

from __future__ import annotations

import numpy as np

from rangeops.ops._update import optimizer


def lion_reference(p, g, m, one_minus_beta1, one_minus_beta2, lr, keep):
    """Lion in NumPy."""
    u = m + one_minus_beta1 * (g - m)
    move = np.where(u > 0, lr, np.where(u < 0, -lr, u))
    return p * keep - move, m + one_minus_beta2 * (g - m)


def lion_rule(p, g, m, one_minus_beta1, one_minus_beta2, lr, keep):
    """Lion."""
    move = m + one_minus_beta1 * (g - m)
    if move > 0:
        move = lr
    elif move < 0:
        move = -lr
    return p * keep - move, m + one_minus_beta2 * (g - m)


lion = optimizer(
    "lion",
    formula="u = m + (1-b1)*(g-m); p = p*keep - lr*sign(u); m += (1-b2)*(g-m)",
    rule=lion_rule,
    reference=lion_reference,
    moments="m",
    hyper=("lr", "beta1", "beta2", "weight_decay"),
    settings={"decoupled": True},
    source="Chen et al. 2023, algorithm 2",
)
