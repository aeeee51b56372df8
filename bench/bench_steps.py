"""pytest-benchmark suite of every optimizer's whole-model step, against parameter by parameter.

On the CPU arena against the loop in NumPy, and torch's ways where it is installed; on a GPU eager
and in a graph, against torch's.  With ``RANGEOPS_BENCH_QUICK=1`` on the perceptron alone.
"""

from __future__ import annotations

import pytest

from bench import peers
from bench.suites import DEVICE, QUICK, waiting
from bench.topics import steps
from plan.models import MODELS

NAMES = ("mlp",) if QUICK else ("mlp", "resnet50")
OURS = {"rangeops": lambda step: step} | (
    {"rangeops, graph": lambda step: step.capture().replay} if DEVICE == "cuda" else {}
)


@pytest.mark.parametrize("model", NAMES)
@pytest.mark.parametrize(
    ("kind", "way"),
    [(kind, way) for kind in steps.KINDS for way in (*OURS, *peers.ways(kind, DEVICE))],
)
def bench_step(benchmark, model, kind, way):
    """One step of one optimizer, one way."""
    specs = MODELS[model]()
    if way in OURS:
        call = OURS[way](steps.step_of(kind, specs, DEVICE))
    else:
        call = peers.ways(kind, DEVICE)[way](specs)
    benchmark.group = f"{kind} step: {model}"
    benchmark(waiting(call))
