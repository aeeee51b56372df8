"""The caching pool as the allocator of CuPy, Numba and arenas, for a whole run of the tests."""

from __future__ import annotations

from plan import Range
from rangeops.device.cuda import CudaDevice
from rangeops.pool import CachingPool, use_in_cupy, use_in_numba


def use_the_pool() -> None:
    """Put the pool under all that allocates; before Numba's first context."""
    import cupy

    pool = CachingPool()
    use_in_numba(pool)
    use_in_cupy(pool)
    driver = CudaDevice.allocate

    def allocate(self, nbytes, unmapped=()):
        """Return memory of the pool, with whatever lies in it, where ``Arena`` asks a GPU."""
        if unmapped:
            return driver(self, nbytes, unmapped)
        with self.current():
            return cupy.empty(nbytes, cupy.uint8), [Range(0, nbytes)]

    CudaDevice.allocate = allocate
