"""Prefetcher: a loader's batches in zone A and zone B in turn; see ``rangeops.h2d``."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rangeops.arena.arena import Arena
from rangeops.h2d.zones import REGIONS, Lane, Zone


class Batch(NamedTuple):
    """A batch in the arena: views, the zone they lie in, and how many samples are the loader's."""

    data: Any
    label: Any
    zone: str
    samples: int


class Prefetcher:
    """Iterate over a loader's batches in the arena, zone A and zone B in turn.

    >>> import numpy as np
    >>> from plan import DType, MemoryPlan, PlanConfig
    >>> plan = MemoryPlan(PlanConfig("none"))
    >>> _ = plan.alloc_inputs(2, (2, 1, 1, 3), DType.FP32)
    >>> arena = Arena(plan.finalize(), device="cpu")
    >>> loader = [(np.full((2, 1, 1, 3), k), [k, k]) for k in range(3)]
    >>> [(b.zone, float(b.data.sum()), b.label.tolist()) for b in Prefetcher(arena, loader)]
    [('a', 0.0, [0, 0]), ('b', 6.0, [1, 1]), ('a', 12.0, [2, 2])]

    A batch is valid until the next one is asked for; work on it has to be enqueued by then, on the
    stream that is current when the next is asked for.  Its addresses are the zone's, so a step
    captured for each zone is replayed by ``graphs[batch.zone]``; capture before the loop.  Each
    ``for`` begins the loader anew.  What the loader raises is raised in the loop, behind the
    batches before it.

    Args:
        arena: a planned arena with inputs (``plan.alloc_inputs``).
        loader: yields (data, label) of host arrays or torch CPU tensors, of the planned shapes.
        pad: take batches of fewer samples; the rest is data 0 and label -1, ``batch.samples`` says
            how many are real.  Without it they are an error.
        depth: pinned buffers of a zone's size.
        pinned: copy batches that lie in pinned memory, contiguous and of the planned dtypes, from
            where they are.  The loader may write to a batch's memory again when it is asked for the
            third batch behind it.

    Attributes:
        waited: seconds that the loop has waited for the loader.

    """

    def __init__(
        self,
        arena: Arena,
        loader: Iterable[Sequence[Any]],
        *,
        pad: bool = False,
        depth: int = 3,
        pinned: bool = False,
    ) -> None:
        if depth < 1:
            raise ValueError(f"Prefetcher: depth got {depth}, expected 1 or more")
        self._arena, self._loader, self._pad = arena, loader, pad
        self._zones = zones = [Zone(arena, name) for name in REGIONS]
        self._views = {z.name: (arena[z.data], arena[z.label]) for z in zones}
        self._lane = Lane(arena, zones, depth, pinned)
        self._busy = threading.Lock()
        self.waited = 0.0

    def __iter__(self) -> Iterator[Batch]:
        """Run through the loader once.

        Raises:
            RuntimeError: a loop over this prefetcher runs already, or the stream is capturing.

        """
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "Prefetcher: got a second loop while one runs, expected one at a time, since they "
                "share the zones; end the first or make another arena"
            )
        feed = _Feed(self._lane, self._zones, self._loader, self._pad)
        try:
            self._lane.begin()
            feed.thread.start()
            while (ready := self._next(feed)) is not None:
                zone, count = ready
                self._lane.arrived(zone)
                try:
                    yield Batch(*self._views[zone.name], zone.name, count)
                finally:
                    self._lane.consumed(zone)
                    feed.free.release()
        finally:
            feed.stop()
            self._busy.release()

    def _next(self, feed: _Feed) -> tuple[Zone, int] | None:
        start = time.perf_counter()
        ready = feed.ready.get()
        self.waited += time.perf_counter() - start
        if isinstance(ready, BaseException):
            raise ready
        if self._arena.capturing():
            raise RuntimeError(
                "Prefetcher: got next() while the stream is capturing, expected it outside; "
                "capture a step for each zone before the loop"
            )
        return ready


class _Feed:
    """The thread of one pass over the loader."""

    def __init__(
        self, lane: Lane, zones: list[Zone], loader: Iterable[Sequence[Any]], pad: bool
    ) -> None:
        self._lane, self._zones, self._loader, self._pad = lane, zones, loader, pad
        self.ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.free = threading.Semaphore(len(zones))
        self._stopped, self._writing = False, threading.Lock()
        self.thread = threading.Thread(target=self._run, name="rangeops h2d", daemon=True)

    def _run(self) -> None:
        try:
            with self._lane.here():
                for number, batch in enumerate(self._loader):
                    zone = self._zones[number % len(self._zones)]
                    count = self._deliver(zone, batch, f"batch {number}")
                    if count is None:
                        return
                    self.ready.put((zone, count))
            self.ready.put(None)
        except BaseException as error:  # the loader's, raised in the loop
            self.ready.put(error)

    def _deliver(self, zone: Zone, batch: Sequence[Any], what: str) -> int | None:
        """Stage a batch and start its copy; None if the loop has ended meanwhile."""
        with self._writing:
            if self._stopped:
                return None
            staged, samples = self._lane.stage(zone, batch, self._pad, what)
        self.free.acquire()
        with self._writing:
            if self._stopped:
                return None
            self._lane.send(staged, zone)
        return samples

    def stop(self) -> None:
        """End the thread; it may sit in the loader still, but writes and copies nothing more."""
        with self._writing:
            self._stopped = True
        self.free.release()
