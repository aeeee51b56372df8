"""Adam and AdamW: one rule, two kinds of weight decay.

    g += weight_decay * p
    m += (1-b1) * (g - m)
    v += (1-b2) * (g*g - v)
    p  = p*keep - step_size * (m / (sqrt(v)*inv_sqrt_bc2 + eps))

    step_size = lr / (1-b1**t),  inv_sqrt_bc2 = 1/sqrt(1-b2**t)
    adam    weight_decay = wd, keep = 1            adamw   weight_decay = 0, keep = 1 - lr*wd

eps stands outside the root, after the correction of v, as in torch.  Departure: moments move by a
difference, which is torch's lerp form and rounds once less than b1*m + (1-b1)*g.
"""

from __future__ import annotations

import math

import numpy as np

from rangeops.kernels.spec import Stage
from rangeops.ops._update import optimizer, update_kernel


def adam_reference(
    p, g, m, v, one_minus_beta1, one_minus_beta2, inv_sqrt_bc2, eps, step_size, weight_decay, keep
):
    """Adam in NumPy."""
    g = g + weight_decay * p
    m = m + one_minus_beta1 * (g - m)
    v = v + one_minus_beta2 * (g * g - v)
    return p * keep - step_size * (m / (np.sqrt(v) * inv_sqrt_bc2 + eps)), m, v


def adam_rule(
    p, g, m, v, one_minus_beta1, one_minus_beta2, inv_sqrt_bc2, eps, step_size, weight_decay, keep
):
    """Adam."""
    g = g + weight_decay * p
    m = m + one_minus_beta1 * (g - m)
    v = v + one_minus_beta2 * (g * g - v)
    return p * keep - step_size * (m / (math.sqrt(v) * inv_sqrt_bc2 + eps)), m, v


KERNEL = update_kernel("adam", Stage(("p", "m", "v"), adam_rule, adam_reference), moments="mv")
HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")
OPTIONS = ("bias_correction", "maximize")

adam = optimizer(
    "adam",
    origin="RANGE_UPDATE_*_ADAM",
    formula="g += wd*p; m += (1-b1)*(g-m); v += (1-b2)*(g*g-v); "
    "p -= step_size*m/(sqrt(v)*isb2+eps)",
    kernel=KERNEL,
    hyper=HYPER,
    options=OPTIONS,
    source="Kingma and Ba 2015, algorithm 1",
)

adamw = optimizer(
    "adamw",
    origin="RANGE_UPDATE_WEIGHT_ADAMW",
    formula="m += (1-b1)*(g-m); v += (1-b2)*(g*g-v); p = p*keep - step_size*m/(sqrt(v)*isb2+eps)",
    kernel=KERNEL,
    hyper=HYPER,
    options=OPTIONS,
    settings={"decoupled": True},
    source="Loshchilov and Hutter 2019, algorithm 2 with the schedule multiplier in lr",
)
