"""What a launch costs the host, and what the first step costs a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import timing
from bench.peers import hyper
from bench.rows import row
from bench.topic import Topic
from plan import PlanConfig
from plan.models import mlp, plan_model
from rangeops import Arena, OptimizerStep, ops
from rangeops.device import cuda_kernels
from rangeops.device.streams import gpu_count

ROOT = Path(__file__).parent.parent.parent

FIRST_USE = """
import sys, time
start = time.perf_counter()
from plan import PlanConfig
from plan.models import mlp, plan_model
from rangeops import Arena, ops
imported = time.perf_counter()
arena = Arena(plan_model(mlp(), PlanConfig("adamw")), device=sys.argv[1])
ready = time.perf_counter()
ops.begin_step(arena)
ops.adamw(arena)
arena.download("layers.0.weight")
print(imported - start, ready - imported, time.perf_counter() - ready)
"""


def bound(arena: Arena, packed: bool) -> Any:
    """Return AdamW bound to launch by packed ``cuLaunchKernel``, or by ``cuda.core.launch``."""
    before = cuda_kernels.PACKED
    cuda_kernels.PACKED = packed
    try:
        return ops.adamw.bind(arena)
    finally:
        cuda_kernels.PACKED = before


def numba_launches(handle: int) -> dict[str, Callable[[], Any]]:
    """Return numba's own launch of a kernel with as many arguments, on a stream."""
    from numba import cuda

    @cuda.jit
    def peer(p, g, m, v, e, h, a, s, c, k, x, y, n):
        i = cuda.grid(1)  # type: ignore[attr-defined]
        if i < n:
            p[i] = g[i]

    own = [cuda.device_array(8, "f4") for _ in range(10)]
    queue = cuda.external_stream(handle)
    configured = peer[1, 128, queue]
    return {
        "numba launch, configured once": lambda: configured(*own, 0, 0, 8),
        "numba launch, kernel[grid, block, stream]": lambda: peer[1, 128, queue](*own, 0, 0, 8),
    }


def host_costs() -> Iterator[dict[str, Any]]:
    """Time bound launches, a cached call, whole steps, graph replays and numba's launch."""
    import cupy

    arena = Arena(plan_model(mlp((8, 8)), PlanConfig("adamw")))
    mixed = Arena(plan_model(mlp((8, 8)), PlanConfig("adamw", half="fp16", ema=True)))
    stream = cupy.cuda.Stream(non_blocking=True)
    raw = stream.ptr
    with stream:
        adamw = ops.adamw.bind(arena)
        step = OptimizerStep(mixed, **hyper.SCALARS)
        graph = OptimizerStep(arena, clear_grad=False, **hyper.SCALARS).capture()
        subjects: dict[str, Callable[[], Any]] = {
            "bound launch, current stream": adamw,
            "bound launch, raw handle": lambda: adamw(raw),
            "bound launch, packed cuLaunchKernel": bound(arena, packed=True),
            "bound launch, cuda.core.launch": bound(arena, packed=False),
            "ops.adamw(arena), cached binding": lambda: ops.adamw(arena),
            f"mixed-precision step, {len(step.launches)} launches": step,
            "graph replay of begin_step + adamw": graph.replay,
            "graph replay of the mixed-precision step": step.capture().replay,
            **numba_launches(raw),
        }
        cupy.cuda.Device().synchronize()
        for name, call in subjects.items():
            taken = timing.host(call, stream.synchronize)
            yield row("host-cost", name, "host", taken, us=round(1e6 * taken.seconds, 2))


def first_use() -> Iterator[dict[str, Any]]:
    """Time the first step of a fresh process with an empty cache of built code and a warm one."""
    places = {"GPU": "cuda"} if gpu_count() else {}
    for subject, device in (places | {"CPU arena": "cpu"}).items():
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "RANGEOPS_CACHE_DIR": folder}
            environment.pop("NUMBA_ENABLE_CUDASIM", None)
            for case in ("cold", "warm"):
                yield _first_use(case, subject, device, environment)


def _first_use(case: str, subject: str, device: str, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-c", FIRST_USE, device]
    out = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    names = ("import_s", "arena_s", "first_step_s")
    parts: dict[str, Any] = dict(zip(names, map(float, out), strict=True))
    taken = timing.Timing(sum(parts.values()), 0.0)
    return row("first-use", case, subject, taken, **{k: round(v, 3) for k, v in parts.items()})


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time the host's part of launches where there is a GPU, and the first step."""
    if gpu_count():
        yield from host_costs()
    yield from first_use()


TOPIC = Topic(
    "host",
    rows,
    {
        "host-cost": (
            "What a launch costs the host",
            {"case": "call", "us": "us", "spread": "spread"},
        ),
        "first-use": (
            "First step of a fresh process (seconds)",
            {
                "case": "cache of built code",
                "subject": "where",
                "import_s": "import",
                "arena_s": "arena",
                "first_step_s": "first step",
            },
        ),
    },
    gpus=0,
)
