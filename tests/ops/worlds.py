"""Worlds in which a changed op is looked at: small models in which every coefficient matters."""

from __future__ import annotations

import functools

import numpy as np

from plan import MemoryPlan, PlanConfig, Range
from rangeops import REGISTRY, Arena
from rangeops.kernels.half import to_half
from rangeops.verify import planned_variants
from tests.helpers import host_bytes, raw_arena
from tests.kernels.variants import extreme
from tests.ops.test_every_op import on_ranges

HYPER = {
    "lr": 0.23, "beta1": 0.71, "beta2": 0.83, "eps": 0.37, "weight_decay": 0.47, "momentum": 0.61,
    "dampening": 0.32, "ema_decay": 0.43, "trust_coefficient": 0.79, "clip_norm": 0.05,
    "clip_value": 0.06, "loss_scale": 4.0, "ranks": 3.0, "step": 2, "batch_size": 3,
    "hysteresis": 3, "hysteresis_tracker": 2, "growth_interval": 5, "growth_tracker": 3,
    "min_loss_scale": 0.5, "skipped_steps": 4,
}  # fmt: skip
"""Of one size, and no two alike."""


def nothing(arena):
    """Change nothing."""


def everywhere_bad(arena):
    """Put values that are not finite into gradients of both formats."""
    for name, bad in (("b#G", np.nan), ("w#G", -np.inf), ("c#G", np.inf)):
        arena[name] = np.where(np.arange(arena.download(name).size) == 3, bad, 1.0)
    arena["w#G16"] = np.float16(np.inf)


def last_bad(arena):
    """Let one element be not finite, in the second granule of the second tensor."""
    for name, dtype in (("w#G", np.float32), ("w#G16", np.float16)):
        arena[name] = np.where(np.arange(129) == 128, np.nan, 1.0).astype(dtype)


def odd_sums(arena):
    """Leave something in the low parts of the sums."""
    for name in ("loss", "top1", "top5", "samples"):
        arena[f"accumulated.{name}"] = np.array([2.0**24, 0.75], np.float32)


def large_result(arena):
    """Add what is much larger than the sum so far."""
    arena["accumulated.loss"] = np.array([0.1, 0.0], np.float32)
    arena["result.loss"] = 2.0**26


def no_result(arena):
    """Let one of the results be no number."""
    arena["result.top1"] = np.nan


def overflowing_result(arena):
    """Let a result be finite and its product with the batch not."""
    arena["result.top5"] = 3e38


def wide(arena):
    """Let gradients differ so much that the order of a sum shows."""
    for name in ("w#G", "c#G"):
        n = arena.download(name).size
        arena[name] = (10.0 ** np.random.default_rng(n).uniform(-3, 3, n)).astype(np.float32)


def resting(arena):
    """Let the first two tensors rest."""
    groups = arena.download("step.group_of_tensor")
    groups[:2] = -3, -1
    arena["step.group_of_tensor"] = groups


def two_folds(arena):
    """Give the first tensor two folds and the last one none."""
    arena["norm.fold_of_tensor"] = np.array([0, 2, 3, 3], np.int32)


def small_norms(arena):
    """Let all norms be below 1."""
    sums = arena.plan.tensors["norm.sums"]
    arena.write(sums.offset, np.linspace(1e-4, 1e-2, sums.numel // 2))


def zeros(arena):
    """Leave nothing of gradients and first moments."""
    for tensor in arena.plan:
        if tensor.region.series in "GM":
            arena[tensor] = 0


BEGIN = tuple({name: True} for name in REGISTRY["begin_step"].options)

WORLDS = {
    "check_nan": ({"first_nonfinite": 2}, everywhere_bad, last_bad, (last_bad, {"part": "weight"})),
    "grad_norm": ({"first_nonfinite": 2}, everywhere_bad, last_bad, wide),
    "tensor_stats": (everywhere_bad, wide),
    "begin_step": (*BEGIN, {"bias_correction": False}, {"found_inf": 1}, {"poisoned": 1}, resting,
                   {"step": 0}, {"step": 1}, {"global_norm": True, "clip_norm": 0.2},
                   {"global_norm": True, "clip_norm": 1e9}),
    "trust_ratio": ({"lr_outside": True}, {"trust_clip": True}, resting, {"skip_step": 1},
                    {"trust_clip": True, "lr_outside": True, "trust_coefficient": 0.01},
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

FEW = (("b", "fc_bias", (5,)), ("w", "fc_weight", (129,)), ("c", "deep_conv", (127,)))
LONG = (*FEW[:2], ("c", "deep_conv", (70_000,)))
MANY = (*FEW, *((f"t{k}", "fc_weight", (1,)) for k in range(520)))
"""Parameters: a granule or two each; a fold of more than 32 chunks; more folds than one total."""

SUMS = {"fold_norms": LONG, "total_norm": MANY, "begin_step": MANY}


@functools.cache
def model(optimizer, half, parameters):
    """Return the plan of parameters."""
    plan = MemoryPlan(PlanConfig(optimizer, half=half, ema=True))
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
    groups = np.zeros((64, 4), np.float32)
    groups[:4] = (1, 1, 1, 1), (0.5, 0.75, 1, 1), (0.25, 1.5, 0, 1), (2, 0.25, 1, 1)
    arena["step.groups"] = groups
    arena["step.group_of_tensor"] = np.arange(len(arena.plan.weights()), dtype=np.int32) % 4


def arena_for(op, flags, world):
    """Return a filled arena as an op finds it in a step, in one of its worlds."""
    optimizer = op.name if op.settings is not None else flags.get("kind", "adamw")
    optimizer = "lamb" if op.name == "lamb_moments" else optimizer
    arena = Arena(
        model(optimizer, flags.get("half") or "fp16", SUMS.get(op.name, FEW)), device="cpu"
    )
    fill(arena, np.random.default_rng(9))
    arena.scalars.set(**HYPER)
    change, settings = world
    begin = REGISTRY["begin_step"]
    if op.name not in ("begin_step", "grad_scaling", "check_nan", "unscale"):
        begin(arena, **{key: on for key, on in settings.items() if key in begin.options})
    change(arena)
    scalars = {key: value for key, value in settings.items() if not isinstance(value, bool | str)}
    arena.scalars.set(**scalars)
    return arena


@functools.cache
def planned_trials(op):
    """Return (launch, the arena's bytes before it) of an op in all its worlds."""
    found = []
    for flags in op.variants():
        if not extreme(op, flags) or flags.get("half") == "bf16":
            continue
        for world in ({}, *WORLDS.get(op.name, ())):
            change, settings = (
                world
                if isinstance(world, tuple)
                else (nothing, world)
                if isinstance(world, dict)
                else (world, {})
            )
            arena = arena_for(op, flags, (change, settings))
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
