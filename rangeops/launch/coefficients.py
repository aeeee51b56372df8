"""The coefficient block and the rows by tensor: the one rule that fills them.

Update kernels never take a hyper-parameter by value.  They read a block of floats that all tensors
share and a row of floats per tensor (``plan.scratch`` has their names in order).  The rule below
turns hyper-parameters, step and loss scale into both, in float64, rounded once to float32:

    t        = step + 1
    bc1, bc2 = 1 - beta1**t, 1 - beta2**t             beta = 1 - (1-beta), powers by squaring
    lr       = scalars.lr * group.lr                   (row)
    wd       = scalars.weight_decay * group.wd
    weight_decay, keep = (wd, 1), or (0, 1 - lr*wd) with decoupled                     (row)
    step_size       = lr / bc1                         (row)
    inv_sqrt_bc2    = 1 / sqrt(bc2)                    (block)
    clip     = min(1, clip_norm / (norm + 1e-6))       (with the global norm and clip_norm > 0)
    grad     = +-clip / (grad_scale * ranks)           (block; minus: maximize; ranks: the
                                                        gradients are a sum over so many)
    one_minus_ema_decay = max(1-decay, 9 / (9 + t))    (block; with warm-up)
    momentum, 1-dampening = (0, 1) at the first step   (block)
    look_gradient, look_moment = (0, 1), or (1, momentum) with nesterov                (block)
    beta3    = 1-beta1, or 1 without grad_averaging    (block, LAMB)
    scale, rate = (lr, 1), or (1, lr) with lr_outside  (row; trust_ratio puts the ratio in scale)

So L2 and decoupled decay, momentum, Nesterov and LARS are coefficients of one kernel, not kernels
of their own.  What an optimizer wants by its nature is in SETTINGS.  The rule is one text for the
GPU, the simulator, the CPU loops and the host.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from plan.scratch import BLOCK, BLOCK_FLOATS, ROW, ROW_FLOATS

OPTIONS = {
    name: 1 << bit
    for bit, name in enumerate(
        (
            "bias_correction",
            "ema_warmup",
            "maximize",
            "loss_scaling",
            "global_norm",
            "nesterov",
            "grad_averaging",
            "lr_outside",
            "trust_clip",
            "decoupled",
        )
    )
}
"""The options that choose at run time, each a bit of the option word."""

DEFAULTS = {name: name in ("bias_correction", "grad_averaging") for name in OPTIONS}
"""What an option is where the caller says nothing."""

BIAS_CORRECTION, EMA_WARMUP, MAXIMIZE, LOSS_SCALING, GLOBAL_NORM = list(OPTIONS.values())[:5]
NESTEROV, GRAD_AVERAGING, LR_OUTSIDE, TRUST_CLIP, DECOUPLED = list(OPTIONS.values())[5:]

SETTINGS: dict[str, dict[str, bool]] = {}
"""Optimizer -> the options that it wants by its nature; an optimizer enters its own when declared.
``begin_step`` on a planned arena takes those of the plan's optimizer."""

CLIP_EPS = 1e-6
"""Added to the norm under a clip, as torch.nn.utils.clip_grad_norm_ does."""

BLOCK_SCALARS = (
    "one_minus_beta1",
    "one_minus_beta2",
    "grad_scale",
    "ranks",
    "one_minus_ema_decay",
    "momentum",
    "one_minus_dampening",
    "beta1",
    "eps",
)
"""The FP32 scalars that the block's rule takes, in its order."""

HOST = SimpleNamespace(
    float32=np.float32,
    float64=np.float64,
    int64=int,
    sqrt=np.sqrt,
    device=lambda function: function,
)
"""The vocabulary of plain Python: the rule interpreted on the host, for a launch without a plan."""


def option_word(options: dict[str, bool]) -> int:
    """Return the bits of the options that are on."""
    return sum(OPTIONS[name] for name, on in options.items() if on)


def power_rule(x: Any) -> Any:
    """Return ``power(base, exponent)`` in float64, by squaring, lowest digit first."""
    float64 = x.float64

    def power(base, exponent):
        result = float64(1.0)
        factor = base
        left = exponent
        while left > 0:
            if left & 1:
                result = result * factor
            factor = factor * factor
            left = left >> 1
        return result

    return x.device(power)


