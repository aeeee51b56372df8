"""A tensor's row of coefficients: the one rule that fills it.

Update kernels never take a hyper-parameter by value.  They read a row of floats per tensor
(``plan.scratch.ROW`` has their names in order), which the rule below makes of the arena's scalars,
the tensor's group and its own step, in float64, rounded once to float32:

    t        = the tensor's step + 1
    bc1, bc2 = 1 - beta1**t, 1 - beta2**t             beta = 1 - (1-beta), powers by squaring
    lr       = scalars.lr * group.lr
    wd       = scalars.weight_decay * group.weight_decay
    weight_decay, keep = (wd, 1), or (0, 1 - lr*wd) with decoupled
    step_size       = lr / bc1
    inv_sqrt_bc2    = 1 / sqrt(bc2)
    clip     = min(1, clip_norm / (norm + 1e-6))       (with the global norm and clip_norm > 0)
    grad     = +-clip / (grad_scale * ranks)           (minus: maximize; ranks: the gradients are a
                                                        sum over so many)
    one_minus_ema_decay = max(1-decay, 9 / (9 + T))    (all; with warm-up; T: the arena's step + 1)
    start_ema           = 1 at T = 1: the average starts as the weights before the step (all)
    momentum, 1-dampening = (0, 1) at t = 1
    look_gradient, look_moment = (0, 1), or (1, momentum) with nesterov
    beta3    = 1-beta1, or 1 without grad_averaging    (LAMB)
    scale, rate = (lr, 1), or (1, lr) with lr_outside  (trust_ratio puts the ratio in scale)
    trust    = trust_coefficient, or -1 where the group does not adapt

A momentum of 0 leaves m as it is, (1, 0, 1, 0), and p moves by the gradient.  So L2 and decoupled
decay, momentum, Nesterov, SGD, maximize and LARS are coefficients of one kernel, not kernels of
their own, and groups may differ in any of them.  What an optimizer wants by its nature is in
SETTINGS.  The rule is one text for the GPU, the simulator, the CPU loops and the host.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from plan.scalars import FP32_SCALARS
from plan.scratch import BLOCK_FLOATS, GROUP, GROUP_FLOATS, ROW, ROW_FLOATS, group_index

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

MOST_STEPS = 2**31 - 1
"""Where every count of steps stops."""

SHARED = tuple(name for name in GROUP if name in FP32_SCALARS)
"""The FP32 scalars of the arena that the row's rule takes, in its order: those that a group may
multiply or replace."""

HOST = SimpleNamespace(
    float32=np.float32,
    float64=np.float64,
    int64=int,
    sqrt=np.sqrt,
    device=lambda function: function,
)
"""The vocabulary of plain Python: the rule interpreted on the host, for a launch without a plan."""


READS: dict[str, frozenset[str]] = {}
"""Optimizer -> the coefficients by tensor that its passes read; entered when it is declared."""

READ_BY_OTHERS: set[str] = set()
"""The coefficients by tensor that ops beside the optimizers read."""


def quads_of(names: Iterable[str]) -> int:
    """Return the fours of a row that hold coefficients, a bit each."""
    bits = {1 << ROW.index(name) // 4 for name in names if name in ROW}
    return sum(bits)


def quads_written(optimizer: str) -> int:
    """Return the fours that ``begin_step`` writes in a plan for an optimizer."""
    names = READS.get(optimizer, frozenset(ROW))
    return quads_of({*names, *READ_BY_OTHERS})


def option_word(options: dict[str, bool]) -> int:
    """Return the bits of the options that are on."""
    return sum(OPTIONS[name] for name, on in options.items() if on)


def powers_rule(x: Any) -> Any:
    """Return ``powers(a, b, exponent)``: both in float64, by squaring, lowest digit first.

    In one loop, since each is a chain of products that wait for one another.
    """
    float64 = x.float64

    def powers(a, b, exponent):
        first = float64(1.0)
        second = float64(1.0)
        left = exponent
        while left > 0:
            if left & 1:
                first = first * a
                second = second * b
            a = a * a
            b = b * b
            left = left >> 1
        return first, second

    return x.device(powers)


def clip_rule(x: Any) -> Any:
    """Return ``clip(norm, clip_norm, options)``: what the global norm multiplies gradients by."""
    float32, float64 = x.float32, x.float64

    def clip(norm, clip_norm, options):
        factor = float64(1.0)
        if options & GLOBAL_NORM and clip_norm > float32(0.0):
            factor = float64(clip_norm) / (norm + float64(CLIP_EPS))
        if not (factor < float64(1.0)):
            factor = float64(1.0)
        return factor

    return x.device(clip)


def ema_rule(x: Any) -> Any:
    """Return ``ema(one_minus_ema_decay, step, options)``: 1 - decay at the arena's step."""
    float32, float64, int64 = x.float32, x.float64, x.int64

    def ema(one_minus_ema_decay, step, options):
        if options & EMA_WARMUP:
            return max(one_minus_ema_decay, float32(float64(9.0) / float64(step + int64(9))))
        return one_minus_ema_decay

    return x.device(ema)


