"""A CachingPool as the allocator of CuPy, of Numba and of cuda.core.

All take blocks for CuPy's current stream (cuda.core for the stream it is given).  Work of another
stream on such an array has to be finished, or ordered before its release, as with CuPy's own pool;
with Numba, run under ``cupy.cuda.Stream.from_external`` of the stream that the kernels run on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rangeops.device.streams import handle_of
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


def use_in_numba(pool: CachingPool) -> None:
    """Make the pool Numba's allocator of device arrays; before Numba's first context.

    Raises:
        RuntimeError: the simulator plays the GPU, or Numba has a memory manager already.

    """
    from rangeops.arena.buffer import simulator_on

    if simulator_on():
        raise RuntimeError(
            "pool: got Numba's simulator, which has no memory managers, expected a GPU; "
            "unset NUMBA_ENABLE_CUDASIM"
        )
    from rangeops.pool.adapters import numba

    numba.use(pool)


def memory_resource(pool: CachingPool, device_id: int = 0) -> Any:
    """Return a ``cuda.core.MemoryResource`` over the pool, for one device.

    Its buffers are released on the stream that ``close`` names; if that is another one than the
    buffer's, the buffer's stream waits for it.
    """
    from cuda.core import Buffer, MemoryResource

    class PoolMemoryResource(MemoryResource):  # type: ignore[misc]
        """Blocks of a CachingPool as buffers of cuda.core."""

        def __init__(self) -> None:
            self._live: dict[int, Block] = {}

        def allocate(self, size: int, *, stream: Any) -> Any:
            """Return a buffer of ``size`` bytes for ``stream``."""
            block = pool.acquire(size, handle_of(stream))
            self._live[block.pointer] = block
            return Buffer.from_handle(block.pointer, size, mr=self, stream=stream)

        def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
            """Release a buffer's block behind the work of ``stream``."""
            block = self._live.pop(int(ptr))
            block.used_on(handle_of(stream))
            pool.release(block)

        @property
        def is_device_accessible(self) -> bool:
            """Kernels may read and write it."""
            return True

        @property
        def is_host_accessible(self) -> bool:
            """The host may not."""
            return False

        @property
        def is_managed(self) -> bool:
            """It does not migrate."""
            return False

        @property
        def device_id(self) -> int:
            """The device of its buffers."""
            return device_id

    return PoolMemoryResource()
