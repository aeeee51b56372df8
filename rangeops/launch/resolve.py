"""Arguments -> Binding: ranges, flags and hyper-parameters resolved and checked, once.

Every refusal of a range op is made here, before anything is compiled or launched: one sentence
with subject, got, expected and remedy, in bytes or elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plan import PlanError
from rangeops.arena import scalars
from rangeops.arena.arena import Arena, private_arena
from rangeops.launch import coefficients
from rangeops.launch.binding import Binding
from rangeops.launch.operands import (
    ELEMENT_BYTES,
    Bound,
    check_span,
    check_together,
    given_span,
    planned_span,
)

if TYPE_CHECKING:
    from rangeops.kernels.spec import Operand, OpSpec

OPTION_BITS = {
    "bias_correction": coefficients.BIAS_CORRECTION,
    "ema_warmup": coefficients.EMA_WARMUP,
    "maximize": coefficients.MAXIMIZE,
    "loss_scaling": coefficients.LOSS_SCALING,
    "global_norm": coefficients.GLOBAL_NORM,
    "nesterov": coefficients.NESTEROV,
    "grad_averaging": coefficients.GRAD_AVERAGING,
    "lr_outside": coefficients.LR_OUTSIDE,
    "trust_clip": coefficients.TRUST_CLIP,
}
WHOLE_SERIES = ("chunks", "folds", "totals")
"""Kernels of these counts follow the plan's tables over all parameters."""

DEFAULT_OPTIONS = {name: name in ("bias_correction", "grad_averaging") for name in OPTION_BITS}


def as_arena(memory: Any) -> Arena:
    """Return an Arena, wrapping a foreign buffer."""
    return memory if isinstance(memory, Arena) else Arena.wrap(memory)


def resolve(op: OpSpec, memory: Any, spans: Sequence[Any], arguments: Mapping[str, Any]) -> Binding:
    """Resolve and check all arguments of an op; see ``OpSpec.bind``.

    Raises:
        ValueError, TypeError, PlanError: what was got, what was expected, what to do.

    """
    arena = as_arena(memory)
    given = dict(arguments)
    ranges = _take_ranges(op, spans, given)
    part = given.pop("part", "all")
    if part not in ("all", "bias", "weight"):
        raise ValueError(f"{op.name}: part got {part!r}, expected 'all', 'bias' or 'weight'")
    half = given.pop("half", None)
    state = given.pop("state", None)
    step = given.pop("step", None)
    options = {o: given.pop(o, DEFAULT_OPTIONS[o]) for o in op.options}
    flags = _take_flags(op, ranges, given)
    values = {name: given.pop(name) for name in list(given) if name in scalars.NAMES}
    if given:
        raise TypeError(f"{op.name}: got unknown {', '.join(given)}, expected {_accepted(op)}")
    for name, value in values.items():
        scalars.check(name, value)
    raw = arena.plan is None or state is not None or bool(values)
    if raw and "lr" in op.hyper and "lr" not in values and state is None:
        raise TypeError(f"{op.name}: got no lr for a buffer without a plan, expected lr=...")
    if op.kernel.count in WHOLE_SERIES and (raw or part != "all"):
        raise PlanError(
            f"{op.name}: got {'no plan' if raw else f'part={part!r}'}, expected all parameters of "
            "a planned arena; sums by tensor follow the plan's table"
        )
    _settle_half(op, arena, flags, half)
    bound = _bound(op, arena, ranges, flags, part)
    if op.kernel.count == "chunks":
        _check_whole(op, arena, bound)
    word = sum(OPTION_BITS[name] for name, on in options.items() if on)
    fresh = raw and state is None
    if state is None:
        state = private_arena(arena) if raw else arena
    elif not isinstance(state, Arena) or state.device != arena.device:
        raise ValueError(
            f"{op.name}: state got {getattr(state, 'device', state)}, expected the state of a "
            f"launch on {arena.device}; bind both on one device"
        )
    return Binding(op, arena, state, flags, bound, word, raw, fresh, values, step)


