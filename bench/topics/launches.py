"""What a launch costs the host, and what the first use of an op costs a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import timing
from bench.rows import row
from plan import PlanConfig
from plan.models import mlp, plan_model
from rangeops import Arena, ops
from rangeops.device.streams import gpu_count

FIRST_USE = """
import time
start = time.perf_counter()
from plan import PlanConfig
from plan.models import mlp, plan_model
from rangeops import Arena, ops
imported = time.perf_counter()
arena = Arena(plan_model(mlp(), PlanConfig("adamw")))
ready = time.perf_counter()
ops.begin_step(arena)
ops.adamw(arena)
arena.download("layers.0.weight")
print(imported - start, ready - imported, time.perf_counter() - ready)
"""


def host_costs() -> Iterator[dict[str, Any]]:
    """Time a bound launch, a cached call, numba's own launch and a graph replay on the host."""
    import cupy
    from numba import cuda

    arena = Arena(plan_model(mlp((8, 8)), PlanConfig("adamw")))
    stream = cupy.cuda.Stream(non_blocking=True)
    begin, adamw = ops.begin_step.bind(arena), ops.adamw.bind(arena)
    raw = stream.ptr

    @cuda.jit
    def peer(p, g, m, v, e, h, a, s, c, k, x, y, n):
        i = cuda.grid(1)  # type: ignore[attr-defined]
        if i < n:
            p[i] = g[i]

    own = [cuda.device_array(8, "f4") for _ in range(10)]
    queue = cuda.external_stream(raw)
    configured = peer[1, 128, queue]
    with stream:
        begin()
        adamw()
        stream.synchronize()
        stream.begin_capture()
        begin()
        adamw()
        graph = stream.end_capture()
        subjects: dict[str, Any] = {
            "bound launch, current stream": adamw,
            "bound launch, raw handle": lambda: adamw(raw),
            "ops.adamw(arena), cached binding": lambda: ops.adamw(arena),
            "graph replay of begin_step + adamw": lambda: graph.launch(stream),
            "numba launch, configured once": lambda: configured(*own, 0, 0, 8),
            "numba launch, kernel[grid, block, stream]": lambda: peer[1, 128, queue](*own, 0, 0, 8),
        }
        for name, call in subjects.items():
            taken = timing.host(call, stream.synchronize)
            yield row("host-cost", name, "host", taken, us=round(1e6 * taken.seconds, 2))


def first_use() -> Iterator[dict[str, Any]]:
    """Time the first step of a fresh process with an empty kernel cache and with a warm one."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RANGEOPS_CACHE_DIR": folder}
        environment.pop("NUMBA_ENABLE_CUDASIM", None)
        for case in ("cold", "warm"):
            root = Path(__file__).parent.parent
            out = subprocess.run(
                [sys.executable, "-c", FIRST_USE],
                env=environment,
                cwd=root,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            imported, allocated, used = map(float, out)
            taken = timing.Timing(imported + allocated + used, 0.0)
            subject = "GPU" if gpu_count() else "CPU arena"
            parts: dict[str, Any] = {
                "import_s": imported,
                "arena_s": allocated,
                "first_step_s": used,
            }
            yield row(
                "first-use", case, subject, taken, **{k: round(v, 3) for k, v in parts.items()}
            )
