"""chunk_sums: an op that sums by tensor is its rules and its terms; the walk over chunks is made.

    stages      as of ``elementwise``: what is written on the way, and temporaries
    terms       float64 values of an element, one a quantity, summed over the chunk; one of them
                may be a maximum instead

A warp takes a chunk on the GPU, a core a run of chunks on the CPU, and both follow the one tree of
``rangeops.kernels.tree``, so that every bit is the same.  The sums of quantity q lie at
``partials[q * chunks ...]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from plan.scratch import GRANULE
from rangeops.kernels import tree
from rangeops.kernels.cpu_text import cpu_pass, gradient_pass, groups_of
from rangeops.kernels.gpu_text import (
    clear_lines,
    coefficient_lines,
    load_lines,
    stage_lines,
    store_lines,
)
from rangeops.kernels.reference import Piece, cleared, is_held
from rangeops.kernels.source import Text, function_of
from rangeops.kernels.spec import Kernel, Operand, Stage, arguments_of
from rangeops.kernels.stages import (
    CLEARS,
    MOVES,
    Elementwise,
    constants,
    place,
    rules_of,
    scope,
    tensor_lines,
)


@dataclass(frozen=True)
class _Sums:
    """What ``chunk_sums`` was given; see there."""

    d: Elementwise
    terms: Stage
    maximum: int

    @property
    def state(self) -> tuple[str, ...]:
        gated = ("segments", "chunks", "live", "c", "k") if self.d.gated else ("chunks",)
        return (*gated, "partials")

    @property
    def parameters(self) -> list[str]:
        return [*(o.name for o in self.d.operands), *self.state, "half_start", "count"]

    def looks(self, granule: str) -> list[str]:
        """Return the lines that find out whether a chunk gives anything."""
        return [*tensor_lines(granule), f"moves = {MOVES}"] if self.d.gated else []

    @property
    def quantities(self) -> range:
        return range(len(self.terms.targets))

    def clears(self, flags: Mapping[str, Any]) -> bool:
        return bool(self.d.clears and flags.get(self.d.clears))

    def partial(self, q: int, count: str) -> str:
        return f"partials[{f'{q} * {count} + ' if q else ''}w]"


def _gpu_text(s: _Sums, flags: Mapping[str, Any]) -> str:
    d, text = s.d, Text(s.d.name, s.parameters)
    text.add("w = thread() >> int64(5)", "if w >= count:", "    return")
    text.add("first, granules, start = chunk(chunks, w)", "left, zero = int64(4), float32(0)")
    text.lines(s.looks("first"))
    text.lines(coefficient_lines(d, flags))
    text.add(*(f"sum{q} = float64(0)" for q in s.quantities))
    text.add("for r in range(granules):")
    with text.indented():
        text.add("i = start + r * int64(GRANULE)", *(["if moves:"] if d.gated else []))
        with text.indented(d.gated):
            for operand in d.loaded(flags):
                text.lines(load_lines(d, operand, flags))
            # Stores behind all arithmetic, which they would cut in two: a warp has nothing else to
            # do between its loads (LAMB's step is 7 us longer otherwise, H200).
            text.lines(stage_lines(d, flags, range(4), stores=False))
            text.lines(_gpu_terms(s))
            targets = [name for stage in d.running(flags) for name in stage.targets]
            text.lines(store_lines(d, flags, targets, range(4)))
        if s.clears(flags):
            text.add(f"if {CLEARS}:")
            with text.indented():
                text.lines(clear_lines(d, flags))
    text.add(*(f"sum{q} = warp_{'max' if q == s.maximum else 'sum'}(sum{q})" for q in s.quantities))
    text.add("if (thread() & int64(31)) == 0:")
    text.add(*(f"    {s.partial(q, 'count')} = sum{q}" for q in s.quantities))
    return text.written()


def _gpu_terms(s: _Sums) -> Iterator[str]:
    """Yield the terms of four lanes, and their way into the lane's sums."""
    for lane in range(4):
        targets = ", ".join(f"t{q}_{lane}" for q in s.quantities)
        values = ", ".join(f"float64({name}{lane})" for name in s.terms.arguments)
        yield f"{targets} = {s.terms.rule.__name__}({values})"
    for q in s.quantities:
        a, b, c, d = (f"t{q}_{lane}" for lane in range(4))
        if q == s.maximum:
            yield f"sum{q} = max(sum{q}, max(max({a}, {b}), max({c}, {d})))"
        else:
            yield f"sum{q} = sum{q} + (({a} + {b}) + ({c} + {d}))"


