"""Status: what the device knows of the steps, read without stopping the stream.

``post`` enqueues a copy of the device's scalars into pinned host memory and an event behind it;
``latest`` gives the newest copy that has arrived and never waits; ``read`` waits for the newest
one, which is for the work before it and for nothing enqueued later.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from plan import Range
from rangeops.arena.arena import Arena
from rangeops.device.streams import handle_of

SLOTS = 4
"""Copies that may be under way at once; the fifth waits for the first."""


@dataclass(frozen=True)
class Snapshot:
    """The device's scalars at one moment of a stream.

    Attributes:
        step: steps taken; a skipped one does not count.
        skip_step: 1 if the last step was skipped.
        skipped_steps: steps skipped so far.
        growth_tracker: steps since the loss scale last moved.
        floor_hits: backoffs that met ``min_loss_scale``.
        loss_scale: the present loss scale.
        grad_norm: global norm of the last step's gradients, where the step takes norms.

    """

    step: int
    skip_step: int
    skipped_steps: int
    growth_tracker: int
    floor_hits: int
    loss_scale: float
    grad_norm: float


if TYPE_CHECKING:
    _Fields = Snapshot
else:
    _Fields = object


class Status(_Fields):
    """Snapshots of one arena's device scalars.

    Attributes of a snapshot can be read off this object: ``status.step`` waits as ``read`` does.

    Raises:
        PlanError: the arena has no plan.

    """

    def __init__(self, arena: Arena) -> None:
        plan = arena.planned("status", "plan first")
        places = [(f.name, *plan.scalar(f.name)) for f in fields(Snapshot)]
        first = min(offset for _, offset, _ in places)
        self._span = Range(first, max(offset for _, offset, _ in places) + 4 - first)
        self._places = [(name, offset - first, dtype) for name, offset, dtype in places]
        self._arena = arena
        self._posted = 0
        # All of them now: to pin memory later would wait for the device (seen on an H200).
        device = arena.backend
        self._slots = [(device.pinned(self._span.size), device.event()) for _ in range(SLOTS)]

    def __repr__(self) -> str:
        """Return the newest snapshot that has arrived; waits for nothing."""
        return f"<Status of {self._arena.device}: {self._posted} posted, latest {self.latest()}>"

    def post(self, stream: Any = None) -> None:
        """Enqueue a snapshot on ``stream`` (default: the framework's current one).

        Raises:
            RuntimeError: the stream is capturing; ask after the replay.

        """
        arena, device = self._arena, self._arena.backend
        if arena.capturing():
            raise RuntimeError(
                "status: got a snapshot while the stream is capturing, expected it outside; "
                "post one after the replay"
            )
        memory, event = self._slots[self._posted % SLOTS]
        event.synchronize()
        handle = arena.current_stream() if stream is None else handle_of(stream)
        device.download(memory, arena.ptr_at(self._span.base_offset), handle, wait=False)
        event.record(handle)
        self._posted += 1

    def latest(self) -> Snapshot | None:
        """Return the newest snapshot that has arrived, None before the first; never waits."""
        for back in range(min(self._posted, SLOTS)):
            memory, event = self._slots[(self._posted - 1 - back) % SLOTS]
            if event.done:
                return self._parse(memory)
        return None

    def read(self) -> Snapshot:
        """Return the newest snapshot, waiting for the work before it.

        Raises:
            RuntimeError: none was posted.

        """
        if not self._posted:
            raise RuntimeError("status: got no snapshot yet, expected post() before read()")
        memory, event = self._slots[(self._posted - 1) % SLOTS]
        event.synchronize()
        return self._parse(memory)

    if not TYPE_CHECKING:  # which knows the fields from Snapshot

        def __getattr__(self, name: str) -> Any:
            """Return a field of the newest snapshot, waiting for it."""
            if name not in Snapshot.__dataclass_fields__:
                raise AttributeError(f"status: no field is named {name!r}")
            return getattr(self.read(), name)

    def _parse(self, memory: np.ndarray) -> Snapshot:
        values = {
            name: memory[offset : offset + 4].view(dtype)[0].item()
            for name, offset, dtype in self._places
        }
        return Snapshot(**values)
