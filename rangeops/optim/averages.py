"""averaged: the averaged weights in the place of the live ones, for a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from plan import PlanError, Range
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.arena.ownership import restart_average


@contextmanager
def averaged(arena: Arena) -> Iterator[Arena]:
    """Run the block with the averaged weights where the live ones lie, then put those back.

    Exchanges to the bit and refreshes the half copy.  Inside a block another one changes nothing,
    so a helper that evaluates may be called anywhere.  Steps and checkpoints know of it: a step is
    refused, ``rangeops.save`` writes live and averaged weights by what they are.

    >>> from plan import PlanConfig
    >>> from plan.models import mlp, plan_model
    >>> arena = Arena(plan_model(mlp((2, 1)), PlanConfig("sgd", ema=True)), device="cpu")
    >>> arena["layers.0.weight"], arena["layers.0.weight#E"] = 1.0, 0.5
    >>> arena.scalars.step = 1
    >>> with averaged(arena):
    ...     float(arena["layers.0.weight"][0, 0])
    0.5

    Raises:
        PlanError: no plan, or one without averages.

    """
    plan = arena.planned("averaged")
    if not plan.config.ema:
        raise PlanError(
            "averaged: got a plan without averages, expected PlanConfig(..., ema=True); plan so"
        )
    if arena.owner.swapped:
        yield arena
        return
    if (
        not arena.scalars.step
    ):  # until the first step the average is the weights, whoever wrote them
        restart_average(arena)
    swap(arena)
    try:
        yield arena
    finally:
        swap(arena)


def swap(arena: Arena) -> None:
    """Exchange live and averaged weights of everything that has an average."""
    plan = arena.planned("swap")
    half = plan.series_range("A").size > 0
    if not plan.idle:
        ops.sema_switch(arena, swap=True, half_copy=half)
        return
    for part in ("bias", "weight"):
        averages, weights = plan.series_range("E", part), plan.series_range("W", part)
        for e in plan.in_use("E", part):
            first = e.base_offset - averages.base_offset
            p, a = Range(weights.base_offset + first, e.size), None
            if half and part == "weight":
                copies = plan.series_range("A").base_offset
                a = Range(copies + first // 2, e.size // 2)
            ops.sema_switch(arena, p, e, a, swap=True)
