"""every: which ops and variants are compared, on plans of every optimizer and on raw ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plan import MemoryPlan, OptimizerKind, PlanConfig, Range
from plan.models import ParameterSpec, mlp, plan_model
from rangeops.arena.arena import Arena
from rangeops.device import find
from rangeops.kernels.spec import HALVES, Operand
from rangeops.launch.op import REGISTRY, RangeOp
from rangeops.verify.compare import Verdict, check, fill_random, mix, plan_of


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
        spans = {o.name: _any_series(plan, o) for o in active if not o.series}
        replaced = {o.instead_of for o in active}
        empty = [
            o
            for o in active
            if o.series
            and o.name not in replaced
            and not plan.series_range(o.series, "weight", o.element == "half").size
        ]
        if not empty:
            yield {**{k: v for k, v in flags.items() if k != "half"}, **spans}


def _any_series(plan: MemoryPlan, operand: Operand) -> Range:
    """Return a range for an operand that names no series: one of its type, as long as any other."""
    if operand.element == "half":
        return plan.series_range("G" if operand.name == "dst" else "A", half=True)
    weights = plan.series_range("W")
    others = [plan.series_range(s) for s in "GEMV" if s in {t.region.series for t in plan}]
    alike = [span for span in others if span.size == weights.size]
    return alike[0] if operand.name == "dst" and alike else weights


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
    plan = plan_of(arena)
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
        config = PlanConfig(kind, half=half, ema=ema, accumulate=half is not None, scalars=own)
        yield plan_model(list(specs), config)


def verify_every_op(
    device: str | None = None,
    specs: Sequence[ParameterSpec] | None = None,
    half: str | None = "fp16",
    only: Callable[[RangeOp, dict[str, Any]], bool] | None = None,
) -> Iterator[Verdict]:
    """Compare every op and option, each once, on plans of every optimizer.

    Tensors differ in settings and steps, and one rests.

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
        arena = Arena(plan, device=device)
        mix(arena)
        yield from verify_all(arena, only=wanted)
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
    for half in HALVES if "half" in op.flags else HALVES[:1]:
        for plan in every_plan(mlp((96, 33, 10)), half):
            if op.settings is None or op.name == plan.config.kind.label:
                arena = Arena(plan, device=device)
                mix(arena)
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
