"""Driver: what the pool needs of a device library; CUDA's is ``rangeops.device.blocks``."""

from __future__ import annotations

from typing import Protocol

from rangeops.device.blocks import CudaDriver, OutOfMemory
from rangeops.device.streams import same_stream

__all__ = ["CudaDriver", "Driver", "OutOfMemory", "same_stream"]


class Driver(Protocol):
    """What the pool needs of a device library; a fake one serves the tests."""

    def current_device(self) -> int:
        """Return the device that this thread works on."""

    def current_stream(self) -> int:
        """Return the raw handle of the stream that this thread works on."""

    def capturing(self, stream: int) -> bool:
        """Return whether the stream is being captured into a graph."""

    def allocate(self, device: int, nbytes: int) -> int:
        """Return the address of ``nbytes`` new bytes; raise OutOfMemory where there are none."""

    def clear(self, pointer: int, nbytes: int, stream: int) -> None:
        """Write zeros in order of a stream."""

    def free(self, device: int, pointer: int) -> None:
        """Give a block back."""

    def synchronize(self, device: int) -> None:
        """Wait for all work of a device."""

    def wait_for(self, device: int, waiting: int, other: int) -> None:
        """Make stream ``waiting`` wait for what stream ``other`` has been given so far."""
