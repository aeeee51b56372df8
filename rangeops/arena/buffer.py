"""buffer: a caller's memory as flat bytes, and typed views of an arena's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from plan import DTensor
from rangeops.device import adopt
from rangeops.device.base import Device


def flat(buffer: Any, name: str | int | None = None) -> tuple[Device, Any, str]:
    """Return a buffer's device, the buffer as a flat uint8 array, and the framework it is of.

    Args:
        buffer: whatever ``rangeops.device.adopt`` takes; nothing is copied.
        name: "simulator" to have the simulator play the GPU on host memory.

    Raises:
        TypeError: no such buffer. ValueError: not contiguous, or read-only.

    """
    framework = "torch" if type(buffer).__module__.partition(".")[0] == "torch" else "cupy"
    device, array = adopt(buffer, name)
    if not array.flags.c_contiguous:
        raise ValueError(
            f"Arena.wrap: got strides {array.strides} for shape {array.shape}, expected "
            "contiguous memory; wrap a contiguous copy"
        )
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError("Arena.wrap: got a read-only array, expected one that ops may write")
    return device, array.reshape(-1).view("u1"), framework


def tensor_view(memory: Any, tensor: DTensor, start: int = 0) -> Any:
    """Return a tensor in its logical shape in a byte array that begins at the arena's ``start``."""
    first = tensor.offset - start
    full = memory[first : first + tensor.nbytes].view(tensor.dtype.numpy)
    full = full.reshape(tensor.padded_shape)
    return full if tensor.padded_shape == tensor.shape else full[..., : tensor.shape[-1]]
