"""Status: what the device knows of the steps, read without stopping the stream.

``post`` enqueues a copy of the device's scalars into pinned host memory and an event behind it;
``latest`` gives the newest copy that has arrived and never waits; ``read`` waits for the newest
one, which is for the work before it and for nothing enqueued later.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from plan import PlanError, Range
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


class Status:
    """Snapshots of one arena's device scalars.

    Attributes of a snapshot can be read off this object: ``status.step`` waits as ``read`` does.

    Raises:
        PlanError: the arena has no plan.

    """

    def __init__(self, arena: Arena) -> None:
        if arena.plan is None:
            raise PlanError("status: got an arena without a plan, expected Arena(plan); plan first")
        places = [(f.name, *arena.plan.scalar(f.name)) for f in fields(Snapshot)]
        first = min(offset for _, offset, _ in places)
        self._span = Range(first, max(offset for _, offset, _ in places) + 4 - first)
        self._places = [(name, offset - first, dtype) for name, offset, dtype in places]
        self._arena = arena
        self._posted = 0
        self._slots: list[tuple[np.ndarray, Any]] = []
        if arena.on_gpu:
            # All of them now: to pin memory later would wait for the device (seen on an H200).
            self._slots = [self._slot() for _ in range(SLOTS)]

    def _slot(self) -> tuple[np.ndarray, Any]:
        import cupy

        pinned = cupy.cuda.alloc_pinned_memory(self._span.size)
        memory = np.frombuffer(pinned, np.uint8, self._span.size)
        return memory, cupy.cuda.Event(disable_timing=True)

    def post(self, stream: Any = None) -> None:
        """Enqueue a snapshot on ``stream`` (default: the framework's current one).

        Raises:
            RuntimeError: the stream is capturing; ask after the replay.

        """
        arena = self._arena
        if not arena.on_gpu:
            self._slots = [(arena.read(self._span), None)]
            self._posted = 1
            return
        if arena.capturing():
            raise RuntimeError(
                "status: got a snapshot while the stream is capturing, expected it outside; "
                "post one after the replay"
            )
        import cupy

        memory, event = self._slots[self._posted % SLOTS]
        if self._posted >= SLOTS:
            event.synchronize()
        handle = arena.current_stream() if stream is None else handle_of(stream)
        source = arena.ptr_at(self._span.base_offset)
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(memory.ctypes.data, source, self._span.size, 2, handle)
        runtime.eventRecord(event.ptr, handle)
        self._posted += 1

    def latest(self) -> Snapshot | None:
        """Return the newest snapshot that has arrived, None before the first; never waits."""
        for back in range(min(self._posted, SLOTS)):
            memory, event = self._slots[(self._posted - 1 - back) % SLOTS]
            if event is None or event.done:
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
        if event is not None:
            event.synchronize()
        return self._parse(memory)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the newest snapshot, waiting for it."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.read(), name)

    def _parse(self, memory: np.ndarray) -> Snapshot:
        values = {
            name: memory[offset : offset + 4].view(dtype)[0].item()
            for name, offset, dtype in self._places
        }
        return Snapshot(**values)
