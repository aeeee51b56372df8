"""SGD, momentum and Nesterov, with L2 or decoupled weight decay.

    sgd         p -= lr * g
    momentum    m = mu*m + (1-dampening)*g;    p -= lr * m          first step: m = g
    nesterov    m likewise;                    p -= lr * (g + mu*m)
    l2          g += wd * p   before all of it
    decoupled   p = p * (1 - lr*wd) - lr * (...)

Departure from torch: with decoupled decay (the origin's rule) the weight shrinks by lr*wd and the
momentum does not see the decay.  Source: Sutskever et al. 2013, in torch's form (lr outside m).
"""

from __future__ import annotations

from rangeops.launch.coefficients import (
    KEEP,
    LOOKAHEAD,
    LR,
    MOMENTUM,
    ONE_MINUS_DAMPENING,
    WEIGHT_DECAY,
)
from rangeops.ops._optimizer import optimizer


def l2_coefficients(c, row):
    """Return (lr, wd, mu, 1-dampening, lookahead)."""
    return (
        c[row + LR],
        c[row + WEIGHT_DECAY],
        c[MOMENTUM],
        c[ONE_MINUS_DAMPENING],
        c[LOOKAHEAD],
    )


def decoupled_coefficients(c, row):
    """Return (lr, keep, mu, 1-dampening, lookahead)."""
    return c[row + LR], c[row + KEEP], c[MOMENTUM], c[ONE_MINUS_DAMPENING], c[LOOKAHEAD]


def sgd_l2_reference(p, g, m, v, c):
    """P - lr*(g + wd*p) in NumPy."""
    lr, wd, *_ = c
    return p - lr * (g + wd * p), m, v


def sgd_l2_rule(p, g, m, v, c):
    """P - lr*(g + wd*p)."""
    step = c[0] * (g + c[1] * p)
    return p - step, m, v


def sgd_decoupled_reference(p, g, m, v, c):
    """p*keep - lr*g in NumPy."""
    lr, keep, *_ = c
    return p * keep - lr * g, m, v


def sgd_decoupled_rule(p, g, m, v, c):
    """p*keep - lr*g."""
    step = c[0] * g
    return p * c[1] - step, m, v


sgd = optimizer(
    "sgd",
    origin="RANGE_UPDATE_*_SGD",
    formula="p -= lr*(g + wd*p)",
    rules={
        "l2": (sgd_l2_rule, sgd_l2_reference, l2_coefficients),
        "decoupled": (sgd_decoupled_rule, sgd_decoupled_reference, decoupled_coefficients),
    },
    moments=0,
    hyper=("lr", "weight_decay"),
)


def momentum_l2_reference(p, g, m, v, c):
    """M = mu*m + (1-dampening)*(g + wd*p); p - lr*m in NumPy."""
    lr, wd, mu, one_minus_dampening, _ = c
    m = mu * m + one_minus_dampening * (g + wd * p)
    return p - lr * m, m, v


def momentum_l2_rule(p, g, m, v, c):
    """M = mu*m + (1-dampening)*(g + wd*p); p - lr*m."""
    m = c[2] * m + c[3] * (g + c[1] * p)
    return p - c[0] * m, m, v


def momentum_decoupled_reference(p, g, m, v, c):
    """M = mu*m + (1-dampening)*g; p*keep - lr*m in NumPy."""
    lr, keep, mu, one_minus_dampening, _ = c
    m = mu * m + one_minus_dampening * g
    return p * keep - lr * m, m, v


def momentum_decoupled_rule(p, g, m, v, c):
    """M = mu*m + (1-dampening)*g; p*keep - lr*m."""
    m = c[2] * m + c[3] * g
    return p * c[1] - c[0] * m, m, v


momentum = optimizer(
    "momentum",
    origin="RANGE_UPDATE_*_MOMENTUM",
    formula="m = mu*m + (1-dampening)*g; p -= lr*m",
    rules={
        "l2": (momentum_l2_rule, momentum_l2_reference, l2_coefficients),
        "decoupled": (
            momentum_decoupled_rule,
            momentum_decoupled_reference,
            decoupled_coefficients,
        ),
    },
    moments=1,
    hyper=("lr", "momentum", "dampening", "weight_decay"),
)


def nesterov_l2_reference(p, g, m, v, c):
    """Momentum on g + wd*p, then p - lr*(g + mu*m) in NumPy."""
    lr, wd, mu, one_minus_dampening, lookahead = c
    g = g + wd * p
    m = mu * m + one_minus_dampening * g
    return p - lr * (g + lookahead * m), m, v


def nesterov_l2_rule(p, g, m, v, c):
    """Momentum on g + wd*p, then p - lr*(g + mu*m)."""
    g = g + c[1] * p
    m = c[2] * m + c[3] * g
    return p - c[0] * (g + c[4] * m), m, v


def nesterov_decoupled_reference(p, g, m, v, c):
    """Momentum on g, then p*keep - lr*(g + mu*m) in NumPy."""
    lr, keep, mu, one_minus_dampening, lookahead = c
    m = mu * m + one_minus_dampening * g
    return p * keep - lr * (g + lookahead * m), m, v


def nesterov_decoupled_rule(p, g, m, v, c):
    """Momentum on g, then p*keep - lr*(g + mu*m)."""
    m = c[2] * m + c[3] * g
    return p * c[1] - c[0] * (g + c[4] * m), m, v


nesterov = optimizer(
    "nesterov",
    origin="RANGE_UPDATE_*_NESTEROV",
    formula="m = mu*m + (1-dampening)*g; p -= lr*(g + mu*m)",
    rules={
        "l2": (nesterov_l2_rule, nesterov_l2_reference, l2_coefficients),
        "decoupled": (
            nesterov_decoupled_rule,
            nesterov_decoupled_reference,
            decoupled_coefficients,
        ),
    },
    moments=1,
    hyper=("lr", "momentum", "dampening", "weight_decay"),
)
