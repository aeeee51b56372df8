"""compare: one launch against its NumPy reference, bit for bit, on its memory as it lies.

Any NaN equals any NaN.  The first element that differs is named by tensor and index.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from plan import DType, MemoryPlan, Range
from plan.scratch import STATE_OF
from rangeops.arena.arena import Arena
from rangeops.arena.settings import READS
from rangeops.kernels.half import format_of, to_half
from rangeops.launch.launch import BoundLaunch

FP32_SERIES = "WGMVE"


@dataclass(frozen=True)
class Verdict:
    """What one comparison found; ``difference`` is None where every bit agrees."""

    op: str
    flags: dict[str, Any]
    elements: int
    difference: str | None
    seconds: float


def fill_random(arena: Arena, seed: int = 0) -> None:
    """Fill weights, gradients, moments and EMA with fresh values over 15 decades, padding zero.

    Second moments are non-negative; half gradients lie within the half format; half copies are
    the rounded weights.  Sums of the norms are fresh as well.
    """
    plan = plan_of(arena)
    rng = np.random.default_rng(seed)
    for tensor in plan:
        series, half = tensor.region.series, tensor.dtype.is_half
        if series not in FP32_SERIES + "A" or not tensor.numel:
            continue
        values = rng.standard_normal(tensor.numel, np.float32)
        decades = rng.uniform(-4, 3, tensor.numel) if half else rng.uniform(-12, 3, tensor.numel)
        values *= (10.0**decades).astype(np.float32)
        if series == "V":
            values *= values
        out = values.reshape(tensor.shape)
        arena[tensor] = _bits(out, tensor.dtype.label) if half else out
    for name in ("partials", "sums", "totals"):
        sums = plan.tensors.get(STATE_OF[name].tensor)
        if sums is not None:  # of squares, float64: what folds, ratios and clips read
            arena.write(sums.offset, rng.random(sums.nbytes // 8))


OTHERWISE = {
    "lr": 0.5, "weight_decay": 2.0, "trust_coefficient": 0.02, "beta1": 0.8, "beta2": 0.95,
    "eps": 1e-4, "momentum": 0.7, "dampening": 0.25, "nesterov": True, "maximize": True,
    "bias_correction": False, "grad_averaging": False,
}  # fmt: skip
"""Settings of a group that are nobody's default."""


def mix(arena: Arena) -> None:
    """Let tensors differ: in the settings of the second, the rest of the last, and in steps."""
    names = [tensor.name for tensor in plan_of(arena).weights()]
    if len(names) < 3:
        return
    reads = READS.get(plan_of(arena).config.kind.label, {})
    own = {name: value for name, value in OTHERWISE.items() if name in reads}
    arena.groups.add("otherwise", names[1], **own)
    arena.groups.rest(names[-1:])
    arena.groups.set_steps({name: k % 7 for k, name in enumerate(names)})


def _bits(values: np.ndarray, half: str) -> np.ndarray:
    bits = to_half(values, half)
    return bits.view(DType.named(half).numpy)


def plan_of(arena: Arena) -> MemoryPlan:
    """Return an arena's plan.

    Raises:
        ValueError: it has none.

    """
    if arena.plan is None:
        raise ValueError("verify: got an arena without a plan, expected Arena(plan); plan first")
    return arena.plan


def differing(got: np.ndarray, want: np.ndarray, element: str, half: str | None) -> np.ndarray:
    """Return the indices at which two arrays differ in bits, any NaN being equal to any NaN."""
    unequal = got.view(f"u{got.itemsize}") != want.view(f"u{want.itemsize}")
    if element in ("f4", "f8"):
        unequal &= ~(np.isnan(got) & np.isnan(want))
    elif element == "half":
        exponent = format_of(half).exponent
        mantissa = 0x7FFF ^ exponent
        nan = [((x & exponent) == exponent) & ((x & mantissa) != 0) for x in (got, want)]
        unequal &= ~(nan[0] & nan[1])
    return np.flatnonzero(unequal)


def locate(plan: MemoryPlan | None, name: str, span: Range, index: int, itemsize: int) -> str:
    """Return where an element of a range lies: tensor name and index, or padding behind it."""
    if plan is None:
        return f"{name}[{index}]"
    tensors = list(plan)
    offset = span.base_offset + index * itemsize
    k = bisect.bisect_right([t.offset for t in tensors], offset) - 1
    tensor = tensors[k]
    element = (offset - tensor.offset) // itemsize
    inside = element * itemsize < tensor.nbytes
    return f"{name}: {tensor.name}[{element}]" + ("" if inside else " (padding)")


def check(launch: BoundLaunch) -> Verdict:
    """Run a launch and its reference from the same memory and compare all that both were given."""
    binding = launch.binding
    kernel = binding.op.kernel
    want = launch.arrays(download=True)
    made_reference = kernel.reference(**binding.flags)
    start = time.perf_counter()
    if launch.count:
        made_reference(*want, *launch.integers)
    launch()
    got = launch.arrays(download=True)
    difference = None
    for (name, element), one, two in zip(kernel.arguments, got, want, strict=True):
        wrong = differing(one, two, element, binding.flags.get("half"))
        if wrong.size and difference is None:
            owner, span = binding.locate(name)
            assert span is not None
            where = locate(owner.plan, name, span, int(wrong[0]), one.itemsize)
            difference = (
                f"{where} is {one[wrong[0]]!r}, expected {two[wrong[0]]!r}; "
                f"{wrong.size} of {one.size} elements differ"
            )
    seconds = time.perf_counter() - start
    return Verdict(binding.op.name, dict(binding.flags), launch.count, difference, seconds)
