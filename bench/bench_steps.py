"""pytest-benchmark suite: ``python -m pytest bench/bench_steps.py``; whole-model steps."""

from __future__ import annotations

import pytest

from bench import peers, steps
from plan import PlanConfig
from plan.models import MODELS, plan_model
from rangeops import Arena


@pytest.mark.parametrize("model", ["mlp", "resnet50"])
def bench_cpu_arena(benchmark, model):
    """AdamW on the CPU arena."""
    begin, adamw = steps.prepared(Arena(plan_model(MODELS[model](), PlanConfig("adamw")), "cpu"))
    begin()
    benchmark(adamw)


@pytest.mark.parametrize("model", ["mlp", "resnet50"])
def bench_numpy_loop(benchmark, model):
    """AdamW parameter by parameter in NumPy."""
    benchmark(peers.numpy_adamw(MODELS[model]()))
