"""driving: one optimizer drives an adopted module's arena, and how another takes it over."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Protocol

from plan import PlanError
from plan.scalars import FP32_SCALARS, INT32_SCALARS
from rangeops.optim.step import OptimizerStep
from rangeops.torch.adopt import Adopted, adopter_of

FRESH: dict[str, float] = {**FP32_SCALARS, **INT32_SCALARS}
"""The scalars of a fresh arena."""


class Driver(Protocol):
    """What is asked of an optimizer."""

    kinds: tuple[str, ...]
    param_groups: list[dict[str, Any]]
    _step: OptimizerStep
    _closed: str

    def _close(self, why: str) -> None: ...


def adopted_by(optimizer: Driver) -> Adopted:
    """Return what adopted an optimizer's parameters.

    Raises:
        PlanError: nothing did, or for another optimizer.

    """
    name = type(optimizer).__name__
    adopted = adopter_of([p for group in optimizer.param_groups for p in group["params"]])
    kind = adopted.arena.planned(name).config.kind.label
    if kind not in optimizer.kinds:
        raise PlanError(
            f"{name}: the module was adopted for {kind}, expected {' or '.join(optimizer.kinds)}; "
            "adopt it for that"
        )
    return adopted


def drive(optimizer: Driver, adopted: Adopted, **options: Any) -> OptimizerStep:
    """Return the step of a new optimizer, with which moments, steps and averages begin anew.

    One before it over some of the same parameters is closed, and what only that one was given
    ("growth_interval", "clip_norm") is as in a fresh arena.  If the new one cannot be, the one
    before goes on as it was.

    Raises:
        PlanError: another optimizer drives the module through other parameters.

    """
    before, owner, name = _before(optimizer, adopted), adopted.arena.owner, type(optimizer).__name__
    held = None if before is None else (before._step, owner.options)
    if held is not None:
        owner.leave(held[0])
    try:
        step = OptimizerStep(adopted.arena, **options)
    except BaseException:
        if held is not None:
            owner.take(adopted.arena, *held, True)
        raise
    if before is not None:
        before._close(f"a new {name} was made over its parameters, use that one")
    left = {n: FRESH[n] for n in adopted.given if n in FRESH and n not in options}
    adopted.arena.scalars.set(**left)
    adopted.given = set(options)
    adopted.hooks.give(0, {})
    adopted.driver = weakref.ref(optimizer)
    return step


def _before(optimizer: Driver, adopted: Adopted) -> Driver | None:
    """Return the optimizer that drives a module so far, refusing one of other parameters."""
    if _stranger(optimizer, adopted):
        gc.collect()  # one that nobody holds any more may wait in a cycle
    if _stranger(optimizer, adopted):
        raise PlanError(
            f"{type(optimizer).__name__}: got other parameters of a module that another optimizer "
            f"({type(_driver(adopted)).__name__}) drives, expected one for a module; adopt its "
            "parts apart, give both as param groups of one optimizer, or close() the other"
        )
    return _driver(adopted)


def _driver(adopted: Adopted) -> Driver | None:
    """Return the optimizer that drives a module, if there is one."""
    driver: Driver | None = adopted.driver() if adopted.driver is not None else None
    return None if driver is None or driver._closed else driver


def _stranger(optimizer: Driver, adopted: Adopted) -> bool:
    """Return whether the module's driver shares no parameter with ``optimizer``."""
    driver = _driver(adopted)
    if driver is None:
        return False
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return not any(id(p) in own for group in driver.param_groups for p in group["params"])
