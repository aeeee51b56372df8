"""Where kernels run in this process: on a GPU where there is one, else in Numba's simulator.

The simulator has to be switched on before numba is imported, so this file does it first.
``RANGEOPS_REQUIRE_GPU=1`` turns the absence of a GPU into a failure.  ``RANGEOPS_TEST_POOL=1``
makes the caching pool the allocator of CuPy, Numba and arenas: every result has to stay the same.
"""

from __future__ import annotations

import os
import socket

from rangeops.stream import gpu_count

HAVE_GPU = gpu_count() > 0
REQUIRE_GPU = os.environ.get("RANGEOPS_REQUIRE_GPU") == "1"
if not HAVE_GPU:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np  # noqa: E402
import pytest  # noqa: E402

from plan import MemoryPlan, PlanConfig, Range  # noqa: E402
from rangeops import Arena, arena  # noqa: E402

if HAVE_GPU and os.environ.get("RANGEOPS_TEST_POOL") == "1":
    import cupy

    from rangeops.pool import CachingPool, use_in_cupy, use_in_numba

    POOL = CachingPool()
    use_in_numba(POOL)
    use_in_cupy(POOL)
    outside = arena.allocate

    def inside(nbytes, device, holes=()):
        """Return memory of the pool, with whatever lies in it, where ``Arena`` asks for a GPU's."""
        memory, simulated, _ = outside(0, device)
        if isinstance(memory, np.ndarray) or holes:
            return outside(nbytes, device, holes)
        with memory.device:
            return cupy.empty(nbytes, cupy.uint8), simulated, [Range(0, nbytes)]

    arena.allocate = inside


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without a GPU where one is required."""
    if REQUIRE_GPU and not HAVE_GPU:
        raise pytest.UsageError("RANGEOPS_REQUIRE_GPU=1, but the driver offers no GPU")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that several processes end together; skip GPU tests."""
    items.sort(key=lambda item: "every_architecture" not in item.nodeid)
    if HAVE_GPU:
        return
    skip = pytest.mark.skip(reason="needs a GPU: the driver offers none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(params=["cuda", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each place where ops run: the kernels ("cuda", a GPU or the simulator) and the CPU loops."""
    return str(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a generator with a fixed seed, fresh for every test."""
    return np.random.default_rng(20)


SHAPES = (
    ("norm.bias", "bn_bias", (5,)),
    ("norm.weight", "bn_weight", (129,)),
    ("fc.bias", "fc_bias", (128,)),
    ("fc.weight", "fc_weight", (3, 100)),
    ("empty.weight", "fc_weight", (0,)),
    ("one.weight", "fc_weight", (1,)),
    ("conv1.weight", "first_conv", (4, 3, 3, 3)),
    ("conv2.weight", "deep_conv", (127,)),
)
"""A small model with every kind of parameter and awkward sizes."""


def small_plan(optimizer: str = "adamw", **options: object) -> MemoryPlan:
    """Return the finalized plan of SHAPES."""
    plan = MemoryPlan(PlanConfig(optimizer, **options))  # type: ignore[arg-type]
    for name, kind, shape in SHAPES:
        plan.parameter(name, kind, shape)
    return plan.finalize()


def host_bytes(arena: Arena) -> np.ndarray:
    """Return a host copy of every byte of an arena."""
    return np.asarray(arena.memory.get()) if arena.on_gpu else arena.memory.copy()


def raw_arena(nbytes: int, device: str, fill: int = 0) -> Arena:
    """Return an arena without a plan over fresh memory filled with one byte."""
    if device == "cuda" and HAVE_GPU:
        import cupy

        return Arena.wrap(cupy.full(nbytes, fill, cupy.uint8))
    memory = np.full(nbytes + 256, fill, np.uint8)
    start = -memory.ctypes.data % 256
    return Arena.wrap(
        memory[start : start + nbytes], device="simulator" if device == "cuda" else None
    )


def put(arena: Arena, offset: int, values: np.ndarray) -> None:
    """Write host values into an arena at a byte offset."""
    arena.write(offset, np.ascontiguousarray(values))


def get(arena: Arena, offset: int, count: int, dtype: str = "f4") -> np.ndarray:
    """Read host values from an arena at a byte offset."""
    return arena.read(Range(offset, count * np.dtype(dtype).itemsize), dtype)


def free_port() -> int:
    """Return a port of this host that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
