"""What an optimizer wants by its nature, and who may be given an option."""

from __future__ import annotations

import numpy as np
import pytest

from plan import PlanError, Range
from rangeops import Arena, ops
from rangeops.launch.coefficients import DEFAULTS, OPTIONS, SETTINGS, option_word
from tests import tolerance
from tests.helpers import get, host_bytes, put, raw_arena, small_plan


def words(binding):
    """Return the names of the options that are on in a binding's option word."""
    return {name for name, bit in OPTIONS.items() if binding.options & bit}


def pair(op, arena, **arguments):
    """Return the binding of an op on p, g and m of one raw buffer."""
    spans = {o.name: Range(2048 * k, 1024) for k, o in enumerate(op.operands) if not o.flag}
    return op.bind(arena, **spans, lr=0.5, **arguments)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "momentum", "nesterov", "lars"])
def test_a_raw_launch_has_what_the_optimizer_wants_by_its_nature(name):
    op = getattr(ops, name)
    launch = pair(op, raw_arena(16384, "cpu"))
    wanted = {option for option, on in SETTINGS[name].items() if on}
    assert words(launch.binding) == wanted | {o for o in op.options if DEFAULTS[o]}


def test_decay_is_one_bit_that_enters_the_moments_or_not():
    for decay, moment in ("l2", 0.2), ("decoupled", 0.0):
        arena = raw_arena(16384, "cpu")
        put(arena, 0, np.full(256, 2.0, np.float32))
        launch = pair(ops.momentum, arena, decay=decay, weight_decay=0.1, momentum=0.5, step=2)
        assert ("decoupled" in words(launch.binding)) == (decay == "decoupled")
        launch()
        assert get(arena, 0, 1)[0] == pytest.approx(1.9, rel=tolerance.STEP)
        m = launch.binding.resolved["m"].span
        assert get(arena, m.base_offset, 1)[0] == pytest.approx(moment, rel=tolerance.STEP)


@pytest.mark.parametrize(
    ("name", "decay", "expected"),
    [("adamw", "l2", "'decoupled'"), ("adam", "decoupled", "'l2'"), ("sgd", "wd", "'l2', 'decou")],
)
def test_a_decay_that_an_optimizer_does_not_have_is_refused(name, decay, expected):
    with pytest.raises(
        ValueError, match=f"{name}: decay got '{decay}', expected one of {expected}"
    ):
        pair(getattr(ops, name), raw_arena(16384, "cpu"), decay=decay)


def test_an_op_without_decay_does_not_know_the_word():
    with pytest.raises(TypeError, match="ema: got unknown decay, expected e, p, "):
        ops.ema.bind(Arena(small_plan(ema=True), device="cpu"), decay="l2")


@pytest.mark.parametrize("given", [{"maximize": True}, {"bias_correction": True}])
def test_an_option_that_only_begin_step_can_honour_is_refused(given):
    arena = Arena(small_plan(), device="cpu")
    before = host_bytes(arena)
    (name,) = given
    with pytest.raises(
        TypeError, match=f"adamw: got {name}=True on a planned arena, .*; give it to begin_step"
    ):
        ops.adamw(arena, **given)
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_a_decay_given_to_an_update_of_a_planned_arena_is_refused():
    with pytest.raises(TypeError, match="sgd: got decoupled=True on a planned arena, .*begin_step"):
        ops.sgd.bind(Arena(small_plan("sgd"), device="cpu"), decay="decoupled")


@pytest.mark.parametrize(
    ("planned", "name", "wants", "has"),
    [
        ("adamw", "adam", "no option", "decoupled"),
        ("adam", "adamw", "decoupled", "no option"),
        ("momentum", "nesterov", "lr_outside, nesterov", "lr_outside"),
        ("lars", "momentum", "lr_outside", "no option"),
    ],
)
def test_an_optimizer_on_the_coefficients_of_another_is_refused(planned, name, wants, has):
    arena = Arena(small_plan(planned), device="cpu")
    before = host_bytes(arena)
    with pytest.raises(
        PlanError,
        match=f"{name}: got a plan for {planned}, whose coefficients carry {has}, "
        f"expected {wants}; use ops.{planned} or plan for {name}",
    ):
        getattr(ops, name)(arena)
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_begin_step_takes_the_settings_of_the_plans_optimizer():
    nesterov = Arena(small_plan("nesterov"), device="cpu")
    assert {"nesterov", "lr_outside"} <= words(ops.begin_step.bind(nesterov).binding)
    adamw = Arena(small_plan("adamw"), device="cpu")
    assert "decoupled" in words(ops.begin_step.bind(adamw).binding)
    sgd = Arena(small_plan("sgd"), device="cpu")
    assert "decoupled" not in words(ops.begin_step.bind(sgd).binding)
    assert "decoupled" in words(ops.begin_step.bind(sgd, decay="decoupled").binding)
    assert "decoupled" not in words(ops.begin_step.bind(adamw, decoupled=False).binding)


def test_an_option_word_holds_each_option_once():
    assert option_word(dict.fromkeys(OPTIONS, True)) == (1 << len(OPTIONS)) - 1
    assert set(DEFAULTS) == set(OPTIONS)