def _check_whole(op: OpSpec, arena: Arena, bound: Mapping[str, Bound]) -> None:
    """Refuse a range that is not a whole series where sums by tensor are made."""
    assert arena.plan is not None
    whole = arena.plan.series_range("W").size // 4
    first = next(iter(bound.values()))
    if first.numel != whole:
        raise ValueError(
            f"{op.name}: range {first.operand.name} holds {first.numel} elements, expected "
            f"{whole}, a whole series; give plan.series_range(...) of one"
        )


def _accepted(op: OpSpec) -> str:
    names = [o.name for o in op.operands]
    flags = [f for f in op.flags if f != "half"]
    return ", ".join([*names, *flags, *op.options, *op.hyper, "part", "half", "state"])


def _take_ranges(op: OpSpec, spans: Sequence[Any], given: dict[str, Any]) -> dict[str, Any]:
    names = [o.name for o in op.operands]
    if len(spans) > len(names):
        raise TypeError(f"{op.name}: got {len(spans)} ranges, expected at most {len(names)}")
    ranges = dict(zip(names, spans, strict=False))
    for name in names:
        if name in given:
            if name in ranges:
                raise TypeError(f"{op.name}: range {name} got two values, expected one")
            ranges[name] = given.pop(name)
    return {name: span for name, span in ranges.items() if span is not None}


def _take_flags(op: OpSpec, ranges: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    flags = {name: values[0] for name, values in op.flags.items()}
    for name in op.flags:
        if name in given and name != "half":
            value = given.pop(name)
            if value not in op.flags[name]:
                allowed = ", ".join(map(repr, op.flags[name]))
                raise ValueError(f"{op.name}: {name} got {value!r}, expected one of {allowed}")
            flags[name] = value
    for operand in op.operands:
        if operand.flag and operand.name in ranges:
            flags[operand.flag] = True
    return flags


def _active(op: OpSpec, flags: Mapping[str, Any]) -> list[Operand]:
    return [o for o in op.operands if not o.flag or flags[o.flag]]


def _settle_half(op: OpSpec, arena: Arena, flags: dict[str, Any], half: str | None) -> None:
    """Decide the half format: the plan's, or the caller's on a raw buffer (default fp16)."""
    if "half" not in op.flags:
        if half is not None:
            raise TypeError(f"{op.name}: got half={half!r}, expected none; it moves no halves")
        return
    planned = arena.plan.config.half if arena.plan is not None else None
    wanted = half or planned or "fp16"
    if wanted not in ("fp16", "bf16"):
        raise ValueError(f"{op.name}: half got {half!r}, expected 'fp16' or 'bf16'")
    if planned and half and half != planned:
        raise ValueError(
            f"{op.name}: half got {half!r}, the plan's halves are {planned}; leave half out"
        )
    uses = any(o.element == "half" for o in _active(op, flags))
    flags["half"] = wanted if uses else None


def _bound(
    op: OpSpec, arena: Arena, ranges: dict[str, Any], flags: Mapping[str, Any], part: str
) -> dict[str, Bound]:
    """Resolve every active operand, then check each alone and all together."""
    out: dict[str, Bound] = {}
    if flags.get("half") and "half_start" not in op.kernel.integers:
        part = "weight"
    for operand in _active(op, flags):
        if operand.name in ranges:
            span = given_span(op, operand, arena, ranges[operand.name])
        elif arena.plan is not None and operand.series:
            span = planned_span(op, operand, arena, part)
        elif operand.name == "g" and flags.get("half_grad"):
            continue
        else:
            raise TypeError(
                f"{op.name}: range {operand.name} is missing; "
                f"give {operand.name}=Range(offset, size)"
            )
        check_span(op, operand, arena, span)
        size = ELEMENT_BYTES[operand.element]
        out[operand.name] = Bound(operand, span, span.size // size)
    for name in ranges:
        if name not in out:
            raise TypeError(f"{op.name}: range {name} is not used with flags {dict(flags)}")
    check_together(op, list(out.values()))
    return out
