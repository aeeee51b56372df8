"""What the scenarios of the ranks' worker use: arenas, weights, gradients, the bits of a state."""

from __future__ import annotations

import numpy as np

from rangeops import Arena, write_kept
from rangeops.kernels.half import to_half
from tests.helpers import small_plan

DEVICE = "cpu"
"""Where this rank's arenas lie; the worker says it."""


def arena_of(optimizer="adamw", **options):
    return Arena(small_plan(optimizer, **options), device=DEVICE)


def put(arena, name, values):
    """Write FP32 values to a tensor of any type, rounded."""
    tensor = arena.plan.tensors[name]
    if tensor.dtype.is_half:
        bits = to_half(np.ascontiguousarray(values, np.float32), tensor.dtype.label)
        values = bits if tensor.dtype.label == "bf16" else bits.view(np.float16)
    arena[tensor] = values


def start(arena):
    """Write the same weights on every rank, and their half copies unless masters have unmapped."""
    rng = np.random.default_rng(1)
    for tensor in arena.plan.weights():
        values = rng.standard_normal(tensor.shape).astype(np.float32)
        write_kept(arena, tensor, values)
        if f"{tensor.name}#A16" in arena.plan.tensors and not arena.unmapped:
            put(arena, f"{tensor.name}#A16", values)


def gradients(arena, step, rank, halves, bad=None):
    """Write what a rank's backward pass would: whole numbers, so that any order adds the same."""
    rng = np.random.default_rng(1000 * step + rank)
    for tensor in arena.plan.weights():
        if arena.plan.is_frozen(tensor.name):
            continue
        name = f"{tensor.name}#G"
        if halves and f"{name}16" in arena.plan.tensors:
            name = f"{name}16"
        values = rng.integers(-8, 9, tensor.shape).astype(np.float32)
        if bad == rank and values.size and "conv2" in name:
            values.flat[-1] = np.nan
        put(arena, name, values)


def arena_values(arena, values):
    """Return host values as the arena's library takes them."""
    if not arena.on_gpu:
        return values
    import cupy

    return cupy.asarray(values)


SERIES = "WMVE"
"""What a step moves, beside half copies."""


def state(arena):
    """Return the bits of every series that a step moves."""
    out = {}
    for series in SERIES:
        span = arena.plan.series_range(series)
        if span.size:
            out[series] = arena.read(span)
    if arena.plan.config.half:
        out["A"] = arena.read(arena.plan.series_range("A", half=True))
    out["step"] = np.array([arena.scalars.step, arena.scalars.loss_scale])
    return out


OPTIONS = {"lr": 0.02, "weight_decay": 0.1}
