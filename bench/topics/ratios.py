"""LARS and LAMB over a whole model, beside a loop over its tensors in torch and in CuPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench import peers, timing
from bench.fill import fill
from bench.peers import hyper, torch_steps
from bench.rows import STEP_COLUMNS, row
from bench.topic import Topic
from plan import PlanConfig
from plan.models import MODELS, ParameterSpec, plan_model
from rangeops import Arena, OptimizerStep

FLOORS = {"lars": 28, "lamb": 40}
"""Bytes a parameter: LARS reads p and g for the norms, then p, g, m and writes p, m.  LAMB reads
p, g, m, v and writes m, v, then reads p, m, v and writes p."""

MOMENTUM, TRUST = 0.9, 1e-3


def lars_loop(module: Any, state: list[Any]) -> Callable[[], None]:
    """Return LARS tensor by tensor, in the array operations that torch and CuPy share."""

    def step() -> None:
        for p, g, m in state:
            weight, gradient = module.sqrt((p * p).sum()), module.sqrt((g * g).sum())
            r = TRUST * weight / (gradient + hyper.DECAY * weight + hyper.EPS)
            m *= MOMENTUM
            m += (hyper.LR * r) * (g + hyper.DECAY * p)
            p -= m

    return step


def torch_lars(specs: list[ParameterSpec]) -> Callable[[], None]:
    """Return the loop in torch."""
    import torch

    params = torch_steps.torch_parameters(specs, "cuda")
    state = [(p.detach(), p.grad, torch.zeros_like(p)) for p in params]
    return lars_loop(torch, state)


def cupy_lars(specs: list[ParameterSpec]) -> Callable[[], None]:
    """Return the loop in CuPy."""
    import cupy

    generator = cupy.random.default_rng(0)
    state = []
    for spec in specs:
        p, g = (generator.standard_normal(spec.shape, dtype=cupy.float32) for _ in range(2))
        state.append((p, g, cupy.zeros_like(p)))
    return lars_loop(cupy, state)


def captured(kind: str, specs: list[ParameterSpec], **options: Any) -> tuple[Any, int, Arena]:
    """Return the replay of a step, its bytes, and the arena that it works on."""
    arena = Arena(plan_model(specs, PlanConfig(kind)))
    fill(arena)
    step = OptimizerStep(arena, resume=True, lr=hyper.LR, clear_grad=False, **options)
    return step.capture().replay, step.nbytes, arena


def ratio_steps(model: str) -> Iterator[dict[str, Any]]:
    """Time LARS (peers beside it) and LAMB on one model, FP32, in a graph."""
    import cupy

    specs = MODELS[model]()
    stream = cupy.cuda.Stream(non_blocking=True)
    for kind, floor in FLOORS.items():
        nbytes = floor * peers.parameters(specs)
        replay, _, arena = captured(kind, specs)
        cupy.cuda.Device().synchronize()
        rate = timing.copy_rate(nbytes, stream)
        with stream:
            taken = timing.gpu(replay, stream)
        name, floor_ms = f"rangeops {kind}, graph", round(1e3 * nbytes / rate, 4)
        yield row("ratio-step", model, name, taken, nbytes, rate, ratio=1.0, floor_ms=floor_ms)
        del replay, arena
        if kind != "lars":
            continue
        with stream:
            loop = timing.steady(cupy_lars(specs), stream.synchronize, 0.3)
        ratio = round(loop.seconds / taken.seconds, 1)
        yield row("ratio-step", model, "CuPy loop over tensors, lars", loop, ratio=ratio)
        if peers.have_torch():
            import torch

            loop = timing.steady(torch_lars(specs), torch.cuda.synchronize, 0.3)
            ratio = round(loop.seconds / taken.seconds, 1)
            yield row("ratio-step", model, "torch loop over tensors, lars", loop, ratio=ratio)


def ratio_sweep(counts: tuple[int, ...], specs_of: Any) -> Iterator[dict[str, Any]]:
    """Time LARS and LAMB in a graph, and AdamW with the global-norm clip, against tensor count."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    for kind, options in (("lars", {}), ("lamb", {}), ("adamw", {"clip_norm": 1.0})):
        for count in counts:
            replay, nbytes, arena = captured(kind, specs_of(count), **options)
            cupy.cuda.Device().synchronize()
            with stream:
                taken = timing.gpu(replay, stream)
            name = f"rangeops {kind}{' + global-norm clip' if options else ''}, graph"
            yield row("tensor-sweep", f"{count}", name, taken, nbytes)
            del replay, arena


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time both on every model."""
    for model in ("resnet50",) if quick else ("resnet50", "gpt2"):
        yield from ratio_steps(model)
        timing.release()


TOPIC = Topic(
    "ratios",
    rows,
    {
        "ratio-step": (
            "LARS and LAMB (FP32) on the GPU; the floor is their bytes at the copy rate",
            STEP_COLUMNS | {"floor_ms": "floor ms"},
        )
    },
)
