"""Whole runs in float64 by the papers' formulas, tensor by tensor: what an arena is held to.

Nothing here is shared with the library: no row, no table, no coefficient, no order of rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = Any


@dataclass
class Tensor:
    """One parameter, and all that is kept for it."""

    p: Array
    flat: bool
    m: Array = 0.0
    v: Array = 0.0
    e: Array = None
    step: int = 0
    frozen: bool = False
    group: str = ""


@dataclass
class Settings:
    """What a step goes by; a group overrides any of it, lr and weight_decay by a factor."""

    lr: float = 0.01
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-3
    momentum: float = 0.9
    dampening: float = 0.0
    trust_coefficient: float = 0.02
    nesterov: bool = False
    maximize: bool = False
    decay: str = "l2"
    bias_correction: bool = True
    grad_averaging: bool = True
    adapt: bool = True


@dataclass
class Run:
    """The run of one optimizer.

    Attributes:
        own: name of a group -> what it sets for itself.

    """

    optimizer: str
    tensors: dict[str, Tensor]
    common: Settings
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    ema_decay: float = 0.9
    clip_norm: float = 0.0
    scale: float = 1.0
    dynamic: bool = False
    interval: int = 3
    clean: int = 0
    steps: int = 0
    skipped: int = 0

    def of(self, name: str) -> Settings:
        """Return the settings of a tensor."""
        tensor, common = self.tensors[name], vars(self.common)
        own = self.own.get(tensor.group, {})
        if not tensor.group:  # the plan's own two groups
            own = {"weight_decay": 0.0, "adapt": False} if tensor.flat else {}
        merged = {**common, **own}
        for factor in ("lr", "weight_decay"):
            merged[factor] = common[factor] * own.get(factor, 1.0)
        return Settings(**merged)

    def advance(self, gradients: dict[str, Array | None], check: bool) -> None:
        """Take one step; a tensor without a gradient, or a frozen one, rests."""
        live = {
            name: g
            for name, g in gradients.items()
            if g is not None and not self.tensors[name].frozen
        }
        if check and not all(np.isfinite(g).all() for g in live.values()):
            self.skipped += 1
            if self.dynamic:
                self.scale, self.clean = max(1.0, self.scale / 2), 0
            return
        clip = 1.0
        if self.clip_norm:
            norm = np.sqrt(sum(float((g * g).sum()) for g in live.values()))
            clip = min(1.0, self.clip_norm / (norm + 1e-6))
        for tensor in self.tensors.values():
            if self.steps == 0:
                tensor.e = tensor.p.copy()
        self.steps += 1
        for name, g in live.items():
            settings, tensor = self.of(name), self.tensors[name]
            tensor.step += 1
            g = clip * (-g if settings.maximize else g)
            RULES[self.optimizer](tensor, g, settings)
        for tensor in self.tensors.values():
            tensor.e = self.ema_decay * tensor.e + (1 - self.ema_decay) * tensor.p
        if self.dynamic:
            self.clean += 1
            if self.clean == self.interval:
                self.scale, self.clean = self.scale * 2, 0


def decayed(t: Tensor, g: Array, s: Settings) -> Array:
    """Return the gradient with L2 decay in it, after shrinking the weight by a decoupled one."""
    if s.decay == "l2":
        return g + s.weight_decay * t.p
    t.p = t.p * (1 - s.lr * s.weight_decay)
    return g


def sgd(t: Tensor, g: Array, s: Settings) -> None:
    """Plain descent."""
    d = decayed(t, g, s)
    t.p = t.p - s.lr * d


def momentum(t: Tensor, g: Array, s: Settings, scale: float = 1.0, rate: Any = None) -> None:
    """Heavy ball, and Nesterov's; the first buffer is the gradient."""
    d = scale * decayed(t, g, s)
    rate = s.lr if rate is None else rate
    if s.momentum == 0:
        move = d
    else:
        t.m = d if t.step == 1 else s.momentum * t.m + (1 - s.dampening) * d
        move = d + s.momentum * t.m if s.nesterov else t.m
    t.p = t.p - rate * move


def lars(t: Tensor, g: Array, s: Settings) -> None:
    """Rates by layer, with lr inside the momentum."""
    weight, gradient = np.sqrt((t.p * t.p).sum()), np.sqrt((g * g).sum())
    decay = s.weight_decay if s.decay == "l2" else 0.0
    ratio = 1.0
    if s.adapt and weight > 0 and gradient > 0:
        ratio = s.trust_coefficient * weight / (gradient + decay * weight + s.eps)
    momentum(t, g, s, scale=ratio * s.lr, rate=1.0)


def corrections(t: Tensor, s: Settings) -> tuple[float, float]:
    """Return Adam's two bias corrections."""
    if not s.bias_correction:
        return 1.0, 1.0
    return 1 - s.beta1**t.step, 1 - s.beta2**t.step


def adam(t: Tensor, g: Array, s: Settings) -> None:
    """Adam, and AdamW by the kind of decay."""
    d = decayed(t, g, s)
    c1, c2 = corrections(t, s)
    t.m = s.beta1 * t.m + (1 - s.beta1) * d
    t.v = s.beta2 * t.v + (1 - s.beta2) * d * d
    t.p = t.p - s.lr * (t.m / c1) / (np.sqrt(t.v / c2) + s.eps)


def lamb(t: Tensor, g: Array, s: Settings) -> None:
    """Adam's direction with a rate by layer."""
    c1, c2 = corrections(t, s)
    t.m = s.beta1 * t.m + ((1 - s.beta1) if s.grad_averaging else 1.0) * g
    t.v = s.beta2 * t.v + (1 - s.beta2) * g * g
    u = (t.m / c1) / (np.sqrt(t.v / c2) + s.eps) + s.weight_decay * t.p
    weight, direction = np.sqrt((t.p * t.p).sum()), np.sqrt((u * u).sum())
    ratio = weight / direction if s.adapt and weight > 0 and direction > 0 else 1.0
    t.p = t.p - s.lr * ratio * u


def lion(t: Tensor, g: Array, s: Settings) -> None:
    """The sign of an interpolation."""
    u = s.beta1 * t.m + (1 - s.beta1) * g
    t.p = t.p * (1 - s.lr * s.weight_decay) - s.lr * np.sign(u)
    t.m = s.beta2 * t.m + (1 - s.beta2) * g


RULES: dict[str, Any] = {
    "sgd": sgd, "momentum": momentum, "nesterov": momentum, "lars": lars, "adam": adam,
    "adamw": adam, "lamb": lamb, "lion": lion,
}  # fmt: skip

NATURE = {
    "nesterov": {"nesterov": True}, "adamw": {"decay": "decoupled"}, "lion": {"decay": "decoupled"},
}  # fmt: skip
"""What an optimizer is by its name."""
