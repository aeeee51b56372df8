"""CachingPool: device memory that is given back to a list, never to the driver, and taken from it.

    pool = CachingPool()
    use_in_cupy(pool)         cupy.cuda.set_allocator
    use_in_numba(pool)        the EMM plug-in; before the first context
    memory_resource(pool)     cuda.core

When it pays: against an allocator that asks the driver every time (Numba's own, raw cudaMalloc),
and where several libraries are to share one pool.  CuPy's own pool is four to nine times as
fast, splits and joins blocks, so it holds less memory (tables in the README), and is the better
choice for CuPy alone.
"""

from rangeops.pool.adapters import memory_resource, use_in_cupy, use_in_numba
from rangeops.pool.caching import CachingPool, Statistics
from rangeops.pool.driver import CudaDriver, Driver, OutOfMemory
from rangeops.pool.free_lists import Block
from rangeops.pool.size_classes import capacity_of, size_class

__all__ = [
    "Block",
    "CachingPool",
    "CudaDriver",
    "Driver",
    "OutOfMemory",
    "Statistics",
    "capacity_of",
    "memory_resource",
    "size_class",
    "use_in_cupy",
    "use_in_numba",
]
