"""host: the processors and the memory of this machine, where every device word is trivial.

Work ends before its call returns, so there is one stream (0), an event is always done, and all
memory is pinned memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from plan import PlanError, Range
from rangeops.device.base import Launchable


class HostEvent:
    """An event of the host: always done."""

    done = True

    def record(self, stream: int) -> None:
        """Return: the work before it is done."""

    def synchronize(self) -> None:
        """Return: the work before it is done."""

    def hold(self, stream: int) -> None:
        """Return: the work before it is done."""


class HostStream:
    """The one stream of the host."""

    handle = 0


class HostCalls:
    """Calls that were kept, and run again."""

    def __init__(self, calls: Sequence[Launchable]) -> None:
        self._calls = tuple(calls)

    def launch(self, stream: int) -> None:
        """Run them in order."""
        for call in self._calls:
            call(stream)


class HostDevice:
    """Host memory, where ops run as compiled loops; see ``rangeops.device.base``."""

    name = kind = "cpu"
    index = -1

    def __repr__(self) -> str:
        """Return what it is."""
        return f"<device {self.name}>"

    def allocate(
        self, nbytes: int, unmapped: Sequence[Range] = (), idle: Sequence[Range] = ()
    ) -> tuple[Any, list[Range]]:
        """Return zeroed memory; a page of it that is never touched is not there."""
        try:
            raw = np.zeros(nbytes + 256, np.uint8)
        except (MemoryError, ValueError) as error:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            raise PlanError(
                f"Arena: the plan needs {nbytes} bytes, this machine has {total}; "
                "plan a smaller model"
            ) from error
        start = -raw.ctypes.data % 256
        return raw[start : start + nbytes], []

    def address(self, memory: Any) -> int:
        """Return the address of an array."""
        return int(memory.ctypes.data)

    def pinned(self, nbytes: int) -> np.ndarray:
        """Return zeroed memory."""
        return np.zeros(nbytes, np.uint8)

    def is_pinned(self, array: np.ndarray) -> bool:
        """Return True: copies reach all of the host's memory."""
        return True

    def array(self, values: Any, dtype: Any) -> Any:
        """Return the values."""
        return values

    def upload(self, address: int, values: np.ndarray, stream: int, wait: bool = True) -> None:
        """Copy values to an address."""
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, values: np.ndarray, address: int, stream: int, wait: bool = True) -> None:
        """Copy from an address to fill values."""
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Zero bytes."""
        ctypes.memset(address, 0, nbytes)

    def move(self, address: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes from one address to another."""
        ctypes.memmove(address, source, nbytes)

    def current(self) -> AbstractContextManager[Any]:
        """Return a ``with`` that changes nothing."""
        return nullcontext()

    def is_current(self) -> bool:
        """Return True: every thread is on the host."""
        return True

    def use(self) -> None:
        """Return: every thread is on the host."""

    def stream_reader(self, framework: str) -> Callable[[], int]:
        """Return a function that gives the one stream."""
        return lambda: 0

    def capturing(self, stream: int) -> bool:
        """Return False: calls are kept, never recorded while they run."""
        return False

    def synchronize(self) -> None:
        """Return: all work is done."""

    def event(self) -> HostEvent:
        """Return an event that is done."""
        return HostEvent()

    def stream(self) -> HostStream:
        """Return the one stream."""
        return HostStream()

    def capture(self, calls: Sequence[Launchable], framework: str) -> HostCalls:
        """Keep the calls; none runs before the first launch."""
        return HostCalls(calls)


HOST = HostDevice()
"""The one host."""