def block_rule(x: Any) -> Any:
    """Return ``block(s, step, norm, clip_norm, options)`` compiled for vocabulary ``x``.

    It takes the scalars of BLOCK_SCALARS and gives bc1 as float64, then the block's float32 in
    order.
    """
    float32, float64, int64, sqrt = x.float32, x.float64, x.int64, x.sqrt
    power = power_rule(x)

    def block(s, step, norm, clip_norm, options):
        omb1, omb2, grad_scale, ranks, one_minus_ema, momentum, one_minus_dampening, beta1, eps = s
        t = int64(step)
        bc1 = float64(1.0)
        bc2 = float64(1.0)
        if options & BIAS_CORRECTION:
            bc1 = bc1 - power(float64(1.0) - float64(omb1), t)
            bc2 = bc2 - power(float64(1.0) - float64(omb2), t)
        inv_sqrt_bc2 = float32(float64(1.0) / sqrt(bc2))
        clip = float64(1.0)
        if options & GLOBAL_NORM and clip_norm > float32(0.0):
            clip = float64(clip_norm) / (norm + float64(CLIP_EPS))
        if not (clip < float64(1.0)):
            clip = float64(1.0)
        grad = float32(clip / (float64(grad_scale) * float64(ranks)))
        if options & MAXIMIZE:
            grad = -grad
        ema = one_minus_ema
        if options & EMA_WARMUP:
            ema = max(ema, float32(float64(9.0) / float64(t + int64(9))))
        mu = momentum
        omd = one_minus_dampening
        if t <= 1:
            mu = float32(0.0)
            omd = float32(1.0)
        beta3 = float32(1.0)
        if options & GRAD_AVERAGING:
            beta3 = omb1
        look_gradient = float32(0.0)
        look_moment = float32(1.0)
        if options & NESTEROV:
            look_gradient = float32(1.0)
            look_moment = momentum
        inv_bc1 = float32(float64(1.0) / bc1)
        return bc1, (
            omb1, omb2, inv_sqrt_bc2, eps, grad, ema, mu, omd, inv_bc1, beta1, beta3,
            look_gradient, look_moment,
        )  # fmt: skip

    return x.device(block)


def row_rule(x: Any) -> Any:
    """Return ``row(lr, weight_decay, group_lr, group_decay, bc1, options)`` for vocabulary ``x``.

    It gives lr, step_size, keep, weight_decay, scale and rate as float32.
    """
    float32, float64 = x.float32, x.float64

    def row(lr, weight_decay, group_lr, group_decay, bc1, options):
        rate = float64(lr) * float64(group_lr)
        decay = float64(weight_decay) * float64(group_decay)
        keep = float64(1.0)
        if options & DECOUPLED:
            keep = keep - rate * decay
            decay = float64(0.0)
        step_size = float32(rate / bc1)
        if options & LR_OUTSIDE:
            return (
                float32(rate),
                step_size,
                float32(keep),
                float32(decay),
                float32(1.0),
                float32(rate),
            )
        return float32(rate), step_size, float32(keep), float32(decay), float32(rate), float32(1.0)

    return x.device(row)


def fill_on_host(values: dict[str, float], step: int, options: int) -> np.ndarray:
    """Return block and one row (float32) for hyper-parameters ``values`` at ``step`` >= 1."""
    block, row = block_rule(HOST), row_rule(HOST)
    f = {name: np.float32(value) for name, value in values.items()}
    out = np.zeros(BLOCK_FLOATS + ROW_FLOATS, np.float32)
    with np.errstate(all="ignore"):
        scalars = tuple(f[name] for name in BLOCK_SCALARS)
        bc1, filled = block(scalars, step, np.float64(0), np.float32(0), options)
        rate, step_size, keep, decay, scale, outside = row(
            f["lr"], f["weight_decay"], np.float32(1), np.float32(1), bc1, options
        )
    out[: len(BLOCK)] = filled
    one = {"lr": rate, "step_size": step_size, "keep": keep, "weight_decay": decay}
    one |= {"skip": 0, "ratio": 1, "scale": scale, "rate": outside}
    out[BLOCK_FLOATS:] = [one[name] for name in ROW]
    return out
