"""The caching pool as Numba's memory manager (its External Memory Management plug-in)."""

from __future__ import annotations

import ctypes

from numba import cuda

from rangeops.device.blocks import memory_info


def use(pool):
    """Give Numba's device arrays blocks of ``pool``; before the first context.

    Raises:
        RuntimeError: Numba has made a context with another manager.

    """

    class PoolMemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
        """Device memory from the pool; pinned and mapped host memory is Numba's own."""

        def initialize(self):
            """Return: the pool is ready."""

        def memalloc(self, size):
            """Return device memory for CuPy's current stream."""
            block = pool.acquire(size)

            def release():
                if not pool.forked:
                    pool.release(block)

            pointer = ctypes.c_void_p(block.pointer)
            return cuda.MemoryPointer(self.context, pointer, size, finalizer=release)

        def get_memory_info(self):
            """Return what the driver has; cached blocks count as used."""
            free, total = memory_info()
            return cuda.MemoryInfo(free=free, total=total)

        @property
        def interface_version(self):
            """The version of the plug-in's interface."""
            return 1

    cuda.set_memory_manager(PoolMemoryManager)
    manager = cuda.current_context().memory_manager
    if not isinstance(manager, PoolMemoryManager):
        raise RuntimeError(
            f"pool: Numba has a context with {type(manager).__name__}, expected none yet; call "
            "use_in_numba() before Numba's first use of the GPU"
        )
