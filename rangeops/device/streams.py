"""Streams of every library as one kind, the raw handle, and how many GPUs there are."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

LEGACY = 1
"""The driver's name for the legacy default stream, which other libraries call handle 0."""

PER_THREAD = 2
"""The driver's name for the per-thread default stream, another stream in every thread."""


def library() -> str:
    """Return the file name of the driver's library."""
    return "libcuda.so.1" if sys.platform != "win32" else "nvcuda.dll"


@cache
def gpu_count() -> int:
    """Return the number of GPUs that the driver offers; 0 without a driver, in 2 ms."""
    try:
        driver = ctypes.CDLL(library())
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def handle_of(stream: Any) -> int:
    """Return the raw handle of a stream of CuPy, torch, numba, cuda.core, or of an int.

    Raises:
        TypeError: any other type.

    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1] if callable(protocol) else protocol[1])
    for attribute in ("ptr", "cuda_stream", "handle"):
        value = getattr(stream, attribute, None)
        if value is not None:
            return int(getattr(value, "value", value) or 0)
    raise TypeError(
        f"stream: got {type(stream).__name__}, expected a CuPy, torch, numba or cuda.core stream "
        "or a raw handle; give one of these"
    )


def same_stream(handle: int) -> int:
    """Return one handle for one stream: 1 and 0 are both the legacy default stream.

    Raises:
        ValueError: the per-thread default stream.

    """
    if handle == PER_THREAD:
        raise ValueError(
            "pool: got the per-thread default stream, one handle for a stream in every thread, "
            "expected a stream of its own; make one and use it in this thread"
        )
    return 0 if handle == LEGACY else handle


def current_reader(device_id: int, framework: str) -> Callable[[], int]:
    """Return a function that gives the handle of the stream the framework works on now."""
    if framework == "torch":
        # A torch tensor came in, so torch is loaded; only its adapter imports it.
        current = sys.modules["torch"].cuda.current_stream
        return lambda: int(current(device_id).cuda_stream)
    from cupy.cuda import get_current_stream

    return lambda: get_current_stream().ptr
