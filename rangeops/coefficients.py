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
    grad     = +-1 / grad_scale                        (block; minus: maximize)
    ema      = max(1-decay, 9 / (9 + t))               (block; with warm-up)
    momentum, 1-dampening = (0, 1) at the first step   (block; lookahead keeps the momentum)

The rule is one text for the GPU, the simulator, the CPU loops and the host.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from plan.baseline import BLOCK_FLOATS, ROW_FLOATS

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
    TRUST,
) = range(10)
"""Places in the block."""

LR, STEP_SIZE, KEEP, WEIGHT_DECAY, SKIP, RATIO = range(6)
"""Places in a row; SKIP is 1 for a frozen tensor or one without a gradient this step."""

BIAS_CORRECTION, EMA_WARMUP, MAXIMIZE, LOSS_SCALING = 1, 2, 4, 8
"""Bits of the option word."""

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

    ``block(one_minus_beta1, one_minus_beta2, grad_scale, one_minus_ema, momentum,
    one_minus_dampening, step, options)`` gives bc1 as float64, then inv_sqrt_bc2, grad, ema,
    momentum and 1-dampening as float32.  ``row(lr, weight_decay, group_lr, group_decay, bc1)``
    gives lr, step_size, keep, weight decay as float32.
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

    def block(omb1, omb2, grad_scale, one_minus_ema, momentum, one_minus_dampening, step, options):
        t = int64(step)
        bc1 = float64(1.0)
        bc2 = float64(1.0)
        if options & BIAS_CORRECTION:
            bc1 = bc1 - power(float64(1.0) - float64(omb1), t)
            bc2 = bc2 - power(float64(1.0) - float64(omb2), t)
        inv_sqrt_bc2 = float32(float64(1.0) / sqrt(bc2))
        grad = float32(1.0) / grad_scale
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
        return bc1, inv_sqrt_bc2, grad, ema, mu, omd

    def row(lr, weight_decay, group_lr, group_decay, bc1):
        rate = float64(lr) * float64(group_lr)
        decay = float64(weight_decay) * float64(group_decay)
        keep = float64(1.0) - rate * decay
        return float32(rate), float32(rate / bc1), float32(keep), float32(decay)

    return x.device(block), x.device(row)


def fill_on_host(values: dict[str, float], step: int, options: int) -> np.ndarray:
    """Return block and one row (24 float32) for hyper-parameters ``values`` at ``step`` >= 1."""
    block, row = rules(HOST)
    f = {name: np.float32(value) for name, value in values.items()}
    out = np.zeros(BLOCK_FLOATS + ROW_FLOATS, np.float32)
    with np.errstate(all="ignore"):
        bc1, inv_sqrt_bc2, grad, ema, mu, omd = block(
            f["one_minus_beta1"],
            f["one_minus_beta2"],
            f["grad_scale"],
            f["one_minus_ema_decay"],
            f["momentum"],
            f["one_minus_dampening"],
            step,
            options,
        )
        rate, step_size, keep, decay = row(
            f["lr"], f["weight_decay"], np.float32(1), np.float32(1), bc1
        )
    out[: TRUST + 1] = (
        f["one_minus_beta1"],
        f["one_minus_beta2"],
        inv_sqrt_bc2,
        f["eps"],
        grad,
        ema,
        mu,
        omd,
        f["momentum"],
        f["trust_coefficient"],
    )
    out[BLOCK_FLOATS + LR : BLOCK_FLOATS + RATIO + 1] = rate, step_size, keep, decay, 0, 1
    return out
