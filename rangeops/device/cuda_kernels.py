"""cuda_kernels: a cubin loaded on a GPU, and its launch with arguments laid out once.

There are two ways to launch, by ``cuLaunchKernel`` with packed arguments and by
``cuda.core.launch``; ``PACKED`` says which, so that one run can measure both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from rangeops.device.linker import entry_name
from rangeops.device.streams import LEGACY

PACKED = True
"""Which way launchers go that are made from now on; False is ``cuda.core.launch``."""


def _device(index: int) -> Any:
    from cuda.core import Device

    device = Device(index)
    device.set_current()
    return device


def architecture(index: int) -> str:
    """Return for what code is linked to run on a GPU: "sm_90"."""
    major, minor = _device(index).compute_capability
    return f"sm_{major}{minor}"


def load(index: int, code: bytes, entry: str = "") -> Any:
    """Return the ``cuda.core.Kernel`` named ``entry`` of a cubin, "" for its only one."""
    from cuda.core import ObjectCode

    _device(index)
    loaded = ObjectCode.from_cubin(code)
    return loaded.get_kernel(entry or _only_kernel(loaded, code))


def _only_kernel(loaded: Any, code: bytes) -> str:
    """Return the kernel's name from the driver, or where it is older than 12.4 from the cubin."""
    from cuda.bindings import driver

    try:
        error, kernels = driver.cuLibraryEnumerateKernels(1, loaded.handle)
        if not error:
            error, name = driver.cuKernelGetName(kernels[0])
    except RuntimeError:  # cuda.bindings' word for a function that the driver does not have
        return entry_name(code)
    if error:
        raise RuntimeError(
            f"cubin: the driver names no kernel in it ({error.name}), expected one; "
            "delete the cache directory"
        )
    return str(name.decode())


def packed_launcher(
    function: Any, blocks: int, threads: int, arguments: tuple[int, ...], what: str
) -> Callable[[int], None]:
    """Return ``launch(stream)`` by ``cuLaunchKernel``; arguments are packed now."""
    from cuda.bindings import driver

    values = (ctypes.c_int64 * len(arguments))(*arguments)
    first = ctypes.addressof(values)
    places = (ctypes.c_void_p * len(arguments))(*range(first, first + 8 * len(arguments), 8))
    at = ctypes.addressof(places)
    kernel = driver.CUfunction(int(function.handle))
    shape = (kernel, blocks, 1, 1, threads, 1, 1, 0)

    def launch(stream: int, kept: Any = (function, values, places)) -> None:
        (error,) = driver.cuLaunchKernel(*shape, stream or LEGACY, at, 0)
        if error:
            raise RuntimeError(
                f"{what}: the driver refused the launch with {error.name}, expected none; "
                "is the stream one of the arena's device?"
            )

    return launch


def core_launcher(
    function: Any, blocks: int, threads: int, arguments: tuple[int, ...], what: str
) -> Callable[[int], None]:
    """Return ``launch(stream)`` by ``cuda.core.launch``; a stream is made its object once."""
    from cuda.core import LaunchConfig, Stream
    from cuda.core import launch as enqueue

    config = LaunchConfig(grid=blocks, block=threads)
    streams: dict[int, Any] = {}

    def launch(stream: int) -> None:
        queue = streams.get(stream)
        if queue is None:
            queue = streams[stream] = Stream.from_handle(stream or LEGACY)
        enqueue(queue, config, function, *arguments)

    return launch
