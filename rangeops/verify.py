"""verify: run any op on the caller's own plan and device, and compare it with its NumPy reference.

    check(launch)             one bound launch, on its memory as it lies
    verify(arena, op, ...)    one op on an arena's present contents
    verify_all(arena)         every op and option that a plan has regions for
    verify_every_op(device)   every op there is, on small plans of every optimizer
    verify_op(op)             one op, of the caller's own perhaps, also on raw ranges between guards

The comparison is by bits (any NaN equals any NaN) over every range and every part of the state
that the kernel was given; the first element that differs is named by tensor and index.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plan import MemoryPlan, OptimizerKind, PlanConfig, Range
from plan.models import ParameterSpec, mlp, plan_model
from rangeops.arena.arena import Arena
from rangeops.device import find
from rangeops.kernels.half import to_half
from rangeops.kernels.spec import Operand
from rangeops.launch.launch import BoundLaunch
from rangeops.launch.op import REGISTRY, RangeOp

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
    the rounded weights.
    """
    plan = _plan(arena)
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


def _bits(values: np.ndarray, half: str) -> np.ndarray:
    bits = to_half(values, half)
    return bits if half == "bf16" else bits.view(np.float16)


def _plan(arena: Arena) -> MemoryPlan:
    if arena.plan is None:
        raise ValueError("verify: got an arena without a plan, expected Arena(plan); plan first")
    return arena.plan


def differing(got: np.ndarray, want: np.ndarray, element: str, half: str | None) -> np.ndarray:
    """Return the indices at which two arrays differ in bits, any NaN being equal to any NaN."""
    unequal = got.view(f"u{got.itemsize}") != want.view(f"u{want.itemsize}")
    if element in ("f4", "f8"):
        unequal &= ~(np.isnan(got) & np.isnan(want))
    elif element == "half":
        exponent, mantissa = (0x7F80, 0x7F) if half == "bf16" else (0x7C00, 0x3FF)
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


