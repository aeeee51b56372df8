"""grad_norm: check and norms of all gradients in one read.

    grad_norm     chunk sums of g*g (with weights=True also of p*p); found_inf where one is not
                  finite, and the granule of the first such element

The tree is that of ``rangeops.kernels.tree``.  A chunk's sum is float64, in which no finite float32
overflows, so "the sum is not finite" is exactly "an element is not finite".  A tensor that is not
trained this step sets no flag, since its gradient is an old one, and ``fold_norms`` leaves its sums
out.  The sums are those of the gradients as they lie, loss scale and all; who reads them divides.
``begin_step`` clips by the global norm and writes the scalar ``grad_norm``; ``trust_ratio`` makes
LARS's and LAMB's ratios.

The kernel is written by hand: a full chunk's sixteen loads are issued together (``tree.walk``),
which a loop over granules does not do.

4 (half: 2) bytes an element, 4 more with weights; the chunk sums are 8 bytes per 2,048 elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from plan.scalars import int32_index
from plan.scratch import GRANULE, SUMS
from rangeops.arena.arena import Arena
from rangeops.kernels import tree
from rangeops.kernels.spec import HALF_GRAD, Kernel, arguments_of, half_where_used, read
from rangeops.launch.op import range_op

FOUND_INF, FIRST = int32_index("found_inf"), int32_index("first_nonfinite")


def _same(value):
    return value


def _norm_gpu(x: Any, *, half: str | None, half_grad: bool, weights: bool) -> Any:
    thread, warp_sum, atomic_min = x.thread, x.warp_sum, x.atomic_min
    int64, int32 = x.int64, x.int32
    plain = tree.walk(x, tree.squares(x, x.device(_same)))
    halves = tree.walk(x, tree.squares(x, x.half(half)[0]))
    chunk = tree.chunk_of(x)

    def lane_sum(g, h, i, half_start, count):
        if half_grad and i >= half_start:
            return halves(h, i - half_start, count)
        return plain(g, i, count)

    lane_sum = x.device(lane_sum)

    def norm(g, h, p, chunks, k, segments, live, partials, half_start, count):
        w = thread() >> int64(5)
        if w >= count:
            return
        first, granules, i = chunk(chunks, w)
        lane = thread() & int64(31)
        total = lane_sum(g, h, i, half_start, granules)
        if total - total != 0.0 and live[segments[first]] > 0:  # also where it is NaN
            k[FOUND_INF] = int32(1)
            for r in range(granules):
                part = lane_sum(g, h, i + int64(GRANULE) * r, half_start, int64(1))
                if part - part != 0.0:
                    atomic_min(k, int64(FIRST), int32(first + r))
        total = warp_sum(total)
        if lane == 0:
            partials[w] = total
        if weights:
            total = warp_sum(plain(p, i, granules))
            if lane == 0:
                partials[count + w] = total

    return norm


def _norm_cpu(x: Any, *, half: str | None, half_grad: bool, weights: bool) -> Any:
    int32, int64, float64, at, local = x.int32, x.int64, x.float64, x.at, x.local
    atomic_min, width, widen = x.atomic_min, tree.LANES, x.half(half)[0]
    plain, halves = tree.squares_cpu(x, x.device(_same)), tree.squares_cpu(x, widen)
    fold = tree.lanes_cpu(x, tree.add_rule)

    def report(g, h, k, half_start, first, last):
        """Set the flag, and look for the first granule that is not finite."""
        k[FOUND_INF] = int32(1)
        for granule in range(first, last):
            i, bad = granule * GRANULE, int32(0)
            for j in range(i, i + GRANULE):
                value = widen(h[j - half_start]) if half_grad and i >= half_start else g[j]
                bad |= int32(value - value != 0.0)
            if bad != 0:
                atomic_min(k, FIRST, int32(granule))

    report = x.device(report)

    def norm(g, h, p, chunks, k, segments, live, partials, half_start, count, start, stop):
        lanes = local(width, float64)
        for w in range(start, stop):
            first, last = int64(chunks[w]), int64(chunks[w + 1])
            for j in range(width):
                lanes[j] = float64(0)
            for granule in range(first, last):
                i = granule * GRANULE
                if half_grad and i >= half_start:
                    halves(at(h, i - half_start), lanes)
                else:
                    plain(at(g, i), lanes)
            total = fold(lanes)
            partials[w] = total
            if total - total != 0.0 and live[segments[first]] > 0:
                report(g, h, k, half_start, first, last)
            if weights:
                for j in range(width):
                    lanes[j] = float64(0)
                for granule in range(first, last):
                    plain(at(p, granule * GRANULE), lanes)
                partials[count + w] = fold(lanes)

    return norm


def _norm_reference(*, half: str | None, half_grad: bool, weights: bool) -> Any:
    def squares(values):
        return lambda rows: np.square(values[rows], dtype=np.float64)

    def reference(g, h, p, chunks, k, segments, live, partials, half_start, count):
        rows = tree.granules_of(g, h, half_start, half)
        trained = live[segments] > 0
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1) & trained)
        with np.errstate(invalid="ignore"):
            partials[:count] = tree.chunks_reference(squares(rows), chunks)
            if weights:
                weight_rows = p.reshape(-1, GRANULE)
                partials[count : 2 * count] = tree.chunks_reference(squares(weight_rows), chunks)
        if bad.size:
            k[FOUND_INF] = 1
            k[FIRST] = min(k[FIRST], bad[0])

    return reference


def _norm_bytes(flags: Mapping[str, Any]) -> float:
    return (2 if flags["half_grad"] else 4) + 4 * flags["weights"]


_NORM = (
    read("g", "f4", "G"),
    read("h", "half", "G", "half_grad", instead_of="g"),
    read("p", "f4", "W", "weights"),
)

grad_norm = range_op(
    "grad_norm",
    origin="(with RANGE_CHECK_NAN)",
    formula="per tensor and in all: sum g*g, found_inf",
    operands=_NORM,
    kernel=Kernel(
        "grad_norm",
        arguments_of(_NORM, "chunks", "k", "segments", "live", "partials"),
        ("half_start", "chunks"),
        _norm_gpu,
        _norm_cpu,
        _norm_reference,
        per_thread=1,
        count="chunks",
    ),
    bytes_per_element=_norm_bytes,
    flags={**HALF_GRAD, "weights": (False, True)},
    elementwise=False,
    valid=half_where_used,
)


def read_sums(arena: Arena, of: str) -> np.ndarray:
    """Return the sums by tensor that the last passes left: (quantities, tensors) float64.

    ``of`` is a key of ``plan.scratch.SUMS``; in a report the second quantity is a maximum.  Waits
    for the device.
    """
    assert arena.plan is not None
    row, quantities, maximum = SUMS[of]
    sums = arena.download("norm.sums").view(np.float64)[row : row + quantities, :, 0]
    fold_of = arena.download("norm.fold_of_tensor")
    combine = [np.maximum if q == maximum else np.add for q in range(quantities)]
    pairs = zip(sums, combine, strict=True)
    return np.array([tree.tensors_reference(values, fold_of, how) for values, how in pairs])


def read_norms(arena: Arena) -> dict[str, float]:
    """Return the gradient norm of every parameter by name, as ``grad_norm`` last found them.

    Norms of the gradients as they lay: divide by the loss scale of that step.
    """
    assert arena.plan is not None
    norms = np.sqrt(read_sums(arena, "gradient")[0])
    return {t.name: float(n) for t, n in zip(arena.plan.weights(), norms, strict=True)}
