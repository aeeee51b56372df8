"""Staging: pinned buffers in a ring, and host values written into them as the plan's types.

A buffer is pinned once and held for good: CuPy's pinned pool would hand it out again while a copy
still reads it, and pinning by batch can cost more than the copy.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from plan import DTensor
from rangeops.arena.arena import Arena
from rangeops.device.base import Device, Event

THREADED = 1 << 22
"""Bytes from which several threads write a buffer: one alone fills it far slower than the link
copies it away."""

THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class Slot:
    """One pinned buffer, flat uint8, and the event of the last copy out of it."""

    memory: np.ndarray
    event: Event


class Ring:
    """``depth`` zeroed pinned buffers of ``nbytes`` for a device, used under ``lock``."""

    def __init__(self, device: Device, nbytes: int, depth: int) -> None:
        self._device = device
        self.nbytes, self.lock = nbytes, threading.Lock()
        with device.current():
            self._slots = [Slot(device.pinned(nbytes), device.event()) for _ in range(depth)]
        self._next = 0

    def take(self) -> Slot:
        """Return the next buffer, after the last copy out of it."""
        slot = self._slots[self._next % len(self._slots)]
        self._next += 1
        slot.event.synchronize()
        return slot

    def send(self, slot: Slot, ptr: int, nbytes: int, stream: int) -> None:
        """Copy a buffer's first bytes to device address ``ptr`` in order of ``stream``."""
        self._device.upload(ptr, slot.memory[:nbytes], stream, wait=False)
        slot.event.record(stream)


RING_BYTES = 8 << 20
RING_DEPTH = 3


def ring_of(arena: Arena, nbytes: int) -> Ring:
    """Return the arena's ring of buffers of ``nbytes``, made at its first use."""
    return arena.keep(("h2d ring", nbytes), lambda: Ring(arena.backend, nbytes, RING_DEPTH))


def shaped(tensor: DTensor, values: Any, what: str, fewer: bool = False) -> np.ndarray:
    """Return host values as an array of the tensor's shape and of a type that it takes.

    With ``fewer`` the first axis may be shorter.

    Raises:
        ValueError: another shape.
        TypeError: device memory, or a type of another kind (floats for integers, any but uint16
            for a bf16 tensor, whose bits are copied).

    """
    try:
        array = np.asarray(values)
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"{what} got {type(values).__name__}, expected host values that NumPy can read; "
            "assign device arrays by arena[...] = values"
        ) from error
    wanted = np.dtype(tensor.dtype.numpy)
    bits = tensor.dtype.is_floating and wanted.kind == "u"
    if array.dtype != wanted if bits else not np.can_cast(array.dtype, wanted, "same_kind"):
        text = f"{wanted} bits" if bits else tensor.dtype.label
        raise TypeError(f"{what} got {array.dtype}, expected {text}; convert it in the loader")
    shape = tensor.shape
    short = array.ndim == len(shape) and array.shape[1:] == shape[1:] and len(array) < shape[0]
    if array.shape != shape and not (fewer and short):
        remedy = "pad a batch of fewer samples" if short else "give it the planned shape"
        raise ValueError(f"{what} got shape {array.shape}, expected {shape}; {remedy}")
    return array


def write(view: np.ndarray, array: np.ndarray) -> None:
    """Copy an array into a view, by several threads where it is large."""
    if view.nbytes < THREADED or len(view) < THREADS or THREADS == 1:
        np.copyto(view, array, casting="same_kind")
        return
    cuts = [len(view) * k // THREADS for k in range(THREADS + 1)]
    parts = [slice(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    list(_threads().map(lambda p: np.copyto(view[p], array[p], casting="same_kind"), parts))


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="rangeops staging")


def pieces(tensor: DTensor, array: np.ndarray, nbytes: int) -> Iterator[tuple[int, int, Any]]:
    """Cut a tensor's values to pieces of at most ``nbytes`` as they lie in memory.

    Yields (byte offset in the tensor, bytes, function that writes the piece to host memory).
    """
    item = tensor.dtype.itemsize
    channels = padded = 1
    if tensor.padded_shape != tensor.shape:
        channels, padded = tensor.shape[-1], tensor.padded_shape[-1]
    rows = array.reshape(-1, channels)
    kind = tensor.dtype.numpy
    step = max(1, nbytes // (padded * item))
    for first in range(0, len(rows), step):
        piece = rows[first : first + step]

        def fill(memory: np.ndarray, piece: np.ndarray = piece) -> None:
            view = memory[: len(piece) * padded * item].view(kind).reshape(-1, padded)
            view[:, channels:] = 0
            write(view[:, :channels], piece)

        yield first * padded * item, len(piece) * padded * item, fill
