"""LAMB in two passes over the model, the ratios between them.

    lamb_moments    m = b1*m + b3*g;    v += (1-b2) * (g*g - v);    sums of u*u and p*p by chunk
    (fold_norms, trust_ratio)           r = |p| / |u|
    lamb            p -= r*lr * u

    u = (m*inv_bc1) / (sqrt(v)*inv_sqrt_bc2 + eps) + wd*p,    b3 = 1-b1, or 1 without averaging

u is computed in both passes from m and v, by one rule: to keep it would cost a write and a read.
A tensor that does not adapt has r = 1.  24 + 16 bytes an element in FP32.  Sources: You et al.
2020, algorithm 2; NVIDIA's LAMB for gradient averaging.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from plan.scratch import BLOCK_FLOATS, GRANULE, ROW_FLOATS
from rangeops.kernels.spec import HALF_GRAD, Kernel, arguments_of, half_where_used, read, updated
from rangeops.launch.coefficients import (
    BETA1,
    BETA3,
    EPS,
    GRAD,
    INV_BC1,
    INV_SQRT_BC2,
    ONE_MINUS_BETA2,
    SCALE,
    SKIP,
    WEIGHT_DECAY,
)
from rangeops.launch.op import range_op
from rangeops.ops import _reduce
from rangeops.ops._optimizer import optimizer
from rangeops.ops._update import FOUND_INF, SKIP_STEP


def lamb_coefficients(c, row):
    """Return (b1, b3, 1-b2, inv_bc1, inv_sqrt_bc2, eps, wd, r*lr)."""
    return (
        c[BETA1],
        c[BETA3],
        c[ONE_MINUS_BETA2],
        c[INV_BC1],
        c[INV_SQRT_BC2],
        c[EPS],
        c[row + WEIGHT_DECAY],
        c[row + SCALE],
    )


def moments_reference(g, m, v, c):
    """Return the new m and v in NumPy."""
    beta1, beta3, one_minus_b2, *_ = c
    return beta1 * m + beta3 * g, v + one_minus_b2 * (g * g - v)


def moments_rule(g, m, v, c):
    """Return the new m and v."""
    return c[0] * m + c[1] * g, v + c[2] * (g * g - v)


def direction_reference(p, m, v, c):
    """Return u in NumPy."""
    _, _, _, inv_bc1, inv_sqrt_bc2, eps, wd, _ = c
    return (m * inv_bc1) / (np.sqrt(v) * inv_sqrt_bc2 + eps) + wd * p


def direction_rule(p, m, v, c):
    """Return u."""
    return (m * c[3]) / (math.sqrt(v) * c[4] + c[5]) + c[6] * p


def _moments_gpu(x: Any, *, half: str | None, half_grad: bool, clear_grad: bool) -> Any:
    thread, load4, store4, warp_sum = x.thread, x.load4, x.store4, x.warp_sum
    int64, float32, float64 = x.int64, x.float32, x.float64
    narrow = x.half(half)[1]
    take = x.device(lamb_coefficients)
    moments, direction = x.device(moments_rule), x.device(direction_rule)

    def element(p, g, m, v, c):
        m, v = moments(g, m, v, c)
        u = float64(direction(p, m, v, c))
        return m, v, u * u, float64(p) * float64(p)

    element = x.device(element)

    gradient, chunk = _reduce.gradient(x, half, half_grad), _reduce.chunk_of(x)

    def clear(g, h, i, half_start):
        zero = float32(0)
        if half_grad and i >= half_start:
            z = narrow(zero)
            store4(h, i - half_start, (z, z, z, z), int64(4))
        else:
            store4(g, i, (zero, zero, zero, zero), int64(4))

    clear = x.device(clear)

    def pass_one(p, g, h, m, v, segments, chunks, c, k, partials, half_start, count):
        w = thread() >> int64(5)
        if w >= count:
            return
        first, granules, start = chunk(chunks, w)
        row = int64(BLOCK_FLOATS) + int64(ROW_FLOATS) * int64(segments[first])
        live = ((k[SKIP_STEP] | k[FOUND_INF]) == 0) & (c[row + SKIP] == float32(0))
        grad, w8 = c[GRAD], take(c, row)
        moved, weight = float64(0), float64(0)
        for r in range(granules):
            i = start + r * int64(GRANULE)
            if live:
                p4, m4, v4 = load4(p, i, int64(4)), load4(m, i, int64(4)), load4(v, i, int64(4))
                g4 = gradient(g, h, i, half_start)
                ma, va, sa, ra = element(p4[0], g4[0] * grad, m4[0], v4[0], w8)
                mb, vb, sb, rb = element(p4[1], g4[1] * grad, m4[1], v4[1], w8)
                mc, vc, sc, rc = element(p4[2], g4[2] * grad, m4[2], v4[2], w8)
                md, vd, sd, rd = element(p4[3], g4[3] * grad, m4[3], v4[3], w8)
                store4(m, i, (ma, mb, mc, md), int64(4))
                store4(v, i, (va, vb, vc, vd), int64(4))
                moved = moved + ((sa + sb) + (sc + sd))
                weight = weight + ((ra + rb) + (rc + rd))
            if clear_grad:
                clear(g, h, i, half_start)
        moved, weight = warp_sum(moved), warp_sum(weight)
        if (thread() & int64(31)) == 0:
            partials[w] = moved
            partials[count + w] = weight

    return pass_one


def _moments_cpu(x: Any, *, half: str | None, half_grad: bool, clear_grad: bool) -> Any:
    float32, float64, uint16 = x.float32, x.float64, x.uint16
    widen, _ = x.half(half)
    take = x.device(lamb_coefficients)
    add, fold = _reduce.granule_cpu(x), _reduce.lanes_cpu(x, _reduce.add_rule)
    moments, direction = x.device(moments_rule), x.device(direction_rule)

    def pass_one(p, g, h, m, v, segments, chunks, c, k, partials, half_start, count, start, stop):
        flagged = (k[SKIP_STEP] | k[FOUND_INF]) != 0
        squares, others = np.empty(GRANULE, np.float64), np.empty(GRANULE, np.float64)
        moved, weight = np.empty(_reduce.LANES, np.float64), np.empty(_reduce.LANES, np.float64)
        grads = np.empty(GRANULE, np.float32)
        zero = float32(0)
        for w in range(start, stop):
            moved[:] = 0.0
            weight[:] = 0.0
            row = BLOCK_FLOATS + ROW_FLOATS * np.int64(segments[chunks[w]])
            for granule in range(chunks[w], chunks[w + 1]):
                i = granule * GRANULE
                halves = half_grad and i >= half_start
                if not flagged and c[row + SKIP] == zero:
                    w8 = take(c, row)
                    grad = c[GRAD]
                    if half_grad and halves:
                        hs = h[i - half_start : i - half_start + GRANULE]
                        for j in range(GRANULE):
                            grads[j] = widen(hs[j]) * grad
                    else:
                        gs = g[i : i + GRANULE]
                        for j in range(GRANULE):
                            grads[j] = gs[j] * grad
                    ps, ms, vs = p[i : i + GRANULE], m[i : i + GRANULE], v[i : i + GRANULE]
                    for j in range(GRANULE):
                        ms[j], vs[j] = moments(grads[j], ms[j], vs[j], w8)
                        u = float64(direction(ps[j], ms[j], vs[j], w8))
                        squares[j] = u * u
                        others[j] = float64(ps[j]) * float64(ps[j])
                    add(squares, moved)
                    add(others, weight)
                if clear_grad:
                    if half_grad and halves:
                        h[i - half_start : i - half_start + GRANULE] = uint16(0)
                    else:
                        g[i : i + GRANULE] = zero
            partials[w] = fold(moved)
            partials[count + w] = fold(weight)

    return pass_one


def _moments_reference(*, half: str | None, half_grad: bool, clear_grad: bool) -> Any:
    def update(p, g, h, m, v, segments, chunks, c, half_start):
        """Move m and v of the live granules; return their rows and the squares of u."""
        table = BLOCK_FLOATS + ROW_FLOATS * segments.astype(np.int64)
        live = np.flatnonzero(c[table + SKIP] == 0)
        at = table[live, None]
        grads = _reduce.granules_of(g, h, half_start, half)[live] * c[GRAD]
        ps, ms, vs = (a.reshape(-1, GRANULE) for a in (p, m, v))
        some = lamb_coefficients(c, at)
        ms[live], vs[live] = moments_reference(grads, ms[live], vs[live], some)
        moved, weight = np.zeros(ps.shape), np.zeros(ps.shape)
        moved[live] = np.square(direction_reference(ps[live], ms[live], vs[live], some), dtype="f8")
        weight[live] = np.square(ps[live], dtype="f8")
        return moved, weight

    def reference(p, g, h, m, v, segments, chunks, c, k, partials, half_start, count):
        partials[: 2 * count] = 0
        if not (k[SKIP_STEP] or k[FOUND_INF]):
            with np.errstate(all="ignore"):
                sums = update(p, g, h, m, v, segments, chunks, c, half_start)
                for q, terms in enumerate(sums):
                    part = _reduce.chunks_reference(terms.__getitem__, chunks)
                    partials[q * count : (q + 1) * count] = part
        if clear_grad:
            h[:] = 0
            g[: half_start if half_grad else g.size] = 0

    return reference


def _moments_bytes(flags: Mapping[str, Any]) -> float:
    return 20 + (2 if flags["half_grad"] else 4) * (2 if flags["clear_grad"] else 1)


_MOMENTS = (
    read("p", "f4", "W"),
    updated("g", "f4", "G"),
    updated("h", "half", "G", "half_grad"),
    updated("m", "f4", "M"),
    updated("v", "f4", "V"),
)
_HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")

lamb_moments = range_op(
    "lamb_moments",
    origin="(beyond)",
    formula="m = b1*m + b3*g; v += (1-b2)*(g*g-v); sums of u*u, p*p",
    operands=_MOMENTS,
    kernel=Kernel(
        "lamb_moments",
        arguments_of(_MOMENTS, "segments", "chunks", "c", "k", "partials"),
        ("half_start", "chunks"),
        _moments_gpu,
        _moments_cpu,
        _moments_reference,
        per_thread=1,
        count="chunks",
    ),
    bytes_per_element=_moments_bytes,
    flags={**HALF_GRAD, "clear_grad": (False, True)},
    hyper=_HYPER,
    elementwise=False,
    valid=half_where_used,
)


def lamb_reference(p, g, m, v, c):
    """P - r*lr*u in NumPy."""
    return p - c[7] * direction_reference(p, m, v, c), m, v


def lamb_rule(x):
    """Return the rule p - r*lr*u for a vocabulary."""
    direction = x.device(direction_rule)

    def rule(p, g, m, v, c):
        return p - c[7] * direction(p, m, v, c), m, v

    return rule


lamb = optimizer(
    "lamb",
    origin="(beyond)",
    formula="p -= r*lr*((m*inv_bc1)/(sqrt(v)*isb2+eps) + wd*p)",
    rules={"decoupled": (lamb_rule, lamb_reference, lamb_coefficients)},
    moments=2,
    hyper=_HYPER,
    options=("bias_correction", "grad_averaging", "maximize"),
    applies=True,
)
