"""cuda: one NVIDIA GPU, by CuPy's runtime for memory and streams and cuda.core for kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from plan import PlanError, Range
from rangeops.device import cuda_kernels
from rangeops.device.base import Launchable
from rangeops.device.pages import Reserved, backed, whole_pages
from rangeops.device.streams import current_reader, gpu_count

KIND = "cuda"

STAGED = 1 << 16
"""Bytes below which pageable memory is staged when a copy's call returns (CUDA runtime API, "API
synchronization behavior")."""

TO_DEVICE, TO_HOST, WITHIN = 1, 2, 3
"""The runtime's numbers for the direction of a copy."""


def find(number: int | None) -> CudaDevice:
    """Return GPU ``number``, or the one that is current in this thread.

    Raises:
        RuntimeError: there is no GPU. ValueError: there is none of this number.

    """
    if not gpu_count():
        raise RuntimeError(
            "Arena: got device 'cuda', but the driver offers no GPU; use device='cpu'"
        )
    if number is None:
        import cupy

        number = int(cupy.cuda.Device().id)
    if not 0 <= number < gpu_count():
        raise ValueError(
            f"Arena: device got 'cuda:{number}', the driver offers {gpu_count()}; "
            "give a smaller number"
        )
    return _device(number)


@cache
def _device(number: int) -> CudaDevice:
    return CudaDevice(number)


def adopt(buffer: Any) -> tuple[CudaDevice, Any] | None:
    """Return the GPU that a buffer lies on and the same memory in CuPy's form, else None."""
    if hasattr(buffer, "__cuda_array_interface__"):
        import cupy

        memory = cupy.asarray(buffer)
    elif hasattr(buffer, "__dlpack__") and buffer.__dlpack_device__()[0] == 2:
        import cupy

        memory = cupy.from_dlpack(buffer)
    else:
        return None
    return _device(int(memory.device.id)), memory


class CudaEvent:
    """An event without timing."""

    def __init__(self, cuda: Any) -> None:
        self._event, self._runtime = cuda.Event(disable_timing=True), cuda.runtime

    @property
    def done(self) -> bool:
        """Whether the work before the last record is done."""
        return bool(self._event.done)

    def record(self, stream: int) -> None:
        """Set the mark behind what a stream has been given."""
        self._runtime.eventRecord(self._event.ptr, stream)

    def synchronize(self) -> None:
        """Wait on the host."""
        self._event.synchronize()

    def hold(self, stream: int) -> None:
        """Make a stream wait."""
        self._runtime.streamWaitEvent(stream, self._event.ptr)


class CudaStream:
    """A non-blocking stream of CuPy's (``native``)."""

    def __init__(self, cuda: Any) -> None:
        self.native = cuda.Stream(non_blocking=True)
        self.handle = int(self.native.ptr)


class CudaGraph:
    """A graph and the stream it was captured on, which memory of its calls may be tied to."""

    def __init__(self, graph: Any, stream: CudaStream, runtime: Any) -> None:
        self._kept = graph, stream
        self._executable, self._launch = graph.graphExec, runtime.graphLaunch

    def launch(self, stream: int) -> None:
        """Launch the graph."""
        self._launch(self._executable, stream)


