"""Every op's share of the device-copy rate, at one gigabyte moved and more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bench import timing
from bench.coverage import Case, cases, shown, switched_on
from bench.fill import fill
from bench.rows import row
from bench.topic import Topic
from plan import MemoryPlan, Region
from plan.models import ParameterSpec
from rangeops import Arena, RangeOp, ops

ELEMENTS = 540_000_000
"""One gigabyte of half gradients; not a power of two, whose ranges would start on the same memory
channels."""


def timed(op: RangeOp, arguments: dict[str, Any]) -> bool:
    """Whether a variant has a row here: the elementwise ops, each alone and at its fullest.

    Not ``unscale``, whose second call finds nothing to do.
    """
    return op.elementwise and op is not ops.unscale and shown(op, arguments)


def prepared(plan: MemoryPlan, device: str | None = None) -> Arena:
    """Return an arena of random contents with the coefficients of its first step."""
    arena = Arena(plan, device=device)
    fill(arena)
    arena.scalars.set(weight_decay=0.01, clip_value=2.0)
    ops.begin_step(arena)
    return arena


def op_rates(elements: int) -> Iterator[dict[str, Any]]:
    """Time the ops of the registry on plans with a single weight of ``elements``."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    rate = timing.copy_rate(4 << 30, stream)
    memset = 0.0
    for plan, found in cases([ParameterSpec("w", "fc_weight", (elements,))], timed):
        arena = prepared(plan)
        cupy.cuda.Device().synchronize()
        with stream:
            if not memset:
                whole = arena.view(plan.range(Region.W_FC_WEIGHT, Region.E_DEEP_CONV), "u1")
                taken = timing.gpu(partial(_memset, whole, stream), stream)
                memset = whole.size / taken.seconds
                fill(arena)  # no op is timed on zeros: a division of them is slower than of others
                yield row("op-rate", "memset", "cudaMemset", taken, whole.size, rate)
            for case in found:
                yield _op_rate(arena, case, stream, rate, memset)
        del arena
        timing.release()


def _op_rate(arena: Arena, case: Case, stream: Any, rate: float, memset: float) -> dict[str, Any]:
    """Time one variant; ``rate`` and ``memset`` are in bytes a second."""
    launch = case.op.bind(arena, **case.arguments)
    taken = timing.gpu(launch, stream)
    more = {"elements": launch.count, "flags": switched_on(case.op, case.arguments)}
    if case.op is ops.clear:
        more["share_of_memset"] = round(launch.nbytes / taken.seconds / memset, 4)
    return row("op-rate", case.name, "rangeops", taken, launch.nbytes, rate, **more)


def _memset(view: Any, stream: Any) -> None:
    import cupy

    cupy.cuda.runtime.memsetAsync(view.data.ptr, 0, view.size, stream.ptr)


TOPIC = Topic(
    "rates",
    lambda quick: op_rates(ELEMENTS >> (4 if quick else 0)),
    {
        "op-rate": (
            "Every op against a device copy of the same run",
            {
                "case": "op",
                "elements": "elements",
                "bytes": "bytes",
                "ms": "ms",
                "gb_per_s": "GB/s",
                "share_of_copy": "share of copy",
                "share_of_memset": "share of memset",
            },
        )
    },
)
