"""Which kernels there are, and which of them are built without a GPU.

Ops that differ by coefficients alone share a kernel, so a kernel is looked at once, as that of the
first op which has it.  The simulator runs them all.  To compile and link one for five GPUs takes
most of a second (``python -m tests.kernels.inspect_builds``), so without a GPU those are built
that differ in what a compiler sees: every option is a branch of its own, and it is there alone and
with all others.  Optimizers have one shape and differ in the rule, so one of them stands for the
others where an option is alone; bf16 differs from fp16 by two conversions, so the variant with
everything stands for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rangeops import REGISTRY
from rangeops.device.streams import gpu_count
from rangeops.launch.op import RangeOp

OPS = tuple(op for op in REGISTRY.values() if op.__module__.startswith("rangeops."))
"""The library's own ops; tests declare others."""

STANDS_FOR_OPTIMIZERS = "adam"
"""The optimizer of which every option is built alone: the rule with the most operands."""


def on(flags: dict[str, Any]) -> int:
    """Return the number of options that a variant has."""
    return sum(value is True for value in flags.values())


def extreme(op: RangeOp, flags: dict[str, Any]) -> bool:
    """Return whether a variant has no option, or all that go with its half format."""
    alike = [other for other in op.variants() if other.get("half") == flags.get("half")]
    return on(flags) in (0, max(map(on, alike)))


def kernels() -> Iterator[tuple[RangeOp, dict[str, Any]]]:
    """Yield every kernel once, as an op and its flags."""
    seen: set[tuple[str, str]] = set()
    for op in OPS:
        for flags in op.variants():
            key = op.kernel.name, repr(sorted(flags.items()))
            if key not in seen:
                seen.add(key)
                yield op, flags


def built(op: RangeOp, flags: dict[str, Any]) -> bool:
    """Return whether a kernel is built on this machine: all are where there is a GPU."""
    if gpu_count() or extreme(op, flags):
        return True
    if flags.get("half") == "bf16" or on(flags) > 1:
        return False
    return op.settings is None or op.name == STANDS_FOR_OPTIMIZERS
