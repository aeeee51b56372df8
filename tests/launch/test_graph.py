"""Graph: whatever it takes is given the stream, on the CPU, the simulator and a GPU, with torch."""

from __future__ import annotations

import numpy as np
import pytest

from rangeops import Arena, Graph, OptimizerStep, ops
from rangeops.launch.graph import launchable
from tests.helpers import host_bytes, small_plan

STEPS = 3


def filled(arena):
    """Give an arena weights and gradients that every call of this gives alike."""
    for k, tensor in enumerate(arena.plan.weights()):
        rng = np.random.default_rng(k)
        arena[tensor] = rng.standard_normal(tensor.shape, np.float32)
        arena[f"{tensor.name}#G"] = rng.standard_normal(tensor.shape, np.float32)
    return arena


def step_of(arena):
    return OptimizerStep(arena, lr=0.25, weight_decay=0.125, clear_grad=False)


def test_a_graph_of_a_whole_step_replays_it_bit_for_bit(device):
    eager, replayed = (filled(Arena(small_plan("adamw"), device=device)) for _ in range(2))
    step = step_of(eager)
    for _ in range(STEPS):
        step()
    whole = step_of(replayed)
    before = host_bytes(replayed)
    graph = Graph(replayed, [whole])
    np.testing.assert_array_equal(host_bytes(replayed), before)
    for _ in range(STEPS):
        graph.replay()
    assert replayed.scalars.step == STEPS
    np.testing.assert_array_equal(host_bytes(replayed), host_bytes(eager))


def test_a_closed_graph_says_so(device):
    graph = Graph(Arena(small_plan(), device=device), [])
    graph.replay()
    graph.close()
    with pytest.raises(RuntimeError, match=r"got replay\(\) after close\(\), expected it before"):
        graph.replay()


def test_a_signature_says_whether_a_call_takes_the_stream():
    seen = []
    launchable(lambda stream=None: seen.append(stream), "call 0")(5)
    launchable(lambda *, stream: seen.append(stream), "call 0")(6)
    launchable(lambda: seen.append("none"), "call 0")(7)
    launchable(lambda *more, **options: seen.append((more, options)), "call 0")(8)
    assert seen == [5, 6, "none", ((), {})]


@pytest.mark.parametrize("call", [lambda stream, more: None, lambda x: None, ops.adamw])
def test_a_call_that_takes_neither_a_stream_nor_nothing_is_refused(call):
    arena = Arena(small_plan(), device="cpu")
    with pytest.raises(TypeError, match=r"Graph: call 1 .* expected `stream` alone or none; wrap"):
        Graph(arena, [lambda: None, call])


def test_what_is_no_call_is_refused():
    with pytest.raises(TypeError, match="Graph: call 0 got int, expected a launch or a function"):
        Graph(Arena(small_plan(), device="cpu"), [3])


def torch_arena(torch):
    """Return an arena over a torch tensor, and the floats of its weights as torch sees them."""
    plan = small_plan("adamw")
    buffer = torch.zeros(plan.total_bytes, dtype=torch.uint8, device="cuda")
    arena = filled(Arena(plan, buffer=buffer))
    span = plan.series_range("W")
    return arena, buffer[span.base_offset : span.end].view(torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("side", [False, True])
def test_a_step_on_an_arena_of_torch_moves_the_weights_by_replay_alone(side):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (eager, wanted), (arena, weights) = torch_arena(torch), torch_arena(torch)
    assert arena.framework == "torch"
    step, whole = step_of(eager), step_of(arena)
    count = torch.zeros(1, device="cuda")
    count.add_(1)  # its kernel is loaded now
    torch.cuda.synchronize()
    before = weights.clone()
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        graph = Graph(arena, [whole, lambda: count.add_(1)])
        torch.cuda.synchronize()
        assert torch.equal(weights, before), "the weights moved while the step was captured"
        assert torch.cuda.current_stream() == stream
        for _ in range(STEPS):
            graph.replay()
            step()
    torch.cuda.synchronize()
    assert count.item() == 1 + STEPS, "torch's own work was not captured"
    assert not torch.equal(weights, before)
    assert torch.equal(weights, wanted)
    assert arena.scalars.step == STEPS
