"""buffer: a caller's memory as flat bytes, and typed views of an arena's bytes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from plan import DTensor, DType, PlanError, Range
from rangeops.device import adopt
from rangeops.device.base import Device

ELEMENTS = {
    dtype: np.dtype(dtype.numpy).str
    if np.dtype(dtype.numpy).name == dtype.full_name
    else dtype.full_name
    for dtype in DType
}
"""What ``Arena.element`` says of a buffer of a type: NumPy's short form, or a name where NumPy
lacks the type."""


def flat(buffer: Any, name: str | int | None = None) -> tuple[Device, Any, str, str | None]:
    """Return a buffer's device, its bytes as a flat uint8 array, its framework and its element.

    Args:
        buffer: whatever ``rangeops.device.adopt`` takes; nothing is copied.
        name: "simulator" to have the simulator play the GPU on host memory.

    Raises:
        TypeError: no such buffer, one with a mask or an indexing of its own, a tensor that
            requires grad, or Python objects.
        ValueError: not contiguous, or read-only.

    """
    torch = None
    if isinstance(buffer, np.ndarray):
        given = _plain(buffer)
    else:
        torch = _torch_base(type(buffer))
        given = buffer if torch is None else _torch_bytes(buffer, torch)
    try:
        device, array = adopt(given, name)
    except (BufferError, RuntimeError, ValueError) as error:
        raise TypeError(
            f"Arena.wrap: got {type(buffer).__name__} that gives no memory away ({error}), "
            "expected a plain array; convert it to one"
        ) from error
    if not array.flags.c_contiguous:
        raise _not_contiguous(array.strides, array.shape)
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError("Arena.wrap: got a read-only array, expected one that ops may write")
    memory = array.reshape(-1).view("u1")
    if torch is not None:
        return device, memory, "torch", _named(str(buffer.dtype).rpartition(".")[2])
    return device, memory, "cupy", _element(array.dtype)


def _plain(array: np.ndarray) -> np.ndarray:
    """Return an array as NumPy's own class, refusing what reads elements in another way."""
    plain = (np.ndarray.__getitem__, np.memmap.__getitem__)
    if type(array).__getitem__ not in plain:
        raise TypeError(
            f"Arena.wrap: got {type(array).__name__}, whose elements are not what lies in its "
            "memory, expected a plain array; give np.asarray(...) of it, or its .data and .mask "
            "apart"
        )
    if array.dtype.hasobject:
        raise TypeError(
            f"Arena.wrap: got an array of {array.dtype}, expected numbers; ops would write over "
            "Python's pointers, convert it"
        )
    return np.asarray(array)


def _torch_base(kind: type) -> Any:
    """Return torch's Tensor class where ``kind`` is one of its kind, else None."""
    for base in kind.__mro__:
        if base.__module__ == "torch" and base.__name__ == "Tensor":
            return base
    return None


def _torch_bytes(tensor: Any, base: Any) -> Any:
    """Return a torch tensor as its bytes, since others know neither bf16 nor autograd."""
    kind = type(tensor)
    own = [m for m in ("__getitem__", "__torch_dispatch__") if getattr(kind, m) != getattr(base, m)]
    if own or str(tensor.layout) != "torch.strided" or tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            f"Arena.wrap: got {kind.__name__}, whose elements are not what lies in its memory, "
            "expected a plain strided tensor; give one"
        )
    if tensor.requires_grad:
        raise TypeError(
            "Arena.wrap: got a tensor that requires grad, expected one outside autograd, which "
            "does not see what ops write; give tensor.detach()"
        )
    if not tensor.is_contiguous():
        raise _not_contiguous(tuple(tensor.stride()), tuple(tensor.shape))
    return tensor.reshape(-1).view(sys.modules["torch"].uint8)


def _not_contiguous(strides: tuple[int, ...], shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"Arena.wrap: got strides {strides} for shape {shape}, expected contiguous memory; wrap a "
        "contiguous copy"
    )


def _named(name: str) -> str | None:
    """Return the element of torch's type of that name."""
    if name in ELEMENTS.values():
        return name
    try:
        return _element(np.dtype(name))
    except TypeError:  # one that NumPy does not have
        return name


def _element(dtype: np.dtype[Any]) -> str | None:
    """Return a type as NumPy writes it in short, byte order and all; None for plain bytes."""
    if dtype == np.uint8:
        return None
    # A type that another library has given to NumPy is void to it, but for its name.
    return dtype.name if dtype.kind == "V" and dtype.name in ELEMENTS.values() else dtype.str


def check_inside(label: str, nbytes: int, span: Range, dtype: str = "u1") -> None:
    """Refuse bytes outside an arena of ``nbytes``, or of no whole elements.

    Raises:
        PlanError: they are.

    """
    if span.base_offset < 0 or span.size < 0 or span.end > nbytes:
        raise PlanError(
            f"{label} got bytes {span.base_offset} .. {span.end}, expected them inside "
            f"0 .. {nbytes}; give a range of this arena"
        )
    size = np.dtype(dtype).itemsize
    if span.size % size:
        raise PlanError(
            f"{label} got {span.size} bytes as {dtype}, expected a multiple of {size}; give whole "
            "elements"
        )


def tensor_view(memory: Any, tensor: DTensor, start: int = 0) -> Any:
    """Return a tensor in its logical shape in a byte array that begins at the arena's ``start``."""
    first = tensor.offset - start
    full = memory[first : first + tensor.nbytes].view(tensor.dtype.numpy)
    full = full.reshape(tensor.padded_shape)
    return full if tensor.padded_shape == tensor.shape else full[..., : tensor.shape[-1]]
