"""launchers: from a Binding to ``launch(stream)``: the grid rule, the code, the arguments laid out.

One function for each kind of device; whatever a call does not need is done when it is bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plan.scratch import CHUNK_GRANULES, GRANULE
from rangeops.device import host_loops
from rangeops.kernels import build
from rangeops.launch.binding import Binding

THREADS = 128
"""Threads a block; with one vector a thread and no grid-stride loop the fastest on H200."""

WARP = 32
"""Threads a warp: a chunk, a fold or a total is the work of one."""

SIMULATED_THREADS = 32
"""Threads a block in the simulator, where every thread is a Python thread."""

MAX_BLOCKS = 2**31 - 1

Launch = Callable[[int], None]
"""``launch(stream)`` with a raw handle."""


def grid(count: int, per_thread: int, threads: int = THREADS) -> int:
    """Return the number of blocks for ``count`` elements, plain ints of any size.

    >>> grid(2**33, 4)
    16777216

    Raises:
        ValueError: more blocks than a grid can have.

    """
    blocks = -(-count // (per_thread * threads))
    if blocks > MAX_BLOCKS:
        raise ValueError(
            f"grid: {count} elements need {blocks} blocks, expected at most {MAX_BLOCKS}; "
            "split the range"
        )
    return blocks


def threads_of(binding: Binding) -> int:
    """Return how many threads have work, before the grid is rounded up to whole blocks."""
    count = binding.op.kernel.count
    return binding.sizes[count] * (WARP if count in binding.sums else 1)


def variant(binding: Binding) -> build.Flags:
    """Return the flags of a binding as the key of its kernel's variant."""
    return tuple(sorted(binding.flags.items()))


def compiled(binding: Binding) -> Launch:
    """Return the launch of a kernel compiled for a GPU; its arguments are laid out now."""
    kernel = binding.op.kernel
    device: Any = binding.arena.backend  # rangeops.device.base.Compiled
    return device.launcher(
        build.gpu_kernel(kernel, variant(binding), device),
        max(1, grid(threads_of(binding), kernel.per_thread, THREADS)),
        THREADS,
        [place.ptr for place in binding.arguments],
        binding.integers,
        kernel.name,
    )


def simulated(binding: Binding) -> Launch:
    """Return the run of the same kernel in Numba's simulator, which has no streams."""
    kernel = binding.op.kernel
    function = build.simulated_kernel(kernel, variant(binding))
    # Kernels may count on groups of THREADS threads, so as many threads run as on a GPU.
    blocks = grid(threads_of(binding), kernel.per_thread, THREADS) * (THREADS // SIMULATED_THREADS)

    def launch(stream: int) -> None:
        from rangeops.kernels import cuda

        arrays = [place.view() for place in binding.arguments]
        cuda.simulate(function, blocks, SIMULATED_THREADS, arrays, binding.integers)

    return launch


def looped(binding: Binding) -> Launch:
    """Return the run of the compiled loop on all cores; the call returns when they are done."""
    kernel = binding.op.kernel
    count = binding.sizes[kernel.count]
    unit, elements = 0, count
    if not kernel.serial and kernel.count == "n":
        unit = GRANULE
    elif not kernel.serial and kernel.count == "chunks":
        unit, elements = 1, count * CHUNK_GRANULES * GRANULE
    return host_loops.launcher(
        build.cpu_loop(kernel, variant(binding)),
        [*(place.ptr for place in binding.arguments), *binding.integers],
        count,
        unit,
        elements,
    )


FORMS: dict[str, Callable[[Binding], Launch]] = {"simulator": simulated, "cpu": looped}
"""Which form of a kernel runs on a kind of device; on every other the compiled one."""


def launcher_of(binding: Binding) -> Launch:
    """Return what launches a binding on its arena's device, compiled if it has to be."""
    return FORMS.get(binding.arena.backend.kind, compiled)(binding)
