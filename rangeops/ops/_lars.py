"""LARS and LARC, with and without Nesterov.

    d = scale * (g + wd*p);    m = mu*m + d;    p -= rate * m          nesterov: rate * (d + mu*m)

    lars    scale = r*lr, rate = 1     the origin's form: lr inside the momentum
    larc    scale = r,    rate = lr    lr_outside=True, the form of torch's SGD; trust_clip clips r

r is the tensor's ratio, put into its row by ``trust_ratio``.  One rule serves all four: what
differs are coefficients.  Departure from torch: a tensor that does not adapt (biases and norms)
has r = 1, its decay as its group says.  Source: You, Gitman, Ginsburg 2017, algorithm 1.
"""

from __future__ import annotations

from rangeops.launch.coefficients import (
    LOOK_GRADIENT,
    LOOK_MOMENT,
    MOMENTUM,
    RATE,
    SCALE,
    WEIGHT_DECAY,
)
from rangeops.ops._optimizer import optimizer


def lars_coefficients(c, row):
    """Return (scale, wd, mu, rate, look_gradient, look_moment)."""
    return (
        c[row + SCALE],
        c[row + WEIGHT_DECAY],
        c[MOMENTUM],
        c[row + RATE],
        c[LOOK_GRADIENT],
        c[LOOK_MOMENT],
    )


def lars_reference(p, g, m, v, c):
    """LARS in NumPy."""
    scale, wd, mu, rate, look_gradient, look_moment = c
    d = scale * (g + wd * p)
    m = mu * m + d
    return p - rate * (look_gradient * d + look_moment * m), m, v


def lars_rule(p, g, m, v, c):
    """LARS."""
    d = c[0] * (g + c[1] * p)
    m = c[2] * m + d
    return p - c[3] * (c[4] * d + c[5] * m), m, v


lars = optimizer(
    "lars",
    origin="N_ regions, three kernels a tensor",
    formula="d = r*lr*(g + wd*p); m = mu*m + d; p -= m",
    rules={"l2": (lars_rule, lars_reference, lars_coefficients)},
    moments=1,
    hyper=("lr", "momentum", "weight_decay", "trust_coefficient", "eps"),
    options=("maximize", "nesterov", "lr_outside"),
)
