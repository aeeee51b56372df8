"""A CachingPool as the allocator of CuPy, of Numba and of cuda.core, one file each.

All take blocks for CuPy's current stream (cuda.core for the stream it is given).  Work of another
stream on such an array has to be finished, or ordered before its release, as with CuPy's own pool;
with Numba, run under ``cupy.cuda.Stream.from_external`` of the stream that the kernels run on.
"""

from rangeops.device.simulator import simulator_on
from rangeops.pool.adapters.cuda_core import memory_resource
from rangeops.pool.adapters.cupy import cupy_allocator, use_in_cupy
from rangeops.pool.caching import CachingPool

__all__ = ["cupy_allocator", "memory_resource", "use_in_cupy", "use_in_numba"]


def use_in_numba(pool: CachingPool) -> None:
    """Make the pool Numba's allocator of device arrays; before Numba's first context.

    Raises:
        RuntimeError: the simulator plays the GPU, or Numba has a memory manager already.

    """
    if simulator_on():
        raise RuntimeError(
            "pool: got Numba's simulator, which has no memory managers, expected a GPU; "
            "unset NUMBA_ENABLE_CUDASIM"
        )
    from rangeops.pool.adapters import numba

    numba.use(pool)
