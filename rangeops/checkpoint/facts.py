"""facts: what a file says beside its tensors, checked before any of it is believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from plan import MemoryPlan, PlanError
from plan.scalars import INT32_SCALARS
from rangeops.arena.arena import Arena
from rangeops.arena.settings import stored
from rangeops.checkpoint.contents import scalars_of

MOST_STEPS = 2**31 - 1

LARGEST = (2 - 2**-23) * 2.0**127


def checked(arena: Arena, facts: Mapping[str, Any], strict: bool) -> dict[str, Any]:
    """Return the facts of a file, without scalars that the plan has not.

    Raises:
        PlanError: values that cannot be; with ``strict`` also names that only the file has, or
            only the plan.

    """
    wanted = scalars_of(arena.planned("load"))
    try:
        scalars = {name: v for name, v in facts["scalars"].items() if name in wanted}
        for name, value in scalars.items():
            _check_number(name, value)
        arena.scalars.check(**scalars)
        scalars["step"]  # a file without one is none of save's
        for name, step in facts["steps"].items():
            if type(step) is not int or not 0 <= step <= MOST_STEPS:
                raise ValueError(f"step of {name} is {step!r}")
        _check_groups(facts["groups"])
        for name in ("options", "config"):
            if not isinstance(facts[name], dict):
                raise TypeError(f"{name} is {facts[name]!r}")
        facts["extra"]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanError(f"load: the file has damaged facts ({error!r}); give another") from None
    if strict:
        _check_names(arena.planned("load"), facts)
    return {**facts, "scalars": scalars}


def _check_number(name: str, value: Any) -> None:
    """Refuse what is no number of a scalar's type."""
    kinds = (int,) if name in INT32_SCALARS else (int, float)
    if type(value) not in kinds or not abs(value) <= LARGEST:
        raise ValueError(f"{name} is {value!r}")


def _check_groups(facts: Mapping[str, Any]) -> None:
    """Refuse groups whose settings cannot be, or whose members are no names."""
    lists = [facts["frozen"], facts["resting"]]
    for group in facts["groups"].values():
        stored(group["settings"])
        lists.append(group["of"])
    for names in lists:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"{names!r} are no names")
    members = [name for names in lists[2:] for name in names]
    if len(members) != len(set(members)):
        raise ValueError("a tensor is in two groups")


def _check_names(plan: MemoryPlan, facts: Mapping[str, Any]) -> None:
    """Refuse facts that are not about exactly the plan's scalars and weights."""
    weights, groups = [tensor.name for tensor in plan.weights()], facts["groups"]
    members = [name for group in groups["groups"].values() for name in group["of"]]
    _check_same("scalar", facts["scalars"], scalars_of(plan))
    _check_same("the step of", facts["steps"], weights)
    _check_same("the group of", members, weights)
    for what in ("frozen", "resting"):
        _check_same(f"{what} tensor", [*weights, *groups[what]], weights)


def _check_same(what: str, found: Iterable[str], wanted: Iterable[str]) -> None:
    here, there = set(wanted), set(found)
    for name in sorted(here ^ there):
        has, lacks = ("plan", "file") if name in here else ("file", "plan")
        raise PlanError(
            f"load: the {has} has {what} {name}, the {lacks} has none, expected it in both; use "
            "strict=False for what both have"
        )
