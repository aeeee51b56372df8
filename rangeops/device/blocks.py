"""blocks: device memory straight from CUDA's driver, on the device and stream of CuPy.

``rangeops.pool`` keeps what it gets here.  It asks so often that these calls have a form of their
own: no object a call, and no giving the GIL away to ask whether a stream is captured.
"""

from __future__ import annotations

import ctypes
from typing import Any

from rangeops.device.streams import library, same_stream

MEMORY_ALLOCATION = 2
"""CUDA's error code for no memory."""


class OutOfMemory(MemoryError):
    """The driver has no block of the size, or the pool has not after giving its cache back."""


def memory_info() -> tuple[int, int]:
    """Return free and total bytes of the current device."""
    from cupy.cuda import runtime

    free, total = runtime.memGetInfo()
    return int(free), int(total)


class CudaDriver:
    """CUDA, on the device and the stream that CuPy works on in this thread."""

    def __init__(self) -> None:
        import cupy

        self._cuda: Any = cupy.cuda
        runtime = cupy.cuda.runtime
        self._runtime: Any = runtime
        self.current_device = runtime.getDevice
        self._stream = cupy.cuda.get_current_stream
        # Called without giving the GIL away, as CuPy's form of this question does: another thread
        # would keep it for 5 ms.
        self._is_capturing = ctypes.PyDLL(library()).cuStreamIsCapturing
        self._is_capturing.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

    def current_stream(self) -> int:
        """Return the handle of CuPy's current stream, 0 for the legacy default stream."""
        return same_stream(self._stream().ptr)

    def capturing(self, stream: int) -> bool:
        """Return whether the stream is being captured."""
        status = ctypes.c_int(0)
        # An error says: the legacy stream, while another one is being captured.
        return self._is_capturing(stream, ctypes.addressof(status)) == 0 and status.value == 1

    def allocate(self, device: int, nbytes: int) -> int:
        """Return new memory of the current device, which is ``device``."""
        try:
            return int(self._runtime.malloc(nbytes))
        except self._runtime.CUDARuntimeError as error:
            if error.status != MEMORY_ALLOCATION:
                raise
            free, total = memory_info()
            raise OutOfMemory(
                f"pool: device {device} has {free} of {total} bytes free, expected {nbytes}; "
                "release blocks or ask for less"
            ) from error

    def clear(self, pointer: int, nbytes: int, stream: int) -> None:
        """Write zeros in order of a stream."""
        self._runtime.memsetAsync(pointer, 0, nbytes, stream)

    def free(self, device: int, pointer: int) -> None:
        """Free a block; it may be another device's than the current one."""
        self._runtime.free(pointer)

    def synchronize(self, device: int) -> None:
        """Wait for all work of a device."""
        with self._cuda.Device(device):
            self._runtime.deviceSynchronize()

    def wait_for(self, device: int, waiting: int, other: int) -> None:
        """Make one stream wait for another by an event."""
        with self._cuda.Device(device):
            event = self._cuda.Event(disable_timing=True)
            self._runtime.eventRecord(event.ptr, other)
            self._runtime.streamWaitEvent(waiting, event.ptr)
