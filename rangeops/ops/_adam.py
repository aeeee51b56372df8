"""Adam and AdamW.

    m += (1-b1) * (g - m)
    v += (1-b2) * (g*g - v)
    p  = p*keep - step_size * (m / (sqrt(v)*inv_sqrt_bc2 + eps))

    step_size = lr / (1-b1**t),  inv_sqrt_bc2 = 1/sqrt(1-b2**t),  keep = 1 - lr*wd

Adam adds wd*p to g instead of ``keep``.  eps stands outside the root, after the correction of v,
as in torch.  Departure: moments move by a difference, which is torch's lerp form and rounds once
less than b1*m + (1-b1)*g.  Sources: Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019,
algorithm 2 with the schedule multiplier in lr.
"""

from __future__ import annotations

import math

import numpy as np

from rangeops.launch.coefficients import (
    EPS,
    INV_SQRT_BC2,
    KEEP,
    ONE_MINUS_BETA1,
    ONE_MINUS_BETA2,
    STEP_SIZE,
    WEIGHT_DECAY,
)
from rangeops.ops._optimizer import optimizer

HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")


def adam_coefficients(c, row):
    """Return (1-b1, 1-b2, inv_sqrt_bc2, eps, step_size, wd)."""
    return (
        c[ONE_MINUS_BETA1],
        c[ONE_MINUS_BETA2],
        c[INV_SQRT_BC2],
        c[EPS],
        c[row + STEP_SIZE],
        c[row + WEIGHT_DECAY],
    )


def adam_reference(p, g, m, v, c):
    """Adam in NumPy."""
    one_minus_b1, one_minus_b2, inv_sqrt_bc2, eps, step_size, wd = c
    g = g + wd * p
    m = m + one_minus_b1 * (g - m)
    v = v + one_minus_b2 * (g * g - v)
    return p - step_size * (m / (np.sqrt(v) * inv_sqrt_bc2 + eps)), m, v


def adam_rule(p, g, m, v, c):
    """Adam."""
    g = g + c[5] * p
    m = m + c[0] * (g - m)
    v = v + c[1] * (g * g - v)
    return p - c[4] * (m / (math.sqrt(v) * c[2] + c[3])), m, v


adam = optimizer(
    "adam",
    origin="RANGE_UPDATE_*_ADAM",
    formula="g += wd*p; m += (1-b1)*(g-m); v += (1-b2)*(g*g-v); "
    "p -= step_size*m/(sqrt(v)*isb2+eps)",
    rules={"l2": (adam_rule, adam_reference, adam_coefficients)},
    moments=2,
    hyper=HYPER,
    options=("bias_correction", "maximize"),
)


def adamw_coefficients(c, row):
    """Return (1-b1, 1-b2, inv_sqrt_bc2, eps, step_size, keep)."""
    return (
        c[ONE_MINUS_BETA1],
        c[ONE_MINUS_BETA2],
        c[INV_SQRT_BC2],
        c[EPS],
        c[row + STEP_SIZE],
        c[row + KEEP],
    )


def adamw_reference(p, g, m, v, c):
    """AdamW in NumPy."""
    one_minus_b1, one_minus_b2, inv_sqrt_bc2, eps, step_size, keep = c
    m = m + one_minus_b1 * (g - m)
    v = v + one_minus_b2 * (g * g - v)
    return p * keep - step_size * (m / (np.sqrt(v) * inv_sqrt_bc2 + eps)), m, v


def adamw_rule(p, g, m, v, c):
    """AdamW."""
    m = m + c[0] * (g - m)
    v = v + c[1] * (g * g - v)
    return p * c[5] - c[4] * (m / (math.sqrt(v) * c[2] + c[3])), m, v


adamw = optimizer(
    "adamw",
    origin="RANGE_UPDATE_WEIGHT_ADAMW",
    formula="m += (1-b1)*(g-m); v += (1-b2)*(g*g-v); p = p*keep - step_size*m/(sqrt(v)*isb2+eps)",
    rules={"decoupled": (adamw_rule, adamw_reference, adamw_coefficients)},
    moments=2,
    hyper=HYPER,
    options=("bias_correction", "maximize"),
)
