"""A call is a function of its arguments: by values left out, by state, by thread and by stream."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from plan import Range
from rangeops import Arena, ops
from rangeops.device.host import HostDevice
from rangeops.device.streams import PER_THREAD
from rangeops.launch import launch
from tests.device.gate import Gate
from tests.helpers import raw_arena, small_plan

SPANS = {"p": Range(0, 4096), "g": Range(4096, 4096)}
"""1,024 weights and their gradients in one buffer of FP32."""


def ones():
    """Return 2,048 floats, weights and gradients of 1."""
    return np.ones(2048, np.float32)


def alone(op, data, **arguments):
    """Return what a launch of its own leaves in a copy of ``data``."""
    fresh = data.copy()
    op.bind(fresh, **arguments)()
    return fresh


def test_what_a_call_leaves_out_has_its_default():
    data = ones()
    ops.sgd(data, **SPANS, lr=0.5, weight_decay=1.0)
    data[:] = 1
    ops.sgd(data, **SPANS, lr=0.5)
    assert (data[:1024] == 0.5).all()


SETTINGS = (
    {"lr": 0.5},
    {"lr": 0.5, "step": 100},
    {"lr": 0.5, "beta1": 0.5},
    {"lr": 0.25, "beta1": 0.5, "beta2": 0.5},
    {"lr": 0.5, "eps": 0.5},
    {"lr": 0.5, "weight_decay": 0.25},
    {"lr": 0.5, "step": None, "beta1": None},
    {"lr": 0.25, "maximize": True},
)


@pytest.mark.parametrize("kind", ["foreign", "arena"])
def test_no_call_remembers_the_one_before(kind):
    spans = {key: Range(1024 * k, 1024) for k, key in enumerate("pgmv")}
    start = np.linspace(0.5, 1.5, 1024, dtype=np.float32)
    data = start.copy()
    memory = data if kind == "foreign" else Arena.wrap(data)
    order = np.random.default_rng(2).integers(0, len(SETTINGS), 60)
    for k in order:
        data[:] = start
        ops.adamw(memory, **spans, **SETTINGS[k])
        np.testing.assert_array_equal(data, alone(ops.adamw, start, **spans, **SETTINGS[k]))


def test_a_value_of_none_is_one_left_out():
    data = ones()
    ops.sgd(data, **SPANS, lr=0.5, weight_decay=1.0)
    data[:] = 1
    ops.sgd(data, **SPANS, lr=0.5, weight_decay=None, momentum=None)
    assert (data[:1024] == 0.5).all()
    with pytest.raises(TypeError, match="sgd: got no lr for a buffer without a plan"):
        ops.sgd(data, **SPANS, lr=None)


def test_a_scalar_that_the_op_moves_is_given_anew():
    """``unscale`` leaves grad_scale at 1, so the second call has to set it again."""
    data = np.full(1024, 8.0, np.float32)
    ops.unscale(data, g=Range(0, 4096), grad_scale=4.0)
    ops.unscale(data, g=Range(0, 4096), grad_scale=4.0)
    assert (data == 0.5).all()


def test_each_shared_state_is_its_own():
    """Two states look alike in words."""
    data, memory = ones(), raw_arena(8192, "cpu")
    states = [ops.check_nan.bind(memory, g=Range(0, 512)).state for _ in range(2)]
    assert repr(states[0]) == repr(states[1])
    for state, lr in zip(states, (0.5, 0.25), strict=True):
        ops.sgd.bind(memory, p=Range(0, 512), g=Range(512, 512), state=state).set(lr=lr)
    for state in states:
        ops.sgd(data, **SPANS, state=state)
    assert (data[:1024] == 0.25).all()


def test_values_for_a_shared_state_reach_it_at_every_call():
    data = ones()
    state = ops.check_nan.bind(data, g=SPANS["g"]).state
    ops.sgd(data, **SPANS, state=state, lr=0.5)
    state.scalars.lr = 0.125
    ops.sgd(data, **SPANS, state=state, lr=0.5)
    assert (data[:1024] == 0.0).all()


def test_a_refused_value_leaves_the_kept_one():
    data = ones()
    for lr in (0.5, -1.0, 10**400, float("nan"), "x", 0.5):
        if lr == 0.5:
            ops.sgd(data, **SPANS, lr=lr)
            continue
        with pytest.raises(ValueError, match=r"^lr: got .*, expected .*; "):
            ops.sgd(data, **SPANS, lr=lr)
    assert (data[:1024] == 0.0).all()


def test_a_view_of_another_type_on_the_same_memory_is_another_buffer():
    data = ones()
    ops.sgd(data, **SPANS, lr=0.5)
    with pytest.raises(TypeError, match="range p got a buffer of <f8"):
        ops.sgd(data.view(np.float64), **SPANS, lr=0.5)
    ops.sgd(data.view(np.uint8), **SPANS, lr=0.5)
    assert (data[:1024] == 0.0).all()


def test_a_step_of_a_planned_arena_is_begin_steps():
    arena = Arena(small_plan("sgd"), device="cpu")
    with pytest.raises(TypeError, match="sgd: got step=5 on a planned arena, expected none, since"):
        ops.sgd(arena, step=5)
    ops.sgd(arena, step=5, lr=0.5)
    ops.sgd(arena, step=None)


RATES = (0.5, 0.25, 0.125, 0.0625)
ROUNDS = 200


@pytest.mark.parametrize("kind", ["foreign", "arena"])
def test_threads_with_other_rates_never_see_each_others(kind):
    """Every call takes its own rate from every weight; sums of powers of two are exact."""
    data = np.zeros(2048, np.float32)
    data[1024:] = 1
    memory = data if kind == "foreign" else Arena.wrap(data)
    begin = threading.Barrier(len(RATES))

    def work(rate):
        begin.wait()
        for _ in range(ROUNDS):
            ops.sgd(memory, **SPANS, lr=rate)

    threads = [threading.Thread(target=work, args=(rate,)) for rate in RATES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (data[:1024] == -ROUNDS * sum(RATES)).all()


def kept(arena):
    """Return the launches that an arena keeps."""
    return arena.keep("launches", dict)


def test_a_binding_with_values_is_of_one_stream():
    arena = Arena.wrap(ones())
    for stream in (None, 0, 7, 8, 7, 8, PER_THREAD):
        ops.sgd(arena, **SPANS, lr=0.5, stream=stream)
    assert len(kept(arena)) == 4
    states = {entry.launch.state.ptr for entry in kept(arena).values()}
    assert len(states) == 4
    thread = threading.Thread(
        target=lambda: ops.sgd(arena, **SPANS, lr=0.5, stream=PER_THREAD), daemon=True
    )
    thread.start()
    thread.join()
    assert len(kept(arena)) == 5, "the per-thread stream is another one in every thread"
    planned = Arena(small_plan("sgd"), device="cpu")
    for stream in (None, 7, 8):
        ops.sgd(planned, stream=stream)
    assert len(kept(planned)) == 1, "a planned arena has one set of scalars"


def test_launches_are_kept_up_to_a_number(monkeypatch):
    monkeypatch.setattr(launch, "OWN_BINDINGS", 5)
    arena = Arena.wrap(ones())
    for stream in range(9):
        ops.sgd(arena, **SPANS, lr=0.5, stream=stream)
    assert len(kept(arena)) == 5
    assert arena.view(SPANS["p"], "f4")[0] == 1 - 9 * 0.5


def test_values_are_set_between_the_launches_of_their_stream(monkeypatch):
    """Also of a stream that is not the current one: they are copied in its order."""
    seen = []
    upload = HostDevice.upload
    monkeypatch.setattr(
        HostDevice,
        "upload",
        lambda self, at, values, stream: (seen.append(stream), upload(self, at, values, stream)),
    )
    data = ones()
    ops.sgd(data, **SPANS, lr=0.5, stream=7)
    for lr, sets in ((0.25, True), (0.25, False), (0.5, True)):
        seen.clear()
        ops.sgd(data, **SPANS, lr=lr, stream=7)
        assert set(seen) == ({7} if sets else set())
    seen.clear()
    ops.sgd(data, **SPANS, lr=0.5)
    assert set(seen) == {0}


def test_other_values_inside_a_capture_are_one_sentence(monkeypatch):
    data = ones()
    ops.sgd(data, **SPANS, lr=0.5, stream=7)
    monkeypatch.setattr(HostDevice, "capturing", lambda device, stream: stream == 7)
    ops.sgd(data, **SPANS, lr=0.5, stream=7)
    with pytest.raises(RuntimeError, match="sgd: got other hyper-parameters while the stream is c"):
        ops.sgd(data, **SPANS, lr=0.25, stream=7)
    with pytest.raises(RuntimeError, match="sgd: got its first use while the stream is capturing"):
        ops.sgd(data, **SPANS, lr=0.25, weight_decay=0.5, stream=7)
    monkeypatch.undo()
    ops.sgd(data, **SPANS, lr=0.5, stream=7)
    assert (data[:1024] == 1 - 3 * 0.5).all()


@pytest.mark.gpu
@pytest.mark.parametrize("explicit", [False, True])
def test_two_streams_with_other_rates_never_see_each_others(explicit):
    """The first stream is busy; the second one launches with its rate long before the first can."""
    import cupy

    memory = cupy.ones(2048, cupy.float32)
    late, soon = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))

    def step(stream, lr):
        if explicit:
            ops.sgd(memory, **SPANS, lr=lr, stream=stream)
        else:
            with stream:
                ops.sgd(memory, **SPANS, lr=lr)

    for stream in (late, soon):  # bound, which waits for the device
        step(stream, 1.0)
    cupy.cuda.Device().synchronize()
    memory[:1024] = 1
    cupy.cuda.Device().synchronize()
    gate = Gate(late)
    step(late, 0.25)
    step(soon, 0.125)
    step(late, 0.0625)  # set while the launch before still waits
    soon.synchronize()
    assert not late.done and float(memory[0]) == 1 - 0.125
    gate.open()
    cupy.cuda.Device().synchronize()
    assert (memory[:1024].get() == 1 - 0.25 - 0.125 - 0.0625).all()


@pytest.mark.gpu
def test_threads_on_streams_of_their_own_with_other_rates():
    import cupy

    memory = [cupy.zeros(2048, cupy.float32) for _ in RATES]
    for each in memory:
        each[1024:] = 1
    cupy.cuda.Device().synchronize()

    def work(each, rate):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(ROUNDS):
                ops.sgd(each, **SPANS, lr=rate)
                ops.sgd(each, **SPANS, lr=2 * rate)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=pair) for pair in zip(memory, RATES, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each, rate in zip(memory, RATES, strict=True):
        assert (each[:1024].get() == -ROUNDS * 3 * rate).all()
