"""What every op should give, in float64 from the formulas of papers and of torch.

An oracle takes a ``Trial`` that ran and yields what it ``Expects``.  It starts from the
hyper-parameters, not from the coefficients that ``begin_step`` makes of them, and is written
without regard to the order in which the op's rule and reference round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from plan.scalars import fp32_index, int32_index
from plan.scratch import BLOCK_FLOATS, FOLD_CHUNKS, NORM_STRIDE, ROW, ROW_FLOATS, SUMS
from tests import tolerance
from tests.ops.expects import Expects, exact, exact_sum, float64, fp32, half, norm, oracle
from tests.ops.trial import Trial

# Optimizers


def direction(x: Trial) -> np.ndarray:
    """Return the gradient with L2 decay where the optimizer has it."""
    return np.where(x.on("decoupled"), x.g, x.g + x.weight_decay * x.p)


def kept(x: Trial) -> np.ndarray:
    """Return the weight after decoupled decay."""
    return np.where(x.on("decoupled"), x.p * (1 - x.lr * x.weight_decay), x.p)


def updated(
    x: Trial, step: np.ndarray, most: float = tolerance.UPDATE_ULPS, **moments: Any
) -> Iterator[Expects]:
    """Expect the weights after ``step``, what the update fuses, and moments with their terms."""
    p = kept(x) - step
    yield fp32(x, "p", p, x.p, step, most=most)
    for name, (want, *terms) in moments.items():
        yield fp32(x, name, want, *terms, most=tolerance.MOMENT_ULPS)
    if x.flags["half_copy"]:
        size = x.after["a"].size
        yield half(x, "a", p[-size:], tolerance.NARROWED)
    if x.flags["ema"]:
        e = x.ema_decay * x.e + (1 - x.ema_decay) * p
        yield fp32(x, "e", e, x.e, p, step, most=most + tolerance.EMA_ULPS)
    if x.flags.get("clear_grad"):
        halves = x.after["h"].size
        yield exact("g", x.after["g"][: x.p.size - halves], 0.0)
        yield exact("h", x.after["h"], 0.0)


@oracle("sgd")
def sgd(x):
    yield from updated(x, x.lr * direction(x))


def velocity(x: Trial, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the momentum, which starts as its first term, and where it leads."""
    m = np.where(x.t == 1, d, x.momentum * x.m + (1 - x.dampening) * d)
    return m, np.where(x.on("nesterov"), d + x.momentum * m, m)


@oracle("momentum", "nesterov")
def momentum(x):
    d = direction(x)
    m, ahead = velocity(x, d)
    yield from updated(x, x.lr * ahead, m=(m, x.m, d, x.g))


def lars_ratio(x: Trial) -> np.ndarray:
    def rule(name, where):
        own, weight, gradient = x.own(name), norm(x.p[where]), norm(x.g[where])
        if not own.adapts or weight == 0 or gradient == 0:
            return 1.0
        decay = 0.0 if own.on("decoupled") else own.weight_decay
        ratio = own.trust_coefficient * weight / (gradient + decay * weight + own.eps)
        if x.chosen("trust_clip"):
            ratio = min(ratio / own.lr if x.chosen("lr_outside") else ratio, 1.0)
        return ratio

    return x.by_tensor(rule)


@oracle("lars")
def lars(x):
    inside, outside = (1.0, x.lr) if x.chosen("lr_outside") else (x.lr, 1.0)
    scale = inside * lars_ratio(x)
    d = scale * direction(x)
    m, ahead = velocity(x, d)
    yield from updated(x, outside * ahead, m=(m, x.m, d, scale * x.g))


