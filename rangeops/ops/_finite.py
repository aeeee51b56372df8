"""check_nan: is every gradient finite, and which tensor is the first that is not.

    found_inf = 1            if any exponent is all ones (NaN, +-inf), bits only, no arithmetic
    first_nonfinite = min    granule of the first such element, for its tensor's name
    x = clamp(x, +-clip_value*grad_scale*ranks)     with clip=True, after the flag

Elements below ``half_start`` are FP32 (``g``), those from it on half (``h``), so one launch checks
a whole mixed-precision model.  A value is refused by its bits (IEEE 754-2019, 3.4), which no
compiler option can remove.  clip_value 0 clamps nothing.  A tensor that is not trained this step
(its live word) sets no flag and keeps its bytes: its gradient is an old one.  4 or 2 bytes an
element, twice that with clip.

The flag's life: set by any check or collective; ``begin_step`` moves it into ``skip_step`` and
clears it; updates, EMA and ``grad_scaling`` obey either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plan.scalars import fp32_index, int32_index
from plan.scratch import GRANULE
from rangeops.kernels.half import format_of, from_half, to_half
from rangeops.kernels.spec import HALF_GRAD, Kernel, arguments_of, half_where_used, updated
from rangeops.launch.op import range_op

FOUND_INF, FIRST = int32_index("found_inf"), int32_index("first_nonfinite")
CLIP_VALUE, GRAD_SCALE = fp32_index("clip_value"), fp32_index("grad_scale")
RANKS = fp32_index("ranks")

BLOCK_ELEMENTS = 2048
"""Elements a block of 128 threads checks: with half as many, 16 bytes of halves a thread, the rate
at which an H200 starts blocks (1.6 a nanosecond) is the limit, at 77 % of the copy rate.  A warp's
accesses adjoin: with 32 bytes a thread in a row, clipping runs at 71 %."""


def clamp_rule(x, bound):
    """Clamp x to +-bound; NaN stays NaN."""
    if x > bound:
        x = bound
    if x < -bound:
        x = -bound
    return x


def trained_rule(segments, live, granule):
    """Return whether the tensor of a granule is trained this step."""
    return live[segments[granule]] > 0


def _check_gpu(x: Any, *, half: str | None, half_grad: bool, clip: bool) -> Any:
    thread, load4, load8, store4, store8 = x.thread, x.load4, x.load8, x.store4, x.store8
    int64, int32, uint32, float_bits = x.int64, x.int32, x.uint32, x.float_bits
    atomic_min, float32, trained = x.atomic_min, x.float32, x.device(trained_rule)
    widen, narrow = x.half(half)
    clamp = x.device(clamp_rule)
    exponent, mask = format_of(half).exponent, 0x7F800000

    def special(lanes):
        m = uint32(mask)
        a = (float_bits(lanes[0]) & m) == m or (float_bits(lanes[1]) & m) == m
        b = (float_bits(lanes[2]) & m) == m or (float_bits(lanes[3]) & m) == m
        return a or b

    special = x.device(special)

    def special_half(u):
        m = exponent
        a = (u[0] & m) == m or (u[1] & m) == m or (u[2] & m) == m or (u[3] & m) == m
        b = (u[4] & m) == m or (u[5] & m) == m or (u[6] & m) == m or (u[7] & m) == m
        return a or b

    special_half = x.device(special_half)

    def clip4(a, i, lanes, bound, left):
        low = clamp(lanes[0], bound), clamp(lanes[1], bound)
        high = clamp(lanes[2], bound), clamp(lanes[3], bound)
        store4(a, i, (low[0], low[1], high[0], high[1]), left)

    clip4 = x.device(clip4)

    def clip_lane(u, bound):
        return narrow(clamp(widen(u), bound))

    clip_lane = x.device(clip_lane)

    def report(k, granule0, i):
        k[FOUND_INF] = int32(1)
        atomic_min(k, int64(FIRST), int32(granule0 + (i >> int64(7))))

    report = x.device(report)

    def check(g, h, s, k, segments, live, half_start, granule0, shift, n):
        t = thread()
        base = (t >> int64(7)) * int64(BLOCK_ELEMENTS)
        lane = t & int64(127)
        bound = s[CLIP_VALUE] * s[GRAD_SCALE] * s[RANKS]
        plain = min(half_start, n)
        if base < plain:
            for r in range(BLOCK_ELEMENTS // 512):
                i = base + int64(r * 512) + lane * int64(4)
                left = plain - i
                if left > 0:
                    lanes = load4(g, i, left)
                    if special(lanes) and trained(segments, live, i >> shift):
                        report(k, granule0, i)
                    if clip and bound > float32(0) and trained(segments, live, i >> shift):
                        clip4(g, i, lanes, bound, left)
        if half_grad and base + int64(BLOCK_ELEMENTS) > half_start:
            for r in range(BLOCK_ELEMENTS // 1024):
                i = base + int64(r * 1024) + lane * int64(8)
                left = n - i
                if left > 0 and i >= half_start:
                    u = load8(h, i - half_start, left)
                    if special_half(u) and trained(segments, live, i >> shift):
                        report(k, granule0, i)
                    if clip and bound > float32(0) and trained(segments, live, i >> shift):
                        a = clip_lane(u[0], bound), clip_lane(u[1], bound), clip_lane(u[2], bound)
                        b = clip_lane(u[3], bound), clip_lane(u[4], bound), clip_lane(u[5], bound)
                        c = clip_lane(u[6], bound), clip_lane(u[7], bound)
                        both = (a[0], a[1], a[2], b[0], b[1], b[2], c[0], c[1])
                        store8(h, i - half_start, both, left)

    return check


def _check_cpu(x: Any, *, half: str | None, half_grad: bool, clip: bool) -> Any:
    uint32, int32, float_bits, atomic_min = x.uint32, x.int32, x.float_bits, x.atomic_min
    at, trained = x.at, x.device(trained_rule)
    widen, narrow = x.half(half)
    clamp = x.device(clamp_rule)
    exponent, mask = format_of(half).exponent, 0x7F800000

    def check(g, h, s, k, segments, live, half_start, granule0, shift, n, start, stop):
        bound = s[CLIP_VALUE] * s[GRAD_SCALE] * s[RANKS]
        for first in range(start, stop, GRANULE):
            if not trained(segments, live, first >> shift):
                continue
            count = min(GRANULE, stop - first)
            bad = int32(0)
            if half_grad and first >= half_start:
                hs = at(h, first - half_start)
                for j in range(count):
                    bad |= int32((hs[j] & exponent) == exponent)
                if clip and bound > 0:
                    for j in range(count):
                        hs[j] = narrow(clamp(widen(hs[j]), bound))
            else:
                gs = at(g, first)
                for j in range(count):
                    bad |= int32((float_bits(gs[j]) & uint32(mask)) == uint32(mask))
                if clip and bound > 0:
                    for j in range(count):
                        gs[j] = clamp(gs[j], bound)
            if bad != 0:
                k[FOUND_INF] = int32(1)
                atomic_min(k, FIRST, int32(granule0 + first // GRANULE))

    return check


def _check_reference(*, half: str | None, half_grad: bool, clip: bool) -> Any:
    def reference(g, h, s, k, segments, live, half_start, granule0, shift, n):
        plain = g[: half_start if half_grad else n]
        halves = from_half(h, half) if half_grad else np.zeros(0, np.float32)
        trained = live[segments[np.arange(plain.size + halves.size) >> shift]] > 0
        bad = np.flatnonzero(~np.isfinite(np.concatenate([plain, halves])) & trained)
        with np.errstate(all="ignore"):
            bound = s[CLIP_VALUE] * s[GRAD_SCALE] * s[RANKS]
            if clip and bound > 0:
                own = trained[: plain.size]
                plain[own] = np.clip(plain, -bound, bound)[own]
                if half_grad:
                    own = trained[plain.size :]
                    h[own] = to_half(np.clip(halves, -bound, bound), half)[own]
        if bad.size:
            k[FOUND_INF] = 1
            k[FIRST] = min(k[FIRST], granule0 + bad[0] // GRANULE)

    return reference


def _bytes(flags: Mapping[str, Any]) -> float:
    return (2 if flags["half_grad"] else 4) * (2 if flags["clip"] else 1)


_CHECK = (updated("g", "f4", "G"), updated("h", "half", "G", "half_grad", instead_of="g"))

check_nan = range_op(
    "check_nan",
    origin="RANGE_CHECK_NAN",
    formula="found_inf |= exponent(x) all ones",
    operands=_CHECK,
    kernel=Kernel(
        "check_nan",
        arguments_of(_CHECK, "s", "k", "segments", "live"),
        ("half_start", "granule0", "shift", "n"),
        _check_gpu,
        _check_cpu,
        _check_reference,
        per_thread=BLOCK_ELEMENTS // 128,
    ),
    bytes_per_element=_bytes,
    flags={**HALF_GRAD, "clip": (False, True)},
    hyper=("clip_value", "grad_scale"),
    valid=half_where_used,
)
