"""chunk_sums: an op that sums by tensor is its rules and its terms; the walk over chunks is made.

    stages      as of ``elementwise``: what is written on the way, and temporaries
    terms       float64 values of an element, one a quantity, summed over the chunk; one of them
                may be a maximum instead

A warp takes a chunk on the GPU, a core a run of chunks on the CPU, and both follow the one tree of
``rangeops.kernels.tree``, so that every bit is the same.  The sums of quantity q lie at
``partials[q * chunks ...]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from plan.scalars import int32_index
from plan.scratch import BLOCK_FLOATS, GRANULE, ROW_FLOATS, row_index
from rangeops.kernels import tree
from rangeops.kernels.cpu_text import cpu_pass, gradient_pass, groups_of
from rangeops.kernels.gpu_text import clear_lines, load_lines, stage_lines
from rangeops.kernels.reference import Piece
from rangeops.kernels.source import Text, function_of
from rangeops.kernels.spec import Kernel, Operand, arguments_of
from rangeops.kernels.stages import LIVE, Elementwise, Stage, constants, place, row_of


def _parameters(d: Elementwise, gated: bool) -> list[str]:
    state = ("segments", "chunks", "c", "k") if gated else ("chunks",)
    return [*(o.name for o in d.operands), *state, "partials", "half_start", "count"]


def _gpu_text(d: Elementwise, terms: Stage, maximum: int, flags: Mapping[str, Any]) -> str:
    text = Text(d.name, _parameters(d, d.gated))
    lanes, quantities = range(4), range(len(terms.targets))
    text.add("w = thread() >> int64(5)", "if w >= count:", "    return")
    text.add("first, granules, start = chunk(chunks, w)", "left, zero = int64(4), float32(0)")
    if d.gated:
        text.add(f"row = {row_of('first')}", f"live = {LIVE}")
    text.add(*(f"sum{q} = float64(0)" for q in quantities))
    text.add("for r in range(granules):")
    with text.indented():
        text.add("i = start + r * int64(GRANULE)")
        if d.gated:
            text.add("if live:")
        with text.indented(d.gated):
            for operand in d.loaded(flags):
                text.lines(load_lines(d, operand, flags))
            text.lines(stage_lines(d, flags, lanes))
            for n in lanes:
                targets = ", ".join(f"t{q}_{n}" for q in quantities)
                values = ", ".join(f"float64({a}{n})" for a in terms.arguments)
                text.add(f"{targets} = terms({values})")
            for q in quantities:
                t = [f"t{q}_{n}" for n in lanes]
                if q == maximum:
                    text.add(f"sum{q} = max(sum{q}, max(max({t[0]}, {t[1]}), max({t[2]}, {t[3]})))")
                else:
                    text.add(f"sum{q} = sum{q} + (({t[0]} + {t[1]}) + ({t[2]} + {t[3]}))")
        if d.clears and flags.get(d.clears):
            text.lines(clear_lines(d, flags))
    for q in quantities:
        text.add(f"sum{q} = warp_{'max' if q == maximum else 'sum'}(sum{q})")
    text.add("if (thread() & int64(31)) == 0:")
    text.add(*(f"    partials[{f'{q} * count + ' if q else ''}w] = sum{q}" for q in quantities))
    return text.written()


def _cpu_text(d: Elementwise, terms: Stage, maximum: int, flags: Mapping[str, Any]) -> str:
    text = Text(d.name, [*_parameters(d, d.gated), "start", "stop"])
    quantities = range(len(terms.targets))
    scaled = d.scaled in {o.name for o in d.loaded(flags)}
    text.add("count_of, count = count, GRANULE", "zero = float32(0)")
    text.add("scaled = local(GRANULE, float32)")
    text.add(*(f"terms{q} = local(GRANULE, float64)" for q in quantities))
    text.add(*(f"lanes{q} = local(LANES, float64)" for q in quantities if q != maximum))
    text.add("for w in range(start, stop):")
    with text.indented():
        for q in quantities:
            if q == maximum:
                text.add(f"sum{q} = float64(0)")
            else:
                text.add("for j in range(LANES):", f"    lanes{q}[j] = float64(0)")
        if d.gated:
            text.add(f"row = {row_of('chunks[w]')}", f"live = {LIVE}")
        text.add("for granule in range(chunks[w], chunks[w + 1]):")
        with text.indented():
            text.add("first = int64(granule) * GRANULE")
            text.add(*(f"{o.name}_ = at({o.name}, first)" for o in d.active(flags).values()
                       if not o.from_half_start))  # fmt: skip
            if d.gated:
                text.add("if live:")
            with text.indented(d.gated):
                for name in d.coefficients(d.running(flags), flags):
                    text.add(f"{name} = {place(name)}")
                if scaled:
                    if d.gated:
                        text.add("grad = c[GRAD]")
                    product = " * grad" if d.gated else ""
                    text.lines(gradient_pass(d, flags, f"scaled[j] = {{value}}{product}"))
                for group in groups_of(d, flags):
                    text.lines(cpu_pass(d, flags, group, _terms_line(d, terms, group)))
                if not d.running(flags):
                    text.lines(cpu_pass(d, flags, [], _terms_line(d, terms, [])))
                for q in quantities:
                    if q == maximum:
                        text.add(
                            "for j in range(GRANULE):", f"    sum{q} = max(sum{q}, terms{q}[j])"
                        )
                    else:
                        text.add(f"add(terms{q}, lanes{q})")
            if d.clears and flags.get(d.clears):
                text.lines(gradient_pass(d, flags, "{element} = {zero}"))
        for q in quantities:
            value = f"sum{q}" if q == maximum else f"fold(lanes{q})"
            text.add(f"partials[{f'{q} * count_of + ' if q else ''}w] = {value}")
    return text.written()


def _terms_line(d: Elementwise, terms: Stage, group: list[Any]) -> Callable[..., str] | None:
    """Return the line that writes an element's terms, in the pass that has its temporaries."""
    made = {name for _, stage in group for name in stage.targets}
    temporary = set(terms.arguments) - {o.name for o in d.operands}
    if temporary - made:
        return None

    def line(value: Callable[[str], str]) -> str:
        targets = ", ".join(f"terms{q}[j]" for q in range(len(terms.targets)))
        values = ", ".join(f"float64({value(name)})" for name in terms.arguments)
        return f"{targets} = terms({values})"

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
        scaled: the gradient, which the block's ``grad`` multiplies if the op is gated.
        clears: the flag with which the gradient is zero afterwards.

    """
    d = Elementwise(name, operands, stages, gated, scaled, clears, reads=terms.arguments)
    state = ("segments", "chunks", "c", "k", "partials") if gated else ("chunks", "partials")

    def scope(x: Any, flags: Mapping[str, Any]) -> dict[str, Any]:
        space = constants() | {word: getattr(x, word) for word in x.WORDS} | {"LANES": tree.LANES}
        space |= {f"rule{k}": x.device(s.rule) for k, s in enumerate(stages)}
        space["terms"] = x.device(terms.rule)
        space["widen"], space["narrow"] = x.half(flags.get("half"))
        return space

    def gpu(x: Any, **flags: Any) -> Any:
        text = _gpu_text(d, terms, maximum, flags)
        return function_of(name, text, scope(x, flags) | {"chunk": tree.chunk_of(x)})

    def cpu(x: Any, **flags: Any) -> Any:
        text = _cpu_text(d, terms, maximum, flags)
        own = {"add": tree.granule_cpu(x), "fold": tree.lanes_cpu(x, tree.add_rule)}
        return function_of(name, text, scope(x, flags) | own)

    return Kernel(
        name,
        arguments_of(operands, *state),
        ("half_start", "chunks"),
        gpu,
        cpu,
        lambda **flags: _reference(d, terms, maximum, flags),
        per_thread=1,
        count="chunks",
        operands=operands,
    )


def _reference(d: Elementwise, terms: Stage, maximum: int, flags: Mapping[str, Any]) -> Any:
    state = ("segments", "chunks", "c", "k", "partials") if d.gated else ("chunks", "partials")
    names = [*(o.name for o in d.operands), *state]
    clears = bool(d.clears and flags.get(d.clears))

    def reference(*arguments: Any) -> None:
        arrays = dict(zip(names, arguments, strict=False))
        half_start, count = arguments[len(names) :]
        partials, chunks = arrays["partials"], arrays["chunks"]
        quantities = len(terms.targets)
        partials[: quantities * count] = 0
        k = arrays.get("k")
        held = d.gated and bool(k[int32_index("skip_step")] or k[int32_index("found_inf")])
        if not held:
            n = int(chunks[-1]) * GRANULE
            with np.errstate(all="ignore"):
                found = _term_rows(d, flags, arrays, half_start, n, terms)
                for q, values in enumerate(found):
                    part = slice(q * count, (q + 1) * count)
                    if q == maximum:
                        partials[part] = np.maximum.reduceat(values.max(axis=1), chunks[:-1])
                    else:
                        partials[part] = tree.chunks_reference(values.__getitem__, chunks)
        if clears:
            half = d.half_of(d.scaled, flags)
            arrays[d.scaled][: half_start if half else None] = 0
            if half:
                arrays[half.name][:] = 0

    return reference


def _term_rows(
    d: Elementwise, flags: Mapping[str, Any], arrays: dict[str, Any], half_start: int, n: int,
    terms: Stage,
) -> list[np.ndarray]:  # fmt: skip
    """Run the stages over all elements and return every quantity's terms, a row a granule."""
    shift = GRANULE.bit_length() - 1
    piece = Piece(d, flags, arrays, {"half_start": half_start, "shift": shift}, 0, n)
    values = piece.run()
    wide = [
        (values[name] if name in values else piece.read(name)).astype(np.float64)
        for name in terms.arguments
    ]
    result = terms.reference(*wide)
    out = []
    for value in result if isinstance(result, tuple) else (result,):
        rows = np.broadcast_to(value, n).reshape(-1, GRANULE)
        if d.gated:
            table = BLOCK_FLOATS + ROW_FLOATS * arrays["segments"].astype(np.int64)
            live = arrays["c"][table + row_index("skip")] == 0
            rows = np.where(live[: len(rows), None], rows, 0.0)
        out.append(np.ascontiguousarray(rows))
    return out
