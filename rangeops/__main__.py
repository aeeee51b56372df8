"""``python -m rangeops verify resnet50 --half fp16 --ema``: every op against its reference."""

from __future__ import annotations

import argparse
import sys

from plan.config import OptimizerKind, PlanConfig
from plan.models import MODELS, plan_model
from rangeops.arena.arena import Arena
from rangeops.verify import verify_all


def main() -> int:
    """Parse the command line, print a line per op and variant; 1 if any differs."""
    parser = argparse.ArgumentParser(prog="python -m rangeops", description=__doc__)
    parser.add_argument("command", choices=("verify",))
    parser.add_argument("model", nargs="?", default="mlp", choices=sorted(MODELS))
    parser.add_argument("--half", choices=("fp16", "bf16"))
    parser.add_argument("--ema", action="store_true")
    parser.add_argument("--optimizer", default="adamw", choices=[k.label for k in OptimizerKind])
    parser.add_argument("--device", help="cuda, cuda:N or cpu; default: a GPU where there is one")
    options = parser.parse_args()
    config = PlanConfig(options.optimizer, half=options.half, ema=options.ema)
    arena = Arena(plan_model(MODELS[options.model](), config), device=options.device)
    wrong = 0
    for verdict in verify_all(arena):
        on = ", ".join(k if v is True else f"{k}={v}" for k, v in verdict.flags.items() if v)
        wrong += verdict.difference is not None
        print(f"{verdict.op:20} {verdict.elements:12,} {verdict.difference or 'equal':8} {on}")
    print(
        f"{arena.device}: {wrong} of the variants differ" if wrong else f"{arena.device}: all equal"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
