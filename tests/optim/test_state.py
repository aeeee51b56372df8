"""Who is trained this step, with which settings, at which step: facts with one owner each.

S37, S38, S42, S43, S44, S45, S49 and S50 as an arena without torch meets them.
"""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

from plan import MemoryPlan, PlanConfig, PlanError, Range
from rangeops import Arena, OptimizerStep, Report, averaged, ops
from tests import tolerance
from tests.helpers import host_bytes, small_plan


def arena_of(optimizer, *names, device="cpu", shape=(300,), **config):
    """Return an arena of weights of these names, one shape each."""
    plan = MemoryPlan(PlanConfig(optimizer, **config))
    for name in names:
        plan.parameter(name, "fc_weight", shape)
    return Arena(plan.finalize(), device=device)


def value(arena, name):
    """Return the one value that all elements of a tensor have."""
    values = np.unique(arena.download(name))
    assert values.size == 1
    return float(values[0])


def close(got, want):
    assert got == pytest.approx(want, rel=tolerance.STEP, abs=1e-12)


# A tensor that rests


def test_s37_a_resting_tensor_counts_in_no_norm_and_no_clip(device):
    """12 elements of gradient 3 alone: norm 3*sqrt(12), the weight moves by 0.1*3/norm."""
    plan = MemoryPlan(PlanConfig("sgd"))
    plan.parameter("first", "fc_weight", (12,))
    plan.parameter("second", "fc_weight", (8,))
    arena = Arena(plan.finalize(), device=device)
    step = OptimizerStep(arena, lr=0.1, clip_norm=1.0, clear_grad=False)
    arena["first#G"], arena["second#G"] = 3.0, 40.0
    step()
    before = {name: value(arena, name) for name in ("first", "second")}
    arena.groups.rest(["second"])
    step()
    norm = 3 * np.sqrt(12)
    close(arena.scalars.grad_norm, norm)
    close(value(arena, "first") - before["first"], -0.1 * 3 / (norm + 1e-6))
    assert value(arena, "second") == before["second"]
    assert arena.groups.steps() == {"first": 2, "second": 1}


@pytest.mark.parametrize("frozen", [False, True])
def test_s37_a_resting_tensors_inf_skips_one_step_only(frozen, device):
    arena = arena_of("sgd", "first", "second", device=device)
    step = OptimizerStep(arena, lr=1.0, check=True, scaling=True, loss_scale=4.0, clear_grad=False)
    arena["first#G"], arena["second#G"] = 4.0, np.inf
    step()
    assert (arena.scalars.skipped_steps, arena.scalars.loss_scale) == (1, 2.0)
    if frozen:
        arena.groups.freeze("second")
    else:
        arena.groups.rest(["second"])
    for _ in range(3):
        arena["first#G"] = 2.0
        step()
    status = step.status()
    assert (status.step, status.skipped_steps, status.loss_scale) == (3, 1, 2.0)
    assert arena.nonfinite_tensor() == "second"  # of the step that was skipped
    assert (value(arena, "first"), value(arena, "second")) == (-3.0, 0.0)


def test_a_report_looks_at_no_old_gradient():
    arena = arena_of("sgd", "first", "second")
    arena["first#G"], arena["second#G"], arena["second"] = 2.0, np.nan, 3.0
    arena.groups.rest(["second"])
    report = Report(arena)
    report.measure()
    row = report.read()["second"]
    assert (row.gradient_norm, row.gradient_max, row.gradient_nonfinite) == (0.0, 0.0, 0)
    close(row.weight_norm, 3.0 * np.sqrt(300))


# A step for each tensor


@pytest.mark.parametrize("count", [10, 100_000])
def test_s38_a_late_tensor_has_its_own_bias_correction(count, device):
    arena = arena_of("adam", "early", "late", device=device)
    step = OptimizerStep(arena, lr=0.1, clear_grad=False)
    arena.groups.rest(["late"])
    arena["early#G"], arena["late#G"] = 1.0, np.nan
    for _ in range(10):
        step()
    arena.scalars.step = count
    arena.groups.set_steps({"late": 0})
    arena.groups.rest([])
    arena["late#G"] = 0.5
    step()
    close(value(arena, "late"), -0.1)
    assert arena.groups.steps() == {"early": count + 1, "late": 1}


