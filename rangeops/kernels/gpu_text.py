"""gpu_text: the kernel of an elementwise variant as text: load, rules, store, by lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from plan.scratch import ROW
from rangeops.kernels.source import Text
from rangeops.kernels.spec import Operand, Stage
from rangeops.kernels.stages import (
    CLEARS,
    MOVES,
    RESTS,
    Elementwise,
    call,
    last_writers,
    parameters,
    place,
    tensor_lines,
)


def gpu_text(d: Elementwise, flags: Mapping[str, Any]) -> str:
    """Return the source of the kernel of a variant."""
    text = Text(d.name, parameters(d))
    lanes = range(d.per_thread)
    text.add(f"i = thread() * int64({d.per_thread})", "left = n - i", "if left <= 0:", "    return")
    if not d.gated:
        text.lines(coefficient_lines(d, flags))
    if d.per_thread == 8 and any(o.element != "half" for o in d.active(flags).values()):
        text.add("if left < 8:")
        with text.indented():
            text.add("for j in range(i, n):")
            with text.indented():
                text.lines(_element(d, flags, "j"))
            text.add("return")
    # Data come first: their latency hides that of flag, table and coefficients, each of which
    # waits for the one before (SGD with half gradients: 90 % of the copy rate on an H200).
    for operand in d.loaded(flags):
        text.lines(load_lines(d, operand, flags))
    if d.gated:
        _gated(text, d, flags, lanes)
    else:
        text.lines(stage_lines(d, flags, lanes))
    return text.written()


def _gated(text: Text, d: Elementwise, flags: Mapping[str, Any], lanes: range) -> None:
    """Add what a tensor's live word decides: the stages, those of resting tensors, clearing."""
    text.add("zero = float32(0)", *tensor_lines("i >> shift"))
    text.lines(row_lines(d, flags))
    text.add(f"if {MOVES}:")
    with text.indented():
        text.lines(stage_lines(d, flags, lanes))
    if d.running(flags, resting=True):
        text.add(f"elif {RESTS}:")
        with text.indented():
            text.lines(stage_lines(d, flags, lanes, resting=True))
    if d.clears and flags.get(d.clears):
        text.add(f"if {CLEARS}:")
        with text.indented():
            text.lines(clear_lines(d, flags))


