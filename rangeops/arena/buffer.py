"""An arena's bytes: one allocation on a device or a buffer of the caller's, and typed views."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from plan import DTensor, DType, PlanError, Range
from rangeops.arena.sparse import outside, reserve
from rangeops.device.streams import gpu_count

NUMPY = {
    DType.FP32: "f4",
    DType.FP16: "f2",
    DType.BF16: "u2",
    DType.INT32: "i4",
    DType.INT8: "i1",
}
"""NumPy's type of each; bf16 are bits."""


def simulator_on() -> bool:
    """Return whether Numba's simulator plays the GPU in this process."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


def default_device() -> str:
    """Return "cuda" where there is a GPU (or the simulator), else "cpu"."""
    return "cuda" if simulator_on() or gpu_count() else "cpu"


def allocate(
    nbytes: int, device: str | int | None, unmapped: Sequence[Range] = ()
) -> tuple[Any, bool, list[Range]]:
    """Return one block as a flat uint8 array, whether the simulator plays it, and what to clear.

    On a GPU the whole pages inside ``unmapped`` get no memory; host memory comes cleared.

    Raises:
        PlanError: more than the device has free (both numbers are in the message).
        RuntimeError: a GPU is asked for and there is none. ValueError: unknown device.

    """
    name = device if device is not None else default_device()
    name = f"cuda:{name}" if isinstance(name, int) else str(name)
    if name == "simulator" or (name.startswith("cuda") and simulator_on()):
        return host_memory(nbytes), True, []
    if name == "cpu":
        return host_memory(nbytes), False, []
    if not name.startswith("cuda"):
        raise ValueError(f"Arena: device got {name!r}, expected 'cuda', 'cuda:N' or 'cpu'")
    if not gpu_count():
        raise RuntimeError(
            "Arena: got device 'cuda', but the driver offers no GPU; use device='cpu'"
        )
    import cupy

    index = int(name.partition(":")[2] or cupy.cuda.Device().id)
    if index >= gpu_count():
        raise ValueError(
            f"Arena: device got {name!r}, the driver offers {gpu_count()}; give a smaller number"
        )
    with cupy.cuda.Device(index):
        if unmapped:
            memory, parts = reserve(nbytes, unmapped, index)
            return memory, False, parts
        free = cupy.cuda.runtime.memGetInfo()[0]
        if nbytes > free:
            raise PlanError(
                f"Arena: the plan needs {nbytes} bytes, device {index} has {free} free; "
                "plan a smaller model or free memory"
            )
        block = cupy.cuda.MemoryPointer(cupy.cuda.Memory(max(nbytes, 256)), 0)
        return cupy.ndarray(nbytes, cupy.uint8, memptr=block), False, [Range(0, nbytes)]


def host_memory(nbytes: int) -> np.ndarray:
    """Return zeroed host memory that starts on a multiple of 256 bytes."""
    try:
        raw = np.zeros(nbytes + 256, np.uint8)
    except (MemoryError, ValueError) as error:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        raise PlanError(
            f"Arena: the plan needs {nbytes} bytes, this machine has {total}; plan a smaller model"
        ) from error
    start = -raw.ctypes.data % 256
    return raw[start : start + nbytes]


def flat(buffer: Any) -> tuple[Any, str]:
    """Return ``buffer`` as a flat uint8 array over the same memory, and the framework it is of."""
    framework = "torch" if type(buffer).__module__.partition(".")[0] == "torch" else "cupy"
    if isinstance(buffer, np.ndarray):
        array: Any = buffer
    elif hasattr(buffer, "__cuda_array_interface__"):
        import cupy

        array = cupy.asarray(buffer)
    elif hasattr(buffer, "__dlpack__"):
        on_gpu = buffer.__dlpack_device__()[0] == 2
        array = sys.modules["cupy"].from_dlpack(buffer) if on_gpu else np.from_dlpack(buffer)
    else:
        raise TypeError(
            f"Arena.wrap: got {type(buffer).__name__}, expected a NumPy or CuPy array, a torch "
            "tensor, or an object with __cuda_array_interface__ or DLPack"
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"Arena.wrap: got strides {array.strides} for shape {array.shape}, expected "
            "contiguous memory; wrap a contiguous copy"
        )
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError("Arena.wrap: got a read-only array, expected one that ops may write")
    return array.reshape(-1).view("u1"), framework


def tensor_view(memory: Any, tensor: DTensor, start: int = 0) -> Any:
    """Return a tensor in its logical shape in a byte array that begins at the arena's ``start``."""
    first = tensor.offset - start
    full = memory[first : first + tensor.nbytes].view(NUMPY[tensor.dtype])
    full = full.reshape(tensor.padded_shape)
    return full if tensor.padded_shape == tensor.shape else full[..., : tensor.shape[-1]]


def write_kept(arena: Any, tensor: DTensor | str, values: Any) -> None:
    """Write what an arena keeps of a tensor, all but its unmapped, from the values of all of it.

    >>> from plan import MemoryPlan, PlanConfig
    >>> from rangeops import Arena
    >>> plan = MemoryPlan(PlanConfig("sgd"))
    >>> w = plan.parameter("w", "fc_weight", (2, 300)).weight
    >>> arena = Arena(plan.finalize(), device="cpu", unmapped=[Range(w.offset, 1024)])
    >>> write_kept(arena, "w", 3.0)
    >>> float(arena.view(Range(w.offset + 1024, 4), "f4")[0])
    3.0

    Args:
        arena: an arena, with unmapped or without.
        tensor: a tensor of its plan, or its name.
        values: NumPy array of the tensor's shape, or a scalar; bf16 as uint16 bits.

    """
    found = arena.tensor(tensor)
    whole = np.zeros(found.padded_shape, NUMPY[found.dtype])
    whole[..., : found.shape[-1]] = values
    raw = whole.reshape(-1).view("u1")
    for part in outside(arena.unmapped, Range(found.offset, found.nbytes)):
        first = part.base_offset - found.offset
        arena.write(part.base_offset, raw[first : first + part.size])
