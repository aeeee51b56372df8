"""contents: what of an arena a checkpoint has: tensors by name, and facts."""

from __future__ import annotations

from typing import Any

import numpy as np

from plan import DTensor, MemoryPlan, PlanError
from plan.region import series_regions
from plan.scalars import FP32_SCALARS, INT32_SCALARS
from rangeops.arena.arena import Arena

PREFIXES = {"W": "", "M": "m.", "V": "v.", "E": "ema."}
"""What the names of a series begin with."""

MOMENTS = "MV"

PASSING = frozenset(
    {"ranks", "ticket", "poisoned", "found_inf", "skip_step", "settings", "settings_inverse"}
    | {"grad_norm", "first_nonfinite", "nonfinite_granule"}
)
"""Scalars that are of a machine or of a moment, not of a run."""


def names_of(plan: MemoryPlan) -> dict[str, DTensor]:
    """Return every tensor of a plan that a checkpoint has, by its name there.

    Raises:
        PlanError: two of them have one name.

    """
    out: dict[str, DTensor] = {}
    weights = plan.weights()
    for letter, prefix in PREFIXES.items():
        regions = series_regions(letter)
        tensors = plan.tensors_in(regions[0], regions[-1])
        for weight, tensor in zip(weights, tensors, strict=False):
            if letter == "W" or not plan.is_frozen(weight.name):
                _enter(out, f"{prefix}{weight.name}", tensor)
    for tensor in plan:
        if tensor.region.series == "B":
            _enter(out, f"stats.{tensor.name}", tensor)
    return out


def _enter(out: dict[str, DTensor], name: str, tensor: DTensor) -> None:
    if name in out:
        raise PlanError(
            f"checkpoint: {tensor.name} and {out[name].name} would both be named {name}, expected "
            "a name for each; rename the parameter"
        )
    out[name] = tensor


def sources_of(arena: Arena) -> dict[str, DTensor]:
    """Return where the values of every tensor of a checkpoint lie now.

    Live and averaged weights may be exchanged, and before the first step the average is the weight.

    Raises:
        PlanError: as of ``names_of``; a tensor of which only a part is exchanged.

    """
    names = names_of(arena.planned("save"))
    begun = bool(arena.scalars.step)
    out = dict(names)
    for name, live in names.items():
        averaged = f"{PREFIXES['E']}{name}"
        if live.region.series != "W" or averaged not in names:
            continue
        average = names[averaged]
        if _exchanged(arena, live):
            live, average = average, live
        out[name], out[averaged] = live, average if begun else live
    return out


def _exchanged(arena: Arena, weight: DTensor) -> bool:
    """Return whether the average of a weight lies where the weight belongs."""
    first, end, odd = weight.offset, weight.offset + weight.nbytes, False
    for span in arena.owner.facts()["swapped"]:
        inside = span.base_offset <= first and end <= span.end
        if not inside and first < span.end and span.base_offset < end:
            raise PlanError(
                f"save: a part of {weight.name} is exchanged with its average, expected all or "
                "none of it; exchange it back first"
            )
        odd ^= inside
    return odd


def scalars_of(plan: MemoryPlan) -> tuple[str, ...]:
    """Return the names of the scalars that a checkpoint has."""
    numbers = (n for n in (*FP32_SCALARS, *INT32_SCALARS) if n not in PASSING)
    return (*numbers, *plan.config.own_scalars)


def facts_of(arena: Arena, extra: Any) -> dict[str, Any]:
    """Return what a checkpoint says beside its tensors.

    What was planned as frozen is the plan's affair: another plan may train it.
    """
    plan, scalars = arena.planned("save"), arena.scalars
    config, options = plan.config, arena.owner.options
    groups: dict[str, Any] = {"groups": {}, "frozen": [], "resting": []}
    if plan.weights():
        groups = arena.groups.state() | {"resting": list(arena.groups.resting)}
        groups["frozen"] = [name for name in groups["frozen"] if not plan.is_frozen(name)]
    return {
        "config": {"optimizer": config.kind.label, "half": config.half, "ema": config.ema},
        "kinds": {parameter.name: parameter.kind for parameter in plan.parameters.values()},
        "scalars": {name: scalars.get(name) for name in scalars_of(plan)},
        "steps": arena.groups.steps() if plan.weights() else {},
        "groups": groups,
        "options": {n: v.item() if isinstance(v, np.generic) else v for n, v in options.items()},
        "swapped": arena.owner.swapped,
        "extra": extra,
    }
