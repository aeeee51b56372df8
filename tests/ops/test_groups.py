"""Groups that differ run in one launch, each as an arena with its settings would."""

from __future__ import annotations

import numpy as np
import pytest

from plan.scalars import FP32_SCALARS
from rangeops import Arena
from rangeops.arena.fields import COMPLEMENTS
from rangeops.arena.settings import READS
from rangeops.launch.coefficients import SETTINGS
from tests.ops.own import allowed
from tests.ops.steps import (
    OPTIMIZERS,
    SHAPES,
    filled,
    planned,
    put_gradient,
    state_of,
    take_step,
)

SHARED = {"lr": 0.0625, "weight_decay": 0.25, "ema_decay": 0.5}

GROUPS = {
    "n": {
        "lr": 2.0, "weight_decay": 0.5, "adapt": False, "trust_coefficient": 0.5, "beta1": 0.8,
        "beta2": 0.9, "eps": 1e-3, "momentum": 0.5, "dampening": 0.25, "nesterov": False,
        "maximize": True, "bias_correction": False, "grad_averaging": True, "decay": "l2",
    },
    "b": {
        "lr": 0.5, "weight_decay": 2.0, "adapt": True, "trust_coefficient": 0.25, "beta1": 0.7,
        "beta2": 0.95, "eps": 1e-2, "momentum": 0.9, "dampening": 0.0, "nesterov": True,
        "maximize": False, "bias_correction": True, "grad_averaging": False, "decay": "decoupled",
    },
    "w": {
        "lr": 1.0, "weight_decay": 1.0, "adapt": True, "trust_coefficient": 0.125, "beta1": 0.6,
        "beta2": 0.99, "eps": 1e-8, "momentum": 0.0, "dampening": 0.5, "nesterov": True,
        "maximize": True, "bias_correction": True, "grad_averaging": True, "decay": "decoupled",
    },
    "c": {
        "lr": 4.0, "weight_decay": 0.0, "adapt": True, "trust_coefficient": 0.75, "beta1": 0.5,
        "beta2": 0.75, "eps": 0.1, "momentum": 0.75, "dampening": 0.125, "nesterov": False,
        "maximize": False, "bias_correction": False, "grad_averaging": False, "decay": "l2",
    },
}  # fmt: skip
"""What each tensor's group sets for itself: everything.  Multipliers are powers of two, so that a
product has one value, however it comes about."""

OPTIONS = ("nesterov", "maximize", "bias_correction", "grad_averaging")


def run(arena, optimizer, steps=3, **options):
    """Take steps with fresh gradients."""
    rng = np.random.default_rng(8)
    for _ in range(steps):
        for name, _, shape in SHAPES:
            put_gradient(arena, name, rng.standard_normal(shape, np.float32))
        take_step(arena, **options)
    return arena


def alone(plan, optimizer, settings):
    """Return an arena after the same steps, in which all tensors follow scalars and options."""
    arena = filled(plan, "cpu")
    scalars = {name: value for name, value in settings.items() if name in FP32_SCALARS}
    scalars |= {name: settings[name] for name in COMPLEMENTS if name in settings}
    scalars |= {name: SHARED[name] * settings[name] for name in ("lr", "weight_decay")}
    arena.scalars.set(**SHARED | scalars)
    arena.groups.add("all", "*", adapt=settings.get("adapt"))
    options = {name: settings[name] for name in OPTIONS if name in settings}
    if "decay" in settings:
        options["decoupled"] = settings["decay"] == "decoupled"
    return run(arena, optimizer, **options)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_group_a_tensor_in_one_launch_equals_an_arena_a_tensor(optimizer, device):
    plan = planned(optimizer)
    together = filled(plan, device)
    together.scalars.set(**SHARED)
    groups = {name: allowed(settings, optimizer) for name, settings in GROUPS.items()}
    for name, settings in groups.items():
        together.groups.add(f"of {name}", name, **settings)
    run(together, optimizer)
    for name, settings in groups.items():
        want = alone(plan, optimizer, settings)
        assert state_of(together, name, "WMVEN") == state_of(want, name, "WMVEN"), name


def test_those_settings_differ_from_one_another():
    """Or one tensor's would do for another."""
    for key in GROUPS["n"]:
        assert len({settings[key] for settings in GROUPS.values()}) >= 2, key