def _cpu_text(s: _Sums, flags: Mapping[str, Any]) -> str:
    text = Text(s.d.name, [*s.parameters, "start", "stop"])
    text.add("chunk_count, count = count, GRANULE", "zero = float32(0)")
    text.add("scaled = local(GRANULE, float32)")
    text.add(*(f"terms{q} = local(GRANULE, float64)" for q in s.quantities))
    text.add(*(f"lanes{q} = local(LANES, float64)" for q in s.quantities if q != s.maximum))
    text.add("for w in range(start, stop):")
    with text.indented():
        for q in s.quantities:
            if q == s.maximum:
                text.add(f"sum{q} = float64(0)")
            else:
                text.add("for j in range(LANES):", f"    lanes{q}[j] = float64(0)")
        text.lines(s.looks("int64(chunks[w])"))
        text.add("for granule in range(int64(chunks[w]), int64(chunks[w + 1])):")
        with text.indented():
            _cpu_granule(s, flags, text)
        for q in s.quantities:
            value = f"sum{q}" if q == s.maximum else f"fold(lanes{q})"
            text.add(f"{s.partial(q, 'chunk_count')} = {value}")
    return text.written()


def _cpu_granule(s: _Sums, flags: Mapping[str, Any], text: Text) -> None:
    """Add the work on one granule: stages, terms, their way into the lanes, clearing."""
    d, running = s.d, s.d.running(flags)
    plain = [o.name for o in d.active(flags).values() if not o.from_half_start]
    text.add("first = granule * GRANULE", *(f"{name}_ = at({name}, first)" for name in plain))
    text.add(*(["if moves:"] if d.gated else []))
    with text.indented(d.gated):
        text.add(*(f"{name} = {place(name)}" for name in d.coefficients(running, flags)))
        if d.scaled in {o.name for o in d.loaded(flags)}:
            product = " * c[row + GRAD]" if d.gated else ""
            text.lines(gradient_pass(d, flags, f"scaled[j] = {{value}}{product}"))
        for group in groups_of(d, flags) or [[]]:
            text.lines(cpu_pass(d, flags, group, _terms_line(s, group)))
        for q in s.quantities:
            if q == s.maximum:
                text.add("for j in range(GRANULE):", f"    sum{q} = max(sum{q}, terms{q}[j])")
            else:
                text.add(f"add(terms{q}, lanes{q})")
    if s.clears(flags):
        text.add(f"if {CLEARS}:")
        with text.indented():
            text.lines(gradient_pass(d, flags, "{element} = {zero}"))


def _terms_line(s: _Sums, group: list[Stage]) -> Callable[..., str] | None:
    """Return the line that writes an element's terms, in the pass that has its temporaries."""
    made = {name for stage in group for name in stage.targets}
    temporary = set(s.terms.arguments) - {o.name for o in s.d.operands}
    if temporary - made:
        return None

    def line(value: Callable[[str], str]) -> str:
        targets = ", ".join(f"terms{q}[j]" for q in s.quantities)
        values = ", ".join(f"float64({value(name)})" for name in s.terms.arguments)
        return f"{targets} = {s.terms.rule.__name__}({values})"

    return line


