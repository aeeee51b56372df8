"""Which kernel variants are built and run: all on a machine with a GPU, else those that differ.

Compiling all takes two cores five minutes, and the simulator runs them slowly.  Every option is a
branch of its own, so each is taken alone and all together; of the optimizers, which share one
kernel factory, alone for AdamW only.  bf16 differs from fp16 by the two conversions, a second kind
of weight decay in the rule: there the variant with everything stands for the rest.
"""

from __future__ import annotations

from rangeops.device.streams import gpu_count

FACTORY = ("sgd", "momentum", "nesterov", "adam", "lars", "lion")
"""Optimizers whose kernel is AdamW's but for the rule."""


def on(flags) -> int:
    """Return the number of options that a variant has."""
    return sum(value is True for value in flags.values())


def chosen(op, flags) -> bool:
    """Whether a variant is looked at on this machine."""
    if gpu_count():
        return True
    alike = [
        other
        for other in op.variants()
        if all(other.get(name) == flags.get(name) for name in ("half", "decay"))
    ]
    if on(flags) == max(map(on, alike)):
        return True
    if flags.get("half") == "bf16" or flags.get("decay") != op.flags.get("decay", (None,))[0]:
        return False
    return on(flags) <= (0 if op.name in FACTORY else 1)
