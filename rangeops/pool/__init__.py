"""CachingPool: one pool of device memory for several libraries; CuPy's own is 4-9 times as fast.

For CuPy alone take CuPy's pool: it splits and joins blocks, so it holds less memory too (both
measured by ``python -m bench --only pool``; tables in the README).  This one pays against an
allocator that asks the driver every time (Numba's own, raw cudaMalloc), and where CuPy, Numba and
cuda.core are to share their memory.

    pool = CachingPool()
    use_in_cupy(pool)         cupy.cuda.set_allocator
    use_in_numba(pool)        the EMM plug-in; before the first context
    memory_resource(pool)     cuda.core

A released block goes to a list, never to the driver, and is taken from there.
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
