"""A whole step out of its ops, with everything that reads gradients: what tests of states take."""

from __future__ import annotations

import numpy as np

from plan import MemoryPlan, PlanConfig
from plan.scratch import BLOCK, BLOCK_FLOATS, ROW, ROW_FLOATS
from rangeops import REGISTRY, Arena, ops
from rangeops.kernels.half import from_half, to_half
from tests.kernels.variants import OPS

OPTIMIZERS = tuple(op.name for op in OPS if op.settings is not None)

SHAPES = (
    ("n", "bn_weight", (129,)), ("b", "fc_bias", (5,)), ("w", "fc_weight", (3, 100)),
    ("c", "deep_conv", (127,)),
)  # fmt: skip
"""Tensors of a plan; of two gradients and copies are half where the plan has halves."""


def planned(optimizer, fixed=(), shapes=SHAPES, **config):
    """Return a plan with averages; ``fixed`` names the parameters that it does not train."""
    plan = MemoryPlan(PlanConfig(optimizer, ema=True, **config))
    for name, kind, shape in shapes:
        plan.parameter(name, kind, shape, trainable=name not in fixed)
    return plan.finalize()


def take_step(arena, clear_grad=False, **options):
    """Check, clip, begin, find ratios and update, whatever of it the plan's optimizer has."""
    config = arena.plan.config
    name, halves = config.kind.label, {"half_grad": config.half is not None}
    lars = name == "lars"
    ops.check_nan(arena, clip=True, **halves)
    ops.grad_norm(arena, weights=lars, **halves)
    ops.fold_norms(arena, of="lars" if lars else "gradient")
    ops.total_norm(arena)
    ops.begin_step(arena, global_norm=True, **options)
    fused = {"half_copy": config.half is not None, "ema": config.ema}
    if name == "lamb":
        ops.lamb_moments(arena, clear_grad=clear_grad, **halves)
        ops.fold_norms(arena, of="lamb")
    else:
        fused |= halves | {"clear_grad": clear_grad}
    if "N" in config.kind.series:
        ops.trust_ratio(arena, kind=name)
    REGISTRY[name](arena, **fused)


def gradient_of(plan, name):
    """Return the tensor from which a parameter's gradient is read."""
    return plan.tensors.get(f"{name}#G16") or plan.tensors[f"{name}#G"]


def put_bytes(arena, tensor, values):
    """Write a tensor in its own format, also one that the arena keeps from users."""
    values = np.broadcast_to(np.float32(values), tensor.shape)
    arena.write(
        tensor.offset, to_half(values, tensor.dtype.label) if tensor.dtype.is_half else values
    )


def put_gradient(arena, name, values):
    """Write a parameter's gradient in the format that the step reads."""
    put_bytes(arena, gradient_of(arena.plan, name), values)


def get_gradient(arena, name):
    """Return a parameter's gradient as float32."""
    tensor = gradient_of(arena.plan, name)
    bits = arena.read(tensor.span, "u2" if tensor.dtype.is_half else "f4")[: tensor.numel]
    return from_half(bits, tensor.dtype.label) if tensor.dtype.is_half else bits


def block_of(arena):
    """Return the coefficients of all tensors, by name."""
    return dict(zip(BLOCK, arena.download("step.coefficients"), strict=False))


def rows_of(arena):
    """Return each tensor's coefficients, by tensor and name."""
    table = arena.download("step.coefficients")[BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)
    names = (tensor.name for tensor in arena.plan.weights())
    rows = (dict(zip(ROW, row, strict=False)) for row in table)
    return dict(zip(names, rows, strict=True))


def state_of(arena, name, series="WMVEA"):
    """Return the bytes of what a parameter has of some series, by tensor."""
    return {
        t.name: arena.read(t.span).tobytes()
        for t in arena.plan
        if t.name.partition("#")[0] == name and t.region.series in series
    }


def filled(plan, device, seed=1):
    """Return an arena with random weights, moments, averages and gradients."""
    arena, rng = Arena(plan, device=device), np.random.default_rng(seed)
    for tensor in plan:
        if tensor.region.series in "WMVEGA":
            values = rng.standard_normal(tensor.shape, np.float32)
            values = values * values if tensor.region.series == "V" else values
            put_bytes(arena, tensor, values)
    return arena
