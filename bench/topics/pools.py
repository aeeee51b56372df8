"""Allocators on the trace of a training step: the driver, this pool, CuPy's, cudaMallocAsync.

Each thread runs the trace (``bench.traces``) on a stream of its own; with several devices threads
go round them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench import timing
from bench.rows import row
from bench.topic import Topic
from bench.traces import STEPS, WARM, Event, peak, traces
from rangeops.pool import CachingPool

THREADS = (1, 2, 4, 8)


class Allocator:
    """One allocator: take and give, its calls to the driver so far, and bytes it has reserved.

    Attributes:
        name: what it is called in the table.
        steps: steps to time behind the warm-up.

    """

    name = ""
    steps = STEPS

    def take(self, nbytes: int) -> Any:
        """Return a block."""
        raise NotImplementedError

    def give(self, block: Any) -> None:
        """Give a block back."""

    def calls(self) -> int:
        """Return the calls to the driver."""
        raise NotImplementedError

    def reserved(self) -> int | None:
        """Return the most bytes it ever had from the driver, None where nobody tells."""
        return None


class Raw(Allocator):
    """CudaMalloc and cudaFree every time."""

    name = "cudaMalloc, cudaFree"
    steps = STEPS // 4  # up to 0.8 s each

    def __init__(self) -> None:
        from cupy.cuda import runtime

        self._runtime, self._calls = runtime, 0

    def take(self, nbytes: int) -> Any:
        """Ask the driver."""
        self._calls += 1
        return self._runtime.malloc(nbytes)

    def give(self, block: Any) -> None:
        """Free; the driver waits for the device."""
        self._calls += 1
        self._runtime.free(block)

    def calls(self) -> int:
        """Return all calls."""
        return self._calls


class Async(Allocator):
    """CudaMallocAsync with the release threshold set, else every synchronization gives back."""

    name = "cudaMallocAsync"

    def __init__(self) -> None:
        import cupy
        from cupy.cuda import runtime

        self._runtime, self._stream, self._calls = runtime, cupy.cuda.get_current_stream, 0
        runtime.deviceSynchronize()
        self._pools = []
        for device in range(runtime.getDeviceCount()):
            pool = runtime.deviceGetDefaultMemPool(device)
            runtime.memPoolTrimTo(pool, 0)
            runtime.memPoolSetAttribute(pool, runtime.cudaMemPoolAttrReleaseThreshold, 2**63 - 1)
            runtime.memPoolSetAttribute(pool, runtime.cudaMemPoolAttrReservedMemHigh, 0)
            self._pools.append(pool)

    def take(self, nbytes: int) -> Any:
        """Ask the driver's pool."""
        self._calls += 1
        return self._runtime.mallocAsync(nbytes, self._stream().ptr)

    def give(self, block: Any) -> None:
        """Give it back in stream order."""
        self._calls += 1
        self._runtime.freeAsync(block, self._stream().ptr)

    def calls(self) -> int:
        """Return all calls: each is one of the driver's."""
        return self._calls

    def reserved(self) -> int | None:
        """Return the driver's high-water mark over all devices."""
        what = self._runtime.cudaMemPoolAttrReservedMemHigh
        return sum(self._runtime.memPoolGetAttribute(pool, what) for pool in self._pools)


class CuPy(Allocator):
    """CuPy's own pool."""

    name = "CuPy's pool"

    def __init__(self) -> None:
        import cupy

        self._calls, self._reserved = 0, 0

        def counted(nbytes: int) -> Any:
            self._calls += 1
            self._reserved += nbytes
            return cupy.cuda.memory._malloc(nbytes)

        self._pool = cupy.cuda.MemoryPool(counted)

    def take(self, nbytes: int) -> Any:
        """Return a memory pointer; dropping it gives it back."""
        return self._pool.malloc(nbytes)

    def calls(self) -> int:
        """Return the calls that reached the driver."""
        return self._calls

    def reserved(self) -> int | None:
        """Return what it took; it gives nothing back here."""
        return self._reserved


