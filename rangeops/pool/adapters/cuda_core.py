"""The caching pool as a memory resource of cuda.core."""

from __future__ import annotations

from typing import Any

from rangeops.device.streams import handle_of
from rangeops.pool.caching import CachingPool
from rangeops.pool.free_lists import Block


class PoolBuffers:
    """What a memory resource has to say, for one pool and one device."""

    def __init__(self, pool: CachingPool, device_id: int) -> None:
        self._pool, self._device_id = pool, device_id
        self._live: dict[int, Block] = {}

    def allocate(self, size: int, *, stream: Any) -> Any:
        """Return a buffer of ``size`` bytes for ``stream``."""
        from cuda.core import Buffer

        block = self._pool.acquire(size, handle_of(stream))
        self._live[block.pointer] = block
        return Buffer.from_handle(block.pointer, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Release a buffer's block behind the work of ``stream``."""
        block = self._live.pop(int(ptr))
        block.used_on(handle_of(stream))
        self._pool.release(block)

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
        return self._device_id


def memory_resource(pool: CachingPool, device_id: int = 0) -> Any:
    """Return a ``cuda.core.MemoryResource`` over the pool, for one device.

    Its buffers are released on the stream that ``close`` names; if that is another one than the
    buffer's, the buffer's stream waits for it.
    """
    from cuda.core import MemoryResource

    class PoolMemoryResource(PoolBuffers, MemoryResource):  # type: ignore[misc]
        """Blocks of a CachingPool as buffers of cuda.core."""

    return PoolMemoryResource(pool, device_id)
