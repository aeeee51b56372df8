"""A driver behind a load says whether it goes on, and goes on as the one that saved."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from plan import PlanError
from rangeops import OptimizerStep, load, save
from tests.checkpoint.filled import SHAPES, filled, planned, rewritten, same, setter, values_of
from tests.helpers import host_bytes


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.safetensors"


def gradients(arena, value=1.0):
    """Write one value into every gradient."""
    for name in SHAPES:
        parameter = arena.plan.parameters[name]
        arena[parameter.half_gradient or parameter.gradient] = value


def test_behind_a_load_a_driver_has_to_say_whether_it_goes_on(file):
    save(filled(ema=True), file)
    arena = planned(ema=True)
    load(arena, file)
    before = host_bytes(arena)
    with pytest.raises(PlanError, match="holds a loaded state of step 11, expected resume=True"):
        OptimizerStep(arena)
    np.testing.assert_array_equal(host_bytes(arena), before)
    step = OptimizerStep(arena, resume=True)
    np.testing.assert_array_equal(host_bytes(arena), before)
    gradients(arena)
    step()
    assert arena.scalars.step == 12


def test_resume_false_keeps_the_weights_and_begins_anew(file):
    saved = filled(ema=True)
    save(saved, file)
    arena = planned(ema=True)
    load(arena, file)
    OptimizerStep(arena, resume=False)
    want = {n: v if n[:2] not in ("m.", "v.") else 0 * v for n, v in values_of(saved).items()}
    same(values_of(arena), want | {f"ema.{name}": want[name] for name in SHAPES})
    assert arena.scalars.step == 0 and set(arena.groups.steps().values()) == {0}
    assert arena.scalars.lr == saved.scalars.lr and arena.groups.settings("head")["lr"] == 10.0


def test_a_load_under_a_living_driver_goes_on_at_once(file):
    first = filled()
    driver = OptimizerStep(first, lr=0.1, resume=True, clear_grad=False)
    gradients(first)
    save(first, file)
    arena = planned()
    step = OptimizerStep(arena, lr=0.5, clear_grad=False)
    gradients(arena)
    step()
    load(arena, file)
    for run in (driver, step):
        run()
    same(values_of(arena), values_of(first))
    assert arena.scalars.step == 12 and arena.scalars.lr == first.scalars.lr


def test_a_file_that_no_driver_saved_is_taken_with_any_options(file):
    save(filled(ema=True), file)
    for options in ({}, {"ema_warmup": True}, {"scaling": True}):
        arena = planned(ema=True)
        load(arena, file)
        step = OptimizerStep(arena, resume=True, **options)
        load(arena, file)
        step()


def saved_with(file, **options):
    """Write a file of a driver with these options."""
    arena = planned("momentum", ema=True)
    step = OptimizerStep(arena, clear_grad=False, **options)
    gradients(arena)
    step(), step()
    save(arena, file)
    return arena


@pytest.mark.parametrize(
    ("saved", "given"),
    [({"ema_warmup": True}, {}), ({}, {"ema_warmup": True}), ({"maximize": True}, {}),
     ({"scaling": True}, {}), ({"decay": "l2"}, {"decay": "decoupled"})],
)  # fmt: skip
def test_other_options_are_refused_strictly_and_taken_else(saved, given, file):
    saved_with(file, **saved)
    arena = planned("momentum", ema=True)
    load(arena, file)
    before = host_bytes(arena)
    with pytest.raises(PlanError, match="the checkpoint was made with .*, expected the same"):
        OptimizerStep(arena, resume=True, **given)
    np.testing.assert_array_equal(host_bytes(arena), before)
    OptimizerStep(arena, resume=True, **saved).close()
    other = planned("momentum", ema=True)
    load(other, file, strict=False)
    OptimizerStep(other, resume=True, **given)


@pytest.mark.parametrize("strict", [True, False])
def test_other_options_of_a_living_driver_are_met_before_anything_is_written(strict, file):
    saved_with(file, ema_warmup=True)
    arena = planned("momentum", ema=True)
    step = OptimizerStep(arena, clear_grad=False)
    before = host_bytes(arena)
    if strict:
        with pytest.raises(PlanError, match="made with ema_warmup=True, got ema_warmup=False"):
            load(arena, file)
        np.testing.assert_array_equal(host_bytes(arena), before)
    else:
        load(arena, file, strict=False)
    step()


def test_a_file_saved_again_without_a_driver_says_the_same_options(file):
    saved_with(file, ema_warmup=True)
    between = planned("momentum", ema=True, half="fp16")
    load(between, file)
    save(between, file)
    arena = planned("momentum", ema=True)
    load(arena, file)
    with pytest.raises(PlanError, match="ema_warmup=True"):
        OptimizerStep(arena, resume=True)
    OptimizerStep(arena, resume=True, ema_warmup=True)


def test_options_of_numpy_are_plain_in_a_file(file):
    arena = planned("lamb")
    step = OptimizerStep(arena, trust_clip=np.float64(10.0))
    save(arena, file)
    del step
    gc.collect()
    load(arena, file)
    OptimizerStep(arena, resume=True, trust_clip=10.0)


def test_s39_the_loss_scale_grows_by_the_steps_before_the_file(file, device):
    def driver(arena, **arguments):
        return OptimizerStep(arena, check=True, scaling=True, clear_grad=False, **arguments)

    arena = planned("sgd", half="fp16", device=device)
    step = driver(arena, lr=0.1, loss_scale=8.0, growth_interval=4)
    gradients(arena)
    step(), step(), step()
    assert (arena.scalars.loss_scale, arena.scalars.growth_tracker) == (8.0, 3)
    save(arena, file)
    other = planned("sgd", half="fp16", device=device)
    load(other, file)
    step = driver(other, resume=True)
    gradients(other)
    step()
    assert (other.scalars.loss_scale, other.scalars.growth_tracker) == (16.0, 0)
    assert other.scalars.grad_scale == 16.0


def test_s39_hysteresis_counts_the_overflows_before_the_file(file):
    arena = planned("sgd", half="fp16")
    step = OptimizerStep(arena, loss_scale=8.0, hysteresis=2, clear_grad=False)
    gradients(arena, np.inf)
    step()
    assert arena.scalars.loss_scale == 8.0
    save(arena, file)
    other = planned("sgd", half="fp16")
    load(other, file)
    step = OptimizerStep(other, resume=True, clear_grad=False)
    gradients(other, np.inf)
    step()
    assert (other.scalars.loss_scale, other.scalars.skipped_steps) == (4.0, 2)


def test_the_loss_scale_of_a_file_is_checked(file):
    arena = planned(half="fp16")
    save(arena, file)
    rewritten(file, file, facts=setter("scalars", "hysteresis")(0))
    with pytest.raises(PlanError, match="hysteresis"):
        load(arena, file)