def chunk_sums(
    name: str,
    operands: tuple[Operand, ...],
    stages: tuple[Stage, ...],
    terms: Stage,
    *,
    maximum: int = -1,
    gated: bool = False,
    scaled: str = "",
    clears: str = "",
) -> Kernel:
    """Return the kernel of an op that sums by tensor.

    Args:
        name: unique; the generated function's name.
        operands: the ranges; the first one counts the elements.
        stages: as of ``elementwise``; without stages the terms are of the operands as they lie.
        terms: a rule from float64 values to as many float64 terms as there are quantities.
        maximum: the quantity of which the largest is taken instead of the sum; -1: none.
        gated: a tensor that does not move this step gives sums of 0 and keeps its bytes.
        scaled: the gradient, which the row's ``grad`` multiplies if the op is gated.
        clears: the flag with which the gradient is zero afterwards.

    """
    d = Elementwise(name, operands, stages, gated, scaled, clears, reads=terms.arguments)
    sums = _Sums(d, terms, maximum)
    rules = rules_of(name, (*stages, terms))
    numbers = constants() | {"LANES": tree.LANES}

    def gpu(x: Any, **flags: Any) -> Any:
        words = scope(x, rules, flags) | {"chunk": tree.chunk_of(x)}
        return function_of(name, _gpu_text(sums, flags), numbers, words, rules)

    def cpu(x: Any, **flags: Any) -> Any:
        own = {"add": tree.granule_cpu(x), "fold": tree.lanes_cpu(x, tree.add_rule)}
        words = scope(x, rules, flags) | own
        return function_of(name, _cpu_text(sums, flags), numbers, words, rules)

    return Kernel(
        name,
        arguments_of(operands, *sums.state),
        ("half_start", "chunks"),
        gpu,
        cpu,
        lambda **flags: _reference(sums, flags),
        per_thread=1,
        count="chunks",
        operands=operands,
        stages=(*stages, terms),
    )


def _reference(s: _Sums, flags: Mapping[str, Any]) -> Callable[..., None]:
    """Return the NumPy spelling: terms of all elements, then the tree."""
    d, names = s.d, [*(o.name for o in s.d.operands), *s.state]

    def reference(*arguments: Any) -> None:
        arrays = dict(zip(names, arguments, strict=False))
        half_start, count = arguments[len(names) :]
        partials, chunks = arrays["partials"], arrays["chunks"]
        partials[: len(s.quantities) * count] = 0
        held = d.gated and is_held(arrays["k"])
        with np.errstate(all="ignore"):
            for q, rows in enumerate([] if held else _term_rows(s, flags, arrays, half_start)):
                part = slice(q * count, (q + 1) * count)
                if q == s.maximum:
                    partials[part] = np.maximum.reduceat(rows.max(axis=1), chunks[:-1])
                else:
                    partials[part] = tree.chunks_reference(rows.__getitem__, chunks)
        if s.clears(flags):
            cleared(d, flags, arrays, half_start)

    return reference


def _term_rows(
    s: _Sums, flags: Mapping[str, Any], arrays: dict[str, Any], half_start: int
) -> list[np.ndarray]:
    """Run the stages over all elements and return every quantity's terms, a row a granule."""
    d, n = s.d, int(arrays["chunks"][-1]) * GRANULE
    integers = {"half_start": half_start, "shift": GRANULE.bit_length() - 1}
    piece = Piece(d, flags, arrays, integers, 0, n)
    values = piece.run()
    names = s.terms.arguments
    wide = [np.float64(values[name] if name in values else piece.read(name)) for name in names]
    result = s.terms.reference(*wide)
    out = []
    for value in result if isinstance(result, tuple) else (result,):
        rows = np.broadcast_to(value, n).reshape(-1, GRANULE)
        if d.gated:
            moves = arrays["live"][arrays["segments"]] > 0
            rows = np.where(moves[: len(rows), None], rows, 0.0)
        out.append(np.ascontiguousarray(rows))
    return out
