"""Zones: the two places for a batch in the arena, and the lane by which batches get there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from plan import PlanError, Region
from rangeops.arena import Arena, tensor_view
from rangeops.h2d.staging import Ring, Slot, shaped, write

REGIONS = {"a": (Region.I_A_LABEL, Region.I_A_DATA), "b": (Region.I_B_LABEL, Region.I_B_DATA)}
"""First and last region of each zone."""


class Zone:
    """One of the two input zones: where its label and data lie.

    Raises:
        PlanError: the plan has no inputs.

    """

    def __init__(self, arena: Arena, name: str) -> None:
        plan, (first, last) = arena.plan, REGIONS[name]
        found = plan.tensors_in(first, last) if plan is not None else ()
        if plan is None or [t.region for t in found] != [first, last]:
            raise PlanError(
                f"h2d: zone {name!r} has {len(found)} tensors, expected one label and one data; "
                "announce them with plan.alloc_inputs(...)"
            )
        self.name, self.label, self.data = name, *found
        self.span = plan.range(first, last)
        self.ptr = arena.ptr_at(self.span.base_offset)

    def fill(self, memory: np.ndarray, batch: Sequence[Any], pad: bool, what: str) -> int:
        """Write a (data, label) pair into host memory laid out as the zone; return its samples."""
        if len(batch) != 2:
            raise ValueError(f"{what}: got {len(batch)} parts, expected (data, label)")
        parts = ((self.data, batch[0], "data", 0), (self.label, batch[1], "label", -1))
        arrays = [shaped(t, v, f"{what}: {name}", t.shape, pad) for t, v, name, _ in parts]
        samples, labels = map(len, arrays)
        if samples != labels:
            raise ValueError(
                f"{what}: got {labels} labels, expected {samples} as there are samples"
            )
        for (tensor, _, _, rest), array in zip(parts, arrays, strict=True):
            view = tensor_view(memory, tensor, self.span.base_offset)
            write(view[:samples], array)
            view[samples:] = rest
        return samples


class CpuLane:
    """Batches of a CPU arena: the thread writes the zone itself, and there are no streams."""

    staged = False
    here: AbstractContextManager[Any] = nullcontext()

    def __init__(self, arena: Arena, zones: list[Zone]) -> None:
        self._slots = {zone.name: Slot(arena.view(zone.span), None) for zone in zones}

    def begin(self) -> None:
        """Do nothing: work on a CPU arena ends before its call returns."""

    def take(self, zone: Zone) -> Slot:
        """Return the zone's memory."""
        return self._slots[zone.name]

    def send(self, slot: Slot, zone: Zone) -> None:
        """Do nothing: the batch lies there."""

    def arrived(self, zone: Zone) -> None:
        """Do nothing: the batch lies there."""

    def consumed(self, zone: Zone) -> None:
        """Do nothing: work on a CPU arena ends before its call returns."""


class GpuLane:
    """Batches of a GPU: a ring, a copy stream, and two events a zone."""

    staged = True

    def __init__(self, arena: Arena, zones: list[Zone], depth: int) -> None:
        from cupy import cuda

        self._arena, self._runtime = arena, cuda.runtime
        with cuda.Device(arena.device_id):
            self._stream = cuda.Stream(non_blocking=True)
            self._ring = Ring(max(zone.span.size for zone in zones), depth)
            self._arrived, self._consumed = (
                {zone.name: cuda.Event(disable_timing=True) for zone in zones} for _ in range(2)
            )

    @property
    def here(self) -> Any:
        """The device, as the thread's current one."""
        from cupy import cuda

        return cuda.Device(self._arena.device_id)

    def begin(self) -> None:
        """Let copies wait for the last loop's work, and for what the current stream has."""
        for event in self._consumed.values():
            self._runtime.streamWaitEvent(self._stream.ptr, event.ptr)
            self._runtime.eventRecord(event.ptr, self._arena.current_stream())

    def take(self, zone: Zone) -> Slot:
        """Return the next pinned buffer, after the last copy out of it."""
        return self._ring.take()

    def send(self, slot: Slot, zone: Zone) -> None:
        """Copy a buffer to its zone, after the zone's last batch was consumed."""
        stream = self._stream.ptr
        self._runtime.streamWaitEvent(stream, self._consumed[zone.name].ptr)
        self._ring.send(slot, zone.ptr, zone.span.size, stream)
        self._runtime.eventRecord(self._arrived[zone.name].ptr, stream)

    def arrived(self, zone: Zone) -> None:
        """Make the current stream wait for the zone's batch."""
        stream = self._arena.current_stream()
        self._runtime.streamWaitEvent(stream, self._arrived[zone.name].ptr)

    def consumed(self, zone: Zone) -> None:
        """Mark what the current stream has been given so far as the zone's work."""
        self._runtime.eventRecord(self._consumed[zone.name].ptr, self._arena.current_stream())
