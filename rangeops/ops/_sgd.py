"""SGD, momentum, Nesterov, LARS and LARC: two rules, the rest are coefficients.

    sgd         p = p*keep - rate * (g + weight_decay*p)

    momentum    d = scale * (g + weight_decay*p)
                m = momentum*m + (1-dampening)*d                first step: m = d
                p = p*keep - rate * (look_gradient*d + look_moment*m)

    l2          weight_decay = wd, keep = 1       decoupled   weight_decay = 0, keep = 1 - lr*wd
    momentum    scale = 1, rate = lr, look = (0, 1)
    nesterov    scale = 1, rate = lr, look = (1, momentum)
    lars        scale = r*lr, rate = 1     the origin's form: lr inside the momentum
    larc        scale = r,    rate = lr    lr_outside=True, the form of torch's SGD; trust_clip
                                           clips r

r is the tensor's ratio, put into its row by ``trust_ratio``; lars takes ``nesterov`` as an option.
Departures from torch: with decoupled decay (the origin's rule) the weight shrinks by lr*wd and the
momentum does not see the decay; in LARS a tensor that does not adapt (biases and norms) has r = 1,
its decay as its group says.
"""

from __future__ import annotations

from rangeops.kernels.spec import Stage
from rangeops.ops._ratio import RATIO_READS
from rangeops.ops._update import optimizer, update_kernel


def sgd_reference(p, g, weight_decay, keep, rate):
    """Return p*keep - rate*(g + wd*p) in NumPy."""
    return p * keep - rate * (g + weight_decay * p)


def sgd_rule(p, g, weight_decay, keep, rate):
    """Return p*keep - rate*(g + wd*p)."""
    step = rate * (g + weight_decay * p)
    return p * keep - step


def momentum_reference(
    p, g, m, momentum, one_minus_dampening, look_gradient, look_moment,
    weight_decay, keep, scale, rate,
):  # fmt: skip
    """Momentum in NumPy."""
    d = scale * (g + weight_decay * p)
    m = momentum * m + one_minus_dampening * d
    return p * keep - rate * (look_gradient * d + look_moment * m), m


def momentum_rule(
    p, g, m, momentum, one_minus_dampening, look_gradient, look_moment,
    weight_decay, keep, scale, rate,
):  # fmt: skip
    """Momentum."""
    d = scale * (g + weight_decay * p)
    m = momentum * m + one_minus_dampening * d
    return p * keep - rate * (look_gradient * d + look_moment * m), m


MOMENTUM = update_kernel(
    "momentum", Stage(("p", "m"), momentum_rule, momentum_reference), moments="m"
)
OPTIONS = ("maximize", "decoupled")

sgd = optimizer(
    "sgd",
    origin="RANGE_UPDATE_*_SGD",
    formula="p -= lr*(g + wd*p)",
    rule=sgd_rule,
    reference=sgd_reference,
    hyper=("lr", "weight_decay"),
    options=OPTIONS,
    settings={"lr_outside": True},
    source="Robbins and Monro 1951",
)

momentum = optimizer(
    "momentum",
    origin="RANGE_UPDATE_*_MOMENTUM",
    formula="m = mu*m + (1-dampening)*g; p -= lr*m",
    kernel=MOMENTUM,
    hyper=("lr", "momentum", "dampening", "weight_decay"),
    options=OPTIONS,
    settings={"lr_outside": True},
    source="Sutskever et al. 2013, in torch's form (lr outside m)",
)

nesterov = optimizer(
    "nesterov",
    origin="RANGE_UPDATE_*_NESTEROV",
    formula="m = mu*m + (1-dampening)*g; p -= lr*(g + mu*m)",
    kernel=MOMENTUM,
    hyper=("lr", "momentum", "dampening", "weight_decay"),
    options=OPTIONS,
    settings={"lr_outside": True, "nesterov": True},
    source="Sutskever et al. 2013, in torch's form (lr outside m)",
)

lars = optimizer(
    "lars",
    origin="N_ regions, three kernels a tensor",
    formula="d = r*lr*(g + wd*p); m = mu*m + d; p -= m",
    kernel=MOMENTUM,
    hyper=("lr", "momentum", "weight_decay", "trust_coefficient", "eps"),
    options=("maximize", "nesterov", "lr_outside"),
    beside=RATIO_READS,
    source="You, Gitman, Ginsburg 2017, algorithm 1",
)
