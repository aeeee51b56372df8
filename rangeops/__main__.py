"""``python -m rangeops``: verify every op against its reference, or show one op's sources.

python -m rangeops verify resnet50 --half fp16 --ema     what a model's plan has regions for
python -m rangeops verify every                          every op, on plans of every optimizer
python -m rangeops show adamw --half fp16 --flag ema     kernel, loop and reference side by side
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator

from plan.config import OptimizerKind, PlanConfig
from plan.models import MODELS, plan_model
from plan.terminal import run
from rangeops.arena.arena import Arena
from rangeops.launch.op import REGISTRY
from rangeops.show import show
from rangeops.verify import Verdict, verify_all, verify_every_op


def main() -> int:
    """Parse the command line and run the command; 1 if an op differs from its reference."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m rangeops", None, __doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="compare ops with their references, bit for bit")
    verify.add_argument("model", nargs="?", default="mlp", choices=[*sorted(MODELS), "every"])
    verify.add_argument("--half", choices=("fp16", "bf16"))
    verify.add_argument("--ema", action="store_true")
    verify.add_argument("--optimizer", default="adamw", choices=[k.label for k in OptimizerKind])
    verify.add_argument("--device", help="cuda, cuda:N or cpu; default: a GPU where there is one")
    look = commands.add_parser("show", help="print an op's kernel, CPU loop and reference")
    look.add_argument("op", choices=sorted(REGISTRY))
    look.add_argument("--half", choices=("fp16", "bf16"))
    look.add_argument("--flag", action="append", default=[], help="a flag to set, or NAME=VALUE")
    options = parser.parse_args()
    return shown(options) if options.command == "show" else verified(options)


def shown(options: argparse.Namespace) -> int:
    """Print one op's sources."""
    wanted = {name: value or True for name, _, value in (f.partition("=") for f in options.flag)}
    wanted |= {"half": options.half} if options.half else {}
    try:
        print(show(REGISTRY[options.op], wanted, shutil.get_terminal_size((200, 50)).columns))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def verdicts(options: argparse.Namespace) -> Iterator[Verdict]:
    """Yield the verdicts that the command line asks for."""
    if options.model == "every":
        return verify_every_op(options.device, half=options.half or "fp16")
    config = PlanConfig(options.optimizer, half=options.half, ema=options.ema)
    arena = Arena(plan_model(MODELS[options.model](), config), device=options.device)
    return verify_all(arena)


def verified(options: argparse.Namespace) -> int:
    """Print a line per op and variant; 1 if any differs."""
    wrong = 0
    for verdict in verdicts(options):
        on = ", ".join(k if v is True else f"{k}={v}" for k, v in verdict.flags.items() if v)
        wrong += verdict.difference is not None
        print(f"{verdict.op:20} {verdict.elements:12,} {verdict.difference or 'equal':8} {on}")
    print(f"{wrong} of the variants differ" if wrong else "all equal")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(run(main))
