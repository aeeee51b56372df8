"""Plans with frozen parameters for test_frozen.py, and the bits of what moves and what does not."""

from __future__ import annotations

import numpy as np

from plan import MemoryPlan, PlanConfig
from plan.series import PARAMETER_KINDS
from rangeops.kernels.half import to_half
from tests.helpers import SHAPES

PATTERNS = {"nan": 0xFF, "large": 0x7F}
"""What fills the bytes that nobody uses: NaN in every type, or 3e38 in FP32 and NaN in halves."""


def plan_of(optimizer, frozen=True, ice=2500, **config):
    """Return the plan of SHAPES, with a frozen parameter of each kind among them or without."""
    plan = MemoryPlan(PlanConfig(optimizer, **config))
    for kind, (name, its, shape) in zip(PARAMETER_KINDS, SHAPES, strict=False):
        if frozen:
            plan.parameter(f"ice.{kind}", kind, (ice,), trainable=False)
        plan.parameter(name, its, shape)
    for name, its, shape in SHAPES[len(PARAMETER_KINDS) :]:
        plan.parameter(name, its, shape)
    return plan.finalize()


def trained(arena):
    return [t for t in arena.plan.weights() if not arena.plan.is_frozen(t.name)]


def frozen(arena):
    return [t for t in arena.plan.weights() if arena.plan.is_frozen(t.name)]


def write(arena, name, values):
    """Write FP32 values to a tensor of any type, rounded."""
    tensor = arena.plan.tensors[name]
    if tensor.dtype.is_half:
        bits = to_half(np.ascontiguousarray(values, np.float32), tensor.dtype.label)
        values = bits if tensor.dtype.label == "bf16" else bits.view(np.float16)
    arena[tensor] = values


def fill(arena, byte):
    """Write one byte over all that nobody uses."""
    for hole in arena.plan.idle:
        arena.memory[hole.base_offset : hole.end] = byte


def start(arena):
    for k, tensor in enumerate([*trained(arena), *frozen(arena)]):
        values = np.random.default_rng(k).standard_normal(tensor.shape).astype(np.float32)
        arena[tensor] = values
        if f"{tensor.name}#A16" in arena.plan.tensors:
            write(arena, f"{tensor.name}#A16", values)


def gradients(arena, step, bad=False):
    """Write whole numbers, whose squares add up to the same in any order."""
    for k, tensor in enumerate(trained(arena)):
        values = np.random.default_rng(100 * step + k).integers(-8, 9, tensor.shape)
        values = values.astype(np.float32)
        if bad and tensor.name == "conv2.weight":
            values[-1] = np.inf
        name = f"{tensor.name}#G"
        write(arena, f"{name}16" if f"{name}16" in arena.plan.tensors else name, values)


def of_trained(arena):
    """Return the bits of all that is kept for the trained tensors."""
    out = {}
    for weight in trained(arena):
        for series in ("", "#A16", "#G", "#G16", "#M", "#V", "#E"):
            name = f"{weight.name}{series}"
            if name in arena.plan.tensors:
                out[name] = np.ascontiguousarray(arena.download(name)).view("u1")
    return out


def of_frozen(arena):
    """Return the bits of frozen weights and half copies, and of the bytes that nobody uses."""
    out = {t.name: arena.download(t).view("u1") for t in frozen(arena)}
    halves = [f"{name}#A16" for name in out if f"{name}#A16" in arena.plan.tensors]
    out |= {name: arena.download(name).view("u1") for name in halves}
    return out | {str(hole): arena.read(hole) for hole in arena.plan.idle}


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, bits in wanted.items():
        np.testing.assert_array_equal(found[name], bits, err_msg=name)
