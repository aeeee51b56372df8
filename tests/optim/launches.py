"""A step taken otherwise: each part by an op of its own, or every launch by its reference."""

from __future__ import annotations

from rangeops import ops

PLANNED = ("sgd", "momentum", "nesterov", "adam", "adamw", "lars", "lion")
"""The optimizers whose update is one launch."""


def unfused_rest(arena, halves):
    """EMA, half copy and clear, an op each."""
    ops.ema(arena)
    if halves:
        ops.cast_fp32_to_fp16(arena)
        ops.clear(arena, arena.plan.series_range("G", "weight", half=True))
        ops.clear(arena, arena.plan.series_range("G", "bias"))
    else:
        ops.clear(arena, arena.plan.series_range("G"))


def by_references(step):
    """Return a call that runs the reference of every launch of a step."""

    def go():
        for launch in step.launches:
            kernel = launch.binding.op.kernel
            kernel.reference(**launch.binding.flags)(*launch.arrays(), *launch.integers)

    return go
