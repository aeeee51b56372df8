"""How time is taken: GPU kernels by events with the host hidden, host calls apart, CPU by clock.

Medians with the spread (interquartile range over the median) of one run; ratios within a run are
what counts, absolute times drift from machine to machine.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from rangeops.device.streams import gpu_count


@dataclass(frozen=True)
class Timing:
    """Median seconds of one call, and the interquartile range over the median."""

    seconds: float
    spread: float

    @property
    def ms(self) -> float:
        """Milliseconds."""
        return 1e3 * self.seconds


def summary(samples: list[float]) -> Timing:
    """Return the median and relative interquartile range of ``samples`` in seconds."""
    middle = statistics.median(samples)
    if len(samples) < 4:
        return Timing(middle, (max(samples) - min(samples)) / middle if middle else 0.0)
    q1, _, q3 = statistics.quantiles(samples, n=4)
    return Timing(middle, (q3 - q1) / middle if middle else 0.0)


def cpu(f: Callable[[], Any], budget: float = 1.0, most: int = 50) -> Timing:
    """Time a host function: one warm-up, then calls for ``budget`` seconds, at least three."""
    f()
    samples: list[float] = []
    end = time.perf_counter() + budget
    while len(samples) < 3 or (time.perf_counter() < end and len(samples) < most):
        start = time.perf_counter()
        f()
        samples.append(time.perf_counter() - start)
    return summary(samples)


@cache
def _backlog() -> Any:
    import cupy

    return cupy.zeros(1 << 31, cupy.uint8)


def gpu(f: Callable[[], Any], stream: Any, repeats: int = 25) -> Timing:
    """Time GPU work by events on a CuPy stream, the host's launches hidden behind a long copy.

    ``f`` enqueues the work on ``stream``; two calls warm up.  A copy of some milliseconds is
    enqueued first, so that the queue is never empty while the events are recorded.
    """
    import cupy

    block = _backlog()
    half = block.size // 2
    for _ in range(2):
        f()
    stream.synchronize()
    events = [cupy.cuda.Event() for _ in range(repeats + 1)]
    with stream:
        for _ in range(4):
            cupy.copyto(block[:half], block[half:])
        f()
        for event in events[:-1]:
            event.record(stream)
            f()
        events[-1].record(stream)
    stream.synchronize()
    pairs = zip(events, events[1:], strict=False)
    return summary([cupy.cuda.get_elapsed_time(a, b) / 1e3 for a, b in pairs])


def copy_rate(nbytes: int, stream: Any) -> float:
    """Return bytes a second (read and written) of a device copy that moves ``nbytes``."""
    import cupy

    block = cupy.empty(nbytes, cupy.uint8)
    cupy.random.default_rng(0).random(nbytes // 8, out=block[: nbytes // 8 * 8].view(cupy.float64))
    half = nbytes // 2
    with stream:
        taken = gpu(lambda: cupy.copyto(block[:half], block[half : 2 * half]), stream)
    return 2 * half / taken.seconds


def torch_gpu(f: Callable[[], Any], repeats: int = 20) -> Timing:
    """Time GPU work by events on torch's current stream, the host hidden behind a long kernel."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    for event in events[:-1]:
        event.record()
        f()
    events[-1].record()
    torch.cuda.synchronize()
    pairs = zip(events, events[1:], strict=False)
    return summary([a.elapsed_time(b) / 1e3 for a, b in pairs])


def once(f: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def rounds(fs: dict[str, Callable[[], Any]], budget: float, count: int = 5) -> dict[str, Rounds]:
    """Time host functions in rounds, each in turn in every round; ``budget`` seconds for each."""
    for f in fs.values():
        f()
    samples: dict[str, list[list[float]]] = {name: [] for name in fs}
    for _ in range(count):
        for name, f in fs.items():
            end, batch = time.perf_counter() + budget / count, [once(f)]
            while time.perf_counter() < end:
                batch.append(once(f))
            samples[name].append(batch)
    return {name: Rounds(batches) for name, batches in samples.items()}


class Rounds:
    """The samples of one function, by round."""

    def __init__(self, batches: list[list[float]]) -> None:
        medians = [statistics.median(batch) for batch in batches]
        self.timing = summary([sample for batch in batches for sample in batch])
        self.quiet = min(min(batch) for batch in batches)
        self.steady = max(medians) - min(medians) <= STEADY * statistics.median(medians)


STEADY = 0.2
"""The share by which the rounds of one function may disagree for a ratio to be of use."""


def steady(f: Callable[[], Any], synchronize: Callable[[], Any], budget: float = 0.5) -> Timing:
    """Time calls as a loop meets them: many in a row, one synchronization, seconds a call."""
    return in_turn([f], synchronize, budget)[0]


def in_turn(
    fs: list[Callable[[], Any]], synchronize: Callable[[], Any], budget: float = 0.5
) -> list[Timing]:
    """Time several as ``steady`` does, their batches in turn: a host's moods touch all alike."""
    counts = []
    for f in fs:
        for _ in range(3):
            f()
        synchronize()
        start = time.perf_counter()
        f()
        synchronize()
        once = time.perf_counter() - start
        counts.append(max(3, min(200, int(budget / 5 / max(once, 1e-6)))))
    samples: list[list[float]] = [[] for _ in fs]
    for _ in range(5):
        for f, count, found in zip(fs, counts, samples, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                f()
            synchronize()
            found.append((time.perf_counter() - start) / count)
    return [summary(found) for found in samples]


def host(f: Callable[[], Any], synchronize: Callable[[], Any], calls: int = 500) -> Timing:
    """Time what a call costs the host: batches of calls on an idle queue, no waiting inside."""
    for _ in range(20):
        f()
    samples = []
    for _ in range(7):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            f()
        samples.append((time.perf_counter() - start) / calls)
    synchronize()
    return summary(samples)


def release() -> None:
    """Give the memory that a measurement leaves in the caches of CuPy and torch to the next."""
    gc.collect()
    if gpu_count():
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()
