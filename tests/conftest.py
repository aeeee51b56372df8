"""Where kernels run in this process: on a GPU where there is one, else in Numba's simulator.

The simulator has to be switched on before numba is imported, so this file does it first.
``RANGEOPS_REQUIRE_GPU=1`` turns the absence of a GPU into a failure.  ``RANGEOPS_TEST_POOL=1``
makes the caching pool the allocator of CuPy, Numba and arenas: every result has to stay the same.
"""

from __future__ import annotations

import os

from rangeops.device.streams import gpu_count

HAVE_GPU = gpu_count() > 0
REQUIRE_GPU = os.environ.get("RANGEOPS_REQUIRE_GPU") == "1"
if not HAVE_GPU:
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np  # noqa: E402
import pytest  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to run without a GPU where one is required; put the pool under all that allocates."""
    if REQUIRE_GPU and not HAVE_GPU:
        raise pytest.UsageError("RANGEOPS_REQUIRE_GPU=1, but the driver offers no GPU")
    if HAVE_GPU and os.environ.get("RANGEOPS_TEST_POOL") == "1":
        from tests.pool.everywhere import use_the_pool

        use_the_pool()


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