class CudaDevice:
    """One GPU; see ``rangeops.device.base``."""

    kind = KIND

    def __init__(self, index: int) -> None:
        import cupy

        self.index, self.name = index, f"{KIND}:{index}"
        self._cupy: Any = cupy
        self._runtime: Any = cupy.cuda.runtime

    def __repr__(self) -> str:
        """Return what it is."""
        return f"<device {self.name}>"

    # Memory

    def allocate(
        self, nbytes: int, unmapped: Sequence[Range] = (), idle: Sequence[Range] = ()
    ) -> tuple[Any, list[Range]]:
        """Return a block of its own, outside CuPy's pool."""
        cupy = self._cupy
        with self.current():
            if unmapped or idle:
                return self._allocate_pages(nbytes, unmapped, idle)
            free = self._runtime.memGetInfo()[0]
            if nbytes > free:
                raise PlanError(
                    f"Arena: the plan needs {nbytes} bytes, device {self.index} has {free} free; "
                    "plan a smaller model or free memory"
                )
            block = cupy.cuda.MemoryPointer(cupy.cuda.Memory(max(nbytes, 256)), 0)
            return cupy.ndarray(nbytes, cupy.uint8, memptr=block), [Range(0, nbytes)]

    def _allocate_pages(
        self, nbytes: int, unmapped: Sequence[Range], idle: Sequence[Range]
    ) -> tuple[Any, list[Range]]:
        cupy = self._cupy
        self._runtime.free(0)  # makes the context, which the driver's own calls need
        reserved = Reserved(nbytes, self.index)
        parts = backed(nbytes, [*unmapped, *idle], reserved.page)
        for part in parts:
            reserved.back(part)
        shared = whole_pages(idle, reserved.page)
        if shared:
            reserved.share(shared)
            parts.append(Range(shared[0].base_offset, reserved.page))
        memory = cupy.cuda.UnownedMemory(reserved.ptr, nbytes, reserved, self.index)
        block = cupy.cuda.MemoryPointer(memory, 0)
        return cupy.ndarray(nbytes, cupy.uint8, memptr=block), parts

    def address(self, memory: Any) -> int:
        """Return the address of a CuPy array."""
        return int(memory.data.ptr)

    def pinned(self, nbytes: int) -> np.ndarray:
        """Return zeroed pinned memory; pin early, since pinning waits for the device (H200)."""
        memory = np.frombuffer(self._cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
        memory[:] = 0
        return memory

    def is_pinned(self, array: np.ndarray) -> bool:
        """Return whether the driver knows the array's memory as pinned."""
        kind = self._runtime.pointerGetAttributes(array.ctypes.data).type
        return bool(kind == self._runtime.memoryTypeHost)

    def array(self, values: Any, dtype: Any) -> Any:
        """Return a NumPy array as a CuPy array; anything else as it is."""
        if isinstance(values, np.ndarray):
            return self._cupy.asarray(values.astype(dtype, copy=False))
        return values

    def upload(self, address: int, values: np.ndarray, stream: int, wait: bool = True) -> None:
        """Copy host values to the device; small ones are staged, and nothing waits."""
        source = values.ctypes.data
        self._runtime.memcpyAsync(address, source, values.nbytes, TO_DEVICE, stream)
        if wait and values.nbytes >= STAGED:
            self._runtime.streamSynchronize(stream)

    def download(self, values: np.ndarray, address: int, stream: int, wait: bool = True) -> None:
        """Copy from the device to host values."""
        self._runtime.memcpyAsync(values.ctypes.data, address, values.nbytes, TO_HOST, stream)
        if wait:
            self._runtime.streamSynchronize(stream)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Zero bytes."""
        self._runtime.memsetAsync(address, 0, nbytes, stream)

    def move(self, address: int, source: int, nbytes: int, stream: int) -> None:
        """Copy bytes within the device."""
        self._runtime.memcpyAsync(address, source, nbytes, WITHIN, stream)

    # This thread

    def current(self) -> AbstractContextManager[Any]:
        """Return CuPy's ``with`` of the device."""
        return self._cupy.cuda.Device(self.index)

    def is_current(self) -> bool:
        """Return whether the runtime's current device is this one."""
        return int(self._runtime.getDevice()) == self.index

    def use(self) -> None:
        """Make this the thread's current device."""
        self._cupy.cuda.Device(self.index).use()

    def stream_reader(self, framework: str) -> Callable[[], int]:
        """Return a function that gives CuPy's or torch's current stream."""
        return current_reader(self.index, framework)

    # Streams

    def capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured."""
        return bool(self._runtime.streamIsCapturing(stream))

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        with self.current():
            self._runtime.deviceSynchronize()

    def event(self) -> CudaEvent:
        """Return a new event."""
        with self.current():
            return CudaEvent(self._cupy.cuda)

    def stream(self) -> CudaStream:
        """Return a new non-blocking stream."""
        with self.current():
            return CudaStream(self._cupy.cuda)

    def capture(self, calls: Sequence[Launchable], framework: str) -> CudaGraph:
        """Capture calls on a stream of their own, which is CuPy's and the framework's meanwhile."""
        with self.current():
            stream = self.stream()
            with self._followed(framework, stream.handle), stream.native:
                stream.native.begin_capture()
                try:
                    for call in calls:
                        call(stream.handle)
                finally:
                    graph = stream.native.end_capture()
        return CudaGraph(graph, stream, self._runtime)

    def _followed(self, framework: str, handle: int) -> AbstractContextManager[Any]:
        """Return a ``with`` in which torch works on a stream too, if the arena is torch's."""
        if framework != "torch":
            return nullcontext()
        cuda = sys.modules["torch"].cuda
        return cuda.stream(cuda.ExternalStream(handle, self.index))

    # Kernels

    @property
    def architecture(self) -> str:
        """For what kernels are linked: "sm_90"."""
        return cuda_kernels.architecture(self.index)

    def load(self, code: bytes, entry: str = "") -> Any:
        """Return the ``cuda.core.Kernel`` of a cubin."""
        return cuda_kernels.load(self.index, code, entry)

    def launcher(
        self,
        function: Any,
        blocks: int,
        threads: int,
        pointers: Sequence[int],
        integers: Sequence[int],
        what: str = "kernel",
    ) -> Callable[[int], None]:
        """Return ``launch(stream)`` of a kernel; every argument is 8 bytes."""
        packed = cuda_kernels.PACKED
        make = cuda_kernels.packed_launcher if packed else cuda_kernels.core_launcher
        return make(function, blocks, threads, (*pointers, *integers), what)
