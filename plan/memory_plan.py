"""MemoryPlan: where every byte of a model lies.

Tensors are announced (``parameter()``, ``alloc_*()``), then ``finalize()`` walks the regions once
with one cursor and the layout is frozen.  Nothing here touches a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from plan import checks
from plan.builder import Parameter, PlanBuilder
from plan.chunks import sizes_of
from plan.config import PlanConfig
from plan.dtensor import DTensor
from plan.errors import PlanError
from plan.region import PARAMETER_KINDS, WEIGHT_KINDS, Region, series_region
from plan.scalars import FP32_SCALARS, INT32_SCALARS, fp32_index, int32_index
from plan.scratch import GRANULE, STATE, Counts

__all__ = ["MemoryPlan", "Parameter", "Range"]


class Range(NamedTuple):
    """Half-open bytes of adjoining regions: ``base_offset`` and ``size``, plain ints."""

    base_offset: int
    size: int

    @property
    def end(self) -> int:
        """First byte past the range."""
        return self.base_offset + self.size


class MemoryPlan(PlanBuilder):
    """A layout of one model in one arena.

    >>> plan = MemoryPlan(PlanConfig("adamw"))
    >>> fc = plan.parameter("fc.weight", "fc_weight", (10, 64))
    >>> plan.finalize().range(Region.W_FC_WEIGHT)
    Range(base_offset=0, size=3072)
    >>> fc.weight.offset, fc.gradient.offset
    (0, 3072)
    """

    def __init__(self, config: PlanConfig | None = None) -> None:
        super().__init__(config)
        self.total_bytes = 0
        self._base = [0] * (len(Region) + 1)

    def finalize(self) -> MemoryPlan:
        """Give every tensor its offset in one pass, check the layout, freeze the plan.

        Raises:
            PlanError: called twice, or one of the four checks fails.

        """
        if self.finalized:
            raise PlanError("finalize: the plan is finalized already, make a new one")
        self._alloc_scratch()
        cursor = 0
        for region in Region:
            self._base[region] = cursor
            for tensor in self._by_region[region]:
                object.__setattr__(tensor, "offset", cursor)
                cursor += tensor.slot_bytes
        self._base[len(Region)] = self.total_bytes = cursor
        checks.check_all(self)
        self.finalized = True
        return self

    def range(self, first: Region, last: Region | None = None) -> Range:
        """Return the bytes of the whole regions ``first..last``; an empty region has size 0.

        Raises:
            PlanError: plan not finalized, or ``last`` lies before ``first``.

        """
        if not self.finalized:
            raise PlanError("range: the plan is not finalized, call finalize() first")
        last = first if last is None else last
        if last < first:
            raise PlanError(
                f"range: got {first.name}..{last.name}, expected address order; swap them"
            )
        return Range(self._base[first], self._base[last + 1] - self._base[first])

    @property
    def bucket1(self) -> Range:
        """Gradient bucket 1: G_DEEP_CONV..R_RESULT, the metrics riding along."""
        return self.range(Region.G_DEEP_CONV, Region.R_RESULT)

    @property
    def bucket2(self) -> Range:
        """Gradient bucket 2: G_BN_BIAS..G_FIRST_CONV."""
        return self.range(Region.G_BN_BIAS, Region.G_FIRST_CONV)

    def series_range(self, series: str, part: str = "all", half: bool = False) -> Range:
        """Return the bytes of one series of all parameters.

        ``part`` is "bias" (norms and biases), "weight" (the kinds with half copies) or "all".
        """
        weights = half or series in "AN"
        kinds: tuple[str, ...] = WEIGHT_KINDS if weights or part == "weight" else PARAMETER_KINDS
        if part == "bias":
            kinds = () if weights else PARAMETER_KINDS[:3]
        if not kinds:
            return Range(self.range(series_region(series, WEIGHT_KINDS[0], half)).base_offset, 0)
        return self.range(
            series_region(series, kinds[0], half), series_region(series, kinds[-1], half)
        )

    def scalar(self, name: str) -> tuple[int, str]:
        """Return byte offset and type ("f4" or "i4") of a scalar.

        Raises:
            KeyError: no scalar is named so.

        """
        if name in FP32_SCALARS:
            return self.range(Region.S_SCALAR_FP32).base_offset + 4 * fp32_index(name), "f4"
        if name not in INT32_SCALARS:
            raise KeyError(f"plan: no scalar is named {name!r}")
        return self.range(Region.S_SCALAR_INT32).base_offset + 4 * int32_index(name), "i4"

    def tensors_in(self, first: Region, last: Region | None = None) -> tuple[DTensor, ...]:
        """Return the tensors of ``first..last`` in address order."""
        regions = range(first, (first if last is None else last) + 1)
        return tuple(t for r in regions for t in self._by_region[r])

    def weights(self) -> tuple[DTensor, ...]:
        """Return the weight tensors in address order: the rows of the coefficient table."""
        return self.tensors_in(Region.W_BN_BIAS, Region.W_DEEP_CONV)

    def __iter__(self) -> Iterator[DTensor]:
        """Iterate over all tensors in address order."""
        return iter(self.tensors_in(Region(0), Region(len(Region) - 1)))

    def _alloc_scratch(self) -> None:
        """Make room for the coefficients, the segment table and the norms of the parameters."""
        weights = self.weights()
        if not weights:
            return
        granules = sum(t.slot_bytes for t in weights) // (4 * GRANULE)
        counts = Counts(len(weights), granules, *sizes_of(weights))
        for state in STATE:
            if state.tensor:
                wide = (2,) if state.element == "f8" else ()
                shape = (*state.shape(counts), *wide)
                self.alloc(state.region, shape, state.tensor)
