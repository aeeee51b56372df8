"""Granule -> tensor: which tensor owns each 128 elements of a series.

An FP32 slot is a multiple of 512 bytes, so 128 consecutive FP32 elements (128 half elements of
the half slot) never straddle two tensors.  One row of coefficients per tensor, found through this
table once per warp, serves parameter groups, frozen tensors, trust ratios and reports.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plan.dtensor import DTensor
from plan.memory_plan import MemoryPlan
from plan.region import Region, series_regions
from plan.scratch import GRANULE


class Segments(NamedTuple):
    """The table of one range.

    Attributes:
        rows: tensor row of each granule, uint16, or uint32 above 65,536 tensors.
        first: first granule of each tensor, int64, with the number of granules at the end.
        tensors: the tensor of each row.

    >>> from plan import models
    >>> weight_segments(models.plan_model(models.mlp((784, 10))))
    <Segments: 63 granules of 2 tensors>

    """

    rows: NDArray[Any]
    first: NDArray[np.int64]
    tensors: tuple[DTensor, ...]

    def __repr__(self) -> str:
        """Return the size of the table in one line."""
        return f"<Segments: {len(self.rows):,} granules of {len(self.tensors):,} tensors>"


def segments(plan: MemoryPlan, first: Region, last: Region | None = None) -> Segments:
    """Return the granule table of regions ``first..last`` of one FP32 or half series.

    >>> from plan import MemoryPlan, PlanConfig
    >>> plan = MemoryPlan(PlanConfig("sgd"))
    >>> _ = plan.parameter("a", "fc_weight", (200,)), plan.parameter("b", "fc_weight", (5,))
    >>> segments(plan.finalize(), Region.W_FC_WEIGHT).rows
    array([0, 0, 1], dtype=uint16)
    """
    tensors = plan.tensors_in(first, last)
    counts = np.array([t.slot_bytes // (GRANULE * t.dtype.itemsize) for t in tensors], np.int64)
    dtype = np.dtype(np.uint16 if len(tensors) <= 2**16 else np.uint32)
    rows = np.repeat(np.arange(len(tensors)), counts).astype(dtype)
    return Segments(rows, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), tensors)


def weight_segments(plan: MemoryPlan) -> Segments:
    """Return the table of all weights; its rows are the rows of the coefficient table."""
    regions = series_regions("W")
    return segments(plan, regions[0], regions[-1])
