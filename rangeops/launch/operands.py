"""An operand's bytes: from what the caller gave, or the plan's own region, to a checked Range."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plan import GRANULE, DTensor, DType, MemoryPlan, PlanError, Range, Region
from plan.region import series_region
from plan.series import BIAS_KINDS, WEIGHT_KINDS
from rangeops.arena.arena import Arena
from rangeops.arena.buffer import ELEMENTS
from rangeops.arena.sparse import check_mapped

if TYPE_CHECKING:
    from rangeops.kernels.spec import Operand, OpSpec

BYTES = "u1"
"""The element of an operand that takes any bytes."""

HALF_BUFFERS = {ELEMENTS[dtype]: dtype.label for dtype in DType if dtype.is_half}
"""The half format of a buffer, by what ``Arena.element`` says."""

TABLES = ("segments", "chunks")
"""The tables by which a kernel finds the tensor of an element: by granule, by chunk."""


class Resolved(NamedTuple):
    """An operand's place: its operand, bytes in the arena, elements.

    Of gradients for whose weights a plan keeps halves alone the bytes are those of biases and
    norms, and the elements those of all.
    """

    operand: Operand
    span: Range
    numel: int


def planned_span(op: OpSpec, operand: Operand, plan: MemoryPlan, part: str) -> Range:
    """Return the range of the operand's series in the plan; ``part`` as in series_range."""
    half = operand.element == "half"
    if half and part == "bias":
        raise ValueError(f"{op.name}: part='bias' got half ranges, expected none; leave them out")
    weights = half or plan.series_range("W", "weight").size > 0
    kind = WEIGHT_KINDS[0] if weights and part != "bias" else BIAS_KINDS[0]
    probe = series_region(operand.series, kind, half)
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


def named_span(op: OpSpec, operand: Operand, arena: Arena, named: Any) -> Range:
    """Return the range that a caller names (``plan.resolve``), its elements being the operand's.

    Without a plan only bytes can be given, or a tensor's descriptor, which says its own.
    """
    label = f"{op.name}: range {operand.name}"
    if arena.plan is not None:
        span = arena.plan.resolve(named, label)
        _check_elements(label, operand, arena.plan.holds(named) or arena.plan.types_at(span))
        return span
    _check_buffer(label, operand, arena.element)
    if isinstance(named, DTensor):
        _check_elements(label, operand, ((named.name, named.dtype),))
        return named.span
    pair = named if isinstance(named, tuple) else (named,)
    if isinstance(named, str) or any(isinstance(end, Region) for end in pair):
        what = "a tensor's name" if isinstance(named, str) else "a region"
        raise PlanError(f"{label} got {what}, the arena has no plan; give bytes")
    return Range.of(named, label)


def _check_elements(
    label: str, operand: Operand, held: tuple[tuple[str, DType | None], ...]
) -> None:
    """Refuse what holds other elements than the operand's; byte operands take any."""
    for name, dtype in held:
        if dtype is not None and operand.element not in (BYTES, dtype.element):
            raise ValueError(
                f"{label} got {name}, which holds {_word(dtype.element)}, expected "
                f"{_word(operand.element)}; give a range of that type"
            )


def _check_buffer(label: str, operand: Operand, element: str | None) -> None:
    """Refuse a buffer of another type; plain bytes are whatever the operand is."""
    taken = [ELEMENTS[dtype] for dtype in DType if dtype.element == operand.element]
    if operand.element == "half":  # or its bits
        taken.append(np.dtype("u2").str)
    if element is not None and operand.element != BYTES and element not in taken:
        raise TypeError(
            f"{label} got a buffer of {element}, expected {' or '.join(taken)}; give its bytes by "
            '.view("u1") (torch: .view(torch.uint8)) if they are that'
        )


def _word(element: str) -> str:
    """Return an element as error sentences call it: the type's label, or "half" for both halves."""
    return next(d.label for d in DType if d.element == element) if element != "half" else "half"


def check_span(op: OpSpec, operand: Operand, arena: Arena, span: Range) -> None:
    """Refuse a range outside the arena, off 16 bytes, or cutting an element."""
    label = f"{op.name}: range {operand.name}"
    size = operand.itemsize
    if span.base_offset < 0 or span.size < 0 or span.end > arena.nbytes:
        raise ValueError(
            f"{label} got bytes {span.base_offset} .. {span.end}, the arena has {arena.nbytes} "
            "bytes; give a range inside it"
        )
    by_words = {*TABLES, "live"}.intersection(dict(op.kernel.arguments))
    check_mapped(arena.unmapped if by_words else arena.holes, label, span)
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
    names = {r.operand.name for r in resolved}
    for half in halves:
        instead = half.operand.instead_of
        if instead and instead not in names and half.numel < first.numel:
            raise TypeError(
                f"{op.name}: range {instead} is missing for {first.numel - half.numel} elements "
                f"before those of {half.operand.name}; give {instead}=Range(offset, size)"
            )
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
