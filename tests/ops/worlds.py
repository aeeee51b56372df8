"""Worlds in which a changed op is looked at: small models in which every coefficient matters."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from plan import MemoryPlan, PlanConfig, Range
from rangeops import REGISTRY, Arena
from rangeops.kernels.half import to_half
from rangeops.verify import planned_variants
from tests.helpers import host_bytes, raw_arena
from tests.kernels.variants import extreme
from tests.ops.changes import (
    RESTING,
    agreed,
    count_steps,
    everywhere_bad,
    first_steps,
    large_result,
    last_bad,
    last_steps,
    no_result,
    nothing,
    odd_sums,
    other_rows,
    overflowing_result,
    several_groups,
    small_norms,
    small_trust,
    two_folds,
    wide,
    without_momentum,
    written_rows,
    zeros,
)
from tests.ops.test_every_op import on_ranges

HYPER = {
    "lr": 0.23, "beta1": 0.71, "beta2": 0.83, "eps": 0.37, "weight_decay": 0.47, "momentum": 0.61,
    "dampening": 0.32, "ema_decay": 0.43, "trust_coefficient": 0.79, "clip_norm": 0.05,
    "clip_value": 0.06, "loss_scale": 4.0, "ranks": 3.0, "step": 2, "batch_size": 3,
    "hysteresis": 3, "hysteresis_tracker": 2, "growth_interval": 5, "growth_tracker": 3,
    "min_loss_scale": 0.5, "skipped_steps": 4,
}  # fmt: skip
"""Of one size, and no two alike."""


BEGIN = tuple({name: True} for name in REGISTRY["begin_step"].options)

LAST = {"step": 2**31 - 1}

WORLDS = {
    "check_nan": ({"first_nonfinite": 2}, everywhere_bad, last_bad, (last_bad, {"part": "weight"})),
    "grad_norm": ({"first_nonfinite": 2}, everywhere_bad, last_bad, wide),
    "tensor_stats": (everywhere_bad, wide),
    "begin_step": (*BEGIN, {"bias_correction": False}, {"grad_averaging": False}, {"found_inf": 1},
                   {"poisoned": 1}, {"settings": 1}, agreed,
                   {"step": 0}, {"step": 1}, first_steps, last_steps, without_momentum,
                   written_rows, (written_rows, {"found_inf": 1}), LAST,
                   {"found_inf": 1, "skipped_steps": 2**31 - 1},
                   {"global_norm": True, "clip_norm": 0.2},
                   {"global_norm": True, "clip_norm": 1e9}),
    "trust_ratio": ({"lr_outside": True}, {"trust_clip": True}, {"skip_step": 1},
                    (small_trust, {"trust_clip": True, "lr_outside": True}),
                    {"found_inf": 1}, zeros, two_folds, small_norms),
    "accumulate_metrics": (odd_sums, large_result, no_result, overflowing_result),
    "lion": (zeros,),
    "sgd": ({"decoupled": True},),
    "momentum": ({"decoupled": True},),
    "grad_scaling": (
        {"skip_step": 1}, {"found_inf": 1}, {"skip_step": 1, "hysteresis_tracker": 1},
        {"growth_tracker": 4}, {"growth_tracker": 4, "max_loss_scale": 8.0},
        {"growth_tracker": 4, "max_loss_scale": 7.0},
        {"skip_step": 1, "hysteresis_tracker": 1, "min_loss_scale": 2.0},
        {"skip_step": 1, "hysteresis_tracker": 0, "floor_hits": 2},
    ),
}  # fmt: skip
"""Scalars, options and arguments, or a change of the arena, with which an op is looked at too."""

FEW = (
    ("a", "bn_bias", (3,)), ("b", "fc_bias", (5,)), ("w", "fc_weight", (129,)),
    ("c", "deep_conv", (127,)),
)  # fmt: skip
LONG = (*FEW[:3], ("c", "deep_conv", (70_000,)))
MANY = (*FEW, *((f"t{k}", "fc_weight", (1,)) for k in range(520)))
"""Parameters: a granule or two each; a fold of more than 32 chunks; more folds than one total."""

SUMS = {"fold_norms": LONG, "total_norm": MANY, "begin_step": MANY}


@functools.cache
def model(optimizer, half, parameters, full):
    """Return the plan of parameters; ``full``: with FP32 gradients of weights beside half ones."""
    plan = MemoryPlan(PlanConfig(optimizer, half=half, ema=True, accumulate=full))
    for name, kind, shape in parameters:
        plan.parameter(name, kind, shape)
    return plan.finalize()


def fill(arena, rng):
    """Write numbers of one size into every series and every sum, and groups that differ."""
    for tensor in arena.plan:
        if tensor.region.series in "WGMVEA":
            values = rng.standard_normal(tensor.shape).astype(np.float32)
            values = values * values if tensor.region.series == "V" else values
            if tensor.dtype.is_half:
                arena.write(tensor.offset, to_half(values, tensor.dtype.label))
            else:
                arena[tensor] = values
    for k, name in enumerate(("loss", "top1", "top5")):
        arena[f"result.{name}"] = 0.3 + k
    for name in ("norm.partials", "norm.sums", "norm.totals"):
        sums = arena.plan.tensors[name]
        arena.write(sums.offset, rng.uniform(1, 2, sums.numel // 2))
    several_groups(arena)


def optimizers_for(op, flags):
    """Return the optimizers of plans that an op is looked at on.

    Of rows begin_step writes for LARS all, for the others two fours, in part the same.
    """
    if op.name == "begin_step":
        return ("lars", "adamw", "sgd")
    optimizer = op.name if op.settings is not None else flags.get("kind", "adamw")
    return ("lamb" if op.name == "lamb_moments" else optimizer,)


def arena_for(op, flags, world, optimizer):
    """Return a filled arena as an op finds it in a step, in one of its worlds."""
    half, full = flags.get("half") or "fp16", not flags.get("half_grad")
    parameters = FEW if optimizer == "sgd" else SUMS.get(op.name, FEW)
    arena = Arena(model(optimizer, half, parameters, full), device="cpu")
    fill(arena, np.random.default_rng(9))
    arena.scalars.set(**HYPER)
    count_steps(arena)
    change, settings = world
    begin = REGISTRY["begin_step"]
    if settings.get("step") == 0:
        arena.scalars.step = 0
    if op.name not in ("begin_step", "grad_scaling", "check_nan", "unscale"):
        begin(arena, **{key: on for key, on in settings.items() if key in begin.options})
    change(arena)
    scalars = {key: value for key, value in settings.items() if not isinstance(value, bool | str)}
    arena.scalars.set(**scalars)
    return arena


def worlds_of(op):
    """Return the worlds of an op as (change, settings)."""
    state = {name for name, _ in op.kernel.arguments}
    worlds = [{}, *(RESTING if state & {"c", "live"} else ()), *WORLDS.get(op.name, ())]
    if "c" in state and op.name != "begin_step":
        worlds += [other_rows]
    if any(stage.when for stage in op.kernel.stages):
        worlds += [{"step": 0}, (RESTING[0], {"step": 0})]
    worlds = [(nothing, world) if isinstance(world, dict) else world for world in worlds]
    return [world if isinstance(world, tuple) else (world, {}) for world in worlds]


@functools.cache
def planned_trials(op):
    """Return (launch, the arena's bytes before it) of an op in all its worlds."""
    found = []
    for flags in op.variants():
        if not extreme(op, flags) or flags.get("half") == "bf16":
            continue
        for world, optimizer in itertools.product(worlds_of(op), optimizers_for(op, flags)):
            settings = world[1]
            arena = arena_for(op, flags, world, optimizer)
            (arguments,) = (
                a
                for a in planned_variants(op, arena.plan)
                if all(a.get(key) == value for key, value in flags.items() if key != "half")
            )
            own = op.options if "options" in op.kernel.integers else ()
            takes = {key: settings[key] for key in ("part", *own) if key in settings}
            found.append((op.bind(arena, **arguments, **takes), host_bytes(arena)))
    return found


RAW = (297, 301, 304)
"""Elements of raw ranges: one, five, and eight are left for the last vector."""


@functools.cache
def raw_trials(op):
    """Return the same of an op on ranges that end in the middle of a vector, without a plan."""
    if not on_ranges(op):
        return []
    each = [f for f in op.variants() if extreme(op, f) and f.get("half") != "bf16"]
    return [
        (raw, host_bytes(raw.binding.arena))
        for raw in (raw_launch(op, f, n) for f in each for n in RAW)
    ]


def raw_launch(op, flags, count):
    """Return an op on ranges of random values, 2 KiB apart; halves begin at element 128."""
    active = [o for o in op.operands if not o.flag or flags[o.flag]]
    arena, rng = raw_arena(2048 * len(active), "cpu"), np.random.default_rng(3)
    spans = {}
    for k, operand in enumerate(active):
        n = count - 128 * operand.from_half_start
        values = np.abs(rng.standard_normal(n)).astype(np.float32)
        if operand.element != "f4":
            values = to_half(values, "fp16").view("u1" if operand.element == "u1" else "u2")
        arena.write(2048 * k, values)
        spans[operand.name] = Range(2048 * k, values[:n].nbytes)
    hyper = {key: HYPER[key] for key in (*op.hyper, "ranks") if key in HYPER}
    return op.bind(arena, **spans, **{k: on for k, on in flags.items() if k != "half"}, **hyper)
