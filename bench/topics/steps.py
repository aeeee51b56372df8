"""Whole-model steps in FP32: a few launches over the arena against parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench import peers, timing
from bench.fill import fill
from bench.peers.hyper import SCALARS
from bench.rows import STEP_COLUMNS, row
from bench.topic import Topic
from plan import OptimizerKind, PlanConfig
from plan.models import MODELS, ParameterSpec, plan_model
from rangeops import Arena, OptimizerStep
from rangeops.device.streams import gpu_count

KINDS = tuple(kind.label for kind in OptimizerKind if kind is not OptimizerKind.NONE)
"""The optimizers; the rows here are AdamW's, the pytest-benchmark suite takes all."""


def models(quick: bool) -> tuple[str, ...]:
    """Return the models that steps are timed on."""
    return ("mlp", "resnet50") if quick else ("mlp", "resnet50", "gpt2")


def step_of(kind: str, specs: list[ParameterSpec], device: str | None = None) -> OptimizerStep:
    """Return an optimizer's FP32 step on a filled arena, like the peers': gradients stay.

    It resumes, so that moments are not zeros, on which divisions take another way.
    """
    arena = Arena(plan_model(specs, PlanConfig(kind)), device=device)
    fill(arena)
    return OptimizerStep(arena, resume=True, check=False, clear_grad=False, **SCALARS)


def cpu_steps(model: str, budget: float = 1.0) -> Iterator[dict[str, Any]]:
    """Time one model on the CPU arena, in the NumPy loop, and in torch where it is installed.

    In turn, round by round; where the rounds of one disagree by more than a fifth there is no
    ratio, and the quietest call stands beside the median.
    """
    specs = MODELS[model]()
    ours, step = "rangeops CPU arena", step_of("adamw", specs, "cpu")
    calls = {ours: step} | {name: make(specs) for name, make in peers.ways("adamw", "cpu").items()}
    found = timing.rounds(calls, budget)
    mine = found[ours]
    for name, taken in found.items():
        more: dict[str, Any] = {"quiet_ms": round(1e3 * taken.quiet, 4), "threads": peers.threads()}
        if mine.steady and taken.steady:
            more["ratio"] = round(taken.timing.seconds / mine.timing.seconds, 2)
        nbytes = step.launches[-1].nbytes if name == ours else None
        yield row("step-cpu", model, name, taken.timing, nbytes, **more)


def gpu_steps(model: str) -> Iterator[dict[str, Any]]:
    """Time one model on the GPU arena (kernel, eager, graph) and torch's ways of doing it."""
    import cupy

    specs = MODELS[model]()
    step = step_of("adamw", specs)
    adamw = step.launches[-1]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    rate = timing.copy_rate(adamw.nbytes, stream)
    with stream:
        step()
        graph = step.capture()
        kernel = timing.gpu(adamw, stream)
        replay = timing.gpu(graph.replay, stream)
        eager = timing.steady(step, stream.synchronize)
    yield row("step-gpu", model, "rangeops AdamW kernel", kernel, adamw.nbytes, rate)
    yield row("step-gpu", model, "rangeops step, graph", replay, adamw.nbytes, rate, ratio=1.0)
    more = {"ratio": round(eager.seconds / replay.seconds, 2)}
    yield row("step-gpu", model, "rangeops step, eager", eager, adamw.nbytes, rate, **more)
    floor = 28 * peers.parameters(specs)  # AdamW reads p, g, m, v and writes p, m, v
    for name, make in peers.ways("adamw", "cuda").items():
        import torch

        taken = timing.steady(make(specs), torch.cuda.synchronize)
        ratio = round(taken.seconds / replay.seconds, 2)
        yield row("step-gpu", model, name, taken, floor, rate, ratio=ratio)


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time AdamW on every model, on the GPU where there is one, else on the CPU."""
    for model in models(quick):
        if gpu_count():
            yield from gpu_steps(model)
        else:
            yield from cpu_steps(model, 0.3 if quick else 1.5)
        timing.release()


TOPIC = Topic(
    "steps",
    rows,
    {
        "step-cpu": (
            "Whole-model AdamW step on the CPU",
            STEP_COLUMNS | {"quiet_ms": "quietest ms", "threads": "threads"},
        ),
        "step-gpu": ("Whole-model AdamW step (FP32) on the GPU", STEP_COLUMNS),
    },
    gpus=0,
)
