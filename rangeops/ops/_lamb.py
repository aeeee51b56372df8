"""LAMB in two passes over the model, the ratios between them.

    lamb_moments    m = b1*m + b3*g;    v += (1-b2) * (g*g - v);    sums of u*u and p*p by chunk
    (fold_norms, trust_ratio)           r = |p| / |u|
    lamb            p -= r*lr * u

    u = (m*inv_bc1) / (sqrt(v)*inv_sqrt_bc2 + eps) + wd*p,    b3 = 1-b1, or 1 without averaging

u is computed in both passes from m and v, by one rule: to keep it would cost a write and a read.
A tensor that does not adapt has r = 1.  24 + 16 bytes an element in FP32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rangeops.kernels.chunk_sums import chunk_sums
from rangeops.kernels.spec import HALF_GRAD, Stage, half_where_used, read, updated
from rangeops.launch.op import range_op
from rangeops.ops._ratio import RATIO_READS
from rangeops.ops._update import GRADIENT, optimizer, update_kernel


def moments_reference(g, m, v, beta1, beta3, one_minus_beta2):
    """Return the new m and v in NumPy."""
    return beta1 * m + beta3 * g, v + one_minus_beta2 * (g * g - v)


def moments_rule(g, m, v, beta1, beta3, one_minus_beta2):
    """Return the new m and v."""
    return beta1 * m + beta3 * g, v + one_minus_beta2 * (g * g - v)


def direction_reference(p, m, v, inv_bc1, inv_sqrt_bc2, eps, weight_decay):
    """Return u in NumPy."""
    return (m * inv_bc1) / (np.sqrt(v) * inv_sqrt_bc2 + eps) + weight_decay * p


def direction_rule(p, m, v, inv_bc1, inv_sqrt_bc2, eps, weight_decay):
    """Return u."""
    return (m * inv_bc1) / (math.sqrt(v) * inv_sqrt_bc2 + eps) + weight_decay * p


def squares_rule(u, p):
    """Return u*u and p*p."""
    return u * u, p * p


def step_rule(p, u, scale):
    """Return p - r*lr*u."""
    return p - scale * u


MOMENTS_READ = ("beta1", "beta3", "one_minus_beta2")
DIRECTION = Stage(("u",), direction_rule, direction_reference)
_HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")
_MOMENTS = (read("p", "f4", "W"), *GRADIENT, updated("m", "f4", "M"), updated("v", "f4", "V"))


def _moments_bytes(flags: Mapping[str, Any]) -> float:
    return 20 + (2 if flags["half_grad"] else 4) * (2 if flags["clear_grad"] else 1)


lamb_moments = range_op(
    "lamb_moments",
    origin="(beyond)",
    formula="m = b1*m + b3*g; v += (1-b2)*(g*g-v); sums of u*u, p*p",
    operands=_MOMENTS,
    kernel=chunk_sums(
        "lamb_moments",
        _MOMENTS,
        (Stage(("m", "v"), moments_rule, moments_reference), DIRECTION),
        Stage(("u2", "p2"), squares_rule, squares_rule),
        gated=True,
        scaled="g",
        clears="clear_grad",
    ),
    bytes_per_element=_moments_bytes,
    flags={**HALF_GRAD, "clear_grad": (False, True)},
    hyper=_HYPER,
    elementwise=False,
    valid=half_where_used,
    source="You et al. 2020, algorithm 2; NVIDIA's LAMB for gradient averaging",
)

lamb = optimizer(
    "lamb",
    formula="p -= r*lr*((m*inv_bc1)/(sqrt(v)*isb2+eps) + wd*p)",
    kernel=update_kernel(
        "lamb", DIRECTION, Stage(("p",), step_rule, step_rule), moments="mv", gradient=False
    ),
    hyper=_HYPER,
    beside=(*MOMENTS_READ, *RATIO_READS),
    options=("bias_correction", "grad_averaging", "maximize"),
    source="You et al. 2020, algorithm 2",
)
