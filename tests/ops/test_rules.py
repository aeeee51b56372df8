"""Optimizers that differ by coefficients alone: the bits of a rule that each had to itself."""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from rangeops import Arena, ops

N = 2_000_000

F = np.float32


def sgd(p, g, m, v, x):
    return p - x.lr * (g + x.wd * p), m, v


def sgd_decoupled(p, g, m, v, x):
    return p * x.keep - x.lr * g, m, v


def momentum(p, g, m, v, x):
    m = x.mu * m + x.omd * (g + x.wd * p)
    return p - x.lr * m, m, v


def momentum_decoupled(p, g, m, v, x):
    m = x.mu * m + x.omd * g
    return p * x.keep - x.lr * m, m, v


def nesterov(p, g, m, v, x):
    g = g + x.wd * p
    m = x.mu * m + x.omd * g
    return p - x.lr * (g + x.look * m), m, v


def nesterov_decoupled(p, g, m, v, x):
    m = x.mu * m + x.omd * g
    return p * x.keep - x.lr * (g + x.look * m), m, v


def lars(p, g, m, v, x):
    m = x.mu * m + x.lr * (g + x.wd * p)
    return p - m, m, v


def lars_nesterov(p, g, m, v, x):
    d = x.lr * (g + x.wd * p)
    m = x.mu * m + d
    return p - (d + x.look * m), m, v


def adam(p, g, m, v, x):
    g = g + x.wd * p
    m = m + x.omb1 * (g - m)
    v = v + x.omb2 * (g * g - v)
    return p - x.step_size * (m / (np.sqrt(v) * x.isb2 + x.eps)), m, v


def adamw(p, g, m, v, x):
    m = m + x.omb1 * (g - m)
    v = v + x.omb2 * (g * g - v)
    return p * x.keep - x.step_size * (m / (np.sqrt(v) * x.isb2 + x.eps)), m, v


class Values:
    """The float32 coefficients of a step, each rounded once from Python's numbers."""

    def __init__(self, step, dampening):
        lr, wd, b1, b2 = F(0.01), F(0.05), F(1 - 0.9), F(1 - 0.99)
        lr, wd, omb1, omb2 = map(np.float64, (lr, wd, b1, b2))
        self.lr, self.wd, self.keep, self.eps = F(lr), F(wd), F(1 - lr * wd), F(1e-6)
        self.mu = F(0.9) if step > 1 else F(0)
        self.omd = F(1 - dampening) if step > 1 else F(1)
        self.look, self.omb1, self.omb2 = F(0.9), F(omb1), F(omb2)
        self.step_size = F(lr / (1 - power(1 - omb1, step)))
        self.isb2 = F(1 / np.sqrt(1 - power(1 - omb2, step)))


def power(base, exponent):
    """Return base**exponent for the exponents 1 and 3."""
    return base if exponent == 1 else base * (base * base)


RULES = (
    ("sgd", {}, sgd), ("sgd", {"decoupled": True}, sgd_decoupled),
    ("momentum", {}, momentum), ("momentum", {"decoupled": True}, momentum_decoupled),
    ("nesterov", {}, nesterov), ("nesterov", {"decoupled": True}, nesterov_decoupled),
    ("lars", {}, lars), ("lars", {"nesterov": True}, lars_nesterov),
    ("adam", {}, adam), ("adamw", {}, adamw),
)  # fmt: skip
"""Optimizer, options of begin_step, and the rule that it had to itself."""


def values_of(rng, series):
    """Return N float32 over 15 decades, with zeros of both signs; second moments not negative."""
    values = rng.standard_normal(N) * 10.0 ** rng.uniform(-12, 3, N)
    values[rng.integers(0, N, 1000)] = 0.0
    values[rng.integers(0, N, 1000)] = -0.0
    return np.abs(values).astype(F) if series == "v" else values.astype(F)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(("name", "options", "rule"), RULES, ids=[r[2].__name__ for r in RULES])
def test_a_rule_of_its_own_and_coefficients_give_the_same_bits(name, options, rule, step, rng):
    """But for signs of zero, which a product with 0 or a sum with it may turn."""
    plan = MemoryPlan(PlanConfig(name))
    made = plan.parameter("w", "fc_weight", (N,))
    arena = Arena(plan.finalize(), device="cpu")
    dampening = 0.25 if name in ("momentum", "nesterov") else 0.0
    hyper = {"lr": 0.01, "weight_decay": 0.05, "beta2": 0.99, "eps": 1e-6, "dampening": dampening}
    arena.scalars.set(step=step - 1, **hyper)
    tensors = {"p": made.weight, "g": made.gradient, "m": made.m, "v": made.v}
    start = {key: values_of(rng, key) for key in "pgmv"}
    for key, tensor in tensors.items():
        if tensor is not None:
            arena[tensor] = start[key]
    ops.begin_step(arena, **options)
    launch = getattr(ops, name).bind(arena)
    reference = launch.binding.op.kernel.reference(**launch.binding.flags)
    with np.errstate(all="ignore"):
        reference(*launch.arrays(), *launch.integers)
        want = dict(zip("pmv", rule(**start, x=Values(step, dampening)), strict=True))
    for key in "pmv":
        if tensors[key] is not None:
            got = arena.download(tensors[key])
            same = (got.view("u4") == want[key].view("u4")) | ((got == 0) & (want[key] == 0))
            assert (same | (np.isnan(got) & np.isnan(want[key]))).all(), key
