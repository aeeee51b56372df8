"""What planning costs the host: layout and checks, the granule table, JSON and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bench import timing
from bench.rows import row
from bench.topic import Topic
from plan import PlanConfig, Region, from_json, segments, to_json
from plan.models import MODELS, ParameterSpec, plan_model

MANY = [ParameterSpec(f"t{k}", "fc_weight", (50, 50)) for k in range(10_000)]
"""A model of 10,000 tensors: 50,000 slots with AdamW's state."""


def cases(quick: bool) -> dict[str, list[ParameterSpec]]:
    """Return the models that are planned, by name."""
    names = ("mlp", "resnet50") if quick else sorted(MODELS)
    found = {name: MODELS[name]() for name in names}
    return found if quick else {**found, "10,000 tensors": MANY}


def subjects(specs: list[ParameterSpec]) -> dict[str, Callable[[], Any]]:
    """Return what is timed on one model, planned with halves and EMA, by name."""
    config = PlanConfig("adamw", half="fp16", ema=True)
    plan = plan_model(specs, config)
    text = to_json(plan)
    return {
        "plan and finalize": partial(plan_model, specs, config),
        "segments": partial(segments, plan, Region.W_BN_BIAS, Region.W_DEEP_CONV),
        "to_json": partial(to_json, plan),
        "from_json": partial(from_json, text),
    }


def rows(quick: bool) -> Iterator[dict[str, Any]]:
    """Time every subject on every model."""
    for model, specs in cases(quick).items():
        for name, call in subjects(specs).items():
            yield row("planner", model, name, timing.cpu(call, 0.1 if quick else 0.5))


TOPIC = Topic(
    "planner",
    rows,
    {
        "planner": (
            "Planning on the host",
            {"case": "model", "subject": "what", "ms": "ms", "spread": "spread"},
        )
    },
    gpus=0,
)
