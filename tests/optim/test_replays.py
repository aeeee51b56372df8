"""A captured step follows what changes between its replays: groups, live words, scalars."""

from __future__ import annotations

import numpy as np
import pytest

from rangeops import Arena, OptimizerStep
from rangeops.kernels.half import to_half
from tests.helpers import HAVE_GPU, host_bytes, small_plan

OPTIMIZERS = ("sgd", "nesterov", "lars", "adamw", "lamb", "lion")
STEPS = 24 if HAVE_GPU else 8

OWN = {
    "nesterov": {"momentum": 0.5, "nesterov": False}, "lars": {"trust_coefficient": 0.1},
    "adamw": {"beta1": 0.5, "eps": 1e-4}, "lamb": {"beta2": 0.9, "adapt": False},
    "lion": {"beta1": 0.5},
}  # fmt: skip
"""What a group sets beside what every optimizer has."""


def changed(arena, name, k):
    """Change something before step ``k``."""
    groups = arena.groups
    if k == 1:
        groups.add("one", ["fc.*"], lr=2.0, maximize=True, **OWN.get(name, {}))
    groups.rest(["conv2.weight"] if k % 3 == 2 else [])
    if k % 4 == 3:
        groups.freeze("norm.*")
        groups.set("one", lr=0.5, weight_decay=0.5, maximize=False)
    elif k % 4 == 1:
        groups.unfreeze("norm.*")
        arena.scalars.set(lr=0.01 * k, ema_decay=0.5)


def gradients(arena, k):
    """Write half gradients; every fifth step overflows, and what rests has NaN."""
    rng = np.random.default_rng(k)
    for parameter in arena.plan.parameters.values():
        tensor = parameter.half_gradient or parameter.gradient
        values = rng.integers(-8, 9, tensor.shape).astype(np.float32)
        still = {*arena.groups.frozen, *arena.groups.resting}
        if parameter.name in still or (k % 5 == 4 and parameter.name == "one.weight"):
            values[...] = np.nan
        if tensor.dtype.is_half:
            arena.write(tensor.offset, to_half(values, tensor.dtype.label))
        else:
            arena[tensor] = values


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_replay_equals_eager_while_groups_and_live_words_change(name, device):
    found = []
    for replays in (False, True):
        arena = Arena(small_plan(name, half="fp16", ema=True), device=device)
        step = OptimizerStep(
            arena, lr=0.01, weight_decay=0.1, clip_norm=4.0, loss_scale=4.0, growth_interval=3
        )
        for tensor in arena.plan.weights():
            arena[tensor] = 1.0
        go = step.capture().replay if replays else step
        for k in range(STEPS):
            changed(arena, name, k)
            gradients(arena, k)
            go()
        assert arena.scalars.skipped_steps == STEPS // 5
        found.append(host_bytes(arena))
    np.testing.assert_array_equal(*found)