def group_rule(x: Any) -> Any:
    """Return ``settings(s, g)``: what a group sets for itself, else the arena's scalars.

    ``s`` has the scalars of SHARED, ``g`` the group's GROUP_FLOATS; lr and weight decay are float64
    products, the rest float32.
    """
    float64 = x.float64
    trust, omb1, omb2, beta1, eps, mu, omd = map(group_index, SHARED[2:])

    def pick(own, shared):
        return shared if own != own else own

    pick = x.device(pick)

    def settings(s, g):
        return (
            float64(s[0]) * float64(g[0]), float64(s[1]) * float64(g[1]), pick(g[trust], s[2]),
            pick(g[omb1], s[3]), pick(g[omb2], s[4]), pick(g[beta1], s[5]), pick(g[eps], s[6]),
            pick(g[mu], s[7]), pick(g[omd], s[8]),
        )  # fmt: skip

    return x.device(settings)


def momentum_rule(x: Any) -> Any:
    """Return ``moving(momentum, one_minus_dampening, t, nesterov)``: four coefficients of m."""
    float32 = x.float32

    def moving(momentum, one_minus_dampening, t, nesterov):
        mu, omd = momentum, one_minus_dampening
        look_gradient, look_moment = float32(0.0), float32(1.0)
        if t <= 1:
            mu, omd = float32(0.0), float32(1.0)
        if nesterov:
            look_gradient, look_moment = float32(1.0), momentum
        if momentum == float32(0.0):
            mu, omd = float32(1.0), float32(0.0)
            look_gradient, look_moment = float32(1.0), float32(0.0)
        return mu, omd, look_gradient, look_moment

    return x.device(moving)


def row_rule(x: Any) -> Any:
    """Return ``row(s, g, t, grad, options)`` compiled for vocabulary ``x``.

    It takes the scalars of SHARED, a group's settings, the tensor's step and the float32 ``grad``
    of all, and gives the row, float32.
    """
    float32, float64, sqrt = x.float32, x.float64, x.sqrt
    powers, settings, moving = powers_rule(x), group_rule(x), momentum_rule(x)
    adapt, nesterov, maximize, decoupled, corrected, averaged = map(
        group_index,
        ("adapt", "nesterov", "maximize", "decoupled", "bias_correction", "grad_averaging"),
    )

    def chosen(own, options, bit):
        return (options & bit) != 0 if own != own else own != float32(0.0)

    chosen = x.device(chosen)

    def row(s, g, t, grad, options):
        lr, decay, trust, omb1, omb2, beta1, eps, momentum, omd = settings(s, g)
        bc1 = float64(1.0)
        bc2 = float64(1.0)
        if chosen(g[corrected], options, BIAS_CORRECTION):
            one = float64(1.0)
            power1, power2 = powers(one - float64(omb1), one - float64(omb2), t)
            bc1 = one - power1
            bc2 = one - power2
        keep = float64(1.0)
        if chosen(g[decoupled], options, DECOUPLED):
            keep = keep - lr * decay
            decay = float64(0.0)
        if chosen(g[maximize], options, MAXIMIZE):
            grad = -grad
        scale, rate = float32(lr), float32(1.0)
        if options & LR_OUTSIDE:
            scale, rate = float32(1.0), float32(lr)
        beta3 = float32(1.0)
        if chosen(g[averaged], options, GRAD_AVERAGING):
            beta3 = omb1
        if g[adapt] == float32(0.0):
            trust = float32(-1.0)
        mu, omd, look_gradient, look_moment = moving(
            momentum, omd, t, chosen(g[nesterov], options, NESTEROV)
        )
        return (
            grad, float32(keep), float32(decay), float32(lr / bc1), omb1, omb2,
            float32(float64(1.0) / sqrt(bc2)), eps, mu, omd, look_gradient, look_moment, scale,
            rate, float32(1.0), trust, float32(lr), float32(float64(1.0) / bc1), beta1, beta3,
        )  # fmt: skip

    return x.device(row)


def fill_on_host(values: dict[str, float], step: int, options: int) -> np.ndarray:
    """Return block and row, float32, for hyper-parameters at a tensor's ``step`` from 1 on."""
    f = {name: np.float32(value) for name, value in values.items()}
    group = np.full(GROUP_FLOATS, np.nan, np.float32)
    group[: GROUP.index("adapt") + 1] = 1.0
    out = np.zeros(BLOCK_FLOATS + ROW_FLOATS, np.float32)
    with np.errstate(all="ignore"):
        clip = clip_rule(HOST)(np.float64(0), np.float32(0), options)
        grad = np.float32(clip / (np.float64(f["grad_scale"]) * np.float64(f["ranks"])))
        shared = tuple(f[name] for name in SHARED)
        row = row_rule(HOST)(shared, tuple(group), step, grad, options)
        out[0] = ema_rule(HOST)(f["one_minus_ema_decay"], step, options)
    out[BLOCK_FLOATS : BLOCK_FLOATS + len(ROW)] = row
    return out
