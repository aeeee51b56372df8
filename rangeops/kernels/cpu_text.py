"""cpu_text: the CPU loop of an elementwise variant as text: granules, and a pass a rule.

A pass over 128 elements of few ranges is what LLVM vectorizes; one loop over all of them is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rangeops.kernels.source import Text
from rangeops.kernels.spec import Stage
from rangeops.kernels.stages import (
    CLEARS,
    MOVES,
    RESTS,
    Elementwise,
    parameters,
    place,
    tensor_lines,
)


def cpu_text(d: Elementwise, flags: Mapping[str, Any]) -> str:
    """Return the source of the CPU loop of a variant."""
    text = Text(d.name, [*parameters(d), "start", "stop"])
    cut = d.gated or d.split or bool(d.clears)
    scaled = d.scaled in {o.name for o in d.loaded(flags)}
    if cut:
        text.add("zero = float32(0)")
    if scaled:
        text.add("scaled = local(GRANULE, float32)")
    text.add("for first in range(start, stop, GRANULE):" if cut else "first = start")
    with text.indented(cut):
        text.add(f"count = {'min(GRANULE, stop - first)' if cut else 'stop - first'}")
        for o in d.active(flags).values():
            if not o.from_half_start:
                text.add(f"{o.name}_ = at({o.name}, first)")
        if d.gated:
            text.add(*tensor_lines("first >> shift"), f"if {MOVES}:")
        with text.indented(d.gated):
            if scaled:
                text.add("grad = c[row + GRAD]")
                text.lines(gradient_pass(d, flags, "scaled[j] = {value} * grad"))
            _passes(text, d, flags)
        if d.gated and d.running(flags, resting=True):
            text.add(f"elif {RESTS}:")
            with text.indented():
                _passes(text, d, flags, resting=True)
        if d.clears and flags.get(d.clears):
            text.add(f"if {CLEARS}:")
            with text.indented():
                text.lines(gradient_pass(d, flags, "{element} = {zero}"))
    return text.written()


def _passes(text: Text, d: Elementwise, flags: Mapping[str, Any], resting: bool = False) -> None:
    """Add the coefficients of stages, and a loop for each pass of them."""
    for name in d.coefficients(d.running(flags, resting), flags):
        text.add(f"{name} = {place(name, d.scalars)}")
    for group in groups_of(d, flags, resting):
        when = group[0].when
        text.add(*([f"if {when} != zero:"] if when else []))
        with text.indented(bool(when)):
            text.lines(cpu_pass(d, flags, group))


def groups_of(d: Elementwise, flags: Mapping[str, Any], resting: bool = False) -> list[list[Stage]]:
    """Return the stages by pass: one that reads a temporary joins the stage that made it."""
    groups: list[list[Stage]] = []
    made: set[str] = set()
    for stage in d.running(flags, resting):
        if not (groups and made & set(stage.arguments)):
            groups.append([])
            made = set()
        groups[-1].append(stage)
        made |= set(stage.targets) - {o.name for o in d.operands}
    return groups


def gradient_pass(d: Elementwise, flags: Mapping[str, Any], line: str) -> Iterator[str]:
    """Yield a pass over the gradient's elements, from ``half_start`` on over the half one's.

    ``line`` is a format of ``element``, its ``value`` in float32, and its ``zero``.
    """
    g, half = f"{d.scaled}_[j]", d.half_of(d.scaled, flags)
    loop, full = "for j in range(count):", line.format(element=g, value=g, zero="zero")
    if half is None:
        yield from (loop, f"    {full}")
        return
    h = f"{half.name}_[j]"
    yield "if first >= half_start:"
    yield f"    {half.name}_ = at({half.name}, first - half_start)"
    yield f"    {loop}"
    yield f"        {line.format(element=h, value=f'widen({h})', zero='uint16(0)')}"
    yield from ("else:", f"    {loop}", f"        {full}")


def cpu_pass(
    d: Elementwise,
    flags: Mapping[str, Any],
    group: list[Stage],
    last: Callable[[Callable[[str], str]], str] | None = None,
) -> Iterator[str]:
    """Yield a loop over a granule that runs stages; ``last`` gives a line to end it with."""
    active, pad = d.active(flags), ""
    targets = [n for stage in group for n in stage.targets if n in active]
    split = next((n for n in targets if active[n].from_half_start), "")
    if split:
        yield "if first >= half_start:"
        yield f"    {split}_ = at({split}, first - half_start)"
        pad = "    "

    def value(name: str) -> str:
        if name == d.scaled:
            return "scaled[j]"
        if name in active:
            return f"widen({name}_[j])" if active[name].element == "half" else f"{name}_[j]"
        return name

    yield f"{pad}for j in range(count):"
    for stage in group:
        halves = [n for n in stage.targets if n in active and active[n].element == "half"]
        given = ", ".join(f"{n}_new" if n in halves else value(n) for n in stage.targets)
        yield f"{pad}    {given} = {stage.rule.__name__}({', '.join(map(value, stage.arguments))})"
        yield from (f"{pad}    {n}_[j] = narrow({n}_new)" for n in halves)
    if last is not None:
        yield f"{pad}    {last(value)}"
