"""Cost against the number of tensors at 25 M parameters, and against size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench import peers, timing
from bench.fill import fill
from bench.peers import hyper, torch_steps
from bench.rows import STEP_COLUMNS, row
from bench.topic import Topic
from bench.topics import amp, ratios
from bench.topics.steps import step_of
from plan import PlanConfig
from plan.models import ParameterSpec, plan_model
from rangeops import Arena, OptimizerStep

PARAMETERS = 25_600_000
COUNTS = (10, 100, 1_000, 10_000, 50_000, 100_000)
TORCH_COUNTS = (10, 100, 1_000, 10_000)
SIZES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)


def specs_of(count: int) -> list[ParameterSpec]:
    """Return ``count`` tensors that fill their slots, so that the bytes do not depend on it."""
    numel = PARAMETERS // count // 128 * 128 - 8
    return [ParameterSpec(f"t{k}", "fc_weight", (numel,)) for k in range(count)]


def tensor_sweep() -> Iterator[dict[str, Any]]:
    """Time the AMP step in a graph for 10 to 50,000 tensors, torch's fused AdamW beside it."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    for count in COUNTS:
        specs = specs_of(count)
        arena = Arena(plan_model(specs, PlanConfig("adamw", half="fp16", ema=True)))
        fill(arena)
        step = OptimizerStep(arena, resume=True, lr=hyper.LR, loss_scale=amp.SCALE)
        cupy.cuda.Device().synchronize()
        with stream:
            taken = timing.gpu(step.capture().replay, stream)
        yield row("tensor-sweep", f"{count}", "rangeops AMP step, graph", taken, step.nbytes)
    for count in TORCH_COUNTS if peers.have_torch() else ():
        import torch

        step_ = torch_steps.torch_step("adamw", specs_of(count), "cuda", fused=True)
        eager = timing.steady(step_, torch.cuda.synchronize, 0.3)
        yield row("tensor-sweep", f"{count}", "torch fused AdamW (FP32), eager", eager)


def group_sweep() -> Iterator[dict[str, Any]]:
    """Time AdamW (FP32) and its begin_step with one group for all, and with one for each tensor."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    for count in COUNTS:
        step = step_of("adamw", specs_of(count))
        arena = step.arena
        for groups in ("two groups", "a group a tensor"):
            if groups != "two groups":
                arena.groups.restore(each_its_own(arena))
            cupy.cuda.Device().synchronize()
            with stream:
                taken = timing.gpu(step.capture().replay, stream)
                begun = timing.gpu(step.begin[0], stream)
            yield row("group-sweep", f"{count}", f"AdamW step, graph, {groups}", taken, step.nbytes)
            yield row("group-sweep", f"{count}", f"begin_step, {groups}", begun)
        step.close()
        del step, arena


def each_its_own(arena: Arena) -> dict[str, Any]:
    """Return groups of one tensor each, no two alike."""
    groups: dict[str, Any] = {}
    for k, tensor in enumerate(arena.planned("groups").weights()):
        settings = {"lr": 1.0 + k % 97, "beta1": 0.8 + 0.001 * (k % 89), "beta2": 0.99}
        groups[tensor.name] = {"settings": settings, "of": [tensor.name]}
    return {"groups": groups, "frozen": []}


def size_sweep() -> Iterator[dict[str, Any]]:
    """Time AdamW (FP32) on one tensor of 1 M to 1 G parameters."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    for size in SIZES:
        specs = [ParameterSpec("w", "fc_weight", (size,))]
        step = step_of("adamw", specs)
        adamw = step.launches[-1]
        cupy.cuda.Device().synchronize()
        rate = timing.copy_rate(adamw.nbytes, stream)
        with stream:
            step()
            taken = timing.gpu(adamw, stream)
        yield row("size-sweep", f"{size:,}", "rangeops AdamW kernel", taken, adamw.nbytes, rate)
        del step, adamw


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Run the sweeps one after the other."""
    for sweep in (
        tensor_sweep(),
        group_sweep(),
        ratios.ratio_sweep(COUNTS, specs_of),
        size_sweep(),
    ):
        yield from sweep
        timing.release()


TOPIC = Topic(
    "sweeps",
    rows,
    {
        "tensor-sweep": ("25.6 M parameters in n tensors", {**STEP_COLUMNS, "case": "tensors"}),
        "group-sweep": (
            "AdamW (FP32), groups for 25.6 M parameters in n tensors",
            {**STEP_COLUMNS, "case": "tensors"},
        ),
        "size-sweep": ("AdamW (FP32) against size", {**STEP_COLUMNS, "case": "parameters"}),
    },
    in_quick=False,
)