def moments(x: Trial, g: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return Adam's new moments and the two bias corrections."""
    m = x.beta1 * x.m + (1 - x.beta1) * g
    v = x.beta2 * x.v + (1 - x.beta2) * g * g
    corrected = x.on("bias_correction")
    return m, v, *(np.where(corrected, 1 - beta**x.t, 1.0) for beta in (x.beta1, x.beta2))


@oracle("adam", "adamw")
def adam(x):
    g = direction(x)
    m, v, correction1, correction2 = moments(x, g)
    denominator = np.sqrt(v / correction2) + x.eps
    step = x.lr * (m / correction1) / denominator
    # L2 decay may cancel the gradient; what it rounded stays.
    terms = np.maximum(np.abs(x.g), np.abs(g - x.g))
    largest = x.lr / correction1 * np.maximum(np.abs(x.m), 0.1 * terms) / denominator
    m_terms = (m, x.m, (1 - x.beta1) * terms)
    v_terms = (v, x.v, (1 - x.beta2) * terms**2)
    for each in updated(x, step, m=m_terms, v=v_terms):
        near = np.abs(largest) if each.name in ("p", "e") else 0.0
        yield each._replace(unit=np.maximum(each.unit, near * tolerance.ULP))


@oracle("lion")
def lion(x):
    u = x.beta1 * x.m + (1 - x.beta1) * x.g
    m = x.beta2 * x.m + (1 - x.beta2) * x.g
    yield from updated(x, x.lr * np.sign(u), m=(m, x.m))


def lamb_direction(x: Trial) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return LAMB's u and the moments behind it."""
    m, v, correction1, correction2 = moments(x, x.g)
    m = np.where(x.on("grad_averaging"), m, x.beta1 * x.m + x.g)
    return (m / correction1) / (np.sqrt(v / correction2) + x.eps) + x.weight_decay * x.p, m, v


def lamb_ratio(x: Trial) -> np.ndarray:
    u = lamb_direction(x)[0]

    def rule(name, where):
        weight, other = norm(x.p[where]), norm(u[where])
        if not x.own(name).adapts or weight == 0 or other == 0:
            return 1.0
        return min(weight / other, 1.0) if x.chosen("trust_clip") else weight / other

    return x.by_tensor(rule)


@oracle("lamb")
def lamb(x):
    u, _, _ = lamb_direction(x)
    yield from updated(x, lamb_ratio(x) * x.lr * u, tolerance.LAMB_ULPS)


@oracle("lamb_moments")
def lamb_moments(x):
    u, m, v = lamb_direction(x)
    yield fp32(x, "m", m, x.m, x.g, most=tolerance.MOMENT_ULPS)
    yield fp32(x, "v", v, x.v, most=tolerance.MOMENT_ULPS)
    sums = x.after["partials"].reshape(-1, len(x.chunks))
    for q, values in enumerate((u, x.p)):
        want = np.array([exact_sum(values[where] ** 2) for where in x.chunks])
        most = tolerance.STEP if q == 0 else tolerance.SUM
        yield Expects("partials", sums[q], want, want + 1e-300, most)
    if x.flags["clear_grad"]:
        yield exact("g", x.after["g"][: x.p.size - x.after["h"].size], 0.0)
        yield exact("h", x.after["h"], 0.0)


# Averages, movement


@oracle("ema")
def ema(x):
    want = x.ema_decay * x.e + (1 - x.ema_decay) * x.p
    yield fp32(x, "e", want, x.e, x.p, most=tolerance.EMA_ULPS)


@oracle("sema_switch")
def sema_switch(x):
    yield exact("p", x.after["p"], x.e)
    yield exact("e", x.after["e"], x.p if x.flags["swap"] else x.e)
    if x.flags["half_copy"]:
        yield half(x, "a", x.e[-x.after["a"].size :])


@oracle("cast_fp32_to_fp16")
def narrowing(x):
    yield half(x, "dst", x.before["src"])


@oracle("cast_fp16_to_fp32")
def widening(x):
    yield exact("dst", x.after["dst"], x.before["src"])


@oracle("clear")
def clear(x):
    yield exact("dst", x.after["dst"], 0)


@oracle("copy")
def copy(x):
    yield exact("dst", x.after["dst"], x.before["src"])


@oracle("average")
def average(x):
    yield fp32(x, "x", x.before["x"] / x.ranks, most=0.5)


@oracle("average_half")
def average_half(x):
    yield half(x, "x", x.before["x"] / x.ranks)


@oracle("accumulate_grad")
def accumulate_grad(x):
    yield fp32(x, "g", x.before["g"] + x.before["h"], most=0.5)
    yield exact("h", x.after["h"], 0.0)


@oracle("unscale")
def unscale(x):
    yield fp32(x, "g", x.before["g"] / x.loss_scale, most=1.0)
    yield exact("grad_scale", x.after["s"][fp32_index("grad_scale")], 1.0)


@oracle("check_nan")
def check_nan(x):
    bound = x.clip_value * x.loss_scale * x.ranks
    for name in ("g", "h"):
        before = x.before[name]
        if name == "g" and x.before["h"].size:
            before = before[: x.p.size - x.before["h"].size]
        want = np.clip(before, -bound, bound) if x.flags["clip"] else before
        yield exact(name, x.after[name][: before.size], want)
    yield exact("found_inf", x.after["k"][int32_index("found_inf")], 0)


# Sums


@oracle("grad_norm")
def grad_norm(x):
    sums = x.after["partials"].reshape(-1, len(x.chunks))
    for q, values in enumerate((x.raw_g, x.p)[: 1 + x.flags["weights"]]):
        yield float64("partials", sums[q], [exact_sum(values[c] ** 2) for c in x.chunks])


@oracle("tensor_stats")
def tensor_stats(x):
    squares, largest, bad = x.after["partials"].reshape(-1, len(x.chunks))[:3]
    yield float64("squares", squares, [exact_sum(x.raw_g[c] ** 2) for c in x.chunks])
    yield exact("largest", largest, [np.abs(x.raw_g[c]).max() for c in x.chunks])
    yield exact("nonfinite", bad, 0)


@oracle("fold_norms")
def fold_norms(x):
    row, quantities, maximum = SUMS[x.flags["of"]]
    table = x.before["folds"].astype(int)
    folds = table.size - 1
    for q in range(quantities):
        part = x.before["partials"].reshape(-1, len(x.chunks))[q]
        pieces = [part[a:b] for a, b in zip(table[:-1], table[1:], strict=True)]
        got = x.after["sums"].reshape(-1, folds)[row + q]
        if q == maximum:
            yield exact("maximum", got, [p.max() for p in pieces])
        else:
            yield float64("sum", got, [exact_sum(p) for p in pieces])


@oracle("total_norm")
def total_norm(x):
    sums = x.before["sums"].reshape(-1, x.before["sums"].size // 10)[0]
    want = [exact_sum(sums[a : a + FOLD_CHUNKS]) for a in range(0, sums.size, FOLD_CHUNKS)]
    yield float64("totals", x.after["totals"], want)


@oracle("trust_ratio")
def trust_ratio(x):
    kind = x.flags["kind"]
    ratio = lars_ratio(x) if kind == "lars" else lamb_ratio(x)
    other = x.g if kind == "lars" else lamb_direction(x)[0]
    rows = x.after["c"][BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)
    norms = x.after["norms"].reshape(-1, NORM_STRIDE)
    for k, (name, where) in enumerate(x.slices.items()):
        r = ratio[where][0]
        scale = r * (1.0 if x.chosen("lr_outside") else x.own(name).lr)
        want = np.array([r, scale])
        got = rows[k, [ROW.index("ratio"), ROW.index("scale")]]
        yield Expects(f"row {k}", got, want, np.abs(want), tolerance.STEP)
        if k >= 2:
            want = np.array([norm(x.p[where]), norm(other[where]), r])
            yield Expects(f"norms {k}", norms[k - 2, :3], want, np.abs(want), tolerance.STEP)
