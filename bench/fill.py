"""Fresh random contents for an arena: what is timed never runs on zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from rangeops import Arena

PIECE = 1 << 26
"""Elements made at a time, to bound the temporaries."""

FILLED = (*((series, False) for series in "WGMVE"), *((series, True) for series in "AGE"))
"""(series, half) of everything that a step reads."""


def fill(arena: Arena, seed: int = 0) -> None:
    """Fill weights, gradients, moments, EMA and all halves of a planned arena with normal values.

    Second moments are non-negative; every value is finite, so that no step is skipped.  Padding is
    filled too: a timed step reads and writes it like the rest.
    """
    module: Any = np
    if arena.on_gpu:
        import cupy

        module = cupy
    assert arena.plan is not None
    generator = module.random.default_rng(seed)
    for series, half in FILLED:
        span = arena.plan.series_range(series, half=half)
        kind = ("u2" if arena.plan.config.half == "bf16" else "f2") if half else "f4"
        view = arena.view(span, kind)
        for start in range(0, view.size, PIECE):
            part = view[start : start + PIECE]
            values = generator.standard_normal(part.size, dtype=module.float32)
            if series == "V":
                module.abs(values, out=values)
            # The upper half of a float32 is a bf16 of the same sign and size.
            part[...] = values.view("u4") >> 16 if kind == "u2" else values
