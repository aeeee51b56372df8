"""accumulate_grad, unscale: gradients gathered over micro-batches, and unscaled by hand.

    accumulate_grad   g += float32(h);  h = 0        per micro-batch, loss scale and all
    unscale           g = g * (1/grad_scale);  grad_scale = 1

Half gradients are gathered in FP32, in which a sum of many loses nothing that matters; the update
then reads FP32 gradients and unscales once, by the row's ``grad``.  ``unscale`` is for callers
who look at or change true gradients before the step; it works on FP32 alone, since halves would
lose small ones.  grad_scale is what the gradients still carry: after ``unscale`` it is 1, so a
second one, and the step, divide by nothing more; ``begin_step`` sets it to the loss scale again.

``unscale`` is written by hand: the last block to end changes the scalar that all blocks read.

12 and 8 bytes an element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scalars import fp32_index, int32_index
from rangeops.kernels.spec import Kernel, arguments_of, updated
from rangeops.launch.op import range_op
from rangeops.ops._cast import HALF_FORMATS
from rangeops.ops._elementwise import elementwise_op

GRAD_SCALE = fp32_index("grad_scale")
TICKET = int32_index("ticket")


def accumulate_rule(g, h):
    """Return g + h and 0."""
    return g + h, 0.0


accumulate_grad = elementwise_op(
    "accumulate_grad",
    origin="(gradient accumulation)",
    formula="g += h; h = 0",
    operands=(updated("g", "f4", "G"), updated("h", "half", "G")),
    rule=accumulate_rule,
    reference=accumulate_rule,
    flags=HALF_FORMATS,
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
        for i in range(start, stop):
            g[i] = g[i] * by
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
