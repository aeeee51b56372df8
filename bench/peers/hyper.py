"""The hyper-parameters that every step is timed with, ours and the peers'."""

from __future__ import annotations

from typing import Any

LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01
MOMENTUM, TRUST = 0.9, 1e-3

SCALARS: dict[str, Any] = {
    "lr": LR,
    "beta1": BETA1,
    "beta2": BETA2,
    "eps": EPS,
    "weight_decay": DECAY,
    "momentum": MOMENTUM,
    "trust_coefficient": TRUST,
}
"""The same by their names in ``arena.scalars``."""
