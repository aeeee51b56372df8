"""What may have happened to an arena before an op runs on it: ``change(arena)``, on FEW tensors."""

from __future__ import annotations

import numpy as np

from plan.scratch import (
    BLOCK_FLOATS,
    FIXED,
    GROUP,
    GROUP_FLOATS,
    RESTS,
    ROW,
    ROW_FLOATS,
    TRAINED,
)


def nothing(arena):
    """Change nothing."""


def put_gradients(arena, name, values):
    """Write ``values(elements)`` into a tensor's gradients of both formats, where they are."""
    for tensor in filter(None, map(arena.plan.tensors.get, (f"{name}#G", f"{name}#G16"))):
        arena[tensor] = values(tensor.numel).astype(tensor.dtype.numpy)


def everywhere_bad(arena):
    """Put values that are not finite into gradients of both formats."""
    for name, bad in (("b", np.nan), ("w", -np.inf), ("c", np.inf)):
        put_gradients(arena, name, lambda n, bad=bad: np.where(np.arange(n) == 3, bad, 1.0))
    arena["w#G16"] = np.float16(np.inf)


def last_bad(arena):
    """Let one element be not finite, in the second granule of a weight."""
    put_gradients(arena, "w", lambda n: np.where(np.arange(n) == n - 1, np.nan, 1.0))


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
    for name in ("w", "c"):
        put_gradients(arena, name, lambda n: 10.0 ** np.random.default_rng(n).uniform(-3, 3, n))


def still(*words):
    """Return the world in which the first tensors have these live words."""

    def resting(arena):
        live = arena.download("step.live")
        live[: len(words)] = words
        arena["step.live"] = live

    return resting


RESTING = (
    still(RESTS, TRAINED, FIXED, RESTS), still(TRAINED, FIXED, RESTS, TRAINED),
    still(FIXED, RESTS, TRAINED, FIXED),
)  # fmt: skip
"""Every kind of live word on every tensor of FEW."""


def rows_of(arena):
    """Return a copy of block and rows, and the rows of it."""
    table = arena.download("step.coefficients")
    return table, table[BLOCK_FLOATS:].reshape(-1, ROW_FLOATS)


def other_rows(arena):
    """Let the rows differ in every coefficient."""
    table, rows = rows_of(arena)
    rows[:] = np.random.default_rng(7).uniform(0.1, 1.0, rows.shape)
    arena["step.coefficients"] = table


def small_trust(arena):
    """Let the rows differ, and all ratios be small."""
    other_rows(arena)
    table, rows = rows_of(arena)
    rows[:, ROW.index("trust")] *= 0.01
    arena["step.coefficients"] = table


def written_rows(arena):
    """Let block and rows be those of a step before, in which everything was otherwise."""
    arena["step.coefficients"] = 0.3


def without_momentum(arena):
    """Let two tensors keep no momentum."""
    groups = arena.download("step.groups")
    groups[1:3, GROUP.index("momentum")] = 0.0
    arena["step.groups"] = groups


def agreed(arena):
    """Let ranks have come with the same settings."""
    for name, word in (("settings", 5), ("settings_inverse", ~5)):
        arena.write(arena.plan.scalar(name)[0], np.array([word], np.int32))


def first_steps(arena):
    """Let no tensor have moved in an arena that has."""
    arena["step.steps"] = 0


def last_steps(arena):
    """Let two tensors be at the last steps that are counted."""
    steps = arena.download("step.steps")
    steps[:2] = 2**31 - 2, 2**31 - 1
    arena["step.steps"] = steps


def two_folds(arena):
    """Give a weight two folds and the first tensor none."""
    arena["norm.fold_of_tensor"] = np.array([0, 0, 1, 3, 4], np.int32)


def small_norms(arena):
    """Let all norms be below 1."""
    sums = arena.plan.tensors["norm.sums"]
    arena.write(sums.offset, np.linspace(1e-4, 1e-2, sums.numel // 2))


def zeros(arena):
    """Leave nothing of gradients and first moments."""
    for tensor in arena.plan:
        if tensor.region.series in "GM":
            arena[tensor] = 0


FOLLOWING, ODD, EVEN = (
    {"lr": 1.75, "weight_decay": 0.6, "adapt": 1.0},
    {"lr": 0.5, "weight_decay": 0.75, "adapt": 1.0, "trust_coefficient": 0.67,
     "one_minus_beta1": 0.43, "one_minus_beta2": 0.22, "beta1": 0.57, "eps": 0.29, "momentum": 0.53,
     "one_minus_dampening": 0.87, "nesterov": 1.0, "maximize": 0.0, "decoupled": 1.0,
     "bias_correction": 0.0, "grad_averaging": 1.0},
    {"lr": 0.25, "weight_decay": 1.5, "adapt": 0.0, "trust_coefficient": 0.88,
     "one_minus_beta1": 0.36, "one_minus_beta2": 0.13, "beta1": 0.64, "eps": 0.41, "momentum": 0.74,
     "one_minus_dampening": 0.58, "nesterov": 0.0, "maximize": 1.0, "decoupled": 0.0,
     "bias_correction": 1.0, "grad_averaging": 0.0},
)  # fmt: skip
"""Rows of groups: one that follows scalars and options, and two that differ in every setting."""


def several_groups(arena):
    """Give the tensors groups that differ in every setting."""
    groups = np.full(arena.plan.tensors["step.groups"].shape, 7.0, np.float32)
    for k, settings in enumerate((FOLLOWING, ODD, EVEN)):
        groups[k, : len(GROUP)] = [settings.get(name, np.nan) for name in GROUP]
        groups[k, len(GROUP) : GROUP_FLOATS] = 0.9
    arena["step.groups"] = groups
    count = len(arena.plan.weights())
    arena["step.group_of_tensor"] = np.array((2, 0, 1, 0), np.int32)[np.arange(count) % 4]


def count_steps(arena):
    """Let every tensor have made another number of steps."""
    count = len(arena.plan.weights())
    arena["step.steps"] = np.array((4, 1, 0, 2), np.int32)[np.arange(count) % 4]
