"""rows: which tensors the elements of a planned range are of, where a kernel looks up their rows.

The plan's tables are of whole series: granule k of every series is of one tensor.  So the ranges of
an op that reads them are whole granules of their operands' own series, and all the same ones;
nothing is ever read past a table then.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from plan import GRANULE, MemoryPlan, Range
from plan.series import FP32_SERIES, SERIES, WEIGHT_KINDS
from rangeops.kernels.spec import Operand, OpSpec
from rangeops.launch.operands import TABLES, Resolved


def by_tensor(op: OpSpec, plan: MemoryPlan, resolved: dict[str, Resolved]) -> dict[str, Resolved]:
    """Return operands with the series that they lie in, where a kernel looks up tensors' rows.

    What an op only reads, and alone, may be any FP32 series.

    Raises:
        ValueError: a range elsewhere, off its series' granules, or of other tensors.

    """
    tables = {*TABLES}.intersection(dict(op.kernel.arguments))
    if not resolved or not (tables or "granule0" in op.kernel.integers):
        return resolved
    first = next(iter(resolved.values()))
    alone = len(resolved) == 1 and first.operand.role == "read"
    if (alone or not first.operand.series) and first.operand.element == "f4":
        series = _series_at(plan, first) or first.operand.series
        first = first._replace(operand=replace(first.operand, series=series))
    out = {**resolved, first.operand.name: first}
    whole, split = _inside(op, plan, first), _biases(plan)
    for other in out.values():
        if not other.operand.series:
            continue
        want = whole
        if other.operand.from_half_start and "half_start" in op.kernel.integers:
            want = (max(whole[0], split), max(whole[1], split))
        got = _inside(op, plan, other)
        if got != want and (other.numel or want[0] < want[1]):
            raise ValueError(
                f"{op.name}: range {other.operand.name} got elements {got[0]} .. {got[1]} of "
                f"{_meaning(other.operand)}, expected {want[0]} .. {want[1]}, those of range "
                f"{first.operand.name}; {_remedy(op)}"
            )
    return out


def elements(plan: MemoryPlan, given: Resolved) -> tuple[int, int] | None:
    """Return the first element of a range in a series of all parameters, and that past its last.

    None where it is not of whole granules of its operand's series.
    """
    operand, span = given.operand, given.span
    half = operand.element == "half"
    if not operand.series:
        return None
    whole, step = plan.series_range(operand.series, "all", half), GRANULE * operand.itemsize
    inside = whole.base_offset <= span.base_offset and span.end <= whole.end
    if not inside or (span.base_offset - whole.base_offset) % step or span.size % step:
        return None
    weights_only = SERIES[operand.series].kinds_of(half=half) == WEIGHT_KINDS
    before = _biases(plan) if weights_only else 0
    first = before + (span.base_offset - whole.base_offset) // operand.itemsize
    return first, first + given.numel


def ends_with_biases(plan: MemoryPlan, operand: Operand) -> bool:
    """Return whether a plan has an FP32 series of biases alone, its weights' being half."""
    if not operand.series or operand.element != "f4" or not plan.series_range("W", "weight").size:
        return False
    return not plan.series_range(operand.series, "weight").size


def with_biases(
    op: OpSpec,
    plan: MemoryPlan,
    resolved: dict[str, Resolved],
    given: Container[str],
    part: str,
) -> dict[str, Resolved]:
    """Return operands with FP32 ranges that end where the half ones that stand for them begin.

    Such a range counts the elements of both.  One that nobody gave is of the elements that the
    other ranges are of; of weights alone there is none.
    """
    out = dict(resolved)
    for half in resolved.values():
        full = next((o for o in op.operands if o.name == half.operand.instead_of), None)
        if full is None or not ends_with_biases(plan, full):
            continue
        whole = plan.series_range(full.series)
        if full.name not in given:
            first, last = _asked(plan, resolved, half, given, part)
            size = 4 * (min(last, _biases(plan)) - first)
            if size > 0:
                span = Range(whole.base_offset + 4 * first, size)
                out[full.name] = Resolved(full, span, size // 4)
        short = out.get(full.name)
        if short and whole.base_offset <= short.span.base_offset and short.span.end <= whole.end:
            out[full.name] = short._replace(numel=short.span.size // 4 + half.numel)
    return {o.name: out[o.name] for o in op.operands if o.name in out}


def _asked(
    plan: MemoryPlan,
    resolved: dict[str, Resolved],
    half: Resolved,
    given: Container[str],
    part: str,
) -> tuple[int, int]:
    """Return the elements that an op is asked for, by its ranges but the FP32 one not given."""
    plain = [r for r in resolved.values() if not r.operand.from_half_start]
    if plain:
        return elements(plan, plain[0]) or (0, 0)
    if half.operand.name in given or part == "weight":
        return 0, 0
    return 0, _biases(plan) + half.numel


def _inside(op: OpSpec, plan: MemoryPlan, given: Resolved) -> tuple[int, int]:
    """Return the elements of a range, refusing one that is not of its operand's series."""
    found = elements(plan, given)
    if found is None:
        operand, span = given.operand, given.span
        whole = Range(0, 0)
        if operand.series:
            whole = plan.series_range(operand.series, "all", operand.element == "half")
        raise ValueError(
            f"{op.name}: range {operand.name} got bytes {span.base_offset} .. {span.end}, expected "
            f"whole granules of {GRANULE * operand.itemsize} bytes inside {_meaning(operand)} "
            f"({whole.base_offset} .. {whole.end}), since every tensor has its own row of "
            f"coefficients; {_remedy(op)}"
        )
    return found


def _biases(plan: MemoryPlan) -> int:
    """Return the elements of biases and norms, which lie before the weights."""
    return plan.series_range("W", "bias").size // 4


def _series_at(plan: MemoryPlan, given: Resolved) -> str:
    """Return the FP32 series of all parameters in which a range lies, "" for none."""
    for letter in FP32_SERIES:
        whole = plan.series_range(letter)
        if whole.base_offset <= given.span.base_offset < whole.end:
            return letter
    return ""


def _meaning(operand: Operand) -> str:
    """Return an operand's series in words."""
    if not operand.series:
        return "a series of all parameters"
    half = "half " if operand.element == "half" and operand.series != "A" else ""
    return f"the {half}{SERIES[operand.series].meaning}"


def _remedy(op: OpSpec) -> str:
    """Return what to do: the same tensors, or any range with a state that knows no tensors."""
    give = "give the same tensors of each series"
    if op.kernel.count != "n":
        return give
    scalar = "lr" if "lr" in op.hyper else next(iter(op.hyper), "eps")
    return f"{give}, or bind with {scalar}=... or state= for any range"
