"""pages: addresses for a whole arena, memory only for the parts that are used.

A rank of a sharded step never touches much of what other ranks own (``Shard.unmapped``).  Its
arena keeps all addresses, so that every range lies where the plan says, and has no memory behind
these: on a GPU by the driver's virtual memory calls, in pages of 2 MiB; on the CPU because a page
that was never touched is not there.

Kernels over a whole series also pass over what no tensor uses (``MemoryPlan.idle``) and may read
there before they know it.  Behind all such pages lies one and the same page of a GPU's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from plan import PlanError, Range


def outside(unmapped: Sequence[Range], span: Range) -> list[Range]:
    """Return the parts of a range that no unmapped range takes, in order.

    >>> outside([Range(15, 50)], Range(0, 100))
    [Range(base_offset=0, size=15), Range(base_offset=65, size=35)]
    """
    out, at = [], span.base_offset
    for hole in sorted(unmapped):
        if hole.size and at < hole.end and hole.base_offset < span.end:
            if hole.base_offset > at:
                out.append(Range(at, hole.base_offset - at))
            at = hole.end
    return [*out, Range(at, span.end - at)] if span.end > at else out


def backed(nbytes: int, unmapped: Sequence[Range], page: int) -> list[Range]:
    """Return the parts with memory: all but the whole pages inside unmapped, in order.

    >>> backed(100, [Range(15, 50)], page=10)
    [Range(base_offset=0, size=20), Range(base_offset=60, size=40)]
    """
    return outside(whole_pages(unmapped, page), Range(0, nbytes))


def whole_pages(ranges: Sequence[Range], page: int) -> list[Range]:
    """Return the whole pages inside each range, for those that have any.

    >>> whole_pages([Range(15, 50), Range(70, 5)], page=10)
    [Range(base_offset=20, size=40)]
    """
    pages = [(-(-span.base_offset // page) * page, span.end // page * page) for span in ranges]
    return [Range(first, last - first) for first, last in pages if last > first]


class Reserved:
    """The driver's reservation and pages; they go when nothing holds this object.

    Attributes:
        page: bytes of a page.
        ptr: the first address.
        pages: (address, bytes, handle) of what has memory.

    """

    def __init__(self, nbytes: int, device: int) -> None:
        from cuda.bindings import driver

        self._driver = driver
        kind = driver.CUmemAllocationProp()
        kind.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        kind.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        kind.location.id = device
        self._kind = kind
        self.pages: list[tuple[int, int, Any]] = []
        self.ptr = 0
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page = int(self._call("cuMemGetAllocationGranularity", kind, least))
        self._size = -(-nbytes // self.page) * self.page
        self.ptr = int(self._call("cuMemAddressReserve", self._size, 0, 0, 0))

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *values = getattr(self._driver, name)(*arguments)
        if error:
            raise PlanError(
                f"Arena: {name} says {error.name}, expected memory; plan a smaller model"
            )
        return values[0] if values else None

    def back(self, part: Range) -> None:
        """Put memory behind a part that starts on a page.

        Raises:
            PlanError: the driver has not enough.

        """
        size = -(-part.size // self.page) * self.page
        at = self.ptr + part.base_offset
        handle = self._call("cuMemCreate", size, self._kind, 0)
        self._map(at, size, handle)
        self._allow(at, size)

    def share(self, parts: Sequence[Range]) -> None:
        """Put one page behind every page of parts, which all are whole pages."""
        handle = self._call("cuMemCreate", self.page, self._kind, 0)
        for part in parts:
            for offset in range(part.base_offset, part.end, self.page):
                self._map(self.ptr + offset, self.page, handle)
            self._allow(self.ptr + part.base_offset, part.size)

    def _map(self, at: int, size: int, handle: Any) -> None:
        self._call("cuMemMap", at, size, 0, handle, 0)
        self.pages.append((at, size, handle))

    def _allow(self, at: int, size: int) -> None:
        """Let this device read and write what is mapped there."""
        access = self._driver.CUmemAccessDesc()
        access.location = self._kind.location
        access.flags = self._driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call("cuMemSetAccess", at, size, [access], 1)

    def close(self) -> None:
        """Give pages and addresses back, after the work on them."""
        if self.pages:
            self._call("cuCtxSynchronize")
        handles = {int(handle): handle for _, _, handle in self.pages}
        while self.pages:
            at, size, _ = self.pages.pop()
            self._call("cuMemUnmap", at, size)
        for handle in handles.values():
            self._call("cuMemRelease", handle)
        if self.ptr:
            self._call("cuMemAddressFree", self.ptr, self._size)
            self.ptr = 0

    def __del__(self) -> None:
        """Close, unless Python ends and takes the context along."""
        if not sys.is_finalizing():
            self.close()