def test_s38_a_tensors_first_momentum_step_takes_the_gradient(device):
    arena = arena_of("momentum", "early", "late", device=device)
    step = OptimizerStep(arena, lr=0.1, momentum=0.9, dampening=0.5, clear_grad=False)
    arena.groups.rest(["late"])
    arena["early#G"] = 1.0
    for _ in range(3):
        step()
    arena.groups.rest([])
    arena["late#G"] = 0.5
    step()
    close(value(arena, "late"), -0.05)


@pytest.mark.parametrize("step", [-1, 2**31])
def test_a_step_that_no_tensor_can_have_is_refused(step):
    arena = arena_of("adamw", "w")
    with pytest.raises(ValueError, match="step of w got .*, expected 0 .. 2"):
        arena.groups.set_steps({"w": step})
    assert arena.groups.steps() == {"w": 0}


def test_every_count_of_steps_stops(device):
    arena = arena_of("adamw", "w", device=device)
    step = OptimizerStep(arena, lr=0.1, clear_grad=False)
    arena["w#G"] = 1.0
    arena.scalars.step = 2**31 - 2
    step(), step(), step()
    assert arena.scalars.step == 2**31 - 1 and arena.groups.steps() == {"w": 2**31 - 1}
    assert np.isfinite(arena.download("w")).all()


# Averages


def test_s49_the_average_starts_as_the_weights(device):
    arena = arena_of("sgd", "w", device=device, ema=True)
    step = OptimizerStep(arena, lr=0.0, ema_decay=0.999)
    arena["w"] = 2.0  # behind the step, as somebody may who loads weights late
    for _ in range(10):
        step()
    assert value(arena, "w#E") == 2.0


@pytest.mark.parametrize("half", [None, "fp16"])
def test_s49_the_first_step_averages_the_weights_before_it_and_after(half, device):
    arena = arena_of("sgd", "w", device=device, ema=True, half=half)
    step = OptimizerStep(arena, lr=1.0, ema_decay=0.75, loss_scale=1.0, clear_grad=False)
    arena["w"] = 2.0
    arena["w#G16" if half else "w#G"] = np.nan
    if half:
        step()  # is skipped, and leaves the start to the next one
    arena["w#G16" if half else "w#G"] = 1.0
    step()
    assert (value(arena, "w"), value(arena, "w#E")) == (1.0, 0.75 * 2 + 0.25 * 1)


@pytest.mark.parametrize("how", ["rest", "freeze"])
def test_s50_the_average_of_what_rests_moves_on(how, device):
    arena = arena_of("sgd", "w", "other", device=device, ema=True)
    step = OptimizerStep(arena, lr=1.0, ema_decay=0.5, clear_grad=False)
    arena["w#G"] = 1.0
    step()
    getattr(arena.groups, how)(["w"])
    arena["w#G"] = np.nan
    for _ in range(40):
        step()
    assert value(arena, "w") == -1.0
    assert abs(value(arena, "w#E") - -1.0) < 1e-6
    assert arena.groups.steps() == {"w": 1, "other": 41}


def test_s42_a_step_inside_averaged_is_refused_and_a_second_exchange_changes_nothing(device):
    arena = arena_of("sgd", "w", device=device, ema=True, half="fp16")
    step = OptimizerStep(arena, lr=1.0, ema_decay=0.5, clear_grad=False)
    graph = step.capture()
    arena["w#G16"] = np.float16(1)
    step()
    live = host_bytes(arena)
    with averaged(arena):
        assert (value(arena, "w"), value(arena, "w#A16")) == (-0.5, -0.5)
        with averaged(arena):
            assert value(arena, "w") == -0.5
        for refused in (step, graph.replay):
            with pytest.raises(RuntimeError, match="averaged weights are swapped in"):
                refused()
    np.testing.assert_array_equal(host_bytes(arena), live)
    ops.sema_switch(arena, swap=True, half_copy=True)
    with pytest.raises(RuntimeError, match="the averaged weights are swapped in, expected"):
        step()
    ops.sema_switch(arena, swap=True, half_copy=True)
    step()


# One driver


