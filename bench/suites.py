"""What the pytest-benchmark suites share: their size, and calls that wait for their work."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from plan import MemoryPlan
from rangeops import Arena
from rangeops.device.streams import gpu_count

QUICK = os.environ.get("RANGEOPS_BENCH_QUICK") == "1"
"""Whether the suites run on small models, some seconds a suite on two cores."""

DEVICE = "cuda" if gpu_count() else "cpu"


def waiting(call: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that calls and waits for the device's work; on the CPU the call itself.

    So a GPU's time here has the launch and the wait in it; ``python -m bench`` takes time by
    events.
    """
    if DEVICE == "cpu":
        return call
    import cupy

    synchronize = cupy.cuda.Device().synchronize

    def called() -> None:
        call()
        synchronize()

    return called


@lru_cache(maxsize=1)
def arena_of(plan: MemoryPlan) -> Arena:
    """Return the arena of a plan, filled; the last one is kept, since tests come plan by plan."""
    from bench.topics import rates

    return rates.prepared(plan, DEVICE)