class Ours(Allocator):
    """The caching pool."""

    name = "rangeops CachingPool"

    def __init__(self) -> None:
        self.pool = CachingPool()
        self.take, self.give = self.pool.acquire, self.pool.release  # type: ignore[method-assign]

    def calls(self) -> int:
        """Return the misses."""
        return sum(found.misses for found in self.pool.statistics().values())

    def reserved(self) -> int | None:
        """Return the most it had, over all devices."""
        return sum(found.peak_reserved_bytes for found in self.pool.statistics().values())


def run_step(allocator: Allocator, events: list[Event]) -> None:
    """Take and give as the trace says."""
    take, give, held = allocator.take, allocator.give, {}
    for taking, number, nbytes in events:
        if taking:
            held[number] = take(nbytes)
        else:
            give(held.pop(number))


def run(
    allocator: Allocator, steps: list[list[Event]], threads: int, devices: int
) -> tuple[list[float], int]:
    """Run all steps in every thread; return seconds a step, and driver calls after the warm-up."""
    from cupy.cuda import Device, Stream

    warm, seconds = threading.Barrier(threads + 1), [0.0] * threads
    go = threading.Barrier(threads + 1)
    timed = steps[WARM : WARM + allocator.steps]

    def work(number: int) -> None:
        with Device(number % devices), Stream(non_blocking=True) as stream:
            for events in steps[:WARM]:
                run_step(allocator, events)
            warm.wait(60)
            go.wait(60)
            start = time.perf_counter()
            for events in timed:
                run_step(allocator, events)
            seconds[number] = (time.perf_counter() - start) / len(timed)
            stream.synchronize()

    with ThreadPoolExecutor(threads) as pool:
        done = [pool.submit(work, number) for number in range(threads)]
        warm.wait(60)
        before = allocator.calls()
        go.wait(60)
        for one in done:
            one.result()
    return seconds, allocator.calls() - before


def allocators() -> Iterator[dict[str, Any]]:
    """Time every allocator on both traces, for each number of threads and of devices."""
    from cupy.cuda import runtime

    kinds: tuple[Callable[[], Allocator], ...] = (Ours, CuPy, Async, Raw)
    for variable in (False, True):
        steps = traces(variable)
        pairs = sum(len(events) for events in steps[WARM:]) / 2 / STEPS
        for devices in range(1, 1 + min(2, runtime.getDeviceCount())):
            for threads in THREADS:
                if threads < devices:
                    continue
                yield from _case(kinds, steps, variable, threads, devices, pairs)


def _case(
    kinds: tuple[Callable[[], Allocator], ...],
    steps: list[list[Event]],
    variable: bool,
    threads: int,
    devices: int,
    pairs: float,
) -> Iterator[dict[str, Any]]:
    case = f"{'variable' if variable else 'fixed'}, {threads} threads, {devices} GPU"
    live = threads * max(map(peak, steps))
    mine = None
    for kind in kinds:
        allocator = kind()
        seconds, calls = run(allocator, steps, threads, devices)
        taken = timing.summary(seconds)
        slowest = max(seconds)
        mine = mine or slowest
        reserved = allocator.reserved()
        yield row(
            "pool",
            case,
            allocator.name,
            taken,
            pairs_per_s=round(threads * pairs / slowest),
            driver_calls=calls,
            reserved_over_live=round(reserved / live, 2) if reserved else None,
            ratio=round(slowest / mine, 2),
        )
        if isinstance(allocator, Ours):
            allocator.pool.trim()
        del allocator


TOPIC = Topic(
    "pool",
    lambda quick: allocators(),
    {
        "pool": (
            "Allocators on the trace of a training step (GPT-2 124M, bf16, ms a step of one "
            "thread; peak live is the sum of the threads' peaks, which need not fall together)",
            {
                "case": "trace",
                "subject": "allocator",
                "ms": "ms",
                "pairs_per_s": "take+give / s",
                "ratio": "time / ours",
                "driver_calls": "driver calls after warm-up",
                "reserved_over_live": "reserved / peak live",
            },
        )
    },
    in_quick=False,
)
