"""The four layout checks, a function each; ``finalize()`` runs them on every plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from plan.dtensor import ALIGNMENT, DTensor
from plan.errors import PlanError
from plan.region import PARAMETER_KINDS, WEIGHT_KINDS, Region, series_region

if TYPE_CHECKING:
    from plan.memory_plan import MemoryPlan

ADJOINING = (
    (Region.B_PREV_MEAN, Region.B_NEXT_VAR),
    (Region.W_BN_BIAS, Region.W_DEEP_CONV),
    (Region.E_BN_BIAS, Region.E_DEEP_CONV),
    (Region.E_FC_WEIGHT_FP16, Region.E_DEEP_CONV_FP16),
    (Region.A_FC_WEIGHT, Region.A_DEEP_CONV),
    (Region.G_BN_BIAS, Region.G_FIRST_CONV),
    (Region.G_DEEP_CONV, Region.R_RESULT),
    (Region.G_FC_WEIGHT_FP16, Region.G_DEEP_CONV_FP16),
    (Region.M_BN_BIAS, Region.M_DEEP_CONV),
    (Region.V_BN_BIAS, Region.V_DEEP_CONV),
    (Region.I_A_LABEL, Region.I_B_DATA),
)
"""Runs of regions that one launch or one collective covers."""


def check_region_order(plan: MemoryPlan) -> None:
    """Refuse a layout in which a region starts before the one in front of it."""
    bases = [(r, t) for r in Region for t in plan.tensors_in(r)[:1]]
    for (a, first), (b, second) in zip(bases, bases[1:], strict=False):
        if second.offset < first.offset:
            raise PlanError(
                f"region order: {b.name} starts at byte {second.offset}, expected at or after "
                f"{a.name} at {first.offset}"
            )


def check_contiguity(plan: MemoryPlan) -> None:
    """Refuse a gap or an overlap inside a run of regions that one launch covers."""
    for first, last in ADJOINING:
        tensors = plan.tensors_in(first, last)
        for a, b in zip(tensors, tensors[1:], strict=False):
            if b.offset != a.offset + a.slot_bytes:
                raise PlanError(
                    f"contiguity of {first.name}..{last.name}: {b.name} starts at byte "
                    f"{b.offset}, expected {a.offset + a.slot_bytes}, the end of {a.name}"
                )


def _series(plan: MemoryPlan, kinds: tuple[str, ...], series: str, half: bool) -> list[DTensor]:
    return [t for kind in kinds for t in plan.tensors_in(series_region(series, kind, half))]


def _required(plan: MemoryPlan) -> Iterator[tuple[str, bool, tuple[str, ...]]]:
    """Yield every (series, half, kinds) that must correspond to the weights."""
    wanted = plan.config.series_of_parameter(True)
    for series, half in wanted:
        yield series, half, WEIGHT_KINDS if half or series == "N" else PARAMETER_KINDS


def check_correspondence(plan: MemoryPlan) -> None:
    """Refuse series whose offsets do not correspond to those of the weights.

    Inside its series every tensor has the offset of its weight, and exactly half of it in a
    half series; norms correspond by count.  The error names the two tensors.
    """
    for series, half, kinds in _required(plan):
        weights = _series(plan, kinds, "W", False)
        others = _series(plan, kinds, series, half)
        for w, t in zip(weights, others, strict=False):
            if series == "N":
                continue
            want = (w.offset - weights[0].offset) // (2 if half else 1)
            got = t.offset - others[0].offset
            if got != want or t.region.kind != w.region.kind or t.shape != w.shape:
                raise PlanError(
                    f"correspondence: {t.name} {t.shape} lies {got} bytes into series {series}, "
                    f"expected {want} as its weight {w.name} {w.shape}; announce both in one order"
                )
        if len(weights) != len(others):
            extra = max(weights, others, key=len)[min(len(weights), len(others))]
            raise PlanError(
                f"correspondence: series {series}{' half' * half} has {len(others)} tensors, "
                f"expected {len(weights)} as the weights; {extra.name} has no counterpart"
            )


def check_alignment(plan: MemoryPlan) -> None:
    """Refuse a tensor that does not start on a multiple of 256 bytes."""
    for tensor in plan:
        if tensor.offset % ALIGNMENT:
            raise PlanError(
                f"alignment: {tensor.name} starts at byte {tensor.offset}, expected a multiple "
                f"of {ALIGNMENT}"
            )


def check_all(plan: MemoryPlan) -> None:
    """Run the four checks in the order in which their faults would explain one another."""
    check_region_order(plan)
    check_contiguity(plan)
    check_correspondence(plan)
    check_alignment(plan)
