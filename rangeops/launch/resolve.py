"""Arguments -> Binding: ranges, flags and hyper-parameters resolved and checked, once.

Every refusal of a range op is made here, before anything is compiled or launched: one sentence
with subject, got, expected and remedy, in bytes or elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plan import MemoryPlan, PlanConfig, PlanError
from plan.series import WEIGHT_KINDS
from rangeops.arena import scalars
from rangeops.arena.arena import Arena
from rangeops.kernels.spec import HALVES, Operand, OpSpec
from rangeops.launch.binding import Binding
from rangeops.launch.coefficients import (
    DEFAULTS,
    SETTINGS,
    option_word,
    quads_of,
    quads_written,
)
from rangeops.launch.operands import (
    HALF_BUFFERS,
    Resolved,
    check_span,
    check_together,
    named_span,
    planned_span,
)
from rangeops.launch.reference import decays_of, signature_of
from rangeops.launch.rows import by_tensor, ends_with_biases, with_biases

WHOLE_SERIES = ("chunks", "folds", "totals")
"""Kernels of these counts follow the plan's tables over all parameters."""


def as_arena(memory: Any) -> Arena:
    """Return an Arena, wrapping a foreign buffer."""
    return memory if isinstance(memory, Arena) else Arena.wrap(memory)


def resolve(op: OpSpec, memory: Any, spans: Sequence[Any], arguments: Mapping[str, Any]) -> Binding:
    """Resolve and check all arguments of an op; see ``RangeOp.bind``.

    Raises:
        ValueError, TypeError, PlanError: what was got, what was expected, what to do.

    """
    arena = as_arena(memory)
    by_name = _take(op, spans, arguments)
    given = by_name.pop("scalars", {}) | {n: by_name.pop(n) for n in op.hyper if n in by_name}
    values = {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        _check_scalar(op, name, value)
    part, state = by_name.pop("part", "all"), by_name.pop("state", None)
    if part not in ("all", "bias", "weight"):
        raise ValueError(f"{op.name}: part got {part!r}, expected 'all', 'bias' or 'weight'")
    raw = arena.plan is None or state is not None or bool(values)
    _check_raw(op, raw, part, lr="lr" in values or state is not None)
    step = _step(op, raw, by_name.pop("step", None))
    ranges = {o.name: by_name.pop(o.name) for o in op.operands if by_name.get(o.name) is not None}
    options = _options(op, arena, raw, by_name)
    flags = _flags(op, ranges, by_name)
    flags |= _half(op, arena, flags, by_name.get("half"))
    resolved = _resolved(op, arena, ranges, flags, part)
    if op.kernel.count == "chunks":
        _check_whole(op, arena, resolved)
    if not raw:
        resolved = by_tensor(op, arena.planned(op.name), resolved)
        _check_settings(op, arena)
        _check_written(op, arena)
    fresh = raw and state is None
    state = _state(op, arena, raw, state)
    return Binding(op, arena, state, flags, resolved, options, raw, fresh, values, step)


def _take(op: OpSpec, spans: Sequence[Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return every argument by its name; scalars that are no hyper-parameters as "scalars"."""
    signature = signature_of(op)
    names = [o.name for o in op.operands]
    try:
        by_name = dict(signature.bind(None, *spans, **arguments).arguments)
    except TypeError:
        twice = [name for name in names[: len(spans)] if name in arguments]
        if twice:
            message = f"range {twice[0]} got two values, expected one"
        else:
            message = f"got {len(spans)} ranges, expected at most {len(names)}"
        raise TypeError(f"{op.name}: {message}") from None
    unknown = [name for name in by_name.get("scalars", {}) if name not in scalars.NAMES]
    if unknown:
        accepted = [n for n in signature.parameters if n not in ("arena", "scalars")]
        raise TypeError(
            f"{op.name}: got unknown {', '.join(unknown)}, expected {', '.join(accepted)} or "
            "another scalar of the plan"
        )
    del by_name["arena"]
    return by_name


def _check_scalar(op: OpSpec, name: str, value: float) -> None:
    if name in op.scalars:
        scalars.number(name, value)
    else:
        scalars.check(name, value)


def _step(op: OpSpec, raw: bool, step: int | None) -> int | None:
    """Return the step of a raw launch; a planned arena counts its own."""
    if step is not None and not raw:
        raise TypeError(
            f"{op.name}: got step={scalars.said(step)} on a planned arena, expected none, since "
            "begin_step counts; set arena.scalars.step, or give hyper-parameters of its own"
        )
    return step


def _check_raw(op: OpSpec, raw: bool, part: str, lr: bool) -> None:
    """Refuse what a launch without a plan's coefficients and tables cannot do."""
    if raw and "lr" in op.hyper and not lr:
        raise TypeError(f"{op.name}: got no lr for a buffer without a plan, expected lr=...")
    if op.kernel.count in WHOLE_SERIES and (raw or part != "all"):
        raise PlanError(
            f"{op.name}: got {'no plan' if raw else f'part={part!r}'}, expected all parameters of "
            "a planned arena; sums by tensor follow the plan's table"
        )


def _options(op: OpSpec, arena: Arena, raw: bool, by_name: dict[str, Any]) -> int:
    """Return the option word: defaults, what the optimizer wants by its nature, what is given."""
    chosen = {name: bool(by_name.pop(name)) for name in op.options if name in by_name}
    decay = by_name.pop("decay", None)
    if decay is not None:
        expected = decays_of(op)
        if decay not in expected:
            raise ValueError(
                f"{op.name}: decay got {decay!r}, expected one of {', '.join(map(repr, expected))}"
            )
        if "decoupled" in op.options:
            chosen["decoupled"] = decay == "decoupled"
    if chosen and not raw and "options" not in op.kernel.integers:
        names = ", ".join(f"{name}={value}" for name, value in chosen.items())
        raise TypeError(
            f"{op.name}: got {names} on a planned arena, expected none, since the update reads "
            "coefficients that begin_step wrote; give it to begin_step"
        )
    nature = op.settings or {}
    if op.settings is None and "decoupled" in op.options and arena.plan is not None and not raw:
        nature = SETTINGS.get(arena.plan.config.kind.label, {})
    options = {name: DEFAULTS[name] for name in op.options}
    return option_word({**options, **nature, **chosen})


def _check_settings(op: OpSpec, arena: Arena) -> None:
    """Refuse an optimizer on coefficients that the plan's own optimizer reads otherwise."""
    if op.settings is None or arena.plan is None:
        return
    label = arena.plan.config.kind.label
    planned = SETTINGS.get(label)
    if planned is not None and _on(planned) != _on(op.settings):
        raise PlanError(
            f"{op.name}: got a plan for {label}, whose coefficients carry {_words(planned)}, "
            f"expected {_words(op.settings)}; use ops.{label} or plan for {op.name}"
        )


def _check_written(op: OpSpec, arena: Arena) -> None:
    """Refuse coefficients by tensor that the arena's ``begin_step`` does not write."""
    written = arena.keep("quads", dict)
    own = quads_written(arena.planned(op.name).config.kind.label)
    if "quads" in op.kernel.integers:
        written["bits"] = own
    elif "c" in dict(op.kernel.arguments):
        names = [name for stage in op.kernel.stages for name in stage.arguments]
        unwritten = [n for n in names if quads_of([n]) & ~written.get("bits", own)]
        if unwritten:
            raise PlanError(
                f"{op.name}: reads {', '.join(unwritten)}, which begin_step as bound on this arena "
                "does not write, expected an op declared before; bind begin_step (make the "
                "OptimizerStep) anew, or plan for the optimizer that reads them"
            )


def _on(settings: Mapping[str, bool]) -> set[str]:
    return {name for name, on in settings.items() if on}


def _words(settings: Mapping[str, bool]) -> str:
    return ", ".join(sorted(_on(settings))) or "no option"


def _state(op: OpSpec, arena: Arena, raw: bool, state: Any) -> Arena:
    """Return the arena of the launch's scalars and coefficients."""
    if state is None:
        return _private(op, arena) if raw else arena
    if not isinstance(state, Arena) or state.device != arena.device or state.plan is None:
        raise ValueError(
            f"{op.name}: state got {getattr(state, 'device', state)}, expected the state of a "
            f"launch on {arena.device}; bind both on one device"
        )
    return state


def _private(op: OpSpec, beside: Arena) -> Arena:
    """Return a small arena with scalars and one coefficient row, on the device of ``beside``."""
    plan = MemoryPlan(PlanConfig("none", scalars=op.scalars))
    plan.parameter("row", WEIGHT_KINDS[0], (1,))
    state = Arena(plan.finalize(), device=beside.device)
    state.framework = beside.framework
    return state


def _check_whole(op: OpSpec, arena: Arena, resolved: Mapping[str, Resolved]) -> None:
    """Refuse a range that is not a whole series where sums by tensor are made."""
    whole = arena.planned(op.name).series_range("W").size // 4
    first = next(iter(resolved.values()))
    if first.numel != whole:
        raise ValueError(
            f"{op.name}: range {first.operand.name} holds {first.numel} elements, expected "
            f"{whole}, a whole series; give plan.series_range(...) of one"
        )


def _flags(op: OpSpec, ranges: Mapping[str, Any], by_name: Mapping[str, Any]) -> dict[str, Any]:
    """Return the compile-time choices but the half format; a range given switches its flag on."""
    flags = {name: values[0] for name, values in op.flags.items() if name != "half"}
    for name in flags:
        value = by_name.get(name, flags[name])
        if value not in op.flags[name]:
            allowed = ", ".join(map(repr, op.flags[name]))
            raise ValueError(f"{op.name}: {name} got {value!r}, expected one of {allowed}")
        flags[name] = value
    return flags | {o.flag: True for o in op.operands if o.flag and o.name in ranges}


def _half(
    op: OpSpec, arena: Arena, flags: Mapping[str, Any], half: str | None
) -> dict[str, str | None]:
    """Return the half format: the plan's, a half buffer's own, or the caller's (default fp16)."""
    if "half" not in op.flags:
        if half is not None:
            raise TypeError(f"{op.name}: got half={half!r}, expected none; it moves no halves")
        return {}
    planned = HALF_BUFFERS.get(arena.element or "")
    if arena.plan is not None:
        planned = arena.plan.config.half
    wanted = half or planned or "fp16"
    if wanted not in HALVES:
        names = " or ".join(map(repr, HALVES))
        raise ValueError(f"{op.name}: half got {half!r}, expected {names}")
    if planned and half and half != planned:
        raise ValueError(
            f"{op.name}: half got {half!r}, the {'plan' if arena.plan else 'buffer'}'s halves are "
            f"{planned}; leave half out"
        )
    uses = any(o.element == "half" for o in _active(op, flags))
    return {"half": wanted if uses else None}


def _active(op: OpSpec, flags: Mapping[str, Any]) -> list[Operand]:
    return [o for o in op.operands if not o.flag or flags[o.flag]]


def _resolved(
    op: OpSpec, arena: Arena, ranges: Mapping[str, Any], flags: Mapping[str, Any], part: str
) -> dict[str, Resolved]:
    """Resolve every active operand, then check each alone and all together."""
    resolved: dict[str, Resolved] = {}
    plan, active = arena.plan, _active(op, flags)
    if flags.get("half") and "half_start" not in op.kernel.integers:
        part = "weight"
    for operand in active:
        replaced = any(o.instead_of == operand.name for o in active)
        if operand.name in ranges:
            span = named_span(op, operand, arena, ranges[operand.name])
        elif replaced and (plan is None or ends_with_biases(plan, operand)):
            continue
        elif plan is not None and operand.series:
            span = planned_span(op, operand, plan, part)
        else:
            raise TypeError(
                f"{op.name}: range {operand.name} is missing; "
                f"give {operand.name}=Range(offset, size)"
            )
        resolved[operand.name] = Resolved(operand, span, span.size // operand.itemsize)
    for name in ranges:
        if name not in resolved:
            raise TypeError(f"{op.name}: range {name} is not used with flags {dict(flags)}")
    if plan is not None:
        resolved = with_biases(op, plan, resolved, ranges, part)
    for operand, span, _ in resolved.values():
        check_span(op, operand, arena, span)
        if operand.role != "read":
            arena.exposed(span)
    check_together(op, list(resolved.values()))
    return resolved
