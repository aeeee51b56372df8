"""contents: what of an arena a checkpoint has: tensors by name, and facts."""

from __future__ import annotations

from typing import Any

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
    """
    names = names_of(arena.planned("save"))
    swapped, begun = arena.owner.swapped, bool(arena.scalars.step)
    out = dict(names)
    for name in names:
        average = f"{PREFIXES['E']}{name}"
        if average in names and names[name].region.series == "W":
            if swapped:
                out[name] = names[average]
            if swapped or not begun:
                out[average] = names[name]
    return out


def facts_of(arena: Arena, extra: Any) -> dict[str, Any]:
    """Return what a checkpoint says beside its tensors."""
    plan, scalars = arena.planned("save"), arena.scalars
    config = plan.config
    numbers = [n for n in (*FP32_SCALARS, *INT32_SCALARS) if n not in PASSING]
    return {
        "config": {"optimizer": config.kind.label, "half": config.half, "ema": config.ema},
        "kinds": {parameter.name: parameter.kind for parameter in plan.parameters.values()},
        "scalars": {name: scalars.get(name) for name in (*numbers, *config.own_scalars)},
        "steps": arena.groups.steps() if plan.weights() else {},
        "groups": arena.groups.state() if plan.weights() else {"groups": {}, "frozen": []},
        "options": arena.owner.options,
        "swapped": arena.owner.swapped,
        "extra": extra,
    }
