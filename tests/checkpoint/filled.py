"""Arenas full of values, what they hold by name, and files that say something else."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from plan import MemoryPlan, PlanConfig, PlanError, Region
from rangeops import Arena, load

SHAPES = {
    "fc.bias": ("fc_bias", (5,)),
    "norm.weight": ("bn_weight", (129,)),
    "fc.weight": ("fc_weight", (3, 100)),
    "square.weight": ("fc_weight", (6, 7)),
    "empty.weight": ("fc_weight", (0,)),
    "conv1.weight": ("first_conv", (4, 3, 3, 3)),
    "conv2.weight": ("deep_conv", (127,)),
}

STATISTICS = {"bn.mean": Region.B_PREV_MEAN, "bn.var": Region.B_PREV_VAR}

SCALARS = {
    "lr": 0.03, "beta2": 0.97, "eps": 1e-5, "weight_decay": 0.1, "ema_decay": 0.95,
    "loss_scale": 512.0, "growth_interval": 7, "growth_tracker": 3, "skipped_steps": 2,
    "hysteresis": 3, "hysteresis_tracker": 2, "step": 11,
}  # fmt: skip

GROUPS = {"decay", "no_decay", "head"}


def planned(optimizer="adamw", names=None, fixed=(), device="cpu", **config):
    """Return a fresh arena of SHAPES and STATISTICS, announced in the order of ``names``."""
    plan = MemoryPlan(PlanConfig(optimizer, **config))
    for name in names or SHAPES:
        kind, shape = SHAPES[name]
        plan.parameter(name, kind, shape, trainable=name not in fixed)
    for name, region in STATISTICS.items():
        plan.alloc(region, (9,), name)
    return Arena(plan.finalize(), device=device)


def tensors_of(arena):
    """Return the tensors that a checkpoint is to have, by the name that each is to have there."""
    out = {}
    for name, parameter in arena.plan.parameters.items():
        own = {"": parameter.weight, "m.": parameter.m, "v.": parameter.v, "ema.": parameter.ema}
        out |= {f"{prefix}{name}": tensor for prefix, tensor in own.items() if tensor is not None}
    return out | {f"stats.{name}": arena.plan.tensors[name] for name in STATISTICS}


def values_of(arena):
    """Return a copy of every tensor that a checkpoint is to have."""
    return {name: np.array(arena.download(tensor)) for name, tensor in tensors_of(arena).items()}


def filled(optimizer="adamw", seed=1, **options):
    """Return an arena that has trained, by its looks: every tensor, step and scalar is its own."""
    arena, rng = planned(optimizer, **options), np.random.default_rng(seed)
    for tensor in tensors_of(arena).values():
        arena[tensor] = rng.uniform(0.5, 2.0, tensor.shape).astype(np.float32)
    arena.scalars.set(**SCALARS)
    trained = [name for name in SHAPES if not arena.plan.is_frozen(name)]
    arena.groups.set_steps({name: 3 + k for k, name in enumerate(trained)})
    arena.groups.add("head", "square.weight", lr=10.0, weight_decay=0.5)
    arena.groups.freeze("conv1.weight")
    return arena


def same(got, want):
    """Hold two mappings of arrays to each other by bits."""
    assert got.keys() == want.keys()
    for name, values in want.items():
        assert (got[name].shape, got[name].dtype) == (values.shape, values.dtype), name
        assert got[name].tobytes() == values.tobytes(), name


def parts(file):
    """Return tensors, facts and the other metadata of a file."""
    with safe_open(file, framework="numpy") as opened:
        metadata = dict(opened.metadata())
    facts = json.loads(metadata.pop("facts"))
    return load_file(file), facts, metadata


def rewritten(source, target, tensors=None, facts=None, **metadata):
    """Write a file again with its tensors or facts changed, by functions that change or replace."""
    arrays, said, other = parts(source)
    arrays = arrays if tensors is None else (tensors(arrays) or arrays)
    if facts is not None:
        changed = facts(said)
        said = said if changed is None else changed
    text = said if isinstance(said, str) else json.dumps(said)
    save_file(arrays, target, {"facts": text} | other | metadata)
    return target


def everything(arena):
    """Return all that a load could change."""
    owner = arena.owner
    return (
        arena.memory.tobytes(), arena.groups.state(), arena.groups.resting, owner.waiting,
        dict(owner.options), arena.scalars.host_values(),
    )  # fmt: skip


def refused(arena, file, match="load: ", strict=(True, False)):
    """Hold that a file is refused, and that nothing has changed."""
    before = everything(arena)
    for strictly in strict:
        with pytest.raises(PlanError, match=match):
            load(arena, file, strict=strictly)
        assert everything(arena) == before


def changed(name, change):
    """Return what gives a file's tensors with one of them changed."""
    return lambda arrays: arrays | {name: change(arrays[name])}


def setter(*path):
    """Return what makes a change of facts: the value at the end of a path becomes ``value``."""

    def setting(value):
        def change(facts):
            at = facts
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value

        return change

    return setting
