"""Device: the little that the library asks of a place where memory lies and kernels run.

``rangeops.device.find(name)`` returns one: a GPU (``cuda``), the processors of this machine
(``host``), or these playing a GPU (``simulator``).  On the host everything has its trivial form:
pinned memory is plain memory, an event is always done, a capture keeps the calls and replays them.
So nobody above this package asks where it runs.

Streams are raw handles (``int``) here; ``handle_of`` makes one of any library's stream.  The host
has one stream, 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from plan import Range


class Launchable(Protocol):
    """What a graph takes: work that is enqueued on the stream it is given.

    A bound op, a whole optimizer step and a collective are all of this kind.
    """

    def __call__(self, stream: Any = None) -> None:
        """Enqueue the work on ``stream`` (default: the framework's current one)."""


class Stream(Protocol):
    """A stream of the library's own; it lives as long as this object."""

    @property
    def handle(self) -> int:
        """The raw handle."""


class Event(Protocol):
    """A mark in a stream, without timing; before its first record it counts as done."""

    @property
    def done(self) -> bool:
        """Whether the work before the last record is done; asks and never waits."""

    def record(self, stream: int) -> None:
        """Set the mark behind what ``stream`` has been given so far."""

    def synchronize(self) -> None:
        """Wait on the host for the work before the last record."""

    def hold(self, stream: int) -> None:
        """Make ``stream`` wait for the work before the last record; the host goes on."""


class Executable(Protocol):
    """Captured calls, ready to run again."""

    def launch(self, stream: int) -> None:
        """Run them all, in order of ``stream``."""


class Device(Protocol):
    """One place where memory lies and kernels run; two finds of a name give the same object."""

    def __hash__(self) -> int:
        """Return a hash, since what is compiled for a device is kept by it."""

    @property
    def name(self) -> str:
        """Its full name: "cuda:0", "cpu" or "simulator"."""

    @property
    def kind(self) -> str:
        """Which form of a kernel runs here: "cuda", "cpu" or "simulator"."""

    @property
    def index(self) -> int:
        """Its number among the GPUs, -1 on the host."""

    # Memory

    def allocate(
        self, nbytes: int, unmapped: Sequence[Range] = (), idle: Sequence[Range] = ()
    ) -> tuple[Any, list[Range]]:
        """Return a flat uint8 array on a multiple of 256 bytes, and the parts of it to clear.

        Whole pages inside ``unmapped`` get no memory, and those inside ``idle`` share one page:
        they may be read, and hold nothing.  What is not among the parts is zero.

        Raises:
            PlanError: more than there is free (both numbers are in the message).

        """

    def address(self, memory: Any) -> int:
        """Return the address of the first byte of an array on this device."""

    def pinned(self, nbytes: int) -> np.ndarray:
        """Return zeroed host memory, flat uint8, which copies reach without a detour."""

    def is_pinned(self, array: np.ndarray) -> bool:
        """Return whether copies reach a host array without a detour."""

    def array(self, values: Any, dtype: Any) -> Any:
        """Return host values as what a view of this device's memory can be assigned from."""

    # Copies, in order of a stream

    def upload(self, address: int, values: np.ndarray, stream: int, wait: bool = True) -> None:
        """Copy contiguous host values to ``address``.

        With ``wait`` they are the caller's again when the call returns; without it, when the copy
        is done.
        """

    def download(self, values: np.ndarray, address: int, stream: int, wait: bool = True) -> None:
        """Copy from ``address`` to fill contiguous host values.

        With ``wait`` they are there when the call returns; without it, when the copy is done.
        """

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Zero bytes from ``address`` on."""

    def move(self, address: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes of this device from ``source`` to ``address``; the two do not overlap."""

    # This thread

    def current(self) -> AbstractContextManager[Any]:
        """Make this the thread's current device inside a ``with``."""

    def is_current(self) -> bool:
        """Return whether this is the thread's current device."""

    def use(self) -> None:
        """Make this the thread's current device."""

    def stream_reader(self, framework: str) -> Callable[[], int]:
        """Return a function that gives the stream on which "cupy" or "torch" works now."""

    # Streams

    def capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured into a graph."""

    def synchronize(self) -> None:
        """Wait for all work of the device."""

    def event(self) -> Event:
        """Return a new event."""

    def stream(self) -> Stream:
        """Return a new stream, which does not wait for the legacy default stream."""

    def capture(self, calls: Sequence[Launchable], framework: str) -> Executable:
        """Run calls on a stream that is captured, and return what they have enqueued.

        That stream is CuPy's current one meanwhile, and ``framework``'s.

        Raises:
            Whatever a call raises; the capture is ended first and the stream is usable.

        """


class Compiled(Device, Protocol):
    """A device that runs kernels compiled to its own code."""

    @property
    def architecture(self) -> str:
        """For what code is linked: "sm_90"."""

    def load(self, code: bytes, entry: str = "") -> Any:
        """Return the function ``entry`` of compiled code; "" for the only one."""

    def launcher(
        self,
        function: Any,
        blocks: int,
        threads: int,
        pointers: Sequence[int],
        integers: Sequence[int],
        what: str = "kernel",
    ) -> Callable[[int], None]:
        """Return ``launch(stream)`` of a loaded function with arguments laid out once.

        Args:
            function: what ``load`` returned.
            blocks: blocks of the grid.
            threads: threads a block.
            pointers: addresses, the kernel's first arguments.
            integers: int64 values, the kernel's other arguments.
            what: the name of the kernel that an error says.

        """
