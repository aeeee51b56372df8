"""The input path: the prefetching loop against copy-then-compute and torch's pinned loader.

A batch is 128 float32 images of 224 x 224 x 3; the compute is device copies that take about as
long as the batch's copy, so overlap shows as time.  The link's rate is a pinned copy's in this run.
Batches from pageable memory cost a copy by the host's cores, which bounds all but the pinned rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench import peers, timing
from bench.rows import row
from bench.topic import Topic
from plan import DType, MemoryPlan, PlanConfig
from rangeops import Arena
from rangeops.h2d import Prefetcher, h2d_copy

SHAPE = (128, 224, 224, 3)
BATCHES = 30


class _Compute:
    """Device copies of about ``seconds``, enqueued on a stream."""

    def __init__(self, seconds: float, stream: Any) -> None:
        import cupy

        self._block = cupy.zeros(1 << 29, cupy.uint8)
        self._stream, self._repeats = stream, 1
        taken = timing.gpu(self, stream)
        self._repeats = max(1, round(seconds / taken.seconds))
        self.seconds = timing.gpu(self, stream).seconds

    def __call__(self) -> None:
        half = self._block.size // 2
        with self._stream:
            for _ in range(self._repeats):
                self._block[:half] = self._block[half:]


def _loop(once: Callable[[], None]) -> timing.Timing:
    """Time a loop over BATCHES batches three times; seconds a batch."""
    once()
    samples = []
    for _ in range(3):
        start = time.perf_counter()
        once()
        samples.append((time.perf_counter() - start) / BATCHES)
    return timing.summary(samples)


def _link(nbytes: int, stream: Any) -> timing.Timing:
    """Time one pinned copy of a batch's bytes."""
    import cupy

    pinned = cupy.cuda.alloc_pinned_memory(nbytes)
    target = cupy.empty(nbytes, cupy.uint8)
    copy = cupy.cuda.runtime.memcpyAsync
    return timing.gpu(
        lambda: copy(target.data.ptr, pinned.ptr, nbytes, 1, stream.ptr), stream, repeats=15
    )


def _torch_loader(batches: Any, compute: Callable[[], None], stream: Any) -> Callable[[], None]:
    """Return torch's way: DataLoader with pin_memory, copies with non_blocking=True."""
    import torch

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc]
        """The same batches."""

        def __iter__(self) -> Any:
            return iter(batches())

    loader = torch.utils.data.DataLoader(Batches(), batch_size=None, pin_memory=True)
    outside = torch.cuda.ExternalStream(stream.ptr)

    def once() -> None:
        with torch.cuda.stream(outside):
            for data, label in loader:
                data.cuda(non_blocking=True), label.cuda(non_blocking=True)
                compute()
        stream.synchronize()

    return once


def input_paths() -> Iterator[dict[str, Any]]:
    """Time the ways of feeding a step; the loader hands out batches that lie in host memory."""
    import cupy

    plan = MemoryPlan(PlanConfig("none"))
    plan.alloc_inputs(SHAPE[0], SHAPE, DType.FP32)
    arena = Arena(plan.finalize())
    rng = np.random.default_rng(0)
    kept = [rng.random(SHAPE, np.float32) for _ in range(4)]
    labels = rng.integers(0, 1000, SHAPE[0])
    nbytes = kept[0].nbytes
    stream = cupy.cuda.Stream(non_blocking=True)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for k in range(BATCHES):
            yield kept[k % len(kept)], labels

    link = _link(nbytes, stream)
    compute = _Compute(link.seconds, stream)
    case = f"{nbytes / 1e6:.0f} MB a batch, compute {1e3 * compute.seconds:.2f} ms"

    def line(subject: str, taken: timing.Timing, **more: Any) -> dict[str, Any]:
        rate = nbytes / taken.seconds
        share = round(rate * link.seconds / nbytes, 4)
        return row("input", case, subject, taken, nbytes, share_of_link=share, **more)

    yield line("one pinned copy (the link)", link)
    prefetcher = Prefetcher(arena, _Again(batches))
    ready = [(_pinned(data), _pinned(labels.astype(np.int32))) for data in kept]
    direct = Prefetcher(arena, _Again(lambda: (ready[k % 4] for k in range(BATCHES))), pinned=True)

    def fed_by(found: Prefetcher, work: Callable[[], None]) -> Callable[[], None]:
        def once() -> None:
            with stream:
                for _ in found:
                    work()
            stream.synchronize()

        return once

    def in_turn() -> None:
        with stream:
            for batch in batches():
                h2d_copy(arena, "a", batch)
                compute()
                stream.synchronize()

    def naive() -> None:
        with stream:
            for data, label in batches():
                arena["input_a.data"], arena["input_a.label"] = data, label
                compute()
                stream.synchronize()

    mine = _loop(fed_by(prefetcher, compute))
    yield line("rangeops Prefetcher", mine, ratio=1.0)
    others = [
        ("rangeops Prefetcher, no compute", fed_by(prefetcher, lambda: None)),
        ("rangeops Prefetcher, pinned batches", fed_by(direct, compute)),
        ("rangeops Prefetcher, pinned batches, no compute", fed_by(direct, lambda: None)),
        ("h2d_copy, compute, wait", in_turn),
        ("pageable copy, compute, wait", naive),
    ]
    if peers.have_torch():
        others.append(
            ("torch DataLoader, pinned, non_blocking", _torch_loader(batches, compute, stream))
        )
    for subject, once in others:
        taken = _loop(once)
        yield line(subject, taken, ratio=round(taken.seconds / mine.seconds, 2))


def _pinned(array: np.ndarray) -> np.ndarray:
    """Return a copy in pinned memory."""
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(array.nbytes)
    out = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    out[...] = array
    return out


class _Again:
    """A loader that begins anew with every loop."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches()


TOPIC = Topic(
    "input",
    lambda quick: input_paths(),
    {
        "input": (
            "Feeding a step from the host (ms a batch)",
            {
                "case": "batch",
                "subject": "loop",
                "ms": "ms",
                "spread": "spread",
                "gb_per_s": "GB/s",
                "share_of_link": "share of the link",
                "ratio": "time / ours",
            },
        )
    },
    in_quick=False,
)