def row_lines(d: Elementwise, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reads of a gated variant: the tensor's row by fours, then scalars.

    All stand ahead of the branch that the live word decides, so that there is one way to memory
    and not a second one behind it.
    """
    names = d.coefficients(d.running(flags), flags)
    if d.scaled in {o.name for o in d.loaded(flags)}:
        names = [*names, "grad"]
    own = {n: ROW.index(n) for n in names if n in ROW and n not in d.scalars}
    for quad in sorted({k // 4 for k in own.values()}):
        yield f"c0, c1, c2, c3 = row4(c, row + int64({4 * quad}))"
        for name, k in own.items():
            if k // 4 == quad:
                yield f"{name} = c{k % 4}"
    yield from (f"{name} = {place(name, d.scalars)}" for name in names if name not in own)


def coefficient_lines(d: Elementwise, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reads of all coefficients and scalars of a variant's stages."""
    for name in d.coefficients(d.running(flags), flags):
        yield f"{name} = {place(name, d.scalars)}"
    if d.gated and d.scaled in {o.name for o in d.loaded(flags)}:
        yield "grad = c[row + GRAD]"


def stage_lines(
    d: Elementwise,
    flags: Mapping[str, Any],
    lanes: range,
    stores: bool = True,
    resting: bool = False,
) -> Iterator[str]:
    """Yield the text of all stages over the lanes of a thread, with their stores or without.

    An operand is stored behind the last stage that gives it.
    """
    running, loaded = d.running(flags, resting), {o.name for o in d.loaded(flags)}
    last = last_writers(running)
    coefficients = d.coefficients(running, flags)
    if d.gated and d.scaled in loaded and not resting:
        for q in lanes:
            yield f"{d.scaled}{q} = {d.scaled}{q} * grad"
    for stage in running:
        yield from _stage(stage, coefficients, lanes)
        if stores:
            done = [name for name in stage.targets if last[name] is stage]
            yield from store_lines(d, flags, done, lanes)


def _stage(stage: Stage, coefficients: list[str], lanes: range) -> Iterator[str]:
    """Yield a stage's calls, a lane each, under its condition if it has one."""
    pad = ""
    if stage.when:
        yield f"if {stage.when} != zero:"
        pad = "    "
    for q in lanes:
        named = {n: f"{n}{q}" for n in (*stage.arguments, *stage.targets)}
        named |= {n: n for n in coefficients}
        yield pad + call(stage, named.__getitem__)


def load_lines(d: Elementwise, operand: Operand, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield the loads of one operand, half ones widened, the half gradient where it is due."""
    name, lanes = operand.name, range(d.per_thread)
    out = ", ".join(f"{name}{q}" for q in lanes)
    half = d.half_of(name, flags)
    if half is not None:
        yield "if i >= half_start:"
        yield f"    raw = load4({half.name}, i - half_start, left)"
        yield f"    {out} = {', '.join(f'widen(raw[{q}])' for q in lanes)}"
        yield "else:"
        yield f"    {out} = load4({name}, i, left)"
    elif operand.element == "half":
        yield f"raw = load{d.per_thread}({name}, i, left)"
        yield f"{out} = {', '.join(f'widen(raw[{q}])' for q in lanes)}"
    elif d.per_thread == 4:
        yield f"{out} = load4({name}, i, left)"
    else:
        yield f"{name}0, {name}1, {name}2, {name}3 = load4({name}, i, left)"
        yield f"{name}4, {name}5, {name}6, {name}7 = load4({name}, i + 4, left - 4)"


def store_lines(
    d: Elementwise, flags: Mapping[str, Any], targets: Iterable[str], lanes: range
) -> Iterator[str]:
    """Yield the stores of those targets that are operands."""
    active = d.active(flags)
    for name in targets:
        if name in active:
            yield from _store(active[name], lanes)


def _store(operand: Operand, lanes: range) -> Iterator[str]:
    name, half = operand.name, operand.element == "half"
    values = [f"narrow({name}{q})" if half else f"{name}{q}" for q in lanes]
    if operand.from_half_start:
        yield "if i >= half_start:"
        yield f"    store4({name}, i - half_start, ({', '.join(values)}), left)"
    elif half or len(lanes) == 4:
        yield f"store{len(lanes)}({name}, i, ({', '.join(values)}), left)"
    else:
        yield f"store4({name}, i, ({', '.join(values[:4])}), left)"
        yield f"store4({name}, i + 4, ({', '.join(values[4:])}), left - 4)"


def clear_lines(d: Elementwise, flags: Mapping[str, Any]) -> Iterator[str]:
    """Yield the stores of zeros to the gradient."""
    half = d.half_of(d.scaled, flags)
    full = f"store4({d.scaled}, i, (zero, zero, zero, zero), left)"
    if half is None:
        yield full
        return
    yield "if i >= half_start:"
    yield "    z = uint16(0)"
    yield f"    store4({half.name}, i - half_start, (z, z, z, z), left)"
    yield "else:"
    yield f"    {full}"


def _element(d: Elementwise, flags: Mapping[str, Any], at: str) -> Iterator[str]:
    """Yield the text of one element, without vectors: the end of an eight-wide range."""
    active, running = d.active(flags), d.running(flags)
    coefficients = d.coefficients(running, flags)
    named = {n: f"{n}_" for stage in running for n in (*stage.arguments, *stage.targets)}
    named |= {n: n for n in coefficients}
    for o in d.loaded(flags):
        value = f"{o.name}[{at}]"
        yield f"{o.name}_ = " + (f"widen({value})" if o.element == "half" else value)
    for stage in running:
        yield call(stage, named.__getitem__)
        for o in (active[n] for n in stage.targets if n in active):
            value = f"narrow({o.name}_)" if o.element == "half" else f"{o.name}_"
            yield f"{o.name}[{at}] = {value}"
