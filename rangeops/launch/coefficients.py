"""The coefficient block and the rows by tensor: their layout, and the one rule that fills them.

Update kernels never take a hyper-parameter by value.  They read a block of 16 floats that all
tensors share and a row of 8 floats per tensor.  The rule below turns hyper-parameters, step and
loss scale into both, in float64, rounded once to float32:

    t        = step + 1
    bc1, bc2 = 1 - beta1**t, 1 - beta2**t             beta = 1 - (1-beta), powers by squaring
    lr       = scalars.lr * group.lr                   (row)
    wd       = scalars.weight_decay * group.wd         (row)
    step_size, keep = lr / bc1, 1 - lr * wd            (row)
    inv_sqrt_bc2    = 1 / sqrt(bc2)                    (block)
    clip     = min(1, clip_norm / (norm + 1e-6))       (with the global norm and clip_norm > 0)
    grad     = +-clip / (grad_scale * ranks)           (block; minus: maximize; ranks: the
                                                        gradients are a sum over so many)
    ema      = max(1-decay, 9 / (9 + t))               (block; with warm-up)
    momentum, 1-dampening = (0, 1) at the first step   (block; lookahead keeps the momentum)
    look_gradient, look_moment = (0, 1), or (1, momentum) with nesterov                (block)
    beta3    = 1-beta1, or 1 without grad_averaging    (block, LAMB)
    scale, rate = (lr, 1), or (1, lr) with lr_outside  (row, LARS; trust_ratio puts the ratio in)

The rule is one text for the GPU, the simulator, the CPU loops and the host.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from plan.scratch import BLOCK_FLOATS, ROW_FLOATS

(
    ONE_MINUS_BETA1,
    ONE_MINUS_BETA2,
    INV_SQRT_BC2,
    EPS,
    GRAD,
    ONE_MINUS_EMA,
    MOMENTUM,
    ONE_MINUS_DAMPENING,
    LOOKAHEAD,
    INV_BC1,
    BETA1,
    BETA3,
    LOOK_GRADIENT,
    LOOK_MOMENT,
) = range(14)
"""Places in the block."""

LR, STEP_SIZE, KEEP, WEIGHT_DECAY, SKIP, RATIO, SCALE, RATE = range(ROW_FLOATS)
"""Places in a row; SKIP is 1 for a frozen tensor or one without a gradient this step."""

BIAS_CORRECTION, EMA_WARMUP, MAXIMIZE, LOSS_SCALING = 1, 2, 4, 8
GLOBAL_NORM, NESTEROV, GRAD_AVERAGING, LR_OUTSIDE, TRUST_CLIP = 16, 32, 64, 128, 256
"""Bits of the option word."""

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


def rules(x: Any) -> tuple[Any, Any]:
    """Return (block, row) compiled for vocabulary ``x``.

    ``block(s, step, norm, clip_norm, options)`` takes the scalars (1-beta1, 1-beta2, grad_scale,
    ranks, 1-ema_decay, momentum, 1-dampening, beta1, eps) and gives bc1 as float64, then the
    block's 14 float32 in order.  ``row(lr, weight_decay, group_lr, group_decay, bc1, options)``
    gives lr, step_size, keep, weight decay, scale and rate as float32.
    """
    float32, float64, int64, sqrt = x.float32, x.float64, x.int64, x.sqrt

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

    power = x.device(power)

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
            omb1, omb2, inv_sqrt_bc2, eps, grad, ema, mu, omd, momentum, inv_bc1, beta1, beta3,
            look_gradient, look_moment,
        )  # fmt: skip

    def row(lr, weight_decay, group_lr, group_decay, bc1, options):
        rate = float64(lr) * float64(group_lr)
        decay = float64(weight_decay) * float64(group_decay)
        keep = float32(float64(1.0) - rate * decay)
        step_size = float32(rate / bc1)
        if options & LR_OUTSIDE:
            return float32(rate), step_size, keep, float32(decay), float32(1.0), float32(rate)
        return float32(rate), step_size, keep, float32(decay), float32(rate), float32(1.0)

    return x.device(block), x.device(row)


def fill_on_host(values: dict[str, float], step: int, options: int) -> np.ndarray:
    """Return block and one row (24 float32) for hyper-parameters ``values`` at ``step`` >= 1."""
    block, row = rules(HOST)
    f = {name: np.float32(value) for name, value in values.items()}
    out = np.zeros(BLOCK_FLOATS + ROW_FLOATS, np.float32)
    with np.errstate(all="ignore"):
        scalars = tuple(f[name] for name in BLOCK_SCALARS)
        bc1, filled = block(scalars, step, np.float64(0), np.float32(0), options)
        rate, step_size, keep, decay, scale, outside = row(
            f["lr"], f["weight_decay"], np.float32(1), np.float32(1), bc1, options
        )
    out[: len(filled)] = filled
    out[BLOCK_FLOATS:] = rate, step_size, keep, decay, 0, 1, scale, outside
    return out