def test_s43_a_second_step_is_an_error_and_a_closed_one_steps_no_more():
    arena = arena_of("sgd", "u", "v")
    arena["u#G"] = arena["v#G"] = 1.0
    first = OptimizerStep(arena, lr=1.0, clear_grad=False)
    arena.groups.freeze("v")
    before = host_bytes(arena)
    with pytest.raises(PlanError, match="driven by <OptimizerStep of sgd .*close.. that one first"):
        OptimizerStep(arena, lr=0.5)
    np.testing.assert_array_equal(host_bytes(arena), before)
    first()
    assert (value(arena, "u"), value(arena, "v")) == (-1.0, 0.0)
    first.close()
    with pytest.raises(RuntimeError, match="got a step after close"):
        first()
    second = OptimizerStep(arena, lr=0.5, resume=True)
    del first
    gc.collect()
    second()
    assert value(arena, "u") == -1.5 and arena.scalars.step == 2


def test_s43_a_step_that_nobody_holds_drives_nothing():
    arena = arena_of("sgd", "u")
    OptimizerStep(arena, lr=1.0)
    OptimizerStep(arena, lr=0.5)()
    assert arena.scalars.lr == 0.5


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "lamb", "lion", "lars"])
def test_s44_a_new_step_begins_anew_unless_it_resumes(optimizer):
    def trained(*resume):
        arena = arena_of(optimizer, "w", ema=True)
        arena["w"] = 1.0
        for again in resume:
            step = OptimizerStep(arena, lr=0.1, clear_grad=False, resume=again)
            arena["w#G"] = 1.0
            step(), step(), step()
            step.close()
        return arena

    straight = arena_of(optimizer, "w", ema=True)
    straight["w"] = 1.0
    step = OptimizerStep(straight, lr=0.1, clear_grad=False)
    straight["w#G"] = 1.0
    for _ in range(6):
        step()
    np.testing.assert_array_equal(host_bytes(trained(False, True)), host_bytes(straight))
    anew, once = trained(False, False), trained(False)
    second = arena_of(optimizer, "w", ema=True)
    second["w"] = once.download("w")
    step = OptimizerStep(second, lr=0.1, clear_grad=False)
    second["w#G"] = 1.0
    step(), step(), step()
    np.testing.assert_array_equal(host_bytes(anew), host_bytes(second))
    assert anew.scalars.step == 3


def test_a_refused_step_leaves_the_arena_and_its_driver_alone():
    arena = arena_of("adamw", "w")
    step = OptimizerStep(arena, lr=0.1, clear_grad=False)
    arena["w#G"] = 1.0
    step()
    before = host_bytes(arena)
    for wrong in ({"lr": -1.0}, {"nonsense": 1}, {"decay": "l1"}):
        step.close()
        with pytest.raises((ValueError, TypeError)):
            OptimizerStep(arena, **wrong)
        np.testing.assert_array_equal(host_bytes(arena), before)
    assert OptimizerStep(arena, resume=True).arena.scalars.step == 1


# Groups


@pytest.mark.parametrize("count", [31, 32, 233])
def test_s45_a_group_a_parameter(count):
    names = [f"w{k}" for k in range(count)]
    arena = arena_of("adamw", *names, shape=(4,))
    step = OptimizerStep(arena, lr=1.0, clear_grad=False)
    for k, name in enumerate(names):
        step.groups.add(name, name, lr=0.01 * 0.99**k)
        arena[f"{name}#G"] = 1.0
    step()
    for k, name in enumerate(names):
        close(value(arena, name), -0.01 * 0.99**k)


def test_a_group_goes_with_its_last_tensor():
    groups = arena_of("sgd", "a", "b").groups
    groups.add("one", "a")
    groups.add("two", "*")
    assert groups.names == ("decay", "no_decay", "two")
    with pytest.raises(ValueError, match="got 'one', expected one of decay, no_decay, two"):
        groups.set("one", lr=2.0)


def test_groups_are_one_object_and_say_what_was_last_given():
    arena = arena_of("adamw", "a", "b")
    arena.groups.freeze("a")
    step = OptimizerStep(arena, lr=1.0)
    step.groups.add("head", "b", lr=2.0, beta2=0.5, maximize=True, decay="l2")
    assert step.groups is arena.groups and arena.groups.frozen == ("a",)
    assert arena.groups.settings("head") == {
        "lr": 2.0, "beta2": 0.5, "maximize": True, "decay": "l2",
    }  # fmt: skip
    arena.groups.set("head", beta2=None, decay=None, lr=None)
    assert arena.groups.settings("head") == {"maximize": True}


