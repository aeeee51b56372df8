"""What is timed never runs on zeros."""

from __future__ import annotations

import numpy as np
import pytest

from bench.fill import FILLED, fill
from plan import PlanConfig
from plan.models import mlp, plan_model
from rangeops import Arena


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_every_series_and_half_is_finite_and_not_zero(half):
    arena = Arena(plan_model(mlp((40, 30)), PlanConfig("lamb", half=half, ema=True)), "cpu")
    fill(arena)
    for series, halves in FILLED:
        view = arena.view(arena.plan.series_range(series, half=halves), "u2" if halves else "u4")
        if halves:
            values = view.view("f2") if half == "fp16" else (view.astype("u4") << 16).view("f4")
        else:
            values = view.view("f4")
        assert values.size and np.count_nonzero(values) > 0.99 * values.size, (series, halves)
        assert np.isfinite(values).all()
        assert 0.5 < np.abs(values.astype("f4")).mean() < 1.2, (series, halves)
        assert series != "V" or (values >= 0).all()


def test_another_seed_is_another_contents():
    arenas = [Arena(plan_model(mlp((40, 30))), "cpu") for _ in range(3)]
    for arena, seed in zip(arenas, (0, 0, 1), strict=True):
        fill(arena, seed)
    one, same, other = ((arena.memory.copy()) for arena in arenas)
    assert (one == same).all() and (one != other).any()
