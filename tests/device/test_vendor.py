"""Another vendor's GPU is one module: a made-up one runs everything that stands on the seam."""

from __future__ import annotations

import types

import numpy as np
import pytest

from plan import DType, MemoryPlan, PlanConfig
from rangeops import Arena, Graph, OptimizerStep, device
from rangeops.device.host import HostDevice, HostEvent
from rangeops.h2d import Prefetcher, h2d_copy
from rangeops.launch import launchers
from tests.helpers import host_bytes, small_plan


class AcmeEvent(HostEvent):
    """An event that counts how often it was recorded on the device's streams."""

    recorded = 0

    def record(self, stream):
        assert stream in (11, 22), f"got stream {stream}, expected one of the device's"
        AcmeEvent.recorded += 1


class AcmeDevice(HostDevice):
    """A GPU "acme:0" whose memory the host can read; its current stream is 11, new ones are 22."""

    name, kind, index = "acme:0", "acme", 0

    def stream_reader(self, framework):
        return lambda: 11

    def stream(self):
        return types.SimpleNamespace(handle=22)

    def event(self):
        return AcmeEvent()


DEVICE = AcmeDevice()
ACME = types.SimpleNamespace(
    KIND="acme", gpu_count=lambda: 1, find=lambda number: DEVICE, adopt=lambda buffer: None
)


@pytest.fixture
def acme(monkeypatch):
    """Name the vendor where a vendor is named; its kernels are the host's loops here."""
    monkeypatch.setattr(device, "GPUS", (*device.GPUS, ACME))
    monkeypatch.setitem(launchers.FORMS, "acme", launchers.FORMS["cpu"])
    monkeypatch.setattr(AcmeEvent, "recorded", 0)
    return "acme:0"


def test_it_is_found_by_name_and_refused_by_name(acme):
    assert device.find("acme") is device.find("acme:0") is DEVICE
    arena = Arena(small_plan(), device=acme)
    assert (arena.device, arena.backend, arena.on_gpu) == ("acme:0", DEVICE, True)
    with pytest.raises(ValueError, match="expected 'cuda', 'cuda:N', 'acme', 'acme:N' or 'cpu'"):
        device.find("tpu")


def test_a_captured_step_with_status_gives_the_bits_of_the_host(acme):
    found = []
    for name in ("cpu", acme):
        arena = Arena(small_plan("adamw"), device=name)
        for k, tensor in enumerate(arena.plan.weights()):
            rng = np.random.default_rng(k)
            arena[tensor] = rng.standard_normal(tensor.shape)
            arena[f"{tensor.name}#G"] = rng.standard_normal(tensor.shape)
        step = OptimizerStep(arena, lr=0.1, weight_decay=0.5)
        graph = Graph(arena, [step])
        for _ in range(3):
            graph.replay()
        assert step.status().step == 3
        found.append(host_bytes(Arena.wrap(arena.memory)))
    np.testing.assert_array_equal(*found)
    assert AcmeEvent.recorded == 1


def test_batches_arrive(acme):
    plan = MemoryPlan(PlanConfig("none"))
    plan.alloc_inputs(4, (4, 2, 2, 3), DType.FP32)
    arena = Arena(plan.finalize(), device=acme)
    batches = [(np.full((4, 2, 2, 3), k, np.float32), np.full(4, k)) for k in range(5)]
    for k, batch in enumerate(Prefetcher(arena, batches)):
        assert (batch.data == k).all() and (batch.label == k).all()
    h2d_copy(arena, "a", batches[3])
    assert (arena.download("input_a.data") == 3).all()
    assert AcmeEvent.recorded > 15
