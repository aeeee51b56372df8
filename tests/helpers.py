"""What several tests use: a small model's plan, raw arenas, bytes in and out, a free port."""

from __future__ import annotations

import socket

import numpy as np

from plan import MemoryPlan, PlanConfig, Range
from rangeops import Arena, RangeOp
from rangeops.device.streams import gpu_count

HAVE_GPU = gpu_count() > 0

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


def optimizer_for(op: RangeOp) -> str:
    """Return the optimizer of a plan that has what an op needs: its own, or LAMB for norms."""
    if op.settings is not None:
        return op.name
    if op.name == "lamb_moments":
        return "lamb"
    return "lamb" if "norms" in dict(op.kernel.arguments) else "adamw"


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
