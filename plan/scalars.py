"""Every scalar that a plan has for the host and its kernels, with its value in a fresh arena.

Scalar k of S_SCALAR_FP32 or S_SCALAR_INT32 lies k slots (128 elements) behind the region's start.
The scalars that the device itself changes stand last, apart from those of the host, so that
one upload of neighbouring host scalars never overwrites them.  FP32 scalars of a caller's own
(``PlanConfig.scalars``) lie behind them, sorted by name.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from typing import SupportsFloat

from plan.errors import PlanError

SCALAR_STRIDE = 128
"""Elements between neighbouring scalars: an FP32 or INT32 slot of one element is 512 bytes."""

FP32_SCALARS: dict[str, float] = {
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "one_minus_beta1": 1 - 0.9,
    "one_minus_beta2": 1 - 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "momentum": 0.9,
    "one_minus_dampening": 1.0,
    "trust_coefficient": 1e-3,
    "one_minus_ema_decay": 1 - 0.9999,
    "clip_norm": 0.0,
    "clip_value": 0.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "min_loss_scale": 1.0,
    "max_loss_scale": 2.0**127,
    "label_smoothing": 0.0,
    "bn_eps": 1e-5,
    "bn_momentum": 0.1,
    "dropout_seed": 0.0,
    "ranks": 1.0,
    "loss_scale": 1.0,
    "grad_scale": 1.0,
    "grad_norm": 0.0,
}
"""Name -> value in a fresh arena.  From ``loss_scale`` on they are changed by the device."""

INT32_SCALARS: dict[str, int] = {
    "growth_interval": 2000,
    "hysteresis": 1,
    "batch_size": 1,
    "global_batch_size": 1,
    "step": 0,
    "found_inf": 0,
    "skip_step": 0,
    "skipped_steps": 0,
    "growth_tracker": 0,
    "hysteresis_tracker": 1,
    "floor_hits": 0,
    "first_nonfinite": 2**31 - 1,
    "nonfinite_granule": 2**31 - 1,
    "poisoned": 0,
    "settings": 0,
    "settings_inverse": -1,
    "ticket": 0,
}
"""Name -> value in a fresh arena.  From ``step`` on they are changed by the device."""

DEVICE_OWNED = frozenset(list(FP32_SCALARS)[list(FP32_SCALARS).index("loss_scale") :]) | frozenset(
    list(INT32_SCALARS)[list(INT32_SCALARS).index("step") :]
)
"""Scalars that kernels write; the host's last value of them is not their value."""

_FP32_MAX = (2 - 2**-23) * 2.0**127

RESULTS = ("loss", "top1", "top5")
"""Scalars of R_RESULT, written by the caller's loss; they ride along in gradient bucket 1."""

ACCUMULATED = ("loss", "top1", "top5", "samples")
"""Sums of R_RESULT_ACCUMULATED, each two elements: the sum and what rounding took from it."""


def fp32_index(name: str) -> int:
    """Return the element index of a scalar inside S_SCALAR_FP32."""
    return list(FP32_SCALARS).index(name) * SCALAR_STRIDE


def int32_index(name: str) -> int:
    """Return the element index of a scalar inside S_SCALAR_INT32."""
    return list(INT32_SCALARS).index(name) * SCALAR_STRIDE


def own_scalars(
    subject: str, values: Mapping[str, float] | Iterable[tuple[str, float]]
) -> tuple[tuple[str, float], ...]:
    """Return scalars of a caller's own, name and value in a fresh arena, sorted by name.

    Args:
        subject: who is given them, for the error's sentence.
        values: name -> value, or such pairs.

    Raises:
        PlanError: a name that is no plain identifier, or is taken by a scalar of every plan; a
            value that is no finite FP32 number.

    >>> own_scalars("PlanConfig", {"gamma": 0.9, "delta": 1})
    (('delta', 1.0), ('gamma', 0.9))

    """
    try:
        given = dict(values)
    except (TypeError, ValueError):
        raise PlanError(f"{subject}: scalars got {values!r}, expected name -> value") from None
    for name, value in given.items():
        label = f"{subject}: scalar {name!r}"
        if not (isinstance(name, str) and name.isidentifier()) or keyword.iskeyword(name):
            raise PlanError(f"{label} got a name that is no identifier, expected one; rename it")
        if name[0] == "_":
            raise PlanError(f"{label} begins with an underscore, expected a letter; rename it")
        if name in FP32_SCALARS or name in INT32_SCALARS or f"one_minus_{name}" in FP32_SCALARS:
            raise PlanError(f"{label} is one of every plan, expected a new name; rename it")
        if not (isinstance(value, SupportsFloat) and abs(float(value)) <= _FP32_MAX):
            raise PlanError(f"{label} got {value!r}, expected a finite number within FP32")
    return tuple(sorted((name, float(value)) for name, value in given.items()))
