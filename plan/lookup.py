"""Lookup: what lies where in a finalized plan, by region, tensor, name or bytes."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

from plan.allocs import AllocCalls
from plan.config import PlanConfig
from plan.dtensor import DTensor
from plan.dtype import DType
from plan.errors import PlanError
from plan.ranges import Range
from plan.region import Region

_REGIONS = tuple(Region)


class Lookup(AllocCalls):
    """A plan that is asked for bytes, tensors and types; ``MemoryPlan`` lays them out."""

    def __init__(self, config: PlanConfig | None = None) -> None:
        super().__init__(config)
        self._base = [0] * (len(Region) + 1)

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
            PlanError: plan not finalized, a descriptor of another plan, regions out of order.

        >>> from plan import MemoryPlan
        >>> plan = MemoryPlan()
        >>> w = plan.parameter("w", "fc_weight", (10, 64)).weight
        >>> _ = plan.finalize()
        >>> plan.resolve("w") == plan.resolve(w) == plan.resolve(Region.W_FC_WEIGHT)
        True

        """
        if isinstance(given, str | DTensor):
            return self.tensor(given, label).span
        regions = _regions(given)
        return self.range(*regions) if regions else Range.of(given, label)

    def holds(self, given: Any) -> tuple[tuple[str, DType | None], ...]:
        """Return name and type of each tensor or region that ``given`` names, as for ``resolve``.

        Of a pair of regions these are both ends and whatever between them is not empty; a region
        of its caller's types is there once for each, with None where it is empty.  Bare bytes name
        nothing: see ``types_at``.

        >>> from plan import MemoryPlan
        >>> MemoryPlan().holds("scalar.step")
        (('scalar.step', DType.INT32),)
        """
        if isinstance(given, str | DTensor):
            tensor = self._tensor(given, "holds")
            return ((tensor.name, tensor.dtype),)
        ends = _regions(given)
        if not ends:
            return ()
        between = (r for r in Region if ends[0] < r < ends[-1] and self._by_region[r])
        regions = dict.fromkeys((ends[0], *between, ends[-1]))
        return tuple((region.name, kind) for region in regions for kind in self._types_in(region))

    def types_at(self, span: Range) -> tuple[tuple[str, DType], ...]:
        """Return name and type of each region that a range of bytes shares bytes with.

        Of a region of its caller's types these are its tensors there.

        >>> from plan import MemoryPlan
        >>> plan = MemoryPlan()
        >>> w = plan.parameter("w", "fc_weight", (10, 64)).weight
        >>> plan.finalize().types_at(Range(w.offset + 512, 256))
        (('W_FC_WEIGHT', DType.FP32),)

        """
        self._check_finalized("types_at")
        held: list[tuple[str, DType]] = []
        for region in self._regions_at(span) if span.size > 0 else ():
            kind = self.dtype_of(region)
            if kind is None:
                held += ((t.name, t.dtype) for t in self._tensors_of(region, span))
            else:
                held.append((region.name, kind))
        return tuple(held)

    def tensors_at(self, span: Range) -> tuple[DTensor, ...]:
        """Return the tensors whose slots share bytes with a range, in address order."""
        self._check_finalized("tensors_at")
        regions = self._regions_at(span)
        return tuple(tensor for region in regions for tensor in self._tensors_of(region, span))

    def tensor(self, given: DTensor | str, label: str = "plan") -> DTensor:
        """Return a tensor of this plan by name, or its descriptor, of this plan or an equal one.

        A descriptor of a variant of the plan keeps its own shape.

        Args:
            given: the name or the descriptor.
            label: the subject of the errors' sentences.

        Raises:
            KeyError: no tensor is named so.
            PlanError: plan not finalized, or a descriptor of another plan.

        """
        self._check_finalized(label)
        return self._tensor(given, label)

    def _regions_at(self, span: Range) -> Iterator[Region]:
        """Yield the regions that share bytes with a range, found by bisection."""
        first = max(0, bisect.bisect_right(self._base, span.base_offset) - 1)
        for region in _REGIONS[first:]:
            if self._base[region] >= span.end:
                return
            if self._by_region[region]:
                yield region

    def _tensors_of(self, region: Region, span: Range) -> list[DTensor]:
        """Return the tensors of a region whose slots share bytes with a range."""
        inside = self._by_region[region]
        first = bisect.bisect_right(inside, span.base_offset, key=lambda tensor: tensor.span.end)
        return inside[first : bisect.bisect_left(inside, span.end, key=lambda t: t.offset)]

    def _tensor(self, given: DTensor | str, label: str) -> DTensor:
        """Return the same, also before the plan is finalized."""
        if not isinstance(given, DTensor):
            if given not in self.tensors:
                raise KeyError(f"{label}: no tensor is named {given!r}")
            return self.tensors[given]
        own = self.tensors.get(given.name)
        if own is None or _place_of(given) != _place_of(own):
            expected = "no tensor of that name" if own is None else repr(own)
            raise PlanError(
                f"{label}: got {given!r} of another plan, expected one of this plan, which has "
                f"{expected}; give a name of this plan"
            )
        return given

    def _types_in(self, region: Region) -> tuple[DType | None, ...]:
        own = self.dtype_of(region)
        held = dict.fromkeys(tensor.dtype for tensor in self._by_region[region])
        return (own,) if own else tuple(held) or (None,)

    def _check_finalized(self, label: str) -> None:
        if not self.finalized:
            raise PlanError(f"{label}: the plan is not finalized, call finalize() first")


def _regions(given: Any) -> tuple[Region, ...]:
    """Return the region, or first and last, that ``given`` is; nothing if it is something else."""
    if isinstance(given, Region):
        return (given,)
    pair = isinstance(given, tuple) and len(given) == 2
    return given if pair and all(isinstance(end, Region) for end in given) else ()


def _place_of(tensor: DTensor) -> tuple[Region, DType, Range]:
    """Return what descriptors of the same bytes have in common."""
    return tensor.region, tensor.dtype, tensor.span
