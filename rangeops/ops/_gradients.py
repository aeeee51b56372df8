"""accumulate_grad, unscale: gradients gathered over micro-batches, and unscaled by hand.

    accumulate_grad   g += float32(h);  h = 0        per micro-batch, loss scale and all
    unscale           g = g * (1/grad_scale);  grad_scale = 1

Half gradients are gathered in FP32, in which a sum of many loses nothing that matters; the update
then reads FP32 gradients and unscales once, by the block's ``grad``.  ``unscale`` is for callers
who look at or change true gradients before the step; it works on FP32 alone, since halves would
lose small ones.  grad_scale is what the gradients still carry: after ``unscale`` it is 1, so a
second one, and the step, divide by nothing more; ``begin_step`` sets it to the loss scale again.

12 and 8 bytes an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scalars import fp32_index, int32_index
from rangeops.kernels.spec import Kernel, arguments_of, updated
from rangeops.launch.op import range_op
from rangeops.ops._cast import from_half

GRAD_SCALE = fp32_index("grad_scale")
TICKET = int32_index("ticket")


def accumulate_rule(g, value):
    """G + value."""
    return g + value


def _accumulate_gpu(x: Any, *, half: str) -> Any:
    thread, load4, store4, int64, float32 = x.thread, x.load4, x.store4, x.int64, x.float32
    widen, narrow = x.half(half)
    rule = x.device(accumulate_rule)

    def accumulate(g, h, n):
        i = thread() * int64(4)
        left = n - i
        if left <= 0:
            return
        old, u = load4(g, i, left), load4(h, i, left)
        low = rule(old[0], widen(u[0])), rule(old[1], widen(u[1]))
        high = rule(old[2], widen(u[2])), rule(old[3], widen(u[3]))
        store4(g, i, (low[0], low[1], high[0], high[1]), left)
        z = narrow(float32(0))
        store4(h, i, (z, z, z, z), left)

    return accumulate


def _accumulate_cpu(x: Any, *, half: str) -> Any:
    uint16, widen = x.uint16, x.half(half)[0]
    rule = x.device(accumulate_rule)

    def accumulate(g, h, n, start, stop):
        gs, hs = g[start:stop], h[start:stop]
        for j in range(gs.size):
            gs[j] = rule(gs[j], widen(hs[j]))
        hs[:] = uint16(0)

    return accumulate


def _accumulate_reference(*, half: str) -> Any:
    def reference(g, h, n):
        with np.errstate(all="ignore"):
            g += from_half(h, half)
        h[:] = 0

    return reference


_ACCUMULATE = (updated("g", "f4", "G"), updated("h", "half", "G"))

accumulate_grad = range_op(
    "accumulate_grad",
    origin="(gradient accumulation)",
    formula="g += h; h = 0",
    operands=_ACCUMULATE,
    kernel=Kernel(
        "accumulate_grad",
        arguments_of(_ACCUMULATE),
        ("n",),
        _accumulate_gpu,
        _accumulate_cpu,
        _accumulate_reference,
    ),
    bytes_per_element=lambda flags: 12,
    flags={"half": ("fp16", "bf16")},
)


def _unscale_gpu(x: Any) -> Any:
    thread, load4, store4, int64, int32 = x.thread, x.load4, x.store4, x.int64, x.int32
    block_index, syncthreads, atomic_add = x.block_index, x.syncthreads, x.atomic_add
    float32 = x.float32

    def unscale(g, s, k, n):
        i = thread() * int64(4)
        left = n - i
        scale = s[GRAD_SCALE]
        if scale != float32(1) and left > 0:
            by = float32(1) / scale
            u = load4(g, i, left)
            store4(g, i, (u[0] * by, u[1] * by, u[2] * by, u[3] * by), left)
        syncthreads()
        lane, _, blocks = block_index()
        if lane == 0 and atomic_add(k, int64(TICKET), int32(1)) == blocks - 1:
            k[TICKET] = int32(0)
            s[GRAD_SCALE] = float32(1)

    return unscale


def _unscale_cpu(x: Any) -> Any:
    float32 = x.float32

    def unscale(g, s, k, n, start, stop):
        by = float32(1) / s[GRAD_SCALE]
        gs = g[start:stop]
        for j in range(gs.size):
            gs[j] = gs[j] * by
        s[GRAD_SCALE] = float32(1)

    return unscale


def _unscale_reference() -> Any:
    def reference(g, s, k, n):
        with np.errstate(all="ignore"):
            g *= np.float32(1) / s[GRAD_SCALE]
        s[GRAD_SCALE] = 1

    return reference


_UNSCALE = (updated("g", "f4", "G"),)

unscale = range_op(
    "unscale",
    origin="(RANGE_GRAD_SCALING by hand)",
    formula="g *= 1/grad_scale; grad_scale = 1",
    operands=_UNSCALE,
    kernel=Kernel(
        "unscale",
        arguments_of(_UNSCALE, "s", "k"),
        ("n",),
        _unscale_gpu,
        _unscale_cpu,
        _unscale_reference,
        serial=True,
    ),
    bytes_per_element=lambda flags: 8,
)
