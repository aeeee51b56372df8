"""MemoryPlan: where every byte of a model lies.

Tensors are announced (``parameter()``, ``alloc_*()``), then ``finalize()`` walks the regions once
with one cursor and the layout is frozen.  Nothing here touches a device.
"""

from __future__ import annotations

from plan import checks
from plan.builder import Parameter
from plan.chunks import sizes_of
from plan.config import PlanConfig
from plan.dtensor import DTensor
from plan.errors import PlanError
from plan.lookup import Lookup
from plan.ranges import Range
from plan.region import Region, series_regions
from plan.scratch import GRANULE, STATE, Counts

__all__ = ["MemoryPlan", "Parameter", "Range"]


class MemoryPlan(Lookup):
    """A layout of one model in one arena.

    >>> plan = MemoryPlan(PlanConfig("adamw"))
    >>> fc = plan.parameter("fc.weight", "fc_weight", (10, 64))
    >>> plan
    <MemoryPlan: adamw, half=None, ema=False; parameters: 1, not finalized>
    >>> plan.finalize().range(Region.W_FC_WEIGHT)
    Range(base_offset=0, size=3072)
    >>> fc.weight.offset, fc.gradient.offset
    (0, 3072)
    """

    def __init__(self, config: PlanConfig | None = None) -> None:
        super().__init__(config)
        self.total_bytes = 0

    def __repr__(self) -> str:
        """Return what it is for and how large it is in one line."""
        config = self.config
        size = f"{self.total_bytes:,} bytes" if self.finalized else "not finalized"
        return (
            f"<MemoryPlan: {config.kind.label}, half={config.half}, ema={config.ema}; "
            f"parameters: {len(self.parameters):,}, {size}>"
        )

    def finalize(self) -> MemoryPlan:
        """Give every tensor its offset in one pass, check the layout, freeze the plan.

        Raises:
            PlanError: called twice, or one of the four checks fails.

        """
        if self.finalized:
            raise PlanError("finalize: the plan is finalized already, make a new one")
        for tensors in self._by_region:  # so that the memory that nobody uses adjoins
            tensors.sort(key=lambda tensor: tensor.name in self._last)
        scratch = self._alloc_scratch()
        cursor = 0
        for region in Region:
            self._base[region] = cursor
            for tensor in self._by_region[region]:
                tensor.settle(tensor.slot_bytes, cursor)
                cursor += tensor.slot_bytes
        self._base[len(Region)] = cursor
        try:
            checks.check_all(self)
        except PlanError:
            self._withdraw(scratch)
            raise
        self.total_bytes = cursor
        self.finalized = True
        return self

    @property
    def idle(self) -> tuple[Range, ...]:
        """What lies behind gradients, moments and averages of parameters planned as frozen.

        These bytes are never used: an arena leaves them without memory where its device can.
        """
        self._check_finalized("idle")
        out: list[Range] = []
        for tensor in (t for t in self if t.name in self._idle):
            if out and out[-1].end == tensor.offset:
                out[-1] = Range(out[-1].base_offset, out[-1].size + tensor.slot_bytes)
            else:
                out.append(tensor.span)
        return tuple(out)

    def in_use(self, series: str, part: str = "all", half: bool = False) -> tuple[Range, ...]:
        """Return the ranges of a series that are used: all of it but ``idle``."""
        whole = self.series_range(series, part, half)
        out, at = [], whole.base_offset
        for hole in self.idle:  # which may reach over the borders of series
            if hole.end > at:
                out.append(Range(at, min(hole.base_offset, whole.end) - at))
                at = hole.end
        return tuple(span for span in (*out, Range(at, whole.end - at)) if span.size > 0)

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

        Raises:
            PlanError: plan not finalized, no such series, part or form.

        """
        regions = series_regions(series, part, half)
        if not regions:
            return Range(self.range(series_regions(series, "weight", half)[0]).base_offset, 0)
        return self.range(regions[0], regions[-1])

    def scalar(self, name: str) -> tuple[int, str]:
        """Return byte offset and type ("f4" or "i4") of a scalar, one of its own included.

        Raises:
            KeyError: no scalar is named so.

        """
        tensor = self.tensors.get(f"scalar.{name}")
        if tensor is None:
            raise KeyError(f"plan: no scalar is named {name!r}")
        self._check_finalized("scalar")
        return tensor.offset, tensor.dtype.numpy

    def _alloc_scratch(self) -> list[DTensor]:
        """Make room for the coefficients, the segment table and the norms of the parameters."""
        weights = self.weights()
        if not weights:
            return []
        granules = sum(t.slot_bytes for t in weights) // (4 * GRANULE)
        counts = Counts(len(weights), granules, *sizes_of(weights))
        made = []
        for state in STATE:
            if state.tensor:
                wide = (2,) if state.element == "f8" else ()
                made.append(self.alloc(state.region, (*state.shape(counts), *wide), state.tensor))
        return made

    def _withdraw(self, tensors: list[DTensor]) -> None:
        """Take back the tensors that were announced last."""
        for tensor in reversed(tensors):
            del self.tensors[tensor.name]
            self._by_region[tensor.region].remove(tensor)
