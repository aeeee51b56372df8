"""copies: an arena copied or pickled is a whole arena of its own, or one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from plan import MemoryPlan, PlanError, Range
from rangeops.arena.sparse import outside


def cloned(arena: Any) -> Any:
    """Return an arena of its own memory on the same device with the same bytes, groups and facts.

    Raises:
        PlanError: the arena wraps a buffer without a plan, whose owner alone can copy it.

    """
    plan = _planned(arena)
    new = type(arena)(plan, device=arena.device, unmapped=arena.unmapped)
    new.framework = arena.framework
    with arena.backend.current():
        for part in _parts(arena):
            new.memory[part.base_offset : part.end] = arena.memory[part.base_offset : part.end]
        arena.backend.synchronize()
    return _with_facts(new, _facts(arena))


def reduced(arena: Any) -> tuple[Any, ...]:
    """Return what pickle keeps of an arena: plan, kind of device, bytes and facts.

    Raises:
        PlanError: as of ``cloned``.

    """
    plan = _planned(arena)
    parts = [(part, arena.read(part)) for part in _parts(arena)]
    kind = arena.backend.kind
    return restored, (type(arena), plan, kind, arena.unmapped, parts, _facts(arena))


def restored(
    cls: Any,
    plan: MemoryPlan,
    kind: str,
    unmapped: tuple[Range, ...],
    parts: list[tuple[Range, np.ndarray[Any, Any]]],
    facts: dict[str, Any],
) -> Any:
    """Return the arena that ``reduced`` took apart."""
    arena = cls(plan, device=kind, unmapped=unmapped)
    for part, values in parts:
        arena.write(part.base_offset, values)
    return _with_facts(arena, facts)


def _planned(arena: Any) -> MemoryPlan:
    if arena.plan is None:
        raise PlanError(
            "Arena: got a copy or a pickle of an arena over a caller's buffer, expected one with a "
            "plan; copy the buffer and wrap the copy"
        )
    return arena.plan


def _parts(arena: Any) -> list[Range]:
    return outside(arena.holes, Range(0, arena.planned("Arena").total_bytes))


def _facts(arena: Any) -> dict[str, Any]:
    weights = bool(arena.planned("Arena").weights())
    groups = (arena.groups.state(), arena.groups.resting) if weights else None
    return {"groups": groups, "owner": arena.owner.facts()}


def _with_facts(arena: Any, facts: dict[str, Any]) -> Any:
    if facts["groups"] is not None:
        state, resting = facts["groups"]
        arena.groups.restore(state)
        arena.groups.rest(resting)
    arena.owner.adopt(facts["owner"])
    return arena
