"""What begin_step writes: block and rows by optimizer, option and group."""

from __future__ import annotations

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig
from plan.scratch import ROW
from rangeops import Arena, ops
from rangeops.arena.settings import NAMES, READS
from rangeops.launch import coefficients
from tests.ops.own import allowed
from tests.ops.steps import block_of, rows_of

F = np.float32

HYPER = {
    "lr": 0.5, "weight_decay": 0.25, "beta1": 0.5, "beta2": 0.75, "eps": 0.125, "momentum": 0.5,
    "dampening": 0.25, "loss_scale": 4.0, "ema_decay": 0.75, "step": 1,
    "trust_coefficient": 0.25,
}  # fmt: skip

PLAIN = {
    "grad": 0.25, "one_minus_ema_decay": 0.25, "start_ema": 0, "lr": 0.5,
    "step_size": 0.5 / 0.75, "keep": 1, "weight_decay": 0.25, "one_minus_beta1": 0.5,
    "one_minus_beta2": 0.25, "inv_sqrt_bc2": 0.4375**-0.5, "eps": 0.125, "momentum": 0.5,
    "one_minus_dampening": 0.75, "look_gradient": 0, "look_moment": 1, "scale": 0.5, "rate": 1,
    "ratio": 1, "trust": 0.25, "inv_bc1": 1 / 0.75, "beta1": 0.5, "beta3": 0.5,
}  # fmt: skip
"""A row at the second step by hand, where nothing is chosen: bc1 0.75, bc2 0.4375."""

LR_OUTSIDE = {"scale": 1, "rate": 0.5}
DECOUPLED = {"keep": 0.875, "weight_decay": 0}
LOOK = {"look_gradient": 1, "look_moment": 0.5}

BY_OPTIMIZER = {
    "sgd": LR_OUTSIDE, "momentum": LR_OUTSIDE, "nesterov": LR_OUTSIDE | LOOK, "lars": {},
    "adam": {}, "adamw": DECOUPLED, "lion": DECOUPLED, "lamb": {},
}  # fmt: skip
"""What an optimizer has by its nature."""

BY_OPTION = {
    "bias_correction": {"inv_sqrt_bc2": 1, "inv_bc1": 1, "step_size": 0.5},
    "ema_warmup": {"one_minus_ema_decay": 9 / 11},
    "maximize": {"grad": -0.25},
    "loss_scaling": {},
    "global_norm": {"grad": 0.125},
    "nesterov": LOOK,
    "grad_averaging": {"beta3": 1},
    "lr_outside": LR_OUTSIDE,
    "decoupled": DECOUPLED,
}
"""What turning an option changes: the two that are on by default are turned off."""


def plan_of_two(optimizer):
    """Return a plan of a bias and a weight."""
    plan = MemoryPlan(PlanConfig(optimizer))
    plan.parameter("b", "fc_bias", (3,))
    plan.parameter("w", "fc_weight", (3,))
    return plan.finalize()


def written(optimizer, group=None, **options):
    """Return the rows that begin_step writes for a weight and a bias where all of them is read.

    By name, beside the coefficients of both; ``group`` has settings of the weight's own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coefficients, "READS", {})
        arena = Arena(plan_of_two(optimizer), device="cpu")
        arena.scalars.set(**HYPER, clip_norm=1.0)
        if group is not None:
            arena.groups.add("own", "w", **group)
        arena["norm.totals"] = np.array([64.0]).view(F)  # a norm of 8, unscaled 2
        ops.begin_step(arena, **options)
    rows = rows_of(arena)
    return tuple(block_of(arena) | rows[name] for name in ("w", "b"))


@pytest.mark.parametrize("optimizer", BY_OPTIMIZER)
def test_an_optimizer_has_its_coefficients(optimizer):
    weight, bias = written(optimizer)
    want = PLAIN | BY_OPTIMIZER[optimizer]
    assert weight == {name: F(value) for name, value in want.items()}
    undecayed = {"keep": 1, "weight_decay": 0, "trust": -1}
    assert bias == {name: F(value) for name, value in (want | undecayed).items()}


FOURS = {
    "sgd": (0, 3), "momentum": (0, 2, 3), "nesterov": (0, 2, 3), "lars": (0, 1, 2, 3, 4),
    "adam": (0, 1), "adamw": (0, 1), "lion": (0, 1, 4), "lamb": (0, 1, 3, 4),
}  # fmt: skip
"""Which fours of a row an optimizer's launches read, from their formulas."""


