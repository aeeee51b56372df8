"""Every op's share of the device-copy rate, at one gigabyte moved and more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench import timing
from bench.fill import fill
from bench.rows import row
from bench.steps import copy_rate
from plan import MemoryPlan, PlanConfig, Region
from rangeops import REGISTRY, Arena, ops
from rangeops.verify import planned_variants

ELEMENTS = 540_000_000
"""One gigabyte of half gradients; not a power of two, whose ranges would start on the same memory
channels."""


def shown(op: Any, flags: dict[str, Any]) -> bool:
    """Whether a variant is timed: each op alone, and everything an update can fuse."""
    on = {k for k, v in flags.items() if v is True}
    return flags.get("decay") in (None, *op.flags.get("decay", ())[:1]) and (
        not on or on == {"half_grad"} or len(on) >= 4 or on in ({"swap"}, {"clip"})
    )


def fullest(op: Any, flags: dict[str, Any]) -> bool:
    """Whether a variant has everything that its op can fuse."""
    return flags == list(op.variants())[-1]


def op_rates(elements: int = ELEMENTS) -> Iterator[dict[str, Any]]:
    """Time the ops of the registry on one plan with a single weight of ``elements``."""
    import cupy

    plan = MemoryPlan(PlanConfig("adamw", half="fp16", ema=True))
    plan.parameter("w", "fc_weight", (elements,))
    arena = Arena(plan.finalize())
    fill(arena)
    arena.scalars.set(weight_decay=0.01, clip_value=2.0)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    rate = copy_rate(4 << 30, stream)
    whole = arena.view(plan.range(Region.W_FC_WEIGHT, Region.E_DEEP_CONV), "u1")
    with stream:
        ops.begin_step(arena)
        memset = timing.gpu(lambda: _memset(whole, stream), stream)
        yield row("op-rate", "memset", "cudaMemset", memset, whole.size, rate)
        for op in REGISTRY.values():
            if not op.elementwise or op is ops.unscale:  # its second call finds nothing to do
                continue
            for arguments in planned_variants(op, plan):
                if not shown(op, arguments):
                    continue
                launch = op.bind(arena, **arguments)
                taken = timing.gpu(launch, stream)
                on = [k for k, v in launch.binding.flags.items() if v is True]
                share = {"elements": launch.count, "flags": on}
                if op.name == "clear":
                    share["share_of_memset"] = round(
                        launch.nbytes / taken.seconds / (whole.size / memset.seconds), 4
                    )
                case = " ".join([op.name, *on])
                yield row("op-rate", case, "rangeops", taken, launch.nbytes, rate, **share)


def _memset(view: Any, stream: Any) -> None:
    import cupy

    cupy.cuda.runtime.memsetAsync(view.data.ptr, 0, view.size, stream.ptr)
