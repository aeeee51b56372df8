"""Tensors that rest, and those planned as frozen: what they keep, and that they count nowhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

from plan.scratch import NORM_STRIDE
from rangeops import ops
from rangeops.launch.coefficients import READS
from rangeops.optim.report import report
from tests import tolerance
from tests.ops.steps import (
    OPTIMIZERS,
    block_of,
    filled,
    get_gradient,
    planned,
    put_gradient,
    rows_of,
    state_of,
    take_step,
)

SHAPES = (
    ("moves.bias", "fc_bias", (130,)), ("rests.bias", "fc_bias", (5,)),
    ("frozen.bias", "bn_weight", (3,)), ("fixed.bias", "bn_bias", (129,)),
    ("moves", "fc_weight", (3, 100)), ("rests", "fc_weight", (129,)),
    ("frozen", "first_conv", (127,)), ("fixed", "deep_conv", (300,)),
    ("also.moves", "deep_conv", (5,)),
)  # fmt: skip
"""Among biases, which have FP32 gradients, and weights, each kind beside others of its region."""

FIXED = ("fixed.bias", "fixed")
STILL = ("rests.bias", "rests", "frozen.bias", "frozen")
MOVING = ("moves.bias", "moves", "also.moves")

SCALARS = {
    "lr": 0.1, "weight_decay": 0.1, "momentum": 0.5, "ema_decay": 0.75, "clip_value": 4.0,
    "clip_norm": 0.5, "loss_scale": 8.0, "trust_coefficient": 0.5, "eps": 1e-3,
}  # fmt: skip


def arena_of(optimizer, device, half=None):
    """Return an arena in whose gradients all that does not move has NaN; it has made five steps."""
    arena = filled(planned(optimizer, FIXED, SHAPES, half=half), device)
    arena.scalars.set(**SCALARS, step=5)
    arena.groups.freeze(["frozen", "frozen.bias"])
    arena.groups.rest(["rests", "rests.bias"])
    for name in (*STILL, *FIXED):
        put_gradient(arena, name, np.nan)
    return arena


@pytest.mark.parametrize("half", [None, "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_rests_keeps_its_bits_and_only_its_average_moves(optimizer, half, device):
    arena = arena_of(optimizer, device, half)
    steps, p, e = arena.groups.steps(), {}, {}
    kept = {name: state_of(arena, name, "WMVA") for name in (*STILL, *FIXED)}
    for name in STILL:
        p[name], e[name] = arena.download(name), arena.download(f"{name}#E")
    averages = {name: state_of(arena, name, "E") for name in FIXED}
    take_step(arena, clear_grad=True)
    assert (arena.scalars.skipped_steps, arena.scalars.step) == (0, 6)
    assert {name: state_of(arena, name, "WMVA") for name in (*STILL, *FIXED)} == kept
    for name in STILL:
        want = e[name] + np.float32(0.25) * (p[name] - e[name])
        np.testing.assert_array_equal(arena.download(f"{name}#E"), want)
        assert not get_gradient(arena, name).any(), "an old gradient is cleared as well"
    assert {name: state_of(arena, name, "E") for name in FIXED} == averages
    assert all(np.isnan(get_gradient(arena, name)).all() for name in FIXED), "none to clear"
    moved = {name: steps[name] + (name in MOVING) for name in steps}
    assert arena.groups.steps() == moved


@pytest.mark.parametrize("half", [None, "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_rests_counts_nowhere(optimizer, half, device):
    """What moves does so to the bit as beside tensors whose gradients are zero."""
    arena, quiet = arena_of(optimizer, device, half), arena_of(optimizer, "cpu", half)
    for name in (*STILL, *FIXED):
        put_gradient(quiet, name, 0.0)
    for each in (arena, quiet):
        take_step(each)
    for name in MOVING:
        assert state_of(arena, name, "WMVEA") == state_of(quiet, name, "WMVEA"), name
    scaled = np.concatenate([get_gradient(arena, name) for name in MOVING]).astype(np.float64)
    norm = math.sqrt(math.fsum(scaled * scaled)) / SCALARS["loss_scale"]
    assert arena.scalars.grad_norm == pytest.approx(norm, rel=tolerance.STORED)
    assert arena.scalars.grad_norm == quiet.scalars.grad_norm
    assert arena.nonfinite_tensor() is None
    norms = ops.read_norms(arena)
    assert all((norms[name] > 0) == (name in MOVING) for name in norms)


@pytest.mark.parametrize("optimizer", ["lars", "lamb"])
def test_what_rests_has_the_ratio_one_and_no_norms(optimizer, device):
    arena = arena_of(optimizer, device)
    names = [t.name for t in arena.plan.weights()]
    take_step(arena)
    span = arena.plan.series_range("N")
    norms = dict(zip(names[4:], arena.read(span, "f4").reshape(-1, NORM_STRIDE), strict=True))
    for name, row in rows_of(arena).items():
        ratio = row["ratio"]
        assert (ratio != 1.0) == (name in ("moves", "also.moves")), name
        if name in norms:
            rests = name not in MOVING
            assert norms[name][:3].tolist() == [0.0, 0.0, 1.0] if rests else norms[name][2] == ratio


@pytest.mark.parametrize("half", [None, "fp16"])
def test_the_report_has_no_gradient_of_what_rests(half, device):
    arena = arena_of("adamw", device, half)
    for name, row in report(arena).items():
        assert row.gradient_nonfinite == 0
        assert (row.gradient_norm > 0) == (row.gradient_max > 0) == (name in MOVING)
        assert row.weight_norm > 0, "weights are looked at all the same"


@pytest.mark.parametrize("half", [None, "fp16"])
def test_the_report_needs_no_biases_to_tell_gradients_from_weights(half, device):
    """Without any, the FP32 gradients of a plan with halves are an empty range."""
    shapes = (("moves", "fc_weight", (3,)), ("rests", "fc_weight", (300,)))
    arena = filled(planned("adamw", shapes=shapes, half=half), device)
    put_gradient(arena, "rests", np.nan)
    arena.groups.rest(["rests"])
    rows = report(arena)
    assert (rows["rests"].gradient_nonfinite, rows["rests"].gradient_norm) == (0, 0.0)
    assert rows["moves"].gradient_norm > 0 and rows["rests"].weight_norm > 0


def test_what_wakes_up_goes_on_where_it_stopped(device):
    """Its own step counts what moved it; a bias correction goes by that."""
    arena = arena_of("adamw", device)
    arena.scalars.step = 0
    for name in STILL:
        put_gradient(arena, name, 0.5)
    for _ in range(2):
        take_step(arena)
    arena.groups.rest([])
    take_step(arena)
    steps = arena.groups.steps()
    assert (steps["moves"], steps["rests"], steps["frozen"], steps["fixed"]) == (3, 1, 0, 0)
    found = {name: row["step_size"] / np.float32(0.1) for name, row in rows_of(arena).items()}
    assert found["moves"] == pytest.approx(1 / (1 - 0.9**3), rel=tolerance.STEP)
    assert found["rests"] == pytest.approx(1 / (1 - 0.9), rel=tolerance.STEP)


@pytest.mark.parametrize("half", [None, "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "lamb"])
def test_a_skipped_first_step_clears_no_gradient_of_a_fixed_tensor(optimizer, half, device):
    """No row has been written by then."""
    arena = arena_of(optimizer, device, half)
    put_gradient(arena, "moves", np.inf)
    before = {name: state_of(arena, name) for name, _, _ in SHAPES}
    take_step(arena, clear_grad=True)
    assert arena.scalars.skipped_steps == 1 and arena.nonfinite_tensor() == "moves"
    assert {name: state_of(arena, name) for name, _, _ in SHAPES} == before
    for name, _, _ in SHAPES:
        gradient = get_gradient(arena, name)
        assert np.isnan(gradient).all() if name in FIXED else not gradient.any()


LAST = 2**31 - 1


@pytest.mark.parametrize("optimizer", ["adam", "lamb", "momentum"])
def test_every_tensor_counts_its_own_steps_up_to_the_last(optimizer, device):
    steps = {"n": 0, "b": 4, "w": LAST - 1, "c": LAST}
    arena = filled(planned(optimizer), device)
    arena.scalars.set(lr=0.5, momentum=0.5, dampening=0.25, beta1=0.9, beta2=0.99, step=7)
    arena.groups.set_steps(steps)
    for made in range(1, 4):
        take_step(arena)
        now = {name: min(step + made, LAST) for name, step in steps.items()}
        assert arena.groups.steps() == now
        for name, row in rows_of(arena).items():
            t = now[name]
            want = {
                "step_size": 0.5 / (1 - 0.9**t), "inv_bc1": 1 / (1 - 0.9**t),
                "inv_sqrt_bc2": (1 - 0.99**t) ** -0.5, "momentum": 0.5 * (t > 1),
                "one_minus_dampening": 0.75 if t > 1 else 1.0,
            }  # fmt: skip
            found = {key: row[key] for key in want if key in READS[optimizer]}
            assert len(found) == 2
            assert found == pytest.approx({key: want[key] for key in found}, rel=tolerance.STEP)
            assert np.isfinite(list(row.values())).all()
            assert np.isfinite(arena.download(name)).all()


def test_the_arenas_counts_stop_as_well(device):
    arena = filled(planned("sgd"), device)
    arena.scalars.set(step=LAST, skipped_steps=LAST)
    assert set(arena.groups.steps().values()) == {LAST}
    ops.begin_step(arena, ema_warmup=True)
    arena.scalars.found_inf = 1
    ops.begin_step(arena)
    assert (arena.scalars.step, arena.scalars.skipped_steps) == (LAST, LAST)
    assert set(arena.groups.steps().values()) == {LAST}
    assert all(np.isfinite(list(row.values())).all() for row in rows_of(arena).values())
    assert block_of(arena)["one_minus_ema_decay"] == np.float32(arena.scalars.one_minus_ema_decay)
