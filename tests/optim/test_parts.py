"""The public parts of an OptimizerStep: check, begin, update; what it says of itself."""

from __future__ import annotations

import numpy as np
import pytest

from rangeops import Arena, Graph, OptimizerStep, ops
from rangeops.optim.report import Report
from tests import tolerance
from tests.helpers import host_bytes, small_plan


def names(launches):
    return [launch.binding.op.name for launch in launches]


def step_of(optimizer="adamw", half=None, device="cpu", **arguments):
    return OptimizerStep(Arena(small_plan(optimizer, half=half), device=device), **arguments)


@pytest.mark.parametrize(
    ("optimizer", "arguments", "check", "update"),
    [
        ("sgd", {}, [], ["sgd"]),
        ("sgd", {"check": True}, ["check_nan"], ["sgd"]),
        ("sgd", {"clip_norm": 1.0}, ["grad_norm", "fold_norms", "total_norm"], ["sgd"]),
        ("lars", {}, ["grad_norm", "fold_norms"], ["trust_ratio", "lars"]),
        ("lamb", {}, [], ["lamb_moments", "fold_norms", "trust_ratio", "lamb"]),
    ],
)
def test_the_launches_are_the_parts_one_after_the_other(optimizer, arguments, check, update):
    step = step_of(optimizer, **arguments)
    assert (names(step.check), names(step.begin)) == (check, ["begin_step"])
    assert names(step.update) == update
    assert step.launches == (*step.check, *step.begin, *step.update)
    assert step.norms == ("clip_norm" in arguments)


@pytest.mark.parametrize("decay", ["l2", "decoupled"])
def test_the_kind_of_decay_is_a_coefficient(decay):
    """The update is one kernel; begin_step alone is told.  p = 1, m = 0, lr = 0.5, wd = 0.25."""
    step = step_of("momentum", decay=decay, lr=0.5, weight_decay=0.25)
    step.arena["one.weight"] = 1.0
    step(), step()
    # l2: d1 = 0.25, m1 = d1, p1 = 1 - 0.125; d2 = p1/4, m2 = 0.9*d1 + d2, p2 = p1 - 0.5*m2
    want = {"l2": 0.875 - 0.5 * (0.9 * 0.25 + 0.875 / 4), "decoupled": 0.875**2}[decay]
    assert float(step.arena.download("one.weight")[0]) == pytest.approx(want, rel=tolerance.STEP)


def test_a_decay_that_the_optimizer_lacks_is_refused_before_a_byte_is_written():
    arena = Arena(small_plan("adam"), device="cpu")
    before = host_bytes(arena)
    with pytest.raises(ValueError, match="decay got 'decoupled', adam has 'l2'; leave it out"):
        OptimizerStep(arena, decay="decoupled", lr=0.5)
    np.testing.assert_array_equal(host_bytes(arena), before)


def test_an_update_of_the_callers_takes_the_place_of_the_own():
    arena = Arena(small_plan("sgd", half="fp16"), device="cpu")
    asked = []

    def update(half_grad, clear_grad):
        asked.append((half_grad, clear_grad))
        return [ops.sgd.bind(arena, part="bias", clear_grad=clear_grad)]

    step = OptimizerStep(arena, lr=1.0, loss_scale=1.0, clear_grad=False, update=update)
    assert asked == [(True, False)]
    arena["fc.bias#G"] = 1.0
    arena["fc.weight#G16"] = np.float16(1)
    step()
    assert (arena.download("fc.bias") == -1.0).all() and not arena.download("fc.weight").any()


def test_a_graph_takes_a_step_like_any_launch(device):
    pair = [step_of("sgd", device=device, lr=0.5, clear_grad=False) for _ in range(2)]
    graph = Graph(pair[1].arena, [pair[1]])
    for step, go in zip(pair, (pair[0], graph.replay), strict=True):
        assert not step.arena.download("one.weight").any()  # a capture moves nothing
        step.arena["one.weight#G"] = 1.0
        go(), go()
    np.testing.assert_array_equal(*(host_bytes(step.arena) for step in pair))


def test_what_a_step_and_a_report_say_of_themselves():
    step = step_of("adamw", half="fp16")
    moved = f"{step.nbytes:,} bytes a step>"
    assert repr(step) == (
        "<OptimizerStep of adamw (fp16) on cpu: check_nan, begin_step, adamw; " + moved
    )
    report = Report(step.arena)
    assert repr(report) == "<Report of weights and gradients of 8 parameters on cpu>"
