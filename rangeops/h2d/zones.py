"""Zones: the two places for a batch in the arena, and the lane by which batches get there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from plan import PlanError, Region
from rangeops.arena.arena import Arena
from rangeops.arena.buffer import tensor_view
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
        tensors = plan.tensors_in(first, last) if plan is not None else ()
        if plan is None or [t.region for t in tensors] != [first, last]:
            raise PlanError(
                f"h2d: zone {name!r} has {len(tensors)} tensors, expected one label and one data; "
                "announce them with plan.alloc_inputs(...)"
            )
        self.name, self.label, self.data = name, *tensors
        self.span = plan.range(first, last)
        self.ptr = arena.ptr_at(self.span.base_offset)

    def fill(self, memory: np.ndarray, batch: Sequence[Any], pad: bool, what: str) -> int:
        """Write a (data, label) pair into host memory laid out as the zone; return its samples."""
        if len(batch) != 2:
            raise ValueError(f"{what}: got {len(batch)} parts, expected (data, label)")
        parts = ((self.data, batch[0], "data", 0), (self.label, batch[1], "label", -1))
        arrays = [shaped(t, v, f"{what}: {name}", pad) for t, v, name, _ in parts]
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

    def in_place(self, batch: Sequence[Any]) -> list[tuple[int, np.ndarray]] | None:
        """Return (offset in the zone, array) of a batch that lies in memory as the zone does."""
        out = []
        for tensor, values in ((self.data, batch[0]), (self.label, batch[1])):
            array = np.asarray(values)
            same = array.dtype == tensor.dtype.numpy and array.shape == tensor.padded_shape
            if not same or not array.flags.c_contiguous:
                return None
            out.append((tensor.offset - self.span.base_offset, array))
        return out


class Lane:
    """The way of an arena's batches: a ring, a copy stream, and two events a zone."""

    def __init__(self, arena: Arena, zones: list[Zone], depth: int, pinned: bool) -> None:
        self._arena, self._device, self._pinned = arena, arena.backend, pinned
        self.stream = self._device.stream()
        self._ring = Ring(self._device, max(zone.span.size for zone in zones), depth)
        self._arrived, self._consumed, self._left = (
            {zone.name: self._device.event() for zone in zones} for _ in range(3)
        )
        self._held: dict[str, Any] = {}

    def here(self) -> AbstractContextManager[Any]:
        """Return a ``with`` that makes the device the thread's current one."""
        return self._device.current()

    def begin(self) -> None:
        """Let copies wait for the last loop's work, and for what the current stream has."""
        for event in self._consumed.values():
            event.hold(self.stream.handle)
            event.record(self._arena.current_stream())

    def stage(self, zone: Zone, batch: Sequence[Any], pad: bool, what: str) -> tuple[Any, int]:
        """Write a batch to the next pinned buffer, or find that it lies in pinned memory."""
        if self._pinned and (parts := self._of_pinned(zone, batch)) is not None:
            return (parts, batch), len(parts[0][1])
        slot = self._ring.take()
        return slot, zone.fill(slot.memory, batch, pad, what)

    def _of_pinned(self, zone: Zone, batch: Sequence[Any]) -> list[tuple[int, np.ndarray]] | None:
        parts = zone.in_place(batch) if len(batch) == 2 else None
        if parts is None or not all(self._device.is_pinned(array) for _, array in parts):
            return None
        return parts

    def send(self, staged: Any, zone: Zone) -> None:
        """Copy a batch to its zone, after the zone's last batch was consumed."""
        stream = self.stream.handle
        self._consumed[zone.name].hold(stream)
        if self._held.pop(zone.name, None) is not None:
            self._left[zone.name].synchronize()
        if isinstance(staged, Slot):
            self._ring.send(staged, zone.ptr, zone.span.size, stream)
        else:
            parts, self._held[zone.name] = staged
            for offset, array in parts:
                self._device.upload(zone.ptr + offset, array, stream, wait=False)
            self._left[zone.name].record(stream)
        self._arrived[zone.name].record(stream)

    def arrived(self, zone: Zone) -> None:
        """Make the current stream wait for the zone's batch."""
        self._arrived[zone.name].hold(self._arena.current_stream())

    def consumed(self, zone: Zone) -> None:
        """Mark what the current stream has been given so far as the zone's work."""
        self._consumed[zone.name].record(self._arena.current_stream())
