"""What begin_step and the other ops on scalars should give; see ``tests.ops.oracles``."""

from __future__ import annotations

import math

import numpy as np

from plan.scalars import ACCUMULATED, FP32_SCALARS, SCALAR_STRIDE, fp32_index, int32_index
from plan.scratch import BLOCK, BLOCK_FLOATS, ROW, ROW_FLOATS
from tests import tolerance
from tests.ops.expects import Expects, exact, norm, oracle


def row(x, own, clip):
    """Return a tensor's coefficients by name, from its settings and its own step."""
    b1, b2, mu, lr, wd = own.beta1, own.beta2, own.momentum, own.lr, own.weight_decay
    corrected = own.on("bias_correction")
    c1, c2 = (1 - b1**own.t, 1 - b2**own.t) if corrected else (1.0, 1.0)
    first, looks = own.t == 1, own.on("nesterov")
    decoupled, outside = own.on("decoupled"), x.chosen("lr_outside")
    return {
        "grad": (-1 if own.on("maximize") else 1) * clip / (x.loss_scale * x.ranks),
        "lr": lr, "step_size": lr / c1, "keep": 1 - lr * wd if decoupled else 1.0,
        "weight_decay": 0.0 if decoupled else wd,
        "one_minus_beta1": 1 - b1, "one_minus_beta2": 1 - b2, "inv_sqrt_bc2": 1 / math.sqrt(c2),
        "eps": own.eps, "momentum": 0.0 if first else mu,
        "one_minus_dampening": 1.0 if first else 1 - own.dampening,
        "look_gradient": float(looks), "look_moment": mu if looks else 1.0,
        "scale": 1.0 if outside else lr, "rate": lr if outside else 1.0, "ratio": 1.0,
        "trust": own.trust_coefficient if own.adapts else -1.0,
        "inv_bc1": 1 / c1, "beta1": b1, "beta3": 1 - b1 if own.on("grad_averaging") else 1.0,
    }  # fmt: skip


@oracle("begin_step")
def begin_step(x):
    size = norm(x.raw_g) / (x.loss_scale * x.ranks)
    clip = min(1.0, x.clip_norm / (size + 1e-6)) if x.chosen("global_norm") else 1.0
    averaged = 1 - x.ema_decay
    warm = max(averaged, 9 / (9 + x.step + 1))
    block = np.array([warm if x.chosen("ema_warmup") else averaged, 0.0])
    got = x.after["c"][: len(BLOCK)]
    yield Expects("block", got, block, np.abs(block) + 1e-300, tolerance.STEP)
    rows = x.after["c"][BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)
    for name, got in zip(x.slices, rows, strict=True):
        wanted = row(x, x.own(name), clip)
        assert set(wanted) == set(ROW)
        want = np.array([wanted[key] for key in ROW])
        unit = np.abs(want) + 1e-300
        yield Expects(f"row of {name}", got[: len(ROW)], want, unit, tolerance.STEP)
        yield exact("padding", got[len(ROW) :], 0.0)
    yield exact("steps", x.after["steps"], [x.own(name).t for name in x.slices])
    k = x.after["k"]
    yield exact("step", k[int32_index("step")], x.step + 1)
    yield exact("skip_step", k[int32_index("skip_step")], 0)
    if x.chosen("global_norm"):
        found = x.after["s"][fp32_index("grad_norm")]
        yield Expects("grad_norm", found, size, size, tolerance.STORED)
    tracked = k[int32_index("growth_tracker")]
    yield exact("growth_tracker", tracked, float(x.chosen("loss_scaling")))


@oracle("grad_scaling")
def grad_scaling(x):
    """At the interval, with nothing found: the scale is multiplied and the tracker begins anew."""
    s = dict(FP32_SCALARS) | x.hyper
    yield exact("scale", x.after["s"][fp32_index("loss_scale")], s["loss_scale"])
    yield exact("tracker", x.after["k"][int32_index("growth_tracker")], 1)


@oracle("accumulate_metrics")
def accumulate_metrics(x):
    pairs = x.after["accumulated"].reshape(len(ACCUMULATED), SCALAR_STRIDE)[:, :2].sum(axis=1)
    yield exact("accumulated", pairs, [0.25 * 32, 0.5 * 32, 0.75 * 32, 32])
