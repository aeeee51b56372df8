"""The average starts as the weights and moves at every step that is not skipped (S24, S49, S50)."""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from rangeops import Arena, ops
from tests.ops.steps import OPTIMIZERS, block_of, put_gradient, take_step


def two(optimizer, device, half=None, **scalars):
    """Return an arena whose weights are 2 and whose averages are nothing that may be looked at."""
    plan = MemoryPlan(PlanConfig(optimizer, half=half, ema=True))
    plan.parameter("b", "fc_bias", (5,))
    plan.parameter("w", "fc_weight", (130,))
    arena = Arena(plan.finalize(), device=device)
    for name in "bw":
        arena[name], arena[f"{name}#E"] = 2.0, np.nan
        put_gradient(arena, name, 1.0)
    arena.scalars.set(**{"ema_decay": 0.5, "lr": 1.0} | scalars)
    return arena


def quick_step(arena):
    """Begin and update alone."""
    ops.begin_step(arena)
    getattr(ops, arena.plan.config.kind.label)(arena, ema=True)


def averages(arena):
    """Return the two averages, each of which has one value."""
    found = [arena.download(f"{name}#E") for name in "bw"]
    assert all((values == values[0]).all() for values in found)
    return [float(values[0]) for values in found]


def weights(arena):
    return [arena.download(name)[0] for name in "bw"]


@pytest.mark.parametrize("half", [None, "fp16", "bf16"])
def test_s49_the_first_step_averages_what_was_and_what_is(half, device):
    arena = two("sgd", device, half)
    take_step(arena)
    assert weights(arena) == [1.0, 1.0] and averages(arena) == [1.5, 1.5]
    take_step(arena)
    assert weights(arena) == [0.0, 0.0] and averages(arena) == [0.75, 0.75]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_s49_it_starts_as_the_weights_under_every_optimizer(optimizer, device):
    arena = two(optimizer, device)
    take_step(arena)
    want = [np.float32(2) + np.float32(0.5) * (p - np.float32(2)) for p in weights(arena)]
    assert averages(arena) == want and want != [2.0, 2.0]


@pytest.mark.parametrize("half", [None, "fp16"])
def test_s49_a_skipped_first_step_is_none(half, device):
    arena = two("adamw", device, half)
    put_gradient(arena, "w", np.inf)
    take_step(arena)
    assert weights(arena) == [2.0, 2.0] and np.isnan(arena.download("w#E")).all()
    arena["w"], arena["b"] = 4.0, 4.0  # whoever writes weights before the first step
    put_gradient(arena, "w", 1.0)
    take_step(arena)
    assert averages(arena) == [np.float32(4) + np.float32(0.5) * (p - 4) for p in weights(arena)]


@pytest.mark.parametrize("value", [2.0, float(np.float32(1) / np.float32(3))])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_s49_without_a_movement_it_stays_to_the_bit(optimizer, value, device):
    arena = two(optimizer, device, lr=0.0)
    arena["w"] = arena["b"] = value
    for decay in (*[0.5] * 9, 0.999):
        arena.scalars.ema_decay = decay
        quick_step(arena)
        assert averages(arena) == [value, value]


def test_s50_what_rests_from_the_first_step_on_has_its_weights(device):
    arena = two("adamw", device)
    arena.groups.rest(["w"])
    take_step(arena)
    bias, weight = averages(arena)
    assert weight == 2.0 and bias == 2.0 + 0.5 * (weights(arena)[0] - 2.0)


def test_s50_it_converges_to_what_rests(device):
    arena = two("sgd", device)
    take_step(arena)
    arena.groups.freeze("w")
    gaps = []
    for _ in range(30):
        quick_step(arena)
        gaps.append(abs(averages(arena)[1] - 1.0))
    assert gaps[:3] == [0.25, 0.125, 0.0625] and gaps[-1] == 0.0


def test_the_op_by_itself_starts_it_as_well(device):
    """Behind the update, so as the weights after it; with the rule alone from then on."""
    arena = two("sgd", device)
    ops.begin_step(arena)
    ops.sgd(arena)
    ops.ema(arena)
    assert averages(arena) == [1.0, 1.0]
    ops.begin_step(arena)
    ops.sgd(arena)
    ops.ema(arena)
    assert averages(arena) == [0.5, 0.5]


@pytest.mark.parametrize("word", ["found_inf", "skip_step"])
def test_a_held_step_moves_no_average(word, device):
    arena = two("sgd", device)
    take_step(arena)
    arena.scalars.set(**{word: 1})
    ops.ema(arena)
    assert averages(arena) == [1.5, 1.5]


def test_the_warm_up_counts_the_arenas_steps_not_the_tensors(device):
    arena = two("sgd", device, ema_decay=0.9999)
    arena.scalars.step = 1
    arena.groups.set_steps({"b": 100, "w": 0})
    ops.begin_step(arena, ema_warmup=True)
    assert block_of(arena) == {"one_minus_ema_decay": np.float32(9 / 11), "start_ema": 0.0}


def test_ranges_without_a_plan_begin_nowhere(device):
    """A raw launch knows no first step; its average is what lies there."""
    arena = two("sgd", device)
    arena["b#E"] = 1.0
    spans = {"e": arena.tensor("b#E"), "p": arena.tensor("b")}
    ops.ema(arena, **spans, ema_decay=0.5)
    assert arena.download("b#E").tolist() == [1.5] * 5