@pytest.mark.parametrize("optimizer", BY_OPTIMIZER)
def test_the_fours_of_a_row_that_are_read_are_written_and_no_others(optimizer, monkeypatch):
    monkeypatch.setattr(coefficients, "READ_BY_OTHERS", set())
    arena = Arena(plan_of_two(optimizer), device="cpu")
    arena["step.coefficients"] = np.nan
    ops.begin_step(arena)
    fours = {k // 4 for k, name in enumerate(ROW) if not np.isnan(rows_of(arena)["w"][name])}
    assert fours == set(FOURS[optimizer])
    passes = {"lamb": ("lamb_moments", "lamb")}.get(optimizer, (optimizer,))
    for name in passes:
        read = {n for stage in ops.REGISTRY[name].kernel.stages for n in stage.arguments}
        assert {k // 4 for k, coefficient in enumerate(ROW) if coefficient in read} <= fours


@pytest.mark.parametrize("option", ops.begin_step.options)
def test_an_option_changes_its_coefficients_and_no_others(option):
    off = option in ("bias_correction", "grad_averaging")
    weight, _ = written("adam", **{option: not off})
    clip = {"grad": 0.25 / (2 + 1e-6)} if option == "global_norm" else {}
    want = PLAIN | BY_OPTION[option] | clip
    assert weight == {name: F(value) for name, value in want.items()}


BY_SETTING = {
    ("lr", 2.0): {"lr": 1, "step_size": 1 / 0.75, "scale": 1},
    ("weight_decay", 2.0): {"weight_decay": 0.5},
    ("adapt", False): {"trust": -1},
    ("trust_coefficient", 0.5): {"trust": 0.5},
    ("beta1", 0.75): {
        "one_minus_beta1": 0.25, "beta1": 0.75, "beta3": 0.25, "inv_bc1": 1 / 0.4375,
        "step_size": 0.5 / 0.4375,
    },
    ("beta2", 0.5): {"one_minus_beta2": 0.5, "inv_sqrt_bc2": 0.75**-0.5},
    ("eps", 0.5): {"eps": 0.5},
    ("momentum", 0.75): {"momentum": 0.75},
    ("momentum", 0.0): {
        "momentum": 1, "one_minus_dampening": 0, "look_gradient": 1, "look_moment": 0,
    },
    ("dampening", 0.5): {"one_minus_dampening": 0.5},
    ("nesterov", True): LOOK,
    ("maximize", True): {"grad": -0.25},
    ("bias_correction", False): BY_OPTION["bias_correction"],
    ("grad_averaging", False): {"beta3": 1},
    ("decay", "decoupled"): DECOUPLED,
}  # fmt: skip
"""What a setting of a group changes in the rows of its tensors."""


def reader(setting):
    """Return an optimizer that acts by a setting."""
    return next(name for name in ("adam", "lars", "lamb", "momentum") if setting in READS[name])


@pytest.mark.parametrize(("setting", "value"), BY_SETTING)
def test_a_groups_setting_changes_its_coefficients_and_no_others(setting, value):
    optimizer = reader(setting)
    weight, bias = written(optimizer, {setting: value})
    want = PLAIN | BY_OPTIMIZER[optimizer] | BY_SETTING[setting, value]
    assert weight == {name: F(v) for name, v in want.items()}
    assert bias == written(optimizer)[1]


AGAINST = (
    ("nesterov", True), ("maximize", True), ("bias_correction", False), ("grad_averaging", False),
    ("decoupled", True),
)  # fmt: skip
"""Options of a step, each against what is the default."""


@pytest.mark.parametrize(("option", "chosen"), AGAINST)
def test_a_groups_own_choice_stands_against_the_steps_option(option, chosen):
    name, own = ("decay", "l2") if option == "decoupled" else (option, not chosen)
    optimizer = reader(name)
    assert written(optimizer, {name: own}, **{option: chosen})[0] == written(optimizer)[0]
    follows = written(optimizer, {name: None}, **{option: chosen})
    assert follows == written(optimizer, **{option: chosen})


@pytest.mark.parametrize("optimizer", BY_OPTIMIZER)
def test_what_a_group_gives_up_follows_the_scalars_again(optimizer):
    arena = Arena(plan_of_two(optimizer), device="cpu")
    own = allowed(dict(list(BY_SETTING)), optimizer)
    arena.groups.add("own", "w", **own)
    arena.groups.set("own", **dict.fromkeys(own))
    arena.scalars.set(**HYPER)
    ops.begin_step(arena)
    row, want = rows_of(arena)["w"], PLAIN | BY_OPTIMIZER[optimizer]
    for k, name in enumerate(ROW):
        assert row[name] == (F(want[name]) if k // 4 in FOURS[optimizer] else 0), name


def test_every_option_and_optimizer_is_here():
    assert set(BY_OPTION) == set(ops.begin_step.options)
    own = {op.name for op in map(ops.REGISTRY.get, BY_OPTIMIZER)}
    declared = {
        op.name
        for op in ops.REGISTRY.values()
        if op.settings is not None and op.__module__.startswith("rangeops.")
    }
    assert own == declared
    assert {name for name, _ in BY_SETTING} == set(NAMES)
