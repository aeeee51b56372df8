"""Training runs in a process of their own: straight through, or up to a file and on from it.

    python -m tests.checkpoint.worker cpu straight|first|second FOLDER

Every optimizer trains in fp16 with what a file has to carry: averages with warm-up, a loss scale
that grows and overflows, micro-batches, groups, a frozen and a resting tensor, a clipped norm.
What happens at a step depends on its number alone, and on what the arena says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from plan import MemoryPlan, PlanConfig
from plan.scalars import FP32_SCALARS, INT32_SCALARS
from rangeops import Arena, OptimizerStep, load, save

OPTIMIZERS = ("sgd", "momentum", "nesterov", "lars", "adam", "adamw", "lamb", "lion")

HALF, ALL = 100, 200

SHAPES = {
    "fc.bias": ("fc_bias", (7,)),
    "norm.weight": ("bn_weight", (33,)),
    "fc.weight": ("fc_weight", (9, 31)),
    "rests.weight": ("fc_weight", (130,)),
    "cold.weight": ("deep_conv", (3, 3, 3, 5)),
    "fixed.weight": ("first_conv", (64,)),
}

OVERFLOWS = (20, 60, 61, 90, 130)

OPTIONS = {"ema_warmup": True, "clip_norm": 3.0}

START = {
    "lr": 0.01, "weight_decay": 0.05, "ema_decay": 0.99, "loss_scale": 1024.0,
    "growth_interval": 16, "hysteresis": 2, "dampening": 0.1,
}  # fmt: skip

BATCH = 2
"""Micro-batches of a step."""

MACHINE = ("ticket", "settings", "settings_inverse", "first_nonfinite", "nonfinite_granule")
"""Scalars that say nothing of a run."""


def fresh(optimizer, device):
    """Return an arena of zeros."""
    plan = MemoryPlan(PlanConfig(optimizer, half="fp16", ema=True, accumulate=True))
    for name, (kind, shape) in SHAPES.items():
        plan.parameter(name, kind, shape, trainable=name != "fixed.weight")
    return Arena(plan.finalize(), device=device)


def begun(optimizer, device):
    """Return an arena and its driver before the first step."""
    arena, rng = fresh(optimizer, device), np.random.default_rng(5)
    for name, (_, shape) in SHAPES.items():
        values, copy = rng.standard_normal(shape).astype(np.float32), f"{name}#A16"
        arena[name] = values
        if copy in arena.plan.tensors:
            arena[copy] = values.astype(np.float16)
    step = OptimizerStep(arena, **OPTIONS, **START)
    own = {"sgd": {}, "lion": {"beta1": 0.8}, "adam": {"beta2": 0.9}, "adamw": {"beta2": 0.9}}
    own |= {"lamb": {"beta1": 0.7}}
    step.groups.add("head", "fc.weight", lr=3.0, **own.get(optimizer, {"momentum": 0.5}))
    return arena, step


def resumed(optimizer, device, folder):
    """Return an arena and its driver as a file has them."""
    arena = fresh(optimizer, device)
    found = load(arena, folder / f"{optimizer}.safetensors")
    assert found.extra == {"at": HALF}
    return arena, OptimizerStep(arena, resume=True, **OPTIONS)


def happen(arena, at):
    """Do what happens before a step of this number."""
    groups = arena.groups
    events = {
        30: lambda: groups.freeze("cold.weight"),
        40: lambda: groups.rest(["rests.weight"]),
        80: lambda: groups.set("head", lr=2.0),
        120: lambda: groups.set("no_decay", weight_decay=0.5),
        140: lambda: groups.rest([]),
        150: lambda: groups.unfreeze("cold.weight"),
    }
    events.get(at, lambda: None)()
    if at % 10 == 0 and at > HALF:
        arena.scalars.lr = 0.01 * (1 - at / (2 * ALL))


def backward(arena, step, at):
    """Leave the gradients of a step: of weights half ones, gathered after each micro-batch."""
    rng, scale = np.random.default_rng([6, at]), arena.scalars.loss_scale
    total = {}
    for micro in range(BATCH):
        for name, (_, shape) in SHAPES.items():
            parameter = arena.plan.parameters[name]
            values = rng.standard_normal(shape).astype(np.float32) * np.float32(scale / 64)
            if parameter.half_gradient is not None:
                if at in OVERFLOWS and micro and name == "fc.weight":
                    values[0, 0] = np.inf
                arena[parameter.half_gradient] = values.astype(np.float16)
            elif parameter.gradient is not None:
                total[name] = total.get(name, 0) + values
        step.accumulate()
    for name, values in total.items():
        arena[arena.plan.parameters[name].gradient] = values


def train(arena, step, first, last):
    """Take steps, on a GPU by replays of a graph."""
    graph = step.capture() if arena.on_gpu else None
    for at in range(first, last):
        happen(arena, at)
        backward(arena, step, at)
        step() if graph is None else graph.replay()


def told(arena):
    """Return what a run is, as arrays and plain data; no half averages, which no step writes."""
    arrays = {}
    for name, parameter in arena.plan.parameters.items():
        for what in ("weight", "m", "v", "ema", "half_copy"):
            if getattr(parameter, what) is not None:
                arrays[f"{name}.{what}"] = np.array(arena.download(getattr(parameter, what)))
    names = [n for n in (*FP32_SCALARS, *INT32_SCALARS) if n not in MACHINE]
    scalars = {name: arena.scalars.get(name) for name in names}
    groups = arena.groups.state() | {"resting": list(arena.groups.resting)}
    return arrays, {"scalars": scalars, "steps": arena.groups.steps(), "groups": groups}


def run(optimizer, device, part, folder):
    """Train one optimizer's part of a run, and write what came of it."""
    arena, step = (
        resumed(optimizer, device, folder) if part == "second" else begun(optimizer, device)
    )
    first, last = {"straight": (0, ALL), "first": (0, HALF), "second": (HALF, ALL)}[part]
    train(arena, step, first, last)
    if part == "first":
        save(arena, folder / f"{optimizer}.safetensors", extra={"at": HALF})
        return
    arrays, facts = told(arena)
    np.savez(folder / f"{optimizer}.{part}.npz", **arrays)
    (folder / f"{optimizer}.{part}.json").write_text(json.dumps(facts))


def main():
    """Train every optimizer."""
    device, part, folder = sys.argv[1:]
    for optimizer in OPTIMIZERS:
        run(optimizer, device, part, Path(folder))


if __name__ == "__main__":
    main()
