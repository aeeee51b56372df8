"""Allocators on the trace of a training step: the driver, this pool, CuPy's, cudaMallocAsync.

The trace is what GPT-2 124M allocates in bf16, layer by layer: activations that live until the
backward pass takes them, temporaries that go at once, gradients of activations.  "fixed" has the
same lengths in every step, "variable" draws one a step, after a warm-up with each.  Each thread
runs the trace on a stream of its own; with several devices threads go round them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bench import timing
from bench.rows import row
from rangeops.pool import CachingPool

THREADS = (1, 2, 4, 8)
LENGTHS = (256, 512, 768, 1024)
WARM, STEPS = len(LENGTHS), 20
BATCH, LAYERS, WIDTH, HEADS, VOCABULARY = 2, 12, 768, 12, 50257

Event = tuple[bool, int, int]
"""(take or give, number of the block, bytes)."""


def step_trace(length: int) -> list[Event]:
    """Return what one forward and backward pass takes and gives, in order.

    >>> events = step_trace(256)
    >>> sum(take for take, *_ in events) == sum(not take for take, *_ in events)
    True
    """
    token = 2 * BATCH * length
    events: list[Event] = []
    sizes: dict[int, int] = {}

    def take(nbytes: int) -> int:
        sizes[len(sizes)] = nbytes
        events.append((True, len(sizes) - 1, nbytes))
        return len(sizes) - 1

    def give(*blocks: int) -> None:
        events.extend((False, block, sizes[block]) for block in blocks)

    saved: list[list[int]] = []
    for _ in range(LAYERS):
        statistics = [take(4 * BATCH * length) for _ in range(4)]
        kept = [take(token * WIDTH * k) for k in (1, 3, 1, 1, 1, 4, 4, 1)]
        kept.append(take(4 * BATCH * HEADS * length))
        give(take(token * WIDTH), take(token * 3 * WIDTH))
        saved.append([*statistics, *kept])
    logits = take(token * VOCABULARY)
    gradient = take(token * VOCABULARY)
    flowing = take(token * WIDTH)
    give(logits, gradient)
    for kept in reversed(saved):
        for block in reversed(kept):
            after = take(sizes[block])
            give(after, block)
        fresh = take(token * WIDTH)
        give(flowing)
        flowing = fresh
    give(flowing)
    return events


def traces(variable: bool) -> list[list[Event]]:
    """Return the traces of all steps, warm-up first."""
    rng = np.random.default_rng(0)
    lengths = rng.choice(LENGTHS, WARM + STEPS) if variable else np.full(WARM + STEPS, 1024)
    if variable:
        lengths[:WARM] = LENGTHS
    return [step_trace(int(n)) for n in lengths]


def peak(events: list[Event]) -> int:
    """Return the most bytes that are live at once, as they were asked for."""
    live = most = 0
    for taking, _, nbytes in events:
        live += nbytes if taking else -nbytes
        most = max(most, live)
    return most


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
