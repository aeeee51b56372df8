"""The exponential moving average of the weights, and the switch to it.

    ema           e += (1-decay) * (p - e)            12 bytes an element
    sema_switch   p = e;  a = half(p)                 8 (+2) bytes an element
                  with swap: p, e = e, p              16 (+2)

``ema`` leaves a tensor alone when the finite flag or its skip word is set, as the fused update
does.  (1-decay) comes from the coefficient block, after the warm-up if begin_step has one.
``sema_switch`` with ``swap=True`` exchanges live and averaged weights to the bit, so a second
call restores them.  Departure from torch's swa_utils: the difference form, which rounds once less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scratch import BLOCK_FLOATS, GRANULE, ROW_FLOATS
from rangeops.kernels.spec import Kernel, arguments_of, half_where_used, read, updated, written
from rangeops.launch.coefficients import ONE_MINUS_EMA, SKIP
from rangeops.launch.op import range_op
from rangeops.ops._cast import to_half
from rangeops.ops._update import FOUND_INF, SKIP_STEP


def ema_reference(e, p, d):
    """E + (1-decay)*(p - e) in NumPy."""
    return e + d * (p - e)


def ema_rule(e, p, d):
    """E + (1-decay)*(p - e)."""
    return e + d * (p - e)


def _ema_gpu(x: Any) -> Any:
    thread, load4, store4 = x.thread, x.load4, x.store4
    int64, float32 = x.int64, x.float32
    rule = x.device(ema_rule)

    def ema(e, p, segments, c, k, shift, n):
        i = thread() * int64(4)
        left = n - i
        if left <= 0 or (k[SKIP_STEP] | k[FOUND_INF]) != 0:
            return
        row = int64(BLOCK_FLOATS) + int64(ROW_FLOATS) * int64(segments[i >> shift])
        if c[row + SKIP] != float32(0):
            return
        d = c[ONE_MINUS_EMA]
        old = load4(e, i, left)
        new = load4(p, i, left)
        low = rule(old[0], new[0], d), rule(old[1], new[1], d)
        high = rule(old[2], new[2], d), rule(old[3], new[3], d)
        store4(e, i, (low[0], low[1], high[0], high[1]), left)

    return ema


def _ema_cpu(x: Any) -> Any:
    rule = x.device(ema_rule)

    def ema(e, p, segments, c, k, shift, n, start, stop):
        if (k[SKIP_STEP] | k[FOUND_INF]) != 0:
            return
        d = c[ONE_MINUS_EMA]
        for first in range(start, stop, GRANULE):
            if c[BLOCK_FLOATS + ROW_FLOATS * np.int64(segments[first >> shift]) + SKIP] == 0:
                es, ps = (
                    e[first : min(first + GRANULE, stop)],
                    p[first : min(first + GRANULE, stop)],
                )
                for j in range(es.size):
                    es[j] = rule(es[j], ps[j], d)

    return ema


def _ema_reference() -> Any:
    def reference(e, p, segments, c, k, shift, n):
        if k[SKIP_STEP] or k[FOUND_INF]:
            return
        row = BLOCK_FLOATS + ROW_FLOATS * segments[np.arange(n) >> shift].astype(np.int64)
        live = c[row + SKIP] == 0
        with np.errstate(all="ignore"):
            e[live] = ema_reference(e, p, c[ONE_MINUS_EMA])[live]

    return reference


_EMA = (updated("e", "f4", "E"), read("p", "f4", "W"))

ema = range_op(
    "ema",
    origin="RANGE_EMA_PARAM_UPDATE",
    formula="e += (1-decay)*(p-e)",
    operands=_EMA,
    kernel=Kernel(
        "ema",
        arguments_of(_EMA, "segments", "c", "k"),
        ("shift", "n"),
        _ema_gpu,
        _ema_cpu,
        _ema_reference,
    ),
    bytes_per_element=lambda flags: 12,
    hyper=("ema_decay",),
    flags={},
)


def _switch_gpu(x: Any, *, half: str | None, half_copy: bool, swap: bool) -> Any:
    thread, load4, store4, int64 = x.thread, x.load4, x.store4, x.int64
    _, narrow = x.half(half)

    def switch(p, e, a, half_start, n):
        i = thread() * int64(4)
        left = n - i
        if left <= 0:
            return
        new = load4(e, i, left)
        if swap:
            store4(e, i, load4(p, i, left), left)
        store4(p, i, new, left)
        if half_copy and i >= half_start:
            lanes = narrow(new[0]), narrow(new[1]), narrow(new[2]), narrow(new[3])
            store4(a, i - half_start, lanes, left)

    return switch


def _switch_cpu(x: Any, *, half: str | None, half_copy: bool, swap: bool) -> Any:
    _, narrow = x.half(half)

    def switch(p, e, a, half_start, n, start, stop):
        ps, es = p[start:stop], e[start:stop]
        for j in range(ps.size):
            if swap:
                ps[j], es[j] = es[j], ps[j]
            else:
                ps[j] = es[j]
        if half_copy:
            low = max(start, half_start)
            copies, values = (
                a[low - half_start : max(low, stop) - half_start],
                p[low : max(low, stop)],
            )
            for j in range(copies.size):
                copies[j] = narrow(values[j])

    return switch


def _switch_reference(*, half: str | None, half_copy: bool, swap: bool) -> Any:
    def reference(p, e, a, half_start, n):
        old = p.copy()
        p[:] = e
        if swap:
            e[:] = old
        if half_copy:
            a[:] = to_half(p[half_start:], half)

    return reference


_SWITCH = (updated("p", "f4", "W"), updated("e", "f4", "E"), written("a", "half", "A", "half_copy"))

sema_switch = range_op(
    "sema_switch",
    origin="RANGE_SEMA_SWITCH",
    formula="p = e; a = half(p)",
    operands=_SWITCH,
    kernel=Kernel(
        "sema_switch",
        arguments_of(_SWITCH),
        ("half_start", "n"),
        _switch_gpu,
        _switch_cpu,
        _switch_reference,
    ),
    bytes_per_element=lambda flags: (16 if flags["swap"] else 8) + 2 * flags["half_copy"],
    flags={"half": (None, "fp16", "bf16"), "half_copy": (False, True), "swap": (False, True)},
    valid=half_where_used,
)
