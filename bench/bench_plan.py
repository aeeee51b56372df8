"""pytest-benchmark suite: ``python -m pytest bench/bench_plan.py``; planning."""

from __future__ import annotations

import pytest

from plan import PlanConfig
from plan.models import MODELS, ParameterSpec, plan_model

TENSORS = [ParameterSpec(f"t{k}", "fc_weight", (50, 50)) for k in range(10_000)]


@pytest.mark.parametrize("model", sorted(MODELS))
def bench_real_models(benchmark, model):
    """A real model with everything on."""
    benchmark(plan_model, MODELS[model](), PlanConfig("adamw", half="fp16", ema=True))


def bench_ten_thousand_tensors(benchmark):
    """10,000 tensors with AdamW's state: 50,000 slots."""
    benchmark(plan_model, TENSORS)
