"""device: where memory lies and work runs; the only importers of cupy and cuda.*.

    base            the protocol: allocate, copy, stream, event, pinned memory, capture, launch
    host            the processors of this machine, where each of these is trivial
    simulator       the same memory, with Numba's simulator playing the GPU
    cuda            one NVIDIA GPU (memory, streams); cuda_kernels, linker, pages, blocks beside it
    streams         streams of every library as raw handles

Another vendor's GPU is a module like ``cuda`` (KIND, gpu_count, find, adopt) named in ``GPUS``, and
a form of the kernels under ``rangeops.kernels``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rangeops.device import cuda
from rangeops.device.base import Device
from rangeops.device.host import HOST
from rangeops.device.simulator import SIMULATOR, simulator_on

GPUS = (cuda,)
"""The kinds of GPU; the first that this machine has is the default device."""


def find(name: str | int | None = None) -> Device:
    """Return a device by name; the same name gives the same object.

    >>> find("cpu").name, find("cpu").index
    ('cpu', -1)

    Args:
        name: "cuda" (the current GPU), "cuda:1", "cpu", "simulator", a GPU's number, or None for a
            GPU where there is one.  Where the simulator is switched on it plays the GPU.

    Raises:
        ValueError: unknown name or number. RuntimeError: a GPU is asked for and there is none.

    """
    first = GPUS[0].KIND
    if name is None:
        offered = [gpu.KIND for gpu in GPUS if gpu.gpu_count()]
        name = first if simulator_on() else (*offered, "cpu")[0]
    text = f"{first}:{name}" if isinstance(name, int) else str(name)
    kind, _, number = text.partition(":")
    if text == "cpu":
        return HOST
    if text == "simulator" or (kind == first and simulator_on()):
        return SIMULATOR
    for gpu in GPUS:
        if kind == gpu.KIND and (number.isdecimal() or text == kind):
            return gpu.find(int(number) if number else None)
    kinds = ", ".join(f"{gpu.KIND!r}, '{gpu.KIND}:N'" for gpu in GPUS)
    raise ValueError(f"Arena: device got {text!r}, expected {kinds} or 'cpu'")


def adopt(buffer: Any, name: str | int | None = None) -> tuple[Device, Any]:
    """Return where a buffer of another library lies, and the same memory as an array.

    Args:
        buffer: a NumPy array, or anything with ``__cuda_array_interface__`` or DLPack.
        name: "simulator" to have the simulator play the GPU on host memory.

    Raises:
        TypeError: none of these.

    """
    host: Device = SIMULATOR if name == "simulator" else HOST
    if isinstance(buffer, np.ndarray):
        return host, buffer
    for gpu in GPUS:
        adopted = gpu.adopt(buffer)
        if adopted is not None:
            return adopted
    if hasattr(buffer, "__dlpack__"):
        return host, np.from_dlpack(buffer)
    raise TypeError(
        f"Arena.wrap: got {type(buffer).__name__}, expected a NumPy or CuPy array, a torch "
        "tensor, or an object with __cuda_array_interface__ or DLPack"
    )
