"""The caching pool as CuPy's allocator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rangeops.pool.caching import CachingPool
from rangeops.pool.free_lists import Block


class Held:
    """A block that is released when nothing holds this object any more."""

    __slots__ = ("_block", "_pool")

    def __init__(self, pool: CachingPool, block: Block) -> None:
        self._pool, self._block = pool, block

    def __del__(self) -> None:
        """Release; not in a fork, where the memory does not exist, nor as Python ends."""
        if not (sys.is_finalizing() or self._pool.forked):
            self._pool.release(self._block)


def cupy_allocator(pool: CachingPool) -> Callable[[int], Any]:
    """Return the function that ``cupy.cuda.set_allocator`` and ``using_allocator`` take."""
    from cupy.cuda import MemoryPointer, UnownedMemory

    def allocate(nbytes: int) -> Any:
        block = pool.acquire(nbytes)
        held = Held(pool, block)
        return MemoryPointer(UnownedMemory(block.pointer, nbytes, held, block.device), 0)

    return allocate


def use_in_cupy(pool: CachingPool) -> None:
    """Make the pool CuPy's allocator on every device."""
    import cupy

    cupy.cuda.set_allocator(cupy_allocator(pool))
