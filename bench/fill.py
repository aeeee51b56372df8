"""Fresh random contents for an arena: what is timed never runs on zeros."""

from __future__ import annotations

from rangeops import Arena
from rangeops.verify import fill_random

PIECE = 1 << 26
"""Elements made at a time, to bound the temporaries."""


def fill(arena: Arena, seed: int = 0) -> None:
    """Fill weights, gradients, moments and EMA with normal values, half gradients alike.

    Second moments are non-negative; every value is finite, so that no step is skipped.
    """
    if not arena.on_gpu:
        fill_random(arena, seed)
        return
    import cupy

    assert arena.plan is not None
    generator = cupy.random.default_rng(seed)
    for series in "WGMVE":
        view = arena.view(arena.plan.series_range(series), "f4")
        for lo in range(0, view.size, PIECE):
            part = view[lo : lo + PIECE]
            part[...] = generator.standard_normal(part.size, dtype=cupy.float32)
            if series == "V":
                cupy.abs(part, out=part)
    if arena.plan.config.half == "fp16":
        half = arena.view(arena.plan.series_range("G", "weight", half=True), "f2")
        for lo in range(0, half.size, PIECE):
            part = half[lo : lo + PIECE]
            part[...] = generator.standard_normal(part.size, dtype=cupy.float32)
