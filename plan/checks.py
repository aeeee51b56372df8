"""The four layout checks, a function each; ``finalize()`` runs them on every plan."""

from __future__ import annotations

from plan.builder import PlanBuilder
from plan.dtensor import ALIGNMENT, DTensor
from plan.errors import PlanError
from plan.region import WEIGHT_KINDS, Region, series_regions
from plan.series import BIAS_KINDS, SERIES

ADJOINING = (
    (Region.B_PREV_MEAN, Region.B_NEXT_VAR),
    *(
        (regions[0], regions[-1])
        for series in SERIES.values()
        if series.kinds
        for regions in (series_regions(series.letter, half=half) for half in series.forms)
    ),
    (Region.G_DEEP_CONV, Region.R_RESULT),
    (Region.I_A_LABEL, Region.I_B_DATA),
)
"""Runs of regions that one launch or one collective covers."""


def check_region_order(plan: PlanBuilder) -> None:
    """Refuse a layout in which a region starts before the one in front of it."""
    bases = [(r, t) for r in Region for t in plan.tensors_in(r)[:1]]
    for (a, first), (b, second) in zip(bases, bases[1:], strict=False):
        if second.offset < first.offset:
            raise PlanError(
                f"region order: {b.name} starts at byte {second.offset}, expected at or after "
                f"{a.name} at {first.offset}"
            )


def check_contiguity(plan: PlanBuilder) -> None:
    """Refuse a gap or an overlap inside a run of regions that one launch covers."""
    for first, last in ADJOINING:
        tensors = plan.tensors_in(first, last)
        for a, b in zip(tensors, tensors[1:], strict=False):
            if b.offset != a.offset + a.slot_bytes:
                raise PlanError(
                    f"contiguity of {first.name}..{last.name}: {b.name} starts at byte "
                    f"{b.offset}, expected {a.offset + a.slot_bytes}, the end of {a.name}"
                )


def _tensors(plan: PlanBuilder, series: str, part: str, half: bool) -> list[DTensor]:
    return [t for region in series_regions(series, part, half) for t in plan.tensors_in(region)]


def check_correspondence(plan: PlanBuilder) -> None:
    """Refuse series whose offsets do not correspond to those of the weights.

    Inside its series every tensor has the offset of its weight, and exactly half of it in a
    half series; norms correspond by count.  The error names the two tensors.
    """
    of_weights = plan.config.series_of(WEIGHT_KINDS[0])
    of_biases = plan.config.series_of(BIAS_KINDS[0])
    for series, half in dict.fromkeys((*of_weights, *of_biases)):
        part = "weight" if SERIES[series].kinds_of(half=half) == WEIGHT_KINDS else "all"
        part = part if (series, half) in of_weights else "bias"
        weights = _tensors(plan, "W", part, False)
        others = _tensors(plan, series, part, half)
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


def check_alignment(plan: PlanBuilder) -> None:
    """Refuse a tensor that does not start on a multiple of 256 bytes."""
    for tensor in plan:
        if tensor.offset % ALIGNMENT:
            raise PlanError(
                f"alignment: {tensor.name} starts at byte {tensor.offset}, expected a multiple "
                f"of {ALIGNMENT}"
            )


def check_all(plan: PlanBuilder) -> None:
    """Run the four checks in the order in which their faults would explain one another."""
    check_region_order(plan)
    check_contiguity(plan)
    check_correspondence(plan)
    check_alignment(plan)
