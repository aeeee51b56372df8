"""gather: half gradients of micro-batches added up in FP32, where the plan has room for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from plan import MemoryPlan, PlanError
from rangeops import ops
from rangeops.arena.arena import Arena
from rangeops.launch.launch import BoundLaunch


class Several:
    """Launches that are called as one.

    Attributes:
        nbytes: bytes that one call moves.

    """

    def __init__(self, launches: Iterable[BoundLaunch]) -> None:
        self._launches = tuple(launches)
        self.nbytes = sum(launch.nbytes for launch in self._launches)

    def __call__(self, stream: Any = None) -> None:
        """Launch them in order on ``stream`` (default: the framework's current one)."""
        for launch in self._launches:
            launch(stream)


def accumulates(plan: MemoryPlan, accumulate: bool | None) -> bool:
    """Return whether micro-batches are gathered, refusing where the plan has no room for it."""
    config = plan.config
    if accumulate and not config.accumulate:
        raise PlanError(
            f"OptimizerStep: accumulate got True for a plan with half={config.half!r} and no FP32 "
            "gradients beside half ones, expected PlanConfig(half=..., accumulate=True); plan so, "
            "or leave it out: FP32 gradients add up where they lie"
        )
    return config.accumulate if accumulate is None else accumulate


def gathering(arena: Arena, plan: MemoryPlan) -> Iterator[BoundLaunch]:
    """Bind what adds half gradients to FP32 ones, for what of them is in use."""
    spans = zip(plan.in_use("G", "weight"), plan.in_use("G", "weight", half=True), strict=True)
    for full, half in spans:
        yield ops.accumulate_grad.bind(arena, g=full, h=half)