def planned_variants(op: RangeOp, plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    """Yield the arguments of every variant of ``op`` that ``plan`` has regions for."""
    if "norms" in dict(op.kernel.arguments) and "N" not in plan.config.kind.series:
        return
    if op.settings is not None and op.name != plan.config.kind.label:
        return
    for flags in op.variants():
        active = [o for o in op.operands if not o.flag or flags[o.flag]]
        half = flags.get("half")
        if half is not None and half != plan.config.half:
            continue
        spans = {
            o.name: plan.series_range("G" if o.name == "dst" else "W")
            for o in active
            if not o.series
        }
        empty = [
            o
            for o in active
            if o.series and not plan.series_range(o.series, "weight", o.element == "half").size
        ]
        if not empty:
            yield {**{k: v for k, v in flags.items() if k != "half"}, **spans}


def verify(arena: Arena, op: RangeOp | str, **arguments: Any) -> Verdict:
    """Compare one op with its reference on the arena's present contents.

    >>> from plan.models import mlp, plan_model
    >>> arena = Arena(plan_model(mlp((4, 3))), device="cpu")
    >>> fill_random(arena)
    >>> verify(arena, "clear", dst=arena.plan.range(6, 11)).difference is None
    True
    """
    found = REGISTRY[op] if isinstance(op, str) else op
    return check(found.bind(arena, **arguments))


def verify_all(
    arena: Arena, seed: int = 0, only: Callable[[RangeOp, dict[str, Any]], bool] | None = None
) -> Iterator[Verdict]:
    """Compare every op and option that the arena's plan has regions for; contents are replaced.

    ``only(op, arguments)`` may leave variants out.
    """
    plan = _plan(arena)
    begin = REGISTRY["begin_step"].bind(arena) if plan.parameters else None
    for op in REGISTRY.values():
        for arguments in planned_variants(op, plan):
            if only is not None and not only(op, arguments):
                continue
            fill_random(arena, seed)
            arena.scalars.set(weight_decay=0.01, ema_decay=0.999, clip_value=10.0, found_inf=0)
            if begin is not None:
                begin()
            arena.scalars.set(found_inf=0, skip_step=0)
            yield check(op.bind(arena, **arguments))


def every_plan(
    specs: Sequence[ParameterSpec], half: str | None = "fp16", ema: bool = True
) -> Iterator[MemoryPlan]:
    """Yield a plan for each optimizer, that of the most series first; together they take every op.

    Scalars that ops other than optimizers brought have a place in each of them.
    """
    kinds = [kind for kind in OptimizerKind if kind is not OptimizerKind.NONE]
    own = {k: v for op in REGISTRY.values() if op.settings is None for k, v in op.scalars.items()}
    for kind in sorted(kinds, key=lambda kind: -len(kind.series)):
        yield plan_model(list(specs), PlanConfig(kind, half=half, ema=ema, scalars=own))


def verify_every_op(
    device: str | None = None,
    specs: Sequence[ParameterSpec] | None = None,
    half: str | None = "fp16",
    only: Callable[[RangeOp, dict[str, Any]], bool] | None = None,
) -> Iterator[Verdict]:
    """Compare every op and option, each once, on plans of every optimizer.

    Args:
        device: as of ``Arena``.
        specs: the parameters (default: a small perceptron).
        half: "fp16", "bf16" or None.
        only: ``only(op, arguments)`` may leave variants out.

    Raises:
        ValueError: an op of which no variant was compared; behind the last verdict.

    """
    done: set[str] = set()

    def wanted(op: RangeOp, arguments: dict[str, Any]) -> bool:
        flags = {name: value for name, value in arguments.items() if name in op.flags}
        key = f"{op.name} {flags}"
        new = key not in done and (only is None or only(op, arguments))
        if new:
            done.add(key)
        return new

    for plan in every_plan(specs or mlp((96, 33, 10)), half):
        yield from verify_all(Arena(plan, device=device), only=wanted)
    missed = set(REGISTRY) - {key.partition(" ")[0] for key in done}
    if missed:
        raise ValueError(
            f"verify: no variant of {', '.join(sorted(missed))} was compared, expected one of each "
            "op; let `only` keep one"
        )


def verify_op(
    op: RangeOp, device: str | None = "cpu", sizes: Sequence[int] = (0, 1, 127, 128, 129, 1000)
) -> Iterator[Verdict]:
    """Compare every variant of one op: on raw ranges of awkward sizes, and on a planned arena.

    A byte changed outside the ranges that the op writes is a difference.  Use it in a test:

        for verdict in verify_op(clamp):
            assert verdict.difference is None, verdict

    Args:
        op: the op; the caller's own has to be declared by then.
        device: "cpu" needs no GPU; "cuda" is a GPU or, where it is on, Numba's simulator.
        sizes: elements of the raw ranges.

    """
    if op.operands and op.kernel.count == "n":
        for flags in op.variants():
            for n in sizes:
                yield _raw_verdict(op, flags, n, device)
    for half in ("fp16", "bf16") if "half" in op.flags else ("fp16",):
        for plan in every_plan(mlp((96, 33, 10)), half):
            if op.settings is None or op.name == plan.config.kind.label:
                arena = Arena(plan, device=device)
                yield from verify_all(arena, only=lambda other, arguments: other is op)


GUARD = 1024
"""Bytes on both sides of a raw range that nobody may touch."""


def _raw_verdict(op: RangeOp, flags: dict[str, Any], n: int, device: str | None) -> Verdict:
    """Compare one variant on ``n`` elements of fresh memory, with guard bytes around its ranges."""
    spans, end = {}, GUARD
    for operand in op.operands:
        if not operand.flag or flags[operand.flag]:
            spans[operand.name] = Range(end, n * operand.itemsize)
            end += -(-spans[operand.name].size // 256) * 256 + GUARD
    arena = _raw_arena(end, device)
    rng = np.random.default_rng(n)
    arena.write(0, np.full(end, 0xA5, np.uint8))
    for operand in op.operands:
        if operand.name in spans and n:
            arena.write(spans[operand.name].base_offset, _raw_values(operand, n, rng))
    hyper = {"lr": 0.1} if "lr" in op.hyper else {}
    given = {name: value for name, value in flags.items() if value is not None}
    launch = op.bind(arena, **spans, **given, **hyper)
    before = arena.read(Range(0, end))
    verdict = check(launch)
    after = arena.read(Range(0, end))
    for operand in op.operands:
        if operand.name in spans and operand.role != "read":
            span = spans[operand.name]
            before[span.base_offset : span.end] = after[span.base_offset : span.end]
    changed = np.flatnonzero(before != after)
    if changed.size and verdict.difference is None:
        outside = f"byte {changed[0]} changed, which lies outside the ranges that {op.name} writes"
        return replace(verdict, difference=outside)
    return verdict


def _raw_arena(nbytes: int, device: str | None) -> Arena:
    """Return an arena without a plan over fresh memory of a device."""
    backend = find(device)
    memory, _ = backend.allocate(nbytes)
    return Arena.wrap(memory, device="simulator" if backend.kind == "simulator" else None)


def _raw_values(operand: Operand, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return random elements for a raw range: decades of floats, any half, any byte."""
    if operand.element == "u1":
        return rng.integers(0, 256, n, np.uint8)
    if operand.element == "half":
        return rng.integers(0, 2**16, n, np.uint16)
    values = (rng.standard_normal(n) * 10.0 ** rng.uniform(-12, 3, n)).astype(np.float32)
    return np.abs(values) if operand.name == "v" else values
