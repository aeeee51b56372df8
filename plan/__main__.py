"""Draw a layout as text: ``python -m plan resnet50 --half fp16 --ema --optimizer adamw``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import prod

from plan.config import OptimizerKind, PlanConfig
from plan.memory_plan import MemoryPlan
from plan.models import MODELS, plan_model
from plan.region import Region
from plan.terminal import run

BAR = 40


def draw(plan: MemoryPlan) -> Iterator[str]:
    """Yield the lines of a drawing: every populated region to scale, the total, the padding."""
    largest = max(plan.range(region).size for region in Region)
    yield f"{'region':22} {'offset':>15} {'bytes':>15} {'share':>6}  tensors"
    for region in Region:
        base, size = plan.range(region)
        if size:
            bar = "█" * round(BAR * size / largest) or "▏"
            count = len(plan.tensors_in(region))
            share = size / plan.total_bytes
            yield f"{region.name:22} {base:15,} {size:15,} {share:6.1%}  {count:<5} {bar}"
    payload = sum(prod(t.shape) * t.dtype.itemsize for t in plan)
    padding = 1 - payload / plan.total_bytes
    yield f"{'total':22} {'':15} {plan.total_bytes:15,}         padding {padding:.2%}"


def main() -> None:
    """Parse the command line and print the drawing."""
    parser = argparse.ArgumentParser(prog="python -m plan", description=__doc__)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--half", choices=("fp16", "bf16"))
    parser.add_argument("--ema", action="store_true")
    parser.add_argument(
        "--optimizer", default="adamw", choices=[kind.label for kind in OptimizerKind]
    )
    options = parser.parse_args()
    config = PlanConfig(options.optimizer, half=options.half, ema=options.ema)
    specs = MODELS[options.model]()
    print(
        f"{options.model}: {len(specs)} tensors, {sum(prod(s.shape) for s in specs):,} parameters, "
        f"{config.kind.label}, half={config.half}, ema={config.ema}"
    )
    print("\n".join(draw(plan_model(specs, config))))


if __name__ == "__main__":
    sys.exit(run(main))
