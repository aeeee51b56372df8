"""cpu_text: the CPU loop of an elementwise variant as text: granules, and a pass a rule.

A pass over 128 elements of few ranges is what LLVM vectorizes; one loop over all of them is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rangeops.kernels.source import Text
from rangeops.kernels.spec import Stage
from rangeops.kernels.stages import LIVE, Elementwise, parameters, place, row_of


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
            text.add(f"row = {row_of('first >> shift')}", f"if {LIVE}:")
        with text.indented(d.gated):
            for name in d.coefficients(d.running(flags), flags):
                text.add(f"{name} = {place(name, d.scalars)}")
            if scaled:
                text.add("grad = c[GRAD]")
                text.lines(gradient_pass(d, flags, "scaled[j] = {value} * grad"))
            for group in groups_of(d, flags):
                text.lines(cpu_pass(d, flags, group))
        if d.clears and flags.get(d.clears):
            text.lines(gradient_pass(d, flags, "{element} = {zero}"))
    return text.written()


def groups_of(d: Elementwise, flags: Mapping[str, Any]) -> list[list[Stage]]:
    """Return the stages by pass: one that reads a temporary joins the stage that made it."""
    groups: list[list[Stage]] = []
    made: set[str] = set()
    for stage in d.running(flags):
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
