"""The reductions by tensor: one fixed tree, spelled for the GPU, the CPU and NumPy.

    lane        (a+b) + (c+d) of its four elements, added over up to 16 granules
    chunk       32 lanes: lane k + lane k+16, then +8, +4, +2, +1
    fold        512 chunks: lane k adds the chunks k, k+32, k+64 ..., then 32 lanes as above
    tensor      its folds in order

All in float64, where the square of a float32 is exact and neither overflows nor vanishes: norms
are right from 1e-38 to 1e38, and a sum is finite exactly where every element is.  The order
depends on a tensor's length alone (``plan.chunks``), never on the launch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan.scratch import CHUNK_GRANULES, FOLD_CHUNKS, GRANULE
from rangeops.kernels.half import from_half

LANES = 32

REFERENCE_CHUNKS = 2048
"""Chunks that a reference handles at a time, to bound its temporaries."""


def walk(x: Any, term: Any) -> Any:
    """Return ``lane(state, i, count)``: one lane's sum over the granules of a chunk.

    ``term(state, i)`` returns the four lanes' float64 terms of the elements i .. i+3.  A full
    chunk is a loop of known length, and a short one takes four granules at a time, the last one
    again for those that do not exist, so that loads are issued together.
    """
    int64, float64 = x.int64, x.float64
    term = x.device(term)

    def lane(state, i, count):
        total = float64(0)
        if count == CHUNK_GRANULES:
            for r in range(CHUNK_GRANULES):
                t = term(state, i + int64(r * GRANULE))
                total = total + ((t[0] + t[1]) + (t[2] + t[3]))
        else:
            for r in range(0, count, 4):
                for n in range(4):
                    t = term(state, i + min(int64(r + n), count - 1) * int64(GRANULE))
                    value = (t[0] + t[1]) + (t[2] + t[3])
                    total = total + (value if r + n < count else float64(0))
        return total

    return x.device(lane)


def chunk_of(x: Any) -> Any:
    """Return ``chunk(chunks, w)``: first granule, granules, and this lane's first element."""
    thread, int64 = x.thread, x.int64

    def chunk(chunks, w):
        first = int64(chunks[w])
        lane = thread() & int64(LANES - 1)
        return first, int64(chunks[w + 1]) - first, first * int64(GRANULE) + lane * int64(4)

    return x.device(chunk)


def gradient(x: Any, half: str | None, half_grad: bool) -> Any:
    """Return ``four(g, h, i, half_start)``: four gradients as float32, half ones where due."""
    load4, int64, widen = x.load4, x.int64, x.half(half)[0]

    def four(g, h, i, half_start):
        if half_grad and i >= half_start:
            u = load4(h, i - half_start, int64(4))
            return widen(u[0]), widen(u[1]), widen(u[2]), widen(u[3])
        return load4(g, i, int64(4))

    return x.device(four)


def squares(x: Any, lift: Any) -> Any:
    """Return ``term(a, i)``: the squares of four elements, ``lift`` making each a float32."""
    load4, int64, float64 = x.load4, x.int64, x.float64

    def square(value):
        wide = float64(value)
        return wide * wide

    square = x.device(square)

    def term(a, i):
        u = load4(a, i, int64(4))
        return square(lift(u[0])), square(lift(u[1])), square(lift(u[2])), square(lift(u[3]))

    return term