@pytest.mark.parametrize("decay", ["l2", "decoupled"])
@pytest.mark.parametrize("optimizer", ["momentum", "nesterov"])
def test_a_group_without_momentum_is_sgd_and_leaves_m(optimizer, decay, device):
    """Beside a group that has it, from the first step on and later."""
    plain = filled(planned("sgd"), "cpu")
    arena = filled(planned(optimizer), device)
    before = [state_of(arena, name, "M") for name in ("w", "b")]
    for each in (plain, arena):
        each.scalars.set(lr=0.1, weight_decay=0.01, momentum=0.9, dampening=0.5)
        each.groups.add("still", ["w", "b"], decay=decay)
        for name in ("w", "b", "w#E", "b#E"):
            each[name] = np.arange(each.download(name).size).reshape(each.download(name).shape)
    arena.groups.set("still", momentum=0.0)
    for each in (plain, arena):
        run(each, optimizer)
    for name in ("w", "b"):
        assert state_of(arena, name, "WE") == state_of(plain, name, "WE")
    assert [state_of(arena, name, "M") for name in ("w", "b")] == before


@pytest.mark.parametrize("optimizer", ["momentum", "nesterov", "lars"])
def test_momentum_may_be_given_up_and_taken_up(optimizer, device):
    arena = filled(planned(optimizer), device)
    arena.scalars.set(lr=0.1, momentum=0.0)
    arena.groups.add("own", "c", momentum=0.5)
    moved = []
    for own, shared in ((0.5, 0.0), (0.0, 0.5), (0.5, 0.5)):
        arena.groups.set("own", momentum=own)
        arena.scalars.momentum = shared
        before = [state_of(arena, name, "M") for name in ("c", "w", "b")]
        run(arena, optimizer, steps=1)
        after = [state_of(arena, name, "M") for name in ("c", "w", "b")]
        moved.append([one != two for one, two in zip(before, after, strict=True)])
    assert moved == [[True, False, False], [False, True, True], [True, True, True]]


OTHER = {
    "lr": 0.5, "weight_decay": 0.5, "adapt": False, "trust_coefficient": 0.5, "beta1": 0.5,
    "beta2": 0.5, "eps": 0.5, "momentum": 0.5, "dampening": 0.5, "nesterov": True,
    "maximize": True, "bias_correction": False, "grad_averaging": False,
}  # fmt: skip
"""A value of each setting that is not the default."""


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_group_may_set_what_has_an_effect_and_nothing_else(optimizer):
    plan = planned(optimizer)

    def after(**settings):
        arena = filled(plan, "cpu")
        arena.scalars.set(**SHARED)
        arena.groups.add("own", "w", **settings)
        return state_of(run(arena, optimizer, steps=2), "w")

    plain = after()
    nature = "decoupled" if SETTINGS[optimizer].get("decoupled") else "l2"
    for name, value in (OTHER | {"nesterov": optimizer != "nesterov"}).items():
        if name in READS[optimizer]:
            assert after(**{name: value}) != plain, name
        elif value:
            with pytest.raises(ValueError, match=f"{name}={value} for {optimizer}, which has none"):
                after(**{name: value})
    for decay in ("l2", "decoupled"):
        if decay in READS[optimizer]["decay"]:
            assert (after(decay=decay) == plain) == (decay == nature)
        else:
            with pytest.raises(ValueError, match=f"decay='{decay}' for {optimizer}, expected"):
                after(decay=decay)


def test_a_change_of_a_group_needs_no_new_launch(device):
    """From the next step on, and no other tensor sees it."""
    plan = planned("adamw")
    changed, plain = (filled(plan, device) for _ in range(2))
    for arena in (changed, plain):
        arena.groups.add("own", "w")
        run(arena, "adamw", steps=1)
    assert state_of(changed, "w") == state_of(plain, "w")
    changed.groups.set("own", beta2=0.5, maximize=True)
    for arena in (changed, plain):
        run(arena, "adamw", steps=1)
    assert state_of(changed, "w") != state_of(plain, "w")
    for name in ("n", "b", "c"):
        assert state_of(changed, name) == state_of(plain, name)


def test_more_groups_than_sixty_four():
    """As many as there are tensors."""
    shapes = tuple((f"t{k}", "fc_weight", (3,)) for k in range(300))
    plan = planned("sgd", shapes=shapes)
    arena = Arena(plan, device="cpu")
    for k, (name, _, _) in enumerate(shapes):
        arena.groups.add(f"group {k}", name, lr=float(k))
        put_gradient(arena, name, 1.0)
    arena.scalars.lr = 0.5
    take_step(arena)
    moved = [arena.download(name)[0] for name, _, _ in shapes]
    assert moved == [-0.5 * k for k in range(300)]
