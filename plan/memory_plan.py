"""MemoryPlan: where every byte of a model lies.

Tensors are announced (``parameter()``, ``alloc_*()``), then ``finalize()`` walks the regions once
with one cursor and the layout is frozen.  Nothing here touches a device.
"""

from __future__ import annotations

from typing import Any

from plan import checks
from plan.allocs import AllocCalls
from plan.builder import Parameter
from plan.chunks import sizes_of
from plan.config import PlanConfig
from plan.dtensor import DTensor
from plan.dtype import DType
from plan.errors import PlanError
from plan.ranges import Range
from plan.region import Region, series_regions
from plan.scratch import GRANULE, STATE, Counts

__all__ = ["MemoryPlan", "Parameter", "Range"]


class MemoryPlan(AllocCalls):
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
        self._base = [0] * (len(Region) + 1)

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

    def range(self, first: Region, last: Region | None = None) -> Range:
        """Return the bytes of the whole regions ``first..last``; an empty region has size 0.

        Raises:
            PlanError: plan not finalized, or ``last`` lies before ``first``.

        """
        self._check_finalized("range")
        last = first if last is None else last
        if last < first:
            raise PlanError(
                f"range: got {first.name}..{last.name}, expected address order; swap them"
            )
        return Range(self._base[first], self._base[last + 1] - self._base[first])

    def resolve(self, given: Any, label: str = "resolve") -> Range:
        """Return what a caller names as a range: the one answer to what may be given.

        Args:
            given: a Range, or a pair of offset and size in whole bytes; a region; a pair of
                regions, first and last; a tensor, or its name, whose slot is meant.
            label: the subject of the errors' sentences.

        Raises:
            TypeError: none of these.
            KeyError: no tensor is named so.
            PlanError: plan not finalized, a tensor of another plan, regions out of order.

        >>> plan = MemoryPlan()
        >>> w = plan.parameter("w", "fc_weight", (10, 64)).weight
        >>> _ = plan.finalize()
        >>> plan.resolve("w") == plan.resolve(w) == plan.resolve(Region.W_FC_WEIGHT)
        True

        """
        if isinstance(given, str | DTensor):
            return self._tensor(given, label).span
        regions = _regions(given)
        return self.range(*regions) if regions else Range.of(given, label)

    def holds(self, given: Any) -> tuple[tuple[str, DType | None], ...]:
        """Return name and type of each tensor or region that ``given`` names, as for ``resolve``.

        Of a pair of regions these are both ends and whatever between them is not empty.  Bare
        bytes name nothing; the type of an empty region of its caller's choice is None.

        >>> MemoryPlan().holds("scalar.step")
        (('scalar.step', DType.INT32),)
        """
        if isinstance(given, str | DTensor):
            tensor = self._tensor(given, "holds", placed=False)
            return ((tensor.name, tensor.dtype),)
        ends = _regions(given)
        if not ends:
            return ()
        between = (r for r in Region if ends[0] < r < ends[-1] and self._by_region[r])
        regions = dict.fromkeys((ends[0], *between, ends[-1]))
        return tuple((region.name, self._type_in(region)) for region in regions)

    def tensors_at(self, span: Range) -> tuple[DTensor, ...]:
        """Return the tensors whose slots share bytes with a range, in address order."""
        self._check_finalized("tensors_at")
        return tuple(t for t in self if t.offset < span.end and t.span.end > span.base_offset)

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

    def _tensor(self, given: DTensor | str, label: str, placed: bool = True) -> DTensor:
        """Return the tensor of this plan by name or descriptor."""
        name = given if isinstance(given, str) else given.name
        tensor = self.tensors.get(name)
        if tensor is None:
            raise KeyError(f"{label}: no tensor is named {name!r}")
        if placed:
            self._check_finalized(label)
        if isinstance(given, DTensor) and (given.region, given.span) != (
            tensor.region,
            tensor.span,
        ):
            raise PlanError(
                f"{label}: got {given!r} of another plan, expected one of this plan, {tensor!r}; "
                "give its name"
            )
        return tensor

    def _type_in(self, region: Region) -> DType | None:
        own = self.dtype_of(region)
        return own or next((tensor.dtype for tensor in self._by_region[region]), None)

    def _check_finalized(self, label: str) -> None:
        if not self.finalized:
            raise PlanError(f"{label}: the plan is not finalized, call finalize() first")

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


def _regions(given: Any) -> tuple[Region, ...]:
    """Return the region, or first and last, that ``given`` is; nothing if it is something else."""
    if isinstance(given, Region):
        return (given,)
    pair = isinstance(given, tuple) and len(given) == 2
    return given if pair and all(isinstance(end, Region) for end in given) else ()