def fold_gpu(x: Any, combine: Any, across: Any) -> Any:
    """Return ``fold(values, a, b)``: a warp's fold of the values a .. b-1, at most 512."""
    thread, int64, float64 = x.thread, x.int64, x.float64
    combine = x.device(combine)

    def fold(values, a, b):
        if b - a == 1:
            return values[a]  # what the tree gives, without it
        start = a + (thread() & int64(LANES - 1))
        total = float64(0)
        for r in range(FOLD_CHUNKS // LANES):
            j = start + int64(LANES * r)
            value = float64(0)
            if j < b:
                value = values[j]
            total = combine(total, value)
        return across(total)

    return x.device(fold)


def add_rule(a, b):
    """Add."""
    return a + b


def max_rule(a, b):
    """Take the larger."""
    return max(a, b)


def lanes_cpu(x: Any, combine: Any) -> Any:
    """Return ``lanes(values)``: 32 values folded into the first as a warp folds them."""
    combine = x.device(combine)

    def lanes(values):
        width = LANES // 2
        while width > 0:
            for j in range(width):
                values[j] = combine(values[j], values[j + width])
            width = width // 2
        return values[0]

    return x.device(lanes)


def granule_cpu(x: Any) -> Any:
    """Return ``add(terms, lanes)``: a granule's 128 terms added to the 32 running lane sums."""

    def add(terms, lanes):
        for j in range(LANES):
            low = terms[4 * j] + terms[4 * j + 1]
            lanes[j] = lanes[j] + (low + (terms[4 * j + 2] + terms[4 * j + 3]))

    return x.device(add)


def squares_cpu(x: Any, lift: Any) -> Any:
    """Return ``add(values, lanes)``: squares of a granule's values added to the lane sums."""
    float64 = x.float64

    def square(value):
        wide = float64(lift(value))
        return wide * wide

    square = x.device(square)

    def add(values, lanes):
        for j in range(LANES):
            low = square(values[4 * j]) + square(values[4 * j + 1])
            lanes[j] = lanes[j] + (low + (square(values[4 * j + 2]) + square(values[4 * j + 3])))

    return x.device(add)


def fold_cpu(x: Any, combine: Any) -> Any:
    """Return ``fold(values, a, b, scratch)``: the values a .. b-1 folded; scratch holds 32."""
    lanes, combine = lanes_cpu(x, combine), x.device(combine)

    def fold(values, a, b, scratch):
        for lane in range(LANES):
            scratch[lane] = 0.0
        for j in range(b - a):
            lane = j % LANES
            scratch[lane] = combine(scratch[lane], values[a + j])
        return lanes(scratch)

    return x.device(fold)


def lanes_reference(values: np.ndarray, combine: Any = np.add) -> np.ndarray:
    """Fold the last axis of 32 as a warp does, in NumPy."""
    while values.shape[-1] > 1:
        width = values.shape[-1] // 2
        values = combine(values[..., :width], values[..., width:])
    return values[..., 0]


def chunks_reference(terms: Any, chunks: np.ndarray) -> np.ndarray:
    """Return the sum of every chunk, in NumPy; ``terms(rows)`` gives granules' float64 terms."""
    out = np.empty(chunks.size - 1)
    for lo in range(0, out.size, REFERENCE_CHUNKS):
        first = chunks[lo : lo + REFERENCE_CHUNKS + 1].astype(np.int64)
        first, count = first[:-1], np.diff(first)
        lanes = np.zeros((count.size, LANES))
        for r in range(CHUNK_GRANULES):
            live = r < count
            values = terms(first[live] + r)
            pairs = values[:, 0::2] + values[:, 1::2]
            lanes[live] += pairs[:, 0::2] + pairs[:, 1::2]
        out[lo : lo + count.size] = lanes_reference(lanes)
    return out


def folds_reference(values: np.ndarray, folds: np.ndarray, combine: Any = np.add) -> np.ndarray:
    """Return every fold of chunk values, in NumPy."""
    first, end = folds[:-1, None].astype(np.int64), folds[1:, None]
    lanes = np.zeros((first.size, LANES))
    for k in range(FOLD_CHUNKS // LANES):
        at = first + LANES * k + np.arange(LANES)
        inside = np.where(at < end, values[np.minimum(at, values.size - 1)], 0.0)
        lanes = combine(lanes, inside)
    return lanes_reference(lanes, combine)


def tensors_reference(folds: np.ndarray, fold_of: np.ndarray, combine: Any = np.add) -> np.ndarray:
    """Return every tensor's folds combined in order, in NumPy."""
    first, end = fold_of[:-1].astype(np.int64), fold_of[1:]
    out = np.zeros(first.size)
    for r in range(int((end - first).max(initial=0))):
        live = first + r < end
        out[live] = combine(out[live], folds[first[live] + r])
    return out


def granules_of(g: np.ndarray, h: np.ndarray, half_start: int, half: str | None) -> np.ndarray:
    """Return FP32 and half gradients as rows of 128 float32."""
    parts = [g[:half_start], from_half(h, half)] if half is not None else [g]
    return np.concatenate(parts).reshape(-1, GRANULE)
