"""A user's own ops, declared outside the package with its public names alone.

    tiger   m += (1-b1) * (g - m);    p = p*keep - lr * m / (|m| + softness)
    limit   x = min(max(x, -bound), bound)

Tiger (Su 2023) moves by the sign of the momentum; here the sign is softened by a scalar of the
optimizer's own.  ``limit`` clamps a range at a scalar of its own.
"""

from __future__ import annotations

import numpy as np

from rangeops import elementwise_op, optimizer, updated


def tiger_rule(p, g, m, one_minus_beta1, lr, keep, softness):
    """Tiger."""
    m = m + one_minus_beta1 * (g - m)
    return p * keep - lr * (m / (abs(m) + softness)), m


def tiger_reference(p, g, m, one_minus_beta1, lr, keep, softness):
    """Tiger in NumPy."""
    m = m + one_minus_beta1 * (g - m)
    return p * keep - lr * (m / (np.abs(m) + softness)), m


tiger = optimizer(
    "tiger",
    formula="m += (1-b1)*(g-m); p = p*keep - lr*m/(|m| + softness)",
    rule=tiger_rule,
    reference=tiger_reference,
    moments="m",
    hyper=("lr", "beta1", "weight_decay"),
    settings={"decoupled": True},
    scalars={"softness": 1e-3},
    source="Su 2023, Tiger: a tight-fisted optimizer",
)


def limit_rule(x, bound):
    """Clamp."""
    if x > bound:
        x = bound
    if x < -bound:
        x = -bound
    return x


def limit_reference(x, bound):
    """Clamp in NumPy; NaN stays NaN."""
    return np.clip(x, -bound, bound)


limit = elementwise_op(
    "limit",
    formula="x = min(max(x, -bound), bound)",
    operands=(updated("x", "f4"),),
    rule=limit_rule,
    reference=limit_reference,
    scalars={"bound": 1.0},
)
