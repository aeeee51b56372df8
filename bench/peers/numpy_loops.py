"""Every optimizer's step parameter by parameter in NumPy, in place with one scratch array each.

Formulas as in ``rangeops.ops``, without its order of rounding.  ``tests/bench/test_peers.py`` holds
each to the library's own step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bench.peers.hyper import BETA1, BETA2, DECAY, EPS, LR, MOMENTUM, TRUST
from plan.models import ParameterSpec
from plan.region import WEIGHT_KINDS


class Arrays(NamedTuple):
    """One parameter: weight, gradient, both moments, scratch, and its weight decay.

    As in the library norms and biases have no decay, and then no trust ratio either.
    """

    p: np.ndarray
    g: np.ndarray
    m: np.ndarray
    v: np.ndarray
    scratch: np.ndarray
    decay: float


def arrays(specs: list[ParameterSpec], seed: int = 0) -> list[Arrays]:
    """Return a model's arrays, weights and gradients random, moments zero."""
    rng = np.random.default_rng(seed)
    out = []
    for spec in specs:
        p, g = (rng.standard_normal(spec.shape, np.float32) for _ in range(2))
        zero = np.zeros_like(p), np.zeros_like(p), np.empty_like(p)
        out.append(Arrays(p, g, *zero, DECAY if spec.kind in WEIGHT_KINDS else 0.0))
    return out


def loop(kind: str, model: list[Arrays]) -> Callable[[], None]:
    """Return the step of an optimizer that loops over the parameters of ``model``."""
    rule, t = RULES[kind], 0

    def step() -> None:
        nonlocal t
        t += 1
        for one in model:
            rule(t, *one)

    return step


def _decayed(p, g, s, decay):
    """Leave g + decay * p in the scratch."""
    np.multiply(p, np.float32(decay), out=s)
    s += g


def _sgd(t, p, g, m, v, s, decay):
    _decayed(p, g, s, decay)
    s *= np.float32(LR)
    p -= s


def _momentum(t, p, g, m, v, s, decay):
    _decayed(p, g, s, decay)
    m *= np.float32(MOMENTUM)
    m += s
    np.multiply(m, np.float32(LR), out=s)
    p -= s


def _nesterov(t, p, g, m, v, s, decay):
    _decayed(p, g, s, decay)
    m *= np.float32(MOMENTUM)
    m += s
    s += np.float32(MOMENTUM) * m
    s *= np.float32(LR)
    p -= s


def _moments(g, m, v, s):
    """Move both moments towards ``g`` and its square; the scratch is overwritten."""
    np.subtract(g, m, out=s)
    s *= np.float32(1 - BETA1)
    m += s
    np.multiply(g, g, out=s)
    s -= v
    s *= np.float32(1 - BETA2)
    v += s


def _direction(t, m, v, s, rate):
    """Leave rate * m / (sqrt(v) + eps) in the scratch, both moments corrected for their bias."""
    np.sqrt(v, out=s)
    s *= np.float32(1 / np.sqrt(1 - BETA2**t))
    s += np.float32(EPS)
    np.divide(m, s, out=s)
    s *= np.float32(rate / (1 - BETA1**t))


def _adam(t, p, g, m, v, s, decay):
    _moments(g + np.float32(decay) * p, m, v, s)
    _direction(t, m, v, s, LR)
    p -= s


def _adamw(t, p, g, m, v, s, decay):
    _moments(g, m, v, s)
    _direction(t, m, v, s, LR)
    p *= np.float32(1 - LR * decay)
    p -= s


def _ratio(above, below):
    """Return a trust ratio, 1 where a norm is 0."""
    return above / below if above and below else 1.0


def _lars(t, p, g, m, v, s, decay):
    ratio = 1.0
    if decay:
        weight, gradient = np.linalg.norm(p), np.linalg.norm(g)
        ratio = _ratio(TRUST * weight, gradient and gradient + decay * weight + EPS)
    _decayed(p, g, s, decay)
    s *= np.float32(LR * ratio)
    m *= np.float32(MOMENTUM)
    m += s
    p -= m


def _lamb(t, p, g, m, v, s, decay):
    _moments(g, m, v, s)
    _direction(t, m, v, s, 1.0)
    s += np.float32(decay) * p
    ratio = _ratio(np.linalg.norm(p), np.linalg.norm(s)) if decay else 1.0
    s *= np.float32(LR * ratio)
    p -= s


def _lion(t, p, g, m, v, s, decay):
    np.subtract(g, m, out=s)
    s *= np.float32(1 - BETA1)
    s += m
    np.sign(s, out=s)
    s *= np.float32(LR)
    p *= np.float32(1 - LR * decay)
    p -= s
    np.subtract(g, m, out=s)
    s *= np.float32(1 - BETA2)
    m += s


RULES: dict[str, Callable[..., None]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "nesterov": _nesterov,
    "adam": _adam,
    "adamw": _adamw,
    "lars": _lars,
    "lamb": _lamb,
    "lion": _lion,
}
"""Optimizer -> ``rule(t, p, g, m, v, scratch, decay)`` of one parameter; ``t`` counts from 1."""
