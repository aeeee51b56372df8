"""Whole-model AdamW in FP32: one launch over the arena against parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench import peers, timing
from bench.fill import fill
from bench.rows import row
from plan import PlanConfig
from plan.models import MODELS, plan_model
from rangeops import Arena, ops


def prepared(arena: Arena) -> Any:
    """Fill the arena and return (begin_step, adamw) bound to it."""
    fill(arena)
    arena.scalars.set(
        lr=peers.LR, beta1=peers.BETA1, beta2=peers.BETA2, eps=peers.EPS, weight_decay=peers.DECAY
    )
    return ops.begin_step.bind(arena), ops.adamw.bind(arena)


def cpu_steps(model: str, budget: float = 1.0) -> Iterator[dict[str, Any]]:
    """Time one model on the CPU arena, in the NumPy loop, and in torch where it is installed."""
    specs = MODELS[model]()
    begin, adamw = prepared(Arena(plan_model(specs, PlanConfig("adamw")), device="cpu"))

    def step() -> None:
        begin()
        adamw()

    mine = timing.cpu(step, budget)
    yield row("step-cpu", model, "rangeops CPU arena", mine, adamw.nbytes, ratio=1.0)
    subjects = [("NumPy per-parameter loop", peers.numpy_adamw(specs))]
    if peers.have_torch():
        subjects += list(peers.torch_peers(specs, "cpu"))
    for name, peer in subjects:
        other = timing.cpu(peer, budget)
        yield row("step-cpu", model, name, other, ratio=round(other.seconds / mine.seconds, 2))


def copy_rate(nbytes: int, stream: Any) -> float:
    """Return bytes a second (read and written) of a device copy that moves ``nbytes``."""
    import cupy

    block = cupy.empty(nbytes, cupy.uint8)
    cupy.random.default_rng(0).random(nbytes // 8, out=block[: nbytes // 8 * 8].view(cupy.float64))
    half = nbytes // 2
    with stream:
        taken = timing.gpu(lambda: cupy.copyto(block[:half], block[half : 2 * half]), stream)
    return 2 * half / taken.seconds


def gpu_steps(model: str) -> Iterator[dict[str, Any]]:
    """Time one model on the GPU arena (kernel, eager, graph) and torch's ways of doing it."""
    import cupy

    specs = MODELS[model]()
    arena = Arena(plan_model(specs, PlanConfig("adamw")))
    begin, adamw = prepared(arena)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    rate = copy_rate(adamw.nbytes, stream)

    def step() -> None:
        begin()
        adamw()

    with stream:
        step()
        stream.synchronize()
        stream.begin_capture()
        step()
        graph = stream.end_capture()
        kernel = timing.gpu(adamw, stream)
        replay = timing.gpu(lambda: graph.launch(stream), stream)
        eager = timing.steady(step, stream.synchronize)
    yield row("step-gpu", model, "rangeops AdamW kernel", kernel, adamw.nbytes, rate)
    yield row("step-gpu", model, "rangeops step, graph", replay, adamw.nbytes, rate, ratio=1.0)
    more = {"ratio": round(eager.seconds / replay.seconds, 2)}
    yield row("step-gpu", model, "rangeops step, eager", eager, adamw.nbytes, rate, **more)
    if not peers.have_torch():
        return
    import torch

    for name, peer in peers.torch_peers(specs, "cuda"):
        taken = timing.steady(peer, torch.cuda.synchronize)
        ratio = round(taken.seconds / replay.seconds, 2)
        yield row("step-gpu", model, name, taken, adamw_bytes(specs), rate, ratio=ratio)


def adamw_bytes(specs: Any) -> int:
    """Return the bytes that AdamW has to move for a parameter list: 28 a parameter."""
    return 28 * peers.parameters(specs)
