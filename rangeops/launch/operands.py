"""An operand's bytes: from what the caller gave, or the plan's own region, to a checked Range."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from plan import GRANULE, DTensor, PlanError, Range, Region
from plan.region import WEIGHT_KINDS, series_region
from rangeops.arena.arena import Arena
from rangeops.arena.sparse import check_mapped

if TYPE_CHECKING:
    from rangeops.kernels.spec import Operand, OpSpec

ELEMENT_BYTES = {"u1": 1, "half": 2, "f4": 4}


class Resolved(NamedTuple):
    """An operand's place: its operand, bytes in the arena, elements."""

    operand: Operand
    span: Range
    numel: int


def planned_span(op: OpSpec, operand: Operand, arena: Arena, part: str) -> Range:
    """Return the range of the operand's series in the plan; ``part`` as in series_range."""
    plan = arena.plan
    assert plan is not None
    half = operand.element == "half"
    if half and part == "bias":
        raise ValueError(f"{op.name}: part='bias' got half ranges, expected none; leave them out")
    probe = series_region(operand.series, WEIGHT_KINDS[0], half)
    if not plan.config.enables(probe):
        raise PlanError(
            f"{op.name}: range {operand.name} is region {probe.name}, which the plan disables; "
            f"expected {probe.when.value} in PlanConfig"
        )
    span = plan.series_range(operand.series, part, half)
    if not span.size and plan.series_range("W", part).size:
        raise PlanError(
            f"{op.name}: range {operand.name} (series {operand.series}) is empty in a plan for "
            f"{plan.config.kind.label}; plan for an optimizer that keeps it"
        )
    return span


def given_span(op: OpSpec, operand: Operand, arena: Arena, given: Any) -> Range:
    """Return a Range, Region, pair of regions, tensor or (offset, size) as a plain Range."""
    label = f"{op.name}: range {operand.name}"
    pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Region)
    if isinstance(given, Region) or pair:
        if arena.plan is None:
            raise PlanError(f"{label} got a region, the arena has no plan; give bytes")
        regions = given if pair else (given, given)
        for region in regions:
            _check_dtype(label, operand, region.name, region.dtype)
        return arena.plan.range(*regions)
    if isinstance(given, str | DTensor):
        tensor = arena.tensor(given)
        _check_dtype(
            label, operand, tensor.name, "half" if tensor.dtype.is_half else tensor.dtype.label
        )
        return Range(tensor.offset, tensor.slot_bytes)
    try:
        offset, size = given
        return Range(operator.index(offset), operator.index(size))
    except (TypeError, ValueError):
        raise TypeError(
            f"{label} got {given!r}, expected Range(base_offset, size) in whole bytes, a region, "
            "two regions or a tensor"
        ) from None


def _check_dtype(label: str, operand: Operand, name: str, dtype: str) -> None:
    """Refuse a region or tensor whose elements are not the operand's; byte operands take any."""
    wanted = {"f4": "fp32", "half": "half"}.get(operand.element)
    if wanted is not None and dtype != wanted:
        raise ValueError(
            f"{label} got {name}, which holds {dtype}, expected {wanted}; give a range of that type"
        )


def check_span(op: OpSpec, operand: Operand, arena: Arena, span: Range) -> None:
    """Refuse a range outside the arena, off 16 bytes, or cutting an element."""
    label = f"{op.name}: range {operand.name}"
    size = ELEMENT_BYTES[operand.element]
    if span.base_offset < 0 or span.size < 0 or span.end > arena.nbytes:
        raise ValueError(
            f"{label} got bytes {span.base_offset} .. {span.end}, the arena has {arena.nbytes} "
            "bytes; give a range inside it"
        )
    check_mapped(arena.unmapped, label, span)
    if span.size % size:
        raise ValueError(
            f"{label} got {span.size} bytes, expected a multiple of {size}, the element size; "
            "give whole elements"
        )
    address = arena.ptr_at(span.base_offset)
    if address % 16:
        raise ValueError(
            f"{label} starts at byte {span.base_offset}, address {address}, expected a multiple "
            "of 16; start ranges on 16 bytes"
        )


def check_together(op: OpSpec, resolved: list[Resolved]) -> None:
    """Refuse ranges of different length, and overlap where one of the two is written."""
    if not resolved:
        return
    first = resolved[0]
    halves = [r for r in resolved if r.operand.element == "half"]
    for other in resolved[1:]:
        split = "half_start" in op.kernel.integers and other in halves
        fits = other.numel <= first.numel and (first.numel - other.numel) % GRANULE == 0
        same = other.numel == (halves[0] if split else first).numel
        if not same or (split and not fits):
            raise ValueError(
                f"{op.name}: range {other.operand.name} holds {other.numel} elements, "
                f"{first.operand.name} holds {first.numel}; give both the same regions"
            )
    for one, other in itertools.combinations(resolved, 2):
        writes = one.operand.role != "read" or other.operand.role != "read"
        overlap = min(one.span.end, other.span.end) - max(
            one.span.base_offset, other.span.base_offset
        )
        if writes and overlap > 0:
            raise ValueError(
                f"{op.name}: ranges {one.operand.name} and {other.operand.name} share {overlap} "
                "bytes, expected none; give ranges apart from each other"
            )
