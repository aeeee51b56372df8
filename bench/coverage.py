"""Every op of the registry with the plan that it runs on: what is verified and what is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from plan import MemoryPlan
from plan.models import ParameterSpec, mlp
from rangeops import REGISTRY, RangeOp
from rangeops.verify import Verdict, every_plan, planned_variants, verify_every_op

Choice = Callable[[RangeOp, dict[str, Any]], bool]
"""``choice(op, arguments)``: whether a variant is one of those wanted."""


class Case(NamedTuple):
    """A variant of an op: its name, the op, and what binds it on an arena of its plan."""

    name: str
    op: RangeOp
    arguments: dict[str, Any]


def switched_on(op: RangeOp, arguments: dict[str, Any]) -> list[str]:
    """Return the names of the flags that are on."""
    return [name for name in op.flags if arguments.get(name) is True]


def fullest(op: RangeOp, arguments: dict[str, Any], half: str = "fp16") -> bool:
    """Whether a variant has everything that its op can fuse."""
    *_, last = (flags for flags in op.variants() if flags.get("half") in (None, half))
    return all(arguments.get(name) == value for name, value in last.items() if name != "half")


def shown(op: RangeOp, arguments: dict[str, Any]) -> bool:
    """Whether a variant is timed: each op alone, and everything an update can fuse."""
    on = set(switched_on(op, arguments))
    return not on or on in ({"half_grad"}, {"swap"}, {"clip"}) or len(on) >= 4


def cases(
    specs: Sequence[ParameterSpec], choice: Choice, half: str = "fp16"
) -> Iterator[tuple[MemoryPlan, list[Case]]]:
    """Yield plans with the variants that run on each; a variant comes once, on the first plan."""
    done: set[str] = set()
    for plan in every_plan(specs, half):
        found = []
        for op in REGISTRY.values():
            for arguments in planned_variants(op, plan):
                chosen = [arguments[name] for name in op.flags if type(arguments.get(name)) is str]
                name = " ".join([op.name, *chosen, *switched_on(op, arguments)])
                if name not in done and choice(op, arguments):
                    done.add(name)
                    found.append(Case(name, op, arguments))
        if found:
            yield plan, found


def verdicts(device: str, quick: bool) -> Iterator[Verdict]:
    """Verify every op against its reference.

    On a GPU every variant with each half format; on the CPU, where a loop takes a second to
    compile, the variants that are timed.  Quick: with everything that each op can fuse.

    Raises:
        ValueError: an op of which no variant was compared; behind the last verdict.

    """
    if quick:
        yield from verify_every_op(device, only=fullest)
    elif device == "cpu":
        yield from verify_every_op(device, mlp(), only=shown)
    else:
        for half in ("fp16", "bf16"):
            yield from verify_every_op(device, mlp(), half=half)
