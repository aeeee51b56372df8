"""Kernels and loops as plain Python, one thread at a time: slow, and built in no time.

``CPU`` is the vocabulary of loops, ``GPU`` that of kernels in which no thread waits for another.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from plan.scratch import GRANULE
from rangeops.kernels.half import format_of

LOOP_WORDS = (
    "at", "atomic_min", "bits_float", "float32", "float64", "float_bits", "int32", "int64",
    "local", "row4", "sqrt", "store4", "uint8", "uint16", "uint32",
)  # fmt: skip


def at(array, index):
    if index < 0:
        raise IndexError(f"element {index} lies before the range")
    return array[index:]


def atomic_min(array, index, value):
    array[index] = min(array[index], value)


def local(count, dtype):
    return np.full(count, 77, dtype)  # on a stack it holds anything


def float_bits(x):
    return np.float32(x).view(np.uint32)


def bits_float(u):
    return np.uint32(u).view(np.float32)


def half(dtype):
    return format_of(dtype).rules(CPU)


def lanes(array, i, left, count):
    if left < 1 or i < 0:
        raise IndexError(f"{left} elements at {i}")
    return tuple(array[i + min(k, left - 1)] for k in range(count))


def store(array, i, values, left):
    if i < 0:
        raise IndexError(f"element {i} lies before the range")
    for k in range(min(len(values), left)):
        array[i + k] = values[k]


def whole(move):
    """Return ``move`` for a loop, in which a vector has all of its four elements."""

    def moved(array, i, *lanes_and_left):
        if lanes_and_left[-1] != 4 or i % 4:
            raise IndexError(f"{lanes_and_left[-1]} elements at {i}")
        return move(array, i, *lanes_and_left)

    return moved


class Threads:
    """Which thread runs now."""

    now = 0


TYPES = {
    "float32": np.float32, "float64": np.float64, "int32": np.int32, "int64": int,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "sqrt": math.sqrt,
    "float_bits": float_bits, "bits_float": bits_float, "half": half,
    "device": lambda function: function, "atomic_min": atomic_min,
}  # fmt: skip


def load4(array, i, left):
    return lanes(array, i, left, 4)


def row4(array, i):
    return whole(load4)(array, i, 4)


CPU_WORDS = {"at": at, "local": local, "row4": row4, "store4": whole(store)}
CPU = SimpleNamespace(WORDS=LOOP_WORDS, **CPU_WORDS, **TYPES)

GPU_WORDS = {
    "thread": lambda: Threads.now,
    "load4": load4,
    "load8": lambda a, i, left: lanes(a, i, left, 8),
    "row4": row4,
    "store4": store,
    "store8": store,
}
GPU = SimpleNamespace(WORDS=(*GPU_WORDS, *(t for t in TYPES if t != "half")), **GPU_WORDS, **TYPES)


class PlainLaunch:
    """A launch on the CPU whose code is a plain function; ``rangeops.verify.check`` takes it."""

    def __init__(self, launch: Any, function: Any, kernel_threads: int = 0) -> None:
        self._launch, self._function, self._threads = launch, function, kernel_threads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launch, name)

    def __call__(self) -> None:
        arguments = [*self._launch.arrays(), *self._launch.integers]
        with np.errstate(all="ignore"):
            for start, stop in () if self._threads else self._shares():
                self._function(*arguments, start, stop)
            for thread in range(self._threads):
                Threads.now = thread
                self._function(*arguments)
        Threads.now = 0

    def _shares(self) -> list[tuple[int, int]]:
        """Return what two cores would get of the items, or the whole where one takes all."""
        kernel, count = self._launch.binding.op.kernel, self._launch.count
        cut = {"n": GRANULE, "chunks": 1}.get(kernel.count, count)
        cut = count if kernel.serial else min(cut, count)
        return [(0, cut), (cut, count)] if cut < count else [(0, count)]
