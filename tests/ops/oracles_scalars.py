"""What begin_step and the other ops on scalars should give; see ``tests.ops.oracles``."""

from __future__ import annotations

import math

import numpy as np

from plan.scalars import ACCUMULATED, FP32_SCALARS, SCALAR_STRIDE, fp32_index, int32_index
from plan.scratch import BLOCK, BLOCK_FLOATS, ROW, ROW_FLOATS
from tests import tolerance
from tests.ops.expects import Expects, exact, norm, oracle


@oracle("begin_step")
def begin_step(x):
    b1, b2, mu = x.beta1, x.beta2, x.momentum
    corrected = x.on("bias_correction")
    c1, c2 = (1 - b1**x.t, 1 - b2**x.t) if corrected else (1.0, 1.0)
    size = norm(x.raw_g) / (x.loss_scale * x.ranks)
    clip = min(1.0, x.clip_norm / (size + 1e-6)) if x.on("global_norm") else 1.0
    averaged = 1 - x.ema_decay
    want = {
        "one_minus_beta1": 1 - b1, "one_minus_beta2": 1 - b2, "inv_sqrt_bc2": 1 / math.sqrt(c2),
        "eps": x.eps, "inv_bc1": 1 / c1, "beta1": b1,
        "grad": (-1 if x.on("maximize") else 1) * clip / (x.loss_scale * x.ranks),
        "one_minus_ema_decay": max(averaged, 9 / (9 + x.t)) if x.on("ema_warmup") else averaged,
        "momentum": mu, "one_minus_dampening": 1 - x.dampening,
        "beta3": 1 - b1 if x.on("grad_averaging") else 1.0,
        "look_gradient": float(x.on("nesterov")),
        "look_moment": mu if x.on("nesterov") else 1.0,
    }  # fmt: skip
    block = np.array([want[name] for name in BLOCK])
    got = x.after["c"][: len(BLOCK)]
    yield Expects("block", got, block, np.abs(block) + 1e-300, tolerance.STEP)
    rows = x.after["c"][BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)[: len(x.slices)]
    for k, (name, row) in enumerate(zip(x.slices, rows, strict=True)):
        wd = x.weight_decay if name in ("fc", "conv") else 0.0
        decoupled, outside = x.on("decoupled"), x.on("lr_outside")
        want = {
            "lr": x.lr, "step_size": x.lr / c1, "keep": 1 - x.lr * wd if decoupled else 1.0,
            "weight_decay": 0.0 if decoupled else wd, "skip": 0.0, "ratio": 1.0,
            "scale": 1.0 if outside else x.lr, "rate": x.lr if outside else 1.0,
        }  # fmt: skip
        values = np.array([want[name] for name in ROW])
        yield Expects(f"row {k}", row, values, np.abs(values) + 1e-300, tolerance.STEP)
    k = x.after["k"]
    yield exact("step", k[int32_index("step")], x.t)
    yield exact("skip_step", k[int32_index("skip_step")], 0)
    if x.on("global_norm"):
        found = x.after["s"][fp32_index("grad_norm")]
        yield Expects("grad_norm", found, size, size, tolerance.STORED)
    tracked = k[int32_index("growth_tracker")]
    yield exact("growth_tracker", tracked, float(x.on("loss_scaling")))


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