@pytest.mark.parametrize(
    ("optimizer", "setting", "message"),
    [
        ("sgd", {"momentum": 0.9}, "got momentum=0.9 for sgd, which has none"),
        ("adamw", {"nesterov": True}, "got nesterov=True for adamw, which has none"),
        ("lion", {"decay": "l2"}, "got decay='l2' for lion, expected 'decoupled'"),
        ("lamb", {"trust_coefficient": 0.1}, "got trust_coefficient=0.1 for lamb, which has none"),
    ],
)
def test_a_setting_that_no_kernel_reads_is_refused(optimizer, setting, message):
    arena = arena_of(optimizer, "a")
    before = host_bytes(arena)
    for call in (
        lambda: arena.groups.add("x", "a", **setting),
        lambda: arena.groups.set("decay", **setting),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    np.testing.assert_array_equal(host_bytes(arena), before)


# Scalars and copies


def test_the_mirror_follows_whoever_wrote_the_bytes(device):
    """A span of two scalars uploads those between them: they have to be the device's."""
    arena = arena_of("adamw", "w", device=device)
    arena.scalars.set(weight_decay=0.1, beta1=0.8)
    saved = host_bytes(arena)
    arena.scalars.set(weight_decay=0.0, beta1=0.9)
    arena.write(0, saved)
    assert (arena.scalars.weight_decay, arena.scalars.beta1) == tuple(map(np.float32, (0.1, 0.8)))
    arena.scalars.set(lr=0.5, ema_decay=0.5)
    assert (arena.scalars.weight_decay, arena.scalars.beta1) == tuple(map(np.float32, (0.1, 0.8)))


@pytest.mark.parametrize("how", ["view", "tensor", "memory", "copy"])
def test_the_mirror_follows_views_and_copies(how, device):
    arena = arena_of("adamw", "w", device=device)
    lr = arena.plan.tensors["scalar.lr"]
    arena.scalars.lr = 0.25
    if how == "copy":
        arena["w"] = 0.125
        ops.copy(arena, Range(lr.offset, 4), Range(arena.plan.tensors["w"].offset, 4))
    elif how == "view":
        arena.view(Range(lr.offset, 4), "f4")[...] = 0.125
    elif how == "tensor":
        arena["scalar.lr"] = 0.125
    else:
        arena.memory[lr.offset : lr.offset + 4].view("f4")[...] = 0.125
    assert arena.scalars.lr == 0.125
    arena.scalars.set(beta2=0.5)
    assert arena.scalars.lr == 0.125


@pytest.mark.parametrize("make", [copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
def test_s51_a_copy_of_an_arena_is_whole(make, device):
    arena = arena_of("adamw", "a", "b", device=device, ema=True)
    step = OptimizerStep(arena, lr=0.1, clear_grad=False)
    arena["a#G"] = arena["b#G"] = 1.0
    step.groups.add("head", "b", lr=0.5, beta1=0.5)
    step.groups.freeze("a")
    step()
    twin = make(arena)
    np.testing.assert_array_equal(host_bytes(twin), host_bytes(arena))
    assert twin.groups.state() == arena.groups.state() and twin.ptr != arena.ptr
    twin.scalars.lr = 0.5
    assert (arena.scalars.lr, twin.scalars.lr) == (np.float32(0.1), 0.5)
    twin.scalars.lr = 0.1
    again = OptimizerStep(twin, resume=True, clear_grad=False)
    step(), again()
    np.testing.assert_array_equal(host_bytes(twin), host_bytes(arena))


@pytest.mark.parametrize("make", [copy.deepcopy, pickle.dumps])
def test_s51_what_cannot_be_copied_says_so(make):
    arena = arena_of("adamw", "a")
    for thing, message in (
        (OptimizerStep(arena), "make a step of it with resume=True"),
        (arena.groups, "copy the arena instead"),
        (arena.scalars, "copy the arena instead"),
        (Arena.wrap(np.zeros(512, np.float32)), "copy the buffer and wrap the copy"),
    ):
        with pytest.raises((TypeError, PlanError), match=message):
            make(thing)
    plan = pickle.loads(pickle.dumps(small_plan("lamb", half="bf16")))
    assert plan.total_bytes == copy.deepcopy(plan).total_bytes == arena_plan_bytes()


def arena_plan_bytes():
    return small_plan("lamb", half="bf16").total_bytes
